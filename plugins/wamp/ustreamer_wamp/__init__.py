# SPDX-License-Identifier: Apache-2.0
"""WAMP for uStreamer: a router for dashboards, as an endpoint of the streamer.

In: WAMP messages of clients over WebSocket or RawSocket, and uProtocol messages that the dispatcher sends to this
endpoint. Out: events and replies to clients, and the publications, Subscribe and Unsubscribe Requests of their
sessions.

    connections/   bytes to WAMP messages: sockets, framing, limits of slow clients
    vehicle/       WAMP topics to uProtocol topics, and sessions to subscriptions
    session.py     the protocol of one client; realm.py and broker.py: all clients together

Read session.py first for the protocol, transport.py for the way into the streamer.
"""
