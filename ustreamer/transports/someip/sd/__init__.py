# SPDX-License-Identifier: Apache-2.0
"""SOME/IP service discovery (SOME/IP-SD): a codec and state machines, without threads and clocks.

In: decoded SOME/IP messages with peer and arrival time, service requests, timers, link state.
Out: ordered actions (`actions.py`): messages to send, services found and lost, subscriptions to decide.

Read `discovery.py` first: its `Discovery` is the whole of one network. It checks a received message
(`peers.py`, `codec.py`, `options.py`, `sessions.py`) and passes the entries to `server.py` (Offers and subscriptions
of ECUs) or `client.py` (Finds and own subscriptions). `phases.py` and `eventgroups.py` have the state tables.
`standby.py` and `peer_announcer.py` handle redundant streamers. `action_buffer.py` collects the actions.

Only `sockets.py` and `interface_monitor.py` touch the kernel. `discovery/sd_driver.py` of the transport connects them
with `Discovery`.
"""
