# SPDX-License-Identifier: Apache-2.0
"""Many events for one receiver in one system call: the kernel cuts it into datagrams of one size (UDP_SEGMENT, Linux 4.18).

Over the loopback interface a datagram costs 0.5 us so, and 3.2 by itself. What the kernel or the way to a receiver has no
room for is sent one by one, as ever.
"""

import errno
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice, repeat
from struct import Struct
from typing import Final

from ustreamer.core.delivery.delivery import BulkTransmit
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import MAX_SESSION, MIN_LENGTH
from ustreamer.uprotocol.batch import Run
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuri import UUri

EVENT_HEADER: Final = Struct(">4sIHH4s")
"""Message id, length, client, session, versions to return code."""
NO_CLIENT: Final = 0
"""Events do not belong to a client (SIP-7)."""

PlainEvent = tuple[bytes, bytes, Iterator[int]]
"""The header before the length, the header after the session, and what counts the sessions."""

_UDP_SEGMENT: Final = 103  # linux/udp.h; not in the socket module
_SIZE: Final = Struct("H")
_SIZES: Final = 256
_MOST: Final = 64  # UDP_MAX_SEGMENTS of the oldest kernels that have it
_MOST_BYTES: Final = 65_507
_LARGEST: Final = (
    1_472  # what an Ethernet frame has room for; larger ones are cut by IP, which UDP_SEGMENT does not
)
_CANNOT: Final = {errno.EINVAL, errno.EMSGSIZE, errno.EIO, errno.ENOPROTOOPT, errno.EOPNOTSUPP}
"""The kernel, or the device on the way, does not cut datagrams of this size."""


@lru_cache(_SIZES)
def _datagram(payload: int) -> Struct:
    """An event with a payload of this size."""
    return Struct(f"{EVENT_HEADER.format}{payload}s")


class Bursts:
    """The sending of many. Safe from any thread."""

    def __init__(self) -> None:
        self.sent = 0
        self.largest = _LARGEST
        """Bytes of the largest datagram that is sent in bursts; 0 where none is."""
        self._counting = threading.Lock()
        self._opened: socket.socket | None = None

    def open(self, opened: socket.socket) -> None:
        """Send on this socket."""
        self._opened = opened

    def close(self) -> None:
        """Send no more."""
        self._opened = None

    def sender(self, events: Mapping[UUri, PlainEvent], address: Address) -> BulkTransmit:
        """What sends these events to one receiver; it stops at any other."""
        pack = EVENT_HEADER.pack

        def transmit_run(run: Run) -> int:
            event = events.get(run.attributes.source)
            payloads, sizes = run.payloads, run.sizes
            size = sizes[0]
            if event is None or sizes.count(size) < len(sizes):
                return transmit_all(iter(run))
            head, tail, counted = event
            fields = map(repeat, (head, size + MIN_LENGTH, NO_CLIENT))
            sessions = [each % MAX_SESSION + 1 for each in islice(counted, len(payloads))]
            datagrams = list(map(_datagram(size).pack, *fields, sessions, repeat(tail), payloads))
            taken = 0
            for begin in range(0, len(datagrams), _MOST):
                going = datagrams[begin : begin + _MOST]
                sent = self.send(going, address)
                taken += sent
                if sent < len(going):
                    break
            return taken

        def transmit_all(messages: Iterable[UMessage], /) -> int:
            if type(messages) is Run and messages:
                return transmit_run(messages)
            taken, alike, size = 0, list[bytes](), 0
            for message in messages:
                event = events.get(message.attributes.source)
                if event is None:
                    break
                head, tail, sessions = event
                payload = message.payload
                length = len(payload) + MIN_LENGTH
                if (length != size or len(alike) == _MOST) and alike:
                    sent = self.send(alike, address)
                    taken += sent
                    if sent < len(alike):
                        return taken
                    alike = []
                size = length
                alike.append(pack(head, length, NO_CLIENT, next(sessions) % MAX_SESSION + 1, tail) + payload)
            return taken + self.send(alike, address)

        return transmit_all

    def send(self, datagrams: Sequence[bytes], address: Address) -> int:
        """Send datagrams of one size, 64 at most; how many the kernel took. Events that it does not take have used up their sessions."""
        opened = self._opened
        if opened is None or not datagrams:
            return 0
        size = len(datagrams[0])
        room = _MOST_BYTES // size
        if 1 < room < len(datagrams) and size <= self.largest:
            # A round of 64 has no room in one call from 1 kB on.
            sent = self.send(datagrams[:room], address)
            return sent if sent < room else sent + self.send(datagrams[room:], address)
        if 1 < len(datagrams) <= room and size <= self.largest:
            try:
                opened.sendmsg(datagrams, [(socket.IPPROTO_UDP, _UDP_SEGMENT, _SIZE.pack(size))], 0, address)
            except OSError as error:
                if error.errno not in _CANNOT:
                    return 0
                self.largest = min(self.largest, size - 1)
            else:
                return self._count(len(datagrams))
        for number, datagram in enumerate(datagrams):
            try:
                opened.sendto(datagram, address)
            except OSError:
                return self._count(number)
        return self._count(len(datagrams))

    def _count(self, sent: int) -> int:
        with self._counting:
            self.sent += sent
        return sent
