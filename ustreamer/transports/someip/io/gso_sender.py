# SPDX-License-Identifier: Apache-2.0
"""Sends many events to one receiver in one system call: the kernel splits it into datagrams (UDP_SEGMENT, Linux 4.18).

Fast path of `Outbound.event_transmitter`, which is its oracle: one `sendto` per event. Compared in
tests/transports/someip/endpoint/test_outbound.py. Column batches have a path of their own,
`transmit_column_batch`; compared with the messages of the batch, byte for byte, in
tests/transports/someip/io/test_gso_sender.py.

Over the loopback interface a datagram costs 0.5 us instead of 3.2. Where the kernel or the route does not support
UDP_SEGMENT, each datagram is sent alone. In: events and their header templates. Out: datagrams, and how many were
accepted.
"""

import errno
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice, repeat
from struct import Struct
from typing import Final

from ustreamer.core.delivery.ports import SendBatch
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import HEADER_LENGTH, MAX_SESSION, MIN_LENGTH
from ustreamer.transports.someip.protocol.dscp import DscpAddress
from ustreamer.transports.someip.protocol.mapping import REQUEST_ID_BITS
from ustreamer.transports.someip.protocol.tp_config import MAX_UNSEGMENTED_BYTES
from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuri import UUri

EVENT_HEADER: Final = Struct(">4sII4s")
"""Message id, length, request id, versions to return code.

Events do not belong to a client (SIP-7), so the request id is the session id. An event of another SOME/IP network keeps
its own.
"""

EventHeaderTemplate = tuple[bytes, bytes, Iterator[int] | None]
"""The header before the length, the header after the session, and the session counter; None: a kept request id."""

_UDP_SEGMENT: Final = 103  # linux/udp.h; not in the socket module
_GSO_SIZE: Final = Struct("H")
_MAX_CACHED_SIZES: Final = 256
_MAX_LIMITED_RECEIVERS: Final = 256
_MAX_SEGMENTS: Final = 64  # UDP_MAX_SEGMENTS of the oldest kernels with UDP_SEGMENT
_MAX_GSO_BYTES: Final = 65_507
# The payload of an Ethernet frame. IP fragments larger datagrams, and UDP_SEGMENT does not support that.
_ETHERNET_PAYLOAD_BYTES: Final = 1_472
_OVERSIZED: Final = MAX_UNSEGMENTED_BYTES + HEADER_LENGTH
_GSO_UNSUPPORTED: Final = {errno.EINVAL, errno.EMSGSIZE, errno.EIO, errno.ENOPROTOOPT, errno.EOPNOTSUPP}
"""The kernel, or the network device, does not support UDP_SEGMENT for this size."""


@lru_cache(_MAX_CACHED_SIZES)
def _event_struct(payload: int) -> Struct:
    """An event with a payload of this size."""
    return Struct(f"{EVENT_HEADER.format}{payload}s")


def _ancillary(address: Address) -> list[tuple[int, int, bytes]]:
    return address.ancillary if isinstance(address, DscpAddress) else []


class GsoSender:
    """Sends batches of datagrams. Safe from any thread."""

    def __init__(self, *, refuses_oversized: bool = False) -> None:
        """`refuses_oversized`: leave datagrams above MAX_UNSEGMENTED_BYTES of payload to the caller, which raises."""
        self._refuses_oversized = refuses_oversized
        self.oversized_count = 0
        self.sent_count = 0
        self._max_bytes: dict[Address, int] = {}
        """The largest datagrams that are sent with UDP_SEGMENT to receivers for which a call was refused."""
        self._socket: socket.socket | None = None

    def open(self, opened: socket.socket) -> None:
        """Send on this socket."""
        self._socket = opened

    def close(self) -> None:
        """Stop sending."""
        self._socket = None

    def event_sender(self, events: Mapping[UUri, EventHeaderTemplate], address: Address) -> SendBatch:
        """The batch sender of these events to one receiver; it stops at the first other message."""
        pack = EVENT_HEADER.pack

        def transmit_column_batch(batch: MessageBatch) -> int:
            event = events.get(batch.attributes.source)
            payloads, sizes = batch.payloads, batch.sizes
            size = sizes[0]
            if event is None or sizes.count(size) < len(sizes):
                return transmit_all(iter(batch))
            head, tail, sessions = event
            fields = map(repeat, (head, size + MIN_LENGTH))
            if sessions is None:
                request_ids = [each & REQUEST_ID_BITS for each in batch.ids.msb_lsb_columns()[1]]
            else:
                request_ids = [each % MAX_SESSION + 1 for each in islice(sessions, len(payloads))]
            datagrams = list(map(_event_struct(size).pack, *fields, request_ids, repeat(tail), payloads))
            taken = 0
            for begin in range(0, len(datagrams), _MAX_SEGMENTS):
                chunk = datagrams[begin : begin + _MAX_SEGMENTS]
                sent = self.send_equal_sized(chunk, address)
                taken += sent
                if sent < len(chunk):
                    break
            return taken

        def transmit_all(messages: Iterable[UMessage], /) -> int:
            if type(messages) is MessageBatch and messages:
                return transmit_column_batch(messages)
            taken, batch, size = 0, list[bytes](), 0
            for message in messages:
                event = events.get(message.attributes.source)
                if event is None:
                    break
                head, tail, sessions = event
                payload = message.payload
                length = len(payload) + MIN_LENGTH
                if (length != size or len(batch) == _MAX_SEGMENTS) and batch:
                    sent = self.send_equal_sized(batch, address)
                    taken += sent
                    if sent < len(batch):
                        return taken
                    batch = []
                size = length
                # As in `Outbound`, without a common function: a call costs 0.15 us per event.
                request_id = (
                    message.id.lsb & REQUEST_ID_BITS if sessions is None else next(sessions) % MAX_SESSION + 1
                )
                batch.append(pack(head, length, request_id, tail) + payload)
            return taken + self.send_equal_sized(batch, address)

        return transmit_all

    def send_equal_sized(self, datagrams: Sequence[bytes], address: Address) -> int:
        """Send at most 64 datagrams of one size; returns how many the kernel accepted. A rejected event has used its
        session.
        """
        udp_socket = self._socket
        if udp_socket is None or not datagrams:
            return 0
        if self._refuses_oversized and len(datagrams[0]) > _OVERSIZED:
            return 0
        if len(datagrams) == 1:
            return self._send_each(udp_socket, datagrams, address)
        size = len(datagrams[0])
        max_count = _MAX_GSO_BYTES // size
        is_supported = size <= self._max_bytes.get(address, _ETHERNET_PAYLOAD_BYTES)
        if 1 < max_count < len(datagrams) and is_supported:
            # From 1 kB on, 64 datagrams exceed one call.
            sent = self.send_equal_sized(datagrams[:max_count], address)
            return sent if sent < max_count else sent + self.send_equal_sized(datagrams[max_count:], address)
        if 1 < len(datagrams) <= max_count and is_supported:
            try:
                udp_socket.sendmsg(
                    datagrams,
                    [(socket.IPPROTO_UDP, _UDP_SEGMENT, _GSO_SIZE.pack(size)), *_ancillary(address)],
                    0,
                    address,
                )
            except OSError as error:
                if error.errno not in _GSO_UNSUPPORTED:
                    return 0
                self._limit(address, size - 1)
            else:
                return self._count(len(datagrams), size)
        return self._send_each(udp_socket, datagrams, address)

    def _limit(self, address: Address, max_bytes: int) -> None:
        """Send larger datagrams to this receiver alone: its route or its device does not support UDP_SEGMENT for them."""
        if len(self._max_bytes) >= _MAX_LIMITED_RECEIVERS:
            self._max_bytes.clear()  # each receiver costs one refused call more
        self._max_bytes[address] = max_bytes

    def _send_each(self, udp_socket: socket.socket, datagrams: Sequence[bytes], address: Address) -> int:
        for number, datagram in enumerate(datagrams):
            try:
                if isinstance(address, DscpAddress):
                    udp_socket.sendmsg([datagram], address.ancillary, 0, address)
                else:
                    udp_socket.sendto(datagram, address)
            except OSError:
                return self._count(number, len(datagram))
        return self._count(len(datagrams), len(datagrams[0]))

    def _count(self, sent: int, size: int) -> int:
        # Not locked: under CPython's GIL no other thread runs between the read and the write of a `+= 1`.
        self.sent_count += sent
        if size > _OVERSIZED:
            self.oversized_count += sent
        return sent
