# SPDX-License-Identifier: Apache-2.0
"""The SOME/IP protocol without I/O: headers, ids, segments and streams.

Use this package to read or write SOME/IP. Nothing here opens a socket, reads a clock or starts a thread.

In: the bytes of a datagram or of a TCP stream, and the time where a deadline counts.
Out: `SomeIpMessage` values, `UAttributes`, error codes, and bytes to send.

Read `codec.py` first: one header, one message. Then `mapping.py`: SOME/IP ids to UUris and back. `correlation.py`
keeps the pending calls. `tp.py` and `tp_segmenter.py` are SOME/IP-TP, receiving and sending. `stream.py` and
`unacked_window.py` are SOME/IP over TCP, receiving and sending. The decisions about a whole message are one level up,
in the package `rpc`.
"""
