# SPDX-License-Identifier: Apache-2.0
"""WebSocket and RawSocket connections, without the protocol above them.

In: bytes from a socket. Out: complete WAMP messages for a session, and frames of replies and events, bounded for each
client by its outbox. One event loop on a thread of its own.

Read server.py first (listeners, the loop), then connection.py and outbox.py.
"""
