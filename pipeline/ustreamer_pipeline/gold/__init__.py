# SPDX-License-Identifier: Apache-2.0
"""The audit: rows of the tables that violate a promise of the streamer.

In: the tables of silver. Out: a count for each rule and example rows for each violated rule.

Most rules are functions from tables to a frame of findings. audit_rules.py has the rules on single messages;
audit_ledger.py compares rows with the counters of the dispatcher. gateway_audit.py has the rules that need a gateway's
rows in order, and compares targets with those that predicted_targets.py derives from subscriptions; ordered_pass.py
runs it on Spark, once per gateway. audit.py combines all rules. Read audit.py first.
"""
