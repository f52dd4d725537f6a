# SPDX-License-Identifier: Apache-2.0
"""The audit: which rows break a promise of the streamer.

Read audit.py first; audit_rules.py has the promises.
"""
