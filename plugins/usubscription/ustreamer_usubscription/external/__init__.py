# SPDX-License-Identifier: Apache-2.0
"""Follows the uSubscription of the streamer's authority where that is another process (`external = true`).

In: its lists and updates. Out: the directory for routing. No subscription is made or stored here.

Read service.py: when it asks, and when a subscription ends. codec.py has the messages, list_requests.py the
requests that wait for an answer.
"""
