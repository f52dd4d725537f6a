# SPDX-License-Identifier: Apache-2.0
"""Redundant streamers on one network: which of them forwards what.

Read election.py first; topic_advertisements.py for publications.
"""
