# SPDX-License-Identifier: Apache-2.0
"""Redundant streamers: which of several streamers on one network forwards a message.

    forwarding.py             the `ForwardingPolicy` that router and ingress call; read it first
    election.py               announcements of peers, and the election for messages with a sink
    topic_advertisements.py   advertisements of topics, and the share of each streamer in a publication

Announcements and advertisements come in from transports (`ustreamer.transport_port.PeerTransport`). Roles and shares go
out to router and ingress, own announcements to the transports. Router and ingress do not import this package: without
it they use `ustreamer.core.routing.forwarding.FORWARD_ALL`.
"""
