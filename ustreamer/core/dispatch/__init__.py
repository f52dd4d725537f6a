# SPDX-License-Identifier: Apache-2.0
"""The path of a message through the core: from the listener of an endpoint to the egress queues of its targets.

    ingress.py             one endpoint; read `Ingress.dispatch` first, from top to bottom
    delivery_registry.py   the deliveries of one ingress, by topic and target
    dedup_window.py        recently received message ids
    dispatcher.py          all ingresses, dead letters, error responses, and the ledger
    dispatcher_port.py     the dispatcher as its ingresses see it
    explain.py             the reasons of a routing decision, for people

Messages come in from transports. Deliveries pass them to the egress queues. The host provides threads and clocks.
"""
