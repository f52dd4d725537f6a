# SPDX-License-Identifier: Apache-2.0
"""One `[endpoints.<name>]` with `transport = "someip"`: sockets on one side, UMessages on the other.

This package wires `protocol`, `rpc`, `io`, `sd` and `discovery` to the transport port of the streamer.

In: datagrams and TCP messages from `io`; UMessages from the egress queues on any thread.
Out: UMessages to the registered listeners; datagrams, segments and TCP messages to `io`.

Read `transport.py` first: it holds all parts, and the receiving thread. Then follow one message: `inbound.py` from
bytes to listeners, with `event_batcher.py` and `listeners.py`; `outbound.py` from a message to bytes, with
`tp_sender.py` for long messages.
"""
