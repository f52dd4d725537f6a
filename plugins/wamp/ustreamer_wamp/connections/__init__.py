# SPDX-License-Identifier: Apache-2.0
"""WebSocket and RawSocket connections: bytes in, WAMP messages out.

Read server.py first.
"""
