# SPDX-License-Identifier: Apache-2.0
"""WAMP for uStreamer: a router for dashboards, as an endpoint of the streamer.

In: WAMP messages of clients over WebSocket or RawSocket, and uProtocol messages that the dispatcher sends to this
endpoint. Out: events and replies to clients, their publications, and the Subscribe and Unsubscribe Requests for the
rates of their sessions.

    connections/   bytes to WAMP messages: sockets, framing, limits of slow clients
    vehicle/       WAMP topics to uProtocol topics, and rates of sessions to subscriptions
    session.py     the protocol of one client; realm.py and broker.py: all clients together
    sessions.py    all that clients can reach; process/ runs it in a process of its own

Read session.py first for the protocol, transport.py for the way into the streamer.
"""
