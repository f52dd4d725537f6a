# SPDX-License-Identifier: Apache-2.0
"""The egress queue of an endpoint, the thread that sends from it, and its copy on disk.

Each endpoint has one `EndpointQueue`. In: messages that the dispatcher has routed and filtered, each with its
delivery. Out: calls of the transport's transmitters, verdicts for the ledger, and undelivered messages for dead
letters and error responses.

A message is sent on the caller's thread while nothing waits and the transport has room. All other messages wait in the
queue for the endpoint's send thread. The queue itself (classes, limits, scheduling) is `ustreamer.core.egress`.

A durable endpoint has a `DurableQueue`: what waits longer than 10 ms is also written to the spool in `host/storage`.

Read endpoint_queue.py first, then send_worker.py (send thread, retries, blocked routes), then durable_queue.py. Its parts
are write_buffer.py and delete_buffer.py (records of the queue), sent_records.py (sent messages that may not have
arrived) and answered_first.py (a Request leaves the disk before its Response).
"""
