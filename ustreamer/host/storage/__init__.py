# SPDX-License-Identifier: Apache-2.0
"""Files that survive a restart: the spool of durable endpoints, and dead letters.

Read spool.py first.
"""
