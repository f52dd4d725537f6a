# SPDX-License-Identifier: Apache-2.0
"""Takes out of a socket what has come: alone what comes after a pause, in helpings what piles up.

What comes alone goes on before anybody asks whether there is more, as to ask costs 10 us where everything is cold, and to take it
out as one of many 10 more. If there is more, the poller says so again, and at once: that is no pause. And where some have come
together, the next are expected to, also after a pause: in a flood, the first of each burst by itself cost a tenth of the messages/s.
"""

import socket
from collections.abc import Callable
from typing import Final

from ustreamer.transports.someip.io.poller import Handler
from ustreamer.transports.someip.io.recvmmsg import DatagramBatch
from ustreamer.transports.someip.protocol.addresses import Address

PAUSE_RATIO: Final = 0.25
"""Of the time that the last turn took: a shorter one is no pause. From one turn of the poller to the next it is a tenth."""
_MIN_BATCH: Final = 2
# Costs as much as 2 048: the buffer comes from the heap, and what is not used goes back.
_MAX_DATAGRAM_BYTES: Final = 65_535


def make_reader(
    opened: socket.socket,
    sender: Address | None,
    batch: DatagramBatch,
    on_batch: Callable[[DatagramBatch], bool],
    on_datagram: Callable[[bytes, Address], bool],
    monotonic_ns: Callable[[], int],
) -> Handler:
    """What reads a socket that does not block; `sender` is the only one that reaches it, None: anybody may.

    `take` and `take_one` say what a `Handler` says.
    """
    fd, recv, recvfrom = opened.fileno(), opened.recv, opened.recvfrom
    began_ns = ended_ns = 0
    last_was_single = True  # what came last came alone

    def read(events: int) -> bool:
        nonlocal began_ns, ended_ns, last_was_single
        last_took_ns, began_ns = ended_ns - began_ns, monotonic_ns()
        try:
            if not last_was_single or began_ns - ended_ns < last_took_ns * PAUSE_RATIO:
                last_was_single = batch.receive(fd) < _MIN_BATCH
                datagram = None
            else:
                datagram = (
                    recvfrom(_MAX_DATAGRAM_BYTES) if sender is None else (recv(_MAX_DATAGRAM_BYTES), sender)
                )
        except OSError:
            # Nothing, or what ICMP has said of something that was sent: gone with having been told.
            return False
        only_events = on_batch(batch) if datagram is None else on_datagram(*datagram)
        ended_ns = monotonic_ns()
        return only_events

    return read
