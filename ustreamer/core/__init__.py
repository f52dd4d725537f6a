# SPDX-License-Identifier: Apache-2.0
"""The routing core: messages come in, verdicts and queued messages go out.

    base/       clock, deadlines, link states
    delivery/   one target of one topic: filters, verdicts, the ledger, ttl
    routing/    from attributes to targets
    egress/     the queue of one endpoint
    dispatch/   the path of a message through all of these; read dispatch/ingress.py first
    peers/      redundant streamers, an optional policy of the router
    storage/    files that survive a restart, for the host and for plugins

Synchronous, without I/O, threads or a clock of its own, except for storage: it decides, and `ustreamer.host` acts. Imports go from later to
earlier packages: dispatch and peers use egress, routing, delivery and base.
"""
