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
from ustreamer.transports.someip.io.recvmmsg import Helping
from ustreamer.transports.someip.protocol.addresses import Address

REST: Final = 0.25
"""Of the time that the last turn took: a shorter one is no pause. From one turn of the poller to the next it is a tenth."""
_SOME: Final = 2
# Costs as much as 2 048: the buffer comes from the heap, and what is not used goes back.
_LARGEST: Final = 65_535


def reader(
    opened: socket.socket,
    sender: Address | None,
    helping: Helping,
    take: Callable[[Helping], bool],
    take_one: Callable[[bytes, Address], bool],
    monotonic_ns: Callable[[], int],
) -> Handler:
    """What reads a socket that does not block; `sender` is the only one that reaches it, None: anybody may.

    `take` and `take_one` say what a `Handler` says.
    """
    fd, recv, recvfrom = opened.fileno(), opened.recv, opened.recvfrom
    began_ns = ended_ns = 0
    calm = True  # what came last came alone

    def read(events: int) -> bool:
        nonlocal began_ns, ended_ns, calm
        took_ns, began_ns = ended_ns - began_ns, monotonic_ns()
        try:
            if not calm or began_ns - ended_ns < took_ns * REST:
                calm = helping.take(fd) < _SOME
                arrived = None
            else:
                arrived = recvfrom(_LARGEST) if sender is None else (recv(_LARGEST), sender)
        except OSError:
            # Nothing, or what ICMP has said of something that was sent: gone with having been told.
            return False
        quiet = take(helping) if arrived is None else take_one(*arrived)
        ended_ns = monotonic_ns()
        return quiet

    return read
