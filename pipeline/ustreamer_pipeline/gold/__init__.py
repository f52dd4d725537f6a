# SPDX-License-Identifier: Apache-2.0
"""The audit: rows of the tables that violate a promise of the streamer.

In: the tables of silver. Out: a count for each rule and example rows for each violated rule.

Each rule is a class in rules/, with its promise. gateway_audit.py passes the rows of a gateway in order to all rules;
ordered_pass.py runs it on Spark, once per gateway. Rules on targets compare them with those that
predicted_targets.py derives from the subscribers of a topic, which topic_subscribers.py looks up. readable.py is about
recordings without a known gateway. audit.py combines all rules. Read audit.py first.
"""
