# SPDX-License-Identifier: Apache-2.0
"""Requests and responses: which SOME/IP message is which UMessage, and which call it answers.

Read exchange.py first; fast_path.py shortens it for messages that repeat.
"""
