# SPDX-License-Identifier: Apache-2.0
"""The egress queue of one endpoint, as pure data structures: no thread, no lock, no clock, no disk.

In: messages with their delivery, from `host/egress/endpoint_queue.py`, which holds the lock.
Out: batches to send, by subscriber in round robin and by priority class; messages that were evicted or expired.

egress_queue.py      all queues of an endpoint with their common bounds; read it first
subscriber_queue.py  the queue of one subscriber: ready or paused
priority_queue.py    seven priority classes with weights
blocked_routes.py    messages that wait for a route to open
scheduler.py         round robin among subscriber queues, and the times of their next service
limits.py            bounds, the queued message
dead_letter.py       messages that could not be delivered, as publications
"""
