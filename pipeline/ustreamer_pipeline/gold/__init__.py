# SPDX-License-Identifier: Apache-2.0
"""The audit: rows of the tables that violate a promise of the streamer.

In: the tables of silver. Out: a count for each rule and example rows for each violated rule.

A rule is a function from tables to a frame of findings. audit_rules.py has the rules on single messages;
audit_ledger.py compares rows with the counters of the dispatcher; audit.py combines the rules. Read audit.py first.
"""
