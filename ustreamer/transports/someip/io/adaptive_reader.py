# SPDX-License-Identifier: Apache-2.0
"""Reads a socket: one datagram after a pause, a batch when datagrams arrive together.

A single datagram is forwarded before polling for more: an extra poll costs 10 us on a cold cache, and `recvmmsg` 10
more. If there is more, the poller reports it at once: that is no pause. After a batch the next read expects a batch,
also after a pause: in a flood, reading the first datagram of each burst alone cost a tenth of the messages/s.

The first burst imports `recvmmsg` and ctypes. This takes 2.3 ms of CPU, which a start no longer needs.

Oracle of the batch read: `recv` of each datagram; compared in tests/transports/someip/io/test_adaptive_reader.py.
"""

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ustreamer.transports.someip.io.poller import ERROR, Handler
from ustreamer.transports.someip.protocol.addresses import Address

if TYPE_CHECKING:
    from ustreamer.transports.someip.io.receive_times import ReceiveTimes
    from ustreamer.transports.someip.io.recvmmsg import DatagramBatch

PAUSE_RATIO: Final = 0.25
"""Fraction of the duration of the last read: a shorter gap is no pause. From one poll to the next it is a tenth."""
_MIN_BATCH: Final = 2
# Costs as much as 2 048: the buffer comes from the heap, and its unused part is returned.
_MAX_DATAGRAM_BYTES: Final = 65_535


def make_reader(
    opened: socket.socket,
    sender: Address | None,
    shared_batch: "Callable[[], DatagramBatch | None]",
    on_batch: "Callable[[DatagramBatch], bool]",
    on_datagram: Callable[[bytes, Address, int], bool],
    monotonic_ns: Callable[[], int],
    on_error: Callable[[], None] | None = None,
    times: "ReceiveTimes | None" = None,
) -> Handler:
    """The `Handler` of a non-blocking socket. `sender` is the only sender of the socket; None: any sender.

    `shared_batch` returns the batch of all sockets of the thread; None if there is no recvmmsg: then each datagram is
    read alone. `on_batch` and `on_datagram` return the same as a `Handler`. The third argument of `on_datagram` is when
    the host received the datagram, in ms since the epoch; 0: now, always without `times`. `on_error` clears an error that the poller reports.
    """
    fd, recv = opened.fileno(), opened.recv
    recvfrom = _recvfrom_ipv6(opened) if opened.family == socket.AF_INET6 else opened.recvfrom
    began_ns = ended_ns = 0
    last_was_single = True  # the last read returned one datagram

    def read(events: int) -> bool:
        nonlocal began_ns, ended_ns, last_was_single
        if events & ERROR and on_error is not None:
            on_error()
        last_took_ns, began_ns = ended_ns - began_ns, monotonic_ns()
        is_pause = last_was_single and began_ns - ended_ns >= last_took_ns * PAUSE_RATIO
        batch = None if is_pause else shared_batch()
        datagram = None
        try:
            if batch is not None:
                number = batch.receive(fd) if times is None else times.receive(batch, began_ns)
                last_was_single = number < _MIN_BATCH
            else:
                datagram = (
                    recvfrom(_MAX_DATAGRAM_BYTES) if sender is None else (recv(_MAX_DATAGRAM_BYTES), sender)
                )
        except OSError:
            # No datagram, or an ICMP error of an earlier send, which this read has cleared.
            return False
        if datagram is not None:
            received_ms = 0 if times is None else times.of_datagram(began_ns)
            no_early_deadline = on_datagram(datagram[0], datagram[1], received_ms)
        else:
            assert batch is not None
            no_early_deadline = on_batch(batch)
        ended_ns = monotonic_ns()
        return no_early_deadline

    return read


def _recvfrom_ipv6(opened: socket.socket) -> Callable[[int], tuple[bytes, Address]]:
    """As `recvfrom`, without flow and scope of the sender."""

    def recvfrom(size: int) -> tuple[bytes, Address]:
        datagram, sender = opened.recvfrom(size)
        return datagram, sender[:2]

    return recvfrom
