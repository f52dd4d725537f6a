# SPDX-License-Identifier: Apache-2.0
"""Recordings of a synthetic fleet, from a seed.

Read fleet.py first.
"""
