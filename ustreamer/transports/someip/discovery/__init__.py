# SPDX-License-Identifier: Apache-2.0
"""Service discovery of an endpoint: connects the state machines of `sd` with services, subscriptions and peers.

In: datagrams of the SD sockets, link changes, uSubscription messages, requests for dynamic services, announcements.
Out: SD datagrams, the addresses of located services, Updates to subscribers, events to subscribed ECUs.

Read `sd_driver.py` first: it feeds `sd.discovery.Discovery` and executes its actions with the other modules.
Towards ECUs that offer: `located_services.py`, `dynamic_services.py` and `usubscription_proxy.py` (subscriptions to
events of ECUs). Towards ECUs that subscribe: `event_subscriptions.py` (admission), `ecu_subscribers.py` (their
subscriptions at the own uSubscription) and `event_publisher.py` (sending). `service_registry.py` has the lookup tables
of the data path, `peer_streamers.py` the announcements of redundant streamers.
"""
