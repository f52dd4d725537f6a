# SPDX-License-Identifier: Apache-2.0
"""When the kernel received the datagrams of one socket, for endpoints with `receive_times`.

A datagram waits in the socket while the streamer is stopped, busy or collects garbage. Its event is judged, and gets an
id, by the time at which it arrived at the host. The kernel notes this time for each datagram. There are two ways to
read it (measured on a VM with two cores):

    ioctl(SIOCGSTAMPNS)      0.6 us    the time of the last datagram that was read
    control message          0.07 us   for each datagram of a batch, which is 3.7 % of a message at saturation

So a time is read only if it can differ from now. The datagrams of a read arrived after those of the read before, and
after that read if it emptied the socket. If that is within `RESOLUTION_MS`, now is used. The rest, first of all what
waited during a stall, has a control message for each datagram. In a flood of more than `FLOOD_PER_MS` all have the time
of their reading: there these times cost a tenth of the messages/s.

The kernel stamps with the wall clock, which may step. So only the age counts, the wall clock now less the stamp. The
arrival is the monotonic time now less the age. It is limited to the arrival of the datagram before, and to now. A step
of the clock therefore changes the arrival by no more than the time since the datagram before.
"""

import socket
import struct
from fcntl import ioctl
from typing import TYPE_CHECKING, Final

from ustreamer.core.base.clock import Clock
from ustreamer.uprotocol.batch import MAX_BATCH

if TYPE_CHECKING:
    from ustreamer.transports.someip.io.recvmmsg import DatagramBatch

MAX_DATAGRAMS: Final = MAX_BATCH
"""Of a `DatagramBatch`. A read of fewer has emptied the socket."""
RESOLUTION_MS: Final = 10
"""A datagram that arrived at most so long ago has the time of now. A batch that arrived within this time has the time
of its last datagram. A busy machine takes as long for a batch, and a gate carries the lateness of one period.
"""
FLOOD_PER_MS: Final = 10
"""Datagrams of one socket per ms, in batches, as an average of `WINDOW_MS`."""
WINDOW_MS: Final = 100
SO_TIMESTAMPNS: Final = 35  # asm-generic/socket.h
_SIOCGSTAMPNS: Final = 0x8907  # asm-generic/sockios.h; the first call switches the stamps on
_TIMESPEC: Final = struct.Struct("@ll")
_NS_PER_MS: Final = 1_000_000


def receive_times_of(opened: socket.socket, clock: Clock) -> "ReceiveTimes | None":
    """The times of a UDP socket; None if the kernel or the machine has no such time stamps."""
    if _TIMESPEC.size != 16:  # a 32-bit machine
        return None
    try:
        ioctl(opened.fileno(), _SIOCGSTAMPNS, bytes(_TIMESPEC.size))
    except FileNotFoundError:  # no datagram so far
        pass
    except OSError:
        return None
    return ReceiveTimes(opened, clock)


class ReceiveTimes:
    """Belongs to the receiving thread. Times are ms since the epoch, by the wall clock of now, and do not fall unless
    that clock steps back.
    """

    __slots__ = (
        "_count",
        "_fd",
        "_given_ms",
        "_is_flood",
        "_last_ms",
        "_monotonic_ns",
        "_set_option",
        "_wall_ms",
        "_window_ms",
    )

    def __init__(self, opened: socket.socket, clock: Clock) -> None:
        self._fd, self._set_option = opened.fileno(), opened.setsockopt
        self._monotonic_ns, self._wall_ms = clock
        self._last_ms = (
            self._monotonic_ns() // _NS_PER_MS
        )  # no unread datagram arrived before, in monotonic ms
        self._given_ms = 0  # the last time that was given
        self._is_flood = False
        self._window_ms, self._count = self._last_ms, 0

    def of_datagram(self, now_ns: int) -> int:
        """The time of the datagram that was read at `now_ns`."""
        now_ms, wall_ms = now_ns // _NS_PER_MS, self._wall_ms()
        if now_ms - self._last_ms <= RESOLUTION_MS:
            self._given_ms = wall_ms
            return wall_ms
        return self._arrival(now_ms, wall_ms, self._stamp_ms())

    def receive(self, batch: "DatagramBatch", now_ns: int) -> int:
        """As `batch.receive` of the socket at `now_ns`, and sets the times of the batch. Raises OSError."""
        now_ms = now_ns // _NS_PER_MS
        elapsed_ms = now_ms - self._window_ms
        if elapsed_ms >= WINDOW_MS:
            self._is_flood = self._count > elapsed_ms * FLOOD_PER_MS
            self._window_ms, self._count = now_ms, 0
        if self._is_flood or now_ms - self._last_ms <= RESOLUTION_MS:
            number = batch.receive(self._fd)
            batch.received_ms = self._given_ms = self._wall_ms()
            batch.received_each_ms = ()
        else:
            number = self._receive_stamped(batch, now_ms)
        self._count += number
        if number < MAX_DATAGRAMS or self._is_flood:  # no more are there, or their times do not count
            self._last_ms = now_ms
        return number

    def _receive_stamped(self, batch: "DatagramBatch", now_ms: int) -> int:
        self._set_option(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        last_ms, given_ms = self._last_ms, self._given_ms
        try:
            number = batch.receive_stamped(self._fd)
        finally:
            self._set_option(socket.SOL_SOCKET, SO_TIMESTAMPNS, 0)
        wall_ms = self._wall_ms()
        stamps = batch.stamps_ms()
        batch.received_ms = self._arrival(now_ms, wall_ms, stamps[-1]) if stamps else wall_ms
        batch.received_each_ms = ()
        if stamps and max(stamps) - min(stamps) > RESOLUTION_MS:
            # They rise, and their bounds are those of `_arrival`, unless the clock has stepped.
            first_ms = max(given_ms, wall_ms - (now_ms - last_ms))
            batch.received_each_ms = [min(max(each, first_ms), batch.received_ms) for each in stamps]
        return number

    def _stamp_ms(self) -> int:
        """The stamp of the last datagram; 0 if there is none."""
        try:
            seconds, ns = _TIMESPEC.unpack(ioctl(self._fd, _SIOCGSTAMPNS, bytes(_TIMESPEC.size)))
        except OSError:
            return 0
        return int(seconds * 1_000 + ns // _NS_PER_MS)

    def _arrival(self, now_ms: int, wall_ms: int, stamp_ms: int) -> int:
        """The time of a datagram, which arrived after the one before."""
        age_ms = wall_ms - stamp_ms if stamp_ms else 0
        age_ms = max(0, min(age_ms, now_ms - self._last_ms))
        self._last_ms = now_ms - age_ms
        # A fresh datagram was given the time of its reading, which is late by up to RESOLUTION_MS.
        self._given_ms = max(wall_ms - age_ms, min(self._given_ms, wall_ms))
        return self._given_ms
