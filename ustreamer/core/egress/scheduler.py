# SPDX-License-Identifier: Apache-2.0
"""Which lane of an endpoint sends next, and which is to be looked after when."""

from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from ustreamer.core.egress.limits import NEVER_NS
from ustreamer.core.egress.subscriber_queue import Sender

LEAST: Final = 8
"""What a lane may send in a turn, however many others wait for theirs."""

_STALE: Final = 4  # entries for each that counts, above which they are sorted out


class Turns:
    """Lanes that have something to send take turns; those that have not cost nothing. Not locked.

    A turn is what may be sent in one go, shared among the lanes, but `LEAST` at the least: so n lanes that have something
    to send have each had a turn when so much, or n times `LEAST`, was sent.
    """

    def __init__(self) -> None:
        self._ready: dict[Sender, None] = {}  # the one in front is next
        self._due: list[tuple[int, int, Sender]] = []
        self._numbers = count()  # who was scheduled first is first
        self._scheduled = 0

    # --- turns ----------------------------------------------------------------------------------------------------------

    def join(self, sender: Sender) -> None:
        """Have `sender` take its turn, behind all others; it keeps its place if it has one."""
        self._ready[sender] = None

    def leave(self, sender: Sender) -> None:
        self._ready.pop(sender, None)

    def next(self, limit: int) -> tuple[Sender, int] | None:
        """Whose turn it is, and how much may be sent in it; None if nobody waits. It is then behind all others."""
        ready = self._ready
        while ready:
            sender = next(iter(ready))
            if len(ready) == 1:
                if sender.waiting.messages:
                    return sender, limit
                del ready[sender]
                break
            del ready[sender]
            if sender.waiting.messages:  # or it had to make room since
                ready[sender] = None
                return sender, min(limit, max(LEAST, limit // len(ready)))
        return None

    @property
    def any(self) -> bool:
        """Whether somebody may have something to send."""
        return bool(self._ready)

    # --- times ----------------------------------------------------------------------------------------------------------

    def schedule(self, sender: Sender) -> None:
        """Note when `sender` is due. To be repeated whenever that may have become earlier, and once it was looked after."""
        due_ns = sender.due_ns
        if due_ns >= sender.scheduled_ns:
            return
        self._scheduled += sender.scheduled_ns == NEVER_NS
        sender.scheduled_ns = due_ns
        if len(self._due) > _STALE * (self._scheduled + LEAST):
            self._due = [entry for entry in self._due if entry[2].scheduled_ns == entry[0]]
            heapify(self._due)
        heappush(self._due, (due_ns, next(self._numbers), sender))

    def forget(self, sender: Sender) -> None:
        """It has nothing any more."""
        self.leave(sender)
        self._unschedule(sender)

    def _unschedule(self, sender: Sender) -> None:
        self._scheduled -= sender.scheduled_ns != NEVER_NS
        sender.scheduled_ns = NEVER_NS

    @property
    def next_due_ns(self) -> int:
        """When the next one is due, or earlier."""
        return self._due[0][0] if self._due else NEVER_NS

    def due(self, now_ns: int) -> Sender | None:
        """One that is to be looked after now, those first that have been due for longest. Then `schedule` it again."""
        while self._due and self._due[0][0] <= now_ns:
            due_ns, _, sender = heappop(self._due)
            if sender.scheduled_ns != due_ns:
                continue
            self._unschedule(sender)
            if sender.due_ns <= now_ns:
                return sender
            self.schedule(sender)
        return None
