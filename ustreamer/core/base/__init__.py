# SPDX-License-Identifier: Apache-2.0
"""Clock, deadlines and link states: values that every other package of the core uses.

Read clock.py first.
"""
