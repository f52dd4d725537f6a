# SPDX-License-Identifier: Apache-2.0
"""The vehicle side of a WAMP realm.

In: SUBSCRIBE, UNSUBSCRIBE and PUBLISH of sessions, messages from the dispatcher. Out: uProtocol publications, the
subscriptions of each session at uSubscription, events for the realm. No I/O.

Read bridge.py first, then mapping.py (topics by name), usubscription_client.py and pattern_subscriptions.py.
"""
