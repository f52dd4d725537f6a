# SPDX-License-Identifier: Apache-2.0
"""Long messages of a SOME/IP endpoint on their way out: a `Pacer`, a lock, and whoever calls.

The first segment leaves on the caller's thread, so that a receiver that is away is known at once and to the lane; the
others leave when they are due, on the endpoint's receiving thread. From then on the message counts as sent, as one does
that the kernel has taken. What the kernel does not take is tried again, for as long as a receiver waits for it.
"""

import logging
from collections.abc import Callable, Hashable
from threading import Event, Lock

from ustreamer.hooks import RouteUnavailable
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import HEADER_LENGTH, decode
from ustreamer.transports.someip.protocol.tp_config import Segmenting, TpLimits
from ustreamer.transports.someip.protocol.tp_segmenter import Due, Pacer, Stream, TpFull
from ustreamer.uprotocol.ustatus import invalid

log = logging.getLogger("ustreamer.someip")

_ROUND = 64  # segments between two looks at what comes in, 0.3 ms
_NS_PER_S = 1_000_000_000


class Segmenter:
    """`send` is called from any thread, `run` from the receiving one, `flush` when that has ended."""

    def __init__(
        self,
        limits: TpLimits,
        sendto: Callable[[bytes, Address], object],
        monotonic_ns: Callable[[], int],
        wake: Callable[[int], None],
    ) -> None:
        """`wake` is called with the monotonic time at which `run` has something to do."""
        self._limits = limits
        self._sendto = sendto
        self._monotonic_ns = monotonic_ns
        self._wake = wake
        self._opened: Callable[[Hashable], None] = _nobody
        self._lock = Lock()
        self._pacer = Pacer(limits.waiting_bytes, limits.waiting_messages)
        self._full: set[Hashable] = (
            set()
        )  # routes that found no room: no more than there are events and methods
        self._room = False  # whether there is some again
        self._segmented = self._unsent = 0
        self.next_deadline_ns: int | None = None
        """When `run` has something to do; None if nothing waits."""

    def watch_routes(self, opened: Callable[[Hashable], None]) -> None:
        """As `EndpointTransport.watch_routes`, for what found no room."""
        self._opened = opened

    # --- any thread -----------------------------------------------------------------------------------------------------

    def send(self, datagram: bytes, address: Address, how: Segmenting) -> None:
        """Send a whole message, in segments if it is too long for one, behind those of its stream that still wait.

        Raises OSError if it, or its first segment, cannot be sent; RouteUnavailable if too much waits, and
        UStatusError(INVALID_ARGUMENT) if it is more than may ever wait: then nothing of it was sent.
        """
        size = len(datagram) - HEADER_LENGTH
        stream = (address, int.from_bytes(datagram[:4], "big"))
        with self._lock:
            waits = self._pacer.waits(stream)
            if size <= how.segment_bytes and not waits:
                self._sendto(datagram, address)
                return
            now_ns = self._monotonic_ns()
            self._put(datagram, address, how, now_ns)
            if not waits:
                self._begin(stream, now_ns)
            self._segmented += size > how.segment_bytes
            deadline_ns = self.next_deadline_ns = self._pacer.next_deadline_ns
        if deadline_ns is not None:
            self._wake(deadline_ns)

    def _put(self, datagram: bytes, address: Address, how: Segmenting, now_ns: int) -> None:
        message, _ = decode(datagram)
        size = len(message.payload)
        if size > self._limits.waiting_bytes:
            raise invalid(
                f"payload of {size} bytes for {address[0]}:{address[1]}: "
                f"at most {self._limits.waiting_bytes} are sent in segments (tp.waiting_bytes)"
            )
        try:
            self._pacer.put_nowait(message, address, how, now_ns)
        except TpFull as error:
            route = ("segments", address, message.message_id)
            self._full.add(route)
            raise RouteUnavailable(route, f"{address[0]}:{address[1]}: {error}") from error

    def _begin(self, stream: Stream, now_ns: int) -> None:
        """Send the first segment of a stream; an OSError takes it out again."""
        due = self._pacer.next_of(stream)
        try:
            self._sendto(due.datagram, due.address)
        except OSError:
            self._pacer.drop(due, now_ns)
            raise
        self._pacer.sent(due, self._monotonic_ns())

    # --- the receiving thread -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Send what is due, and no more at once than lets what comes in be looked at."""
        if self.next_deadline_ns is None:
            return  # nearly always: this is asked in every round of the receiving thread
        opened: set[Hashable] = set()
        with self._lock:
            self._send_due(self._monotonic_ns())
            self.next_deadline_ns = self._pacer.next_deadline_ns
            if self._room:
                opened, self._full, self._room = self._full, set(), False
        for route in opened:  # not under the lock: the lane that is told holds its own when it sends
            self._opened(route)

    def _send_due(self, now_ns: int) -> None:
        for _ in range(_ROUND):
            due = self._pacer.due(now_ns)
            if due is None:
                return
            try:
                self._sendto(due.datagram, due.address)
            except OSError as error:
                if not self._pacer.held(due, now_ns):
                    self._give_up(due, error)
            else:
                # Not `now_ns`: this thread may have been held up in between, and the pause counts from when it went.
                self._room |= self._pacer.sent(due, self._monotonic_ns())

    def _give_up(self, due: Due, error: OSError) -> None:
        self._room = True
        self._unsent += 1
        if self._unsent == 1:  # the first shows what it is about; the others are in the counter
            log.warning(
                "someip.segments_given_up",
                extra={"receiver": f"{due.address[0]}:{due.address[1]}", "reason": error.strerror},
            )

    # --- the end, and reading -------------------------------------------------------------------------------------------

    def flush(self, within_s: float) -> None:
        """Send what still waits, at its pace, when `run` is not called any more; what is left then is given up."""
        until_ns = self._monotonic_ns() + int(within_s * _NS_PER_S)
        pause = Event()
        while self._pacer.waiting[1] and (now_ns := self._monotonic_ns()) < until_ns:
            left_ns = min(self.next_deadline_ns or now_ns, until_ns) - now_ns
            if left_ns > 0:
                pause.wait(left_ns / _NS_PER_S)
            self.run()
        self._unsent += self._pacer.waiting[1]

    def statistics(self) -> dict[str, int]:
        """What waits now, and counters since the start; names as in `SomeipTransport.statistics`."""
        waiting_bytes, waiting = self._pacer.waiting
        return {
            "tp_waiting": waiting,
            "tp_waiting_bytes": waiting_bytes,
            "tp_segmented": self._segmented,
            "tp_unsent": self._unsent,
        }


def _nobody(route: Hashable) -> None:
    """Nobody watches routes."""
