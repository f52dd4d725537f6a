# SPDX-License-Identifier: Apache-2.0
"""Sockets of a SOME/IP endpoint: the only place that receives and sends datagrams and TCP streams.

Use this package to move bytes. The meaning of a message is decided in `rpc`.

In: file descriptors with input, bytes to send, and the addresses of peers. Out: single datagrams, a `DatagramBatch`,
messages of TCP streams, and routes that are unblocked.

Read `receive_loop.py` first: the receiving thread, with `poller.py` below it and `adaptive_reader.py` for its
sockets, and `receive_times.py` for the times of arrival at the host. `recvmmsg.py` and `gso_sender.py` are the batch paths of UDP. `connected_sockets.py` and
`multicast_groups.py` add sockets. TCP: `tcp_connections.py` first, then `tcp_peers.py` (queues per peer),
`tcp_connection.py` and `tcp_acceptor.py`.
"""
