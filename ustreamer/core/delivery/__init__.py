# SPDX-License-Identifier: Apache-2.0
"""One target of one topic: filters decide about each message, the ledger counts each verdict.

Read delivery.py first; ledger.py has the verdicts; expiry.py judges a ttl.
"""
