# SPDX-License-Identifier: Apache-2.0
"""Throttle: forwards a topic to each subscriber no faster than the subscriber requested.

In: deliveries with a period, from the dispatcher; their messages. Out: a verdict for each message (forwarded,
throttled, held). One gate for each delivery target and topic.

Read gate.py first: the algorithm and its bounds. plugin.py connects it to the filter hook.
"""
