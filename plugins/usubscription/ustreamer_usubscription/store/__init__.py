# SPDX-License-Identifier: Apache-2.0
"""The state on disk (LMDB): transactions in, records out; checked when it is opened.

Read store.py first; transaction.py is a change in memory; records.py has the layout.
"""
