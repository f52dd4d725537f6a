# SPDX-License-Identifier: Apache-2.0
"""Requests and responses: the decision about every SOME/IP message and every pending call.

Use this package to turn received SOME/IP messages into UMessages, and outgoing requests and responses into datagrams.
No sockets: `endpoint` passes in the bytes and the address, and sends the bytes that come out.

In: a decoded `SomeIpMessage`, a datagram or a `DatagramBatch`; outgoing Requests and Responses; the clock.
Out: a UMessage, a `RefusedMessage` with the reply to its sender, an `OutgoingRequest`, and the outcome of expired
calls.

Read `exchange.py` first: `Exchange.decode_message`, `open_call` and `build_reply` are the readable path.
`fast_path.py` is the fast path for repeated messages; in production plain RPC over UDP takes the fast path only.
`call_failures.py` holds the status texts of failed calls, `error_reply.py` the replies to malformed requests.
"""
