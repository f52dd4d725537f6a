# SPDX-License-Identifier: Apache-2.0
"""What was written into a TCP connection and may be lost with it: sans-IO, one per connection.

What the peer's kernel has not acknowledged is lost for certain when the connection is torn down: up to all that the kernels
of both sides have room for (measured on loopback against a peer that stands still: 3.8 of 3.9 MB). How much was acknowledged,
the kernel tells exactly, even after a reset. What was acknowledged may still lie unread in the peer's kernel when its process
is killed. Unless the connection ends in good order, with nothing on its way, what was acknowledged shortly before counts as
unread. How much is unread really cannot be told: the peer's window says 84 kB of what was 127 kB.
"""

from collections import deque
from collections.abc import Hashable
from typing import Final, NamedTuple

OVERHEAD_BYTES: Final = 200  # what a remembered message occupies beside its bytes


class Kept(NamedTuple):
    """A message that was written whole, or is being written. `again`: to be sent again even if only its reading is in doubt."""

    end: int
    at_ns: int
    way: Hashable
    data: bytes
    deadline_ns: int | None
    again: bool

    @property
    def size(self) -> int:
        return len(self.data) + OVERHEAD_BYTES


class Window:
    """`limit` bytes that are not acknowledged, and as much again of what was acknowledged within `replay_ns`. Not locked."""

    def __init__(self, limit: int, replay_ns: int) -> None:
        self._limit = limit
        self._replay_ns = replay_ns
        self._sent: deque[Kept] = deque()
        self._recent: deque[Kept] = deque()
        self._recent_bytes = 0
        self.bytes = 0
        """Of what is not known to be acknowledged, with an overhead for each message."""
        self.written = 0
        """Bytes of the stream so far, the rest of a message that has begun included."""

    def has_room(self, size: int) -> bool:
        """Whether one more message of `size` bytes fits: always if none waits, however long it is."""
        return not self._sent or self.bytes + size + OVERHEAD_BYTES <= self._limit

    def add(self, data: bytes, way: Hashable, now_ns: int, deadline_ns: int | None, *, again: bool) -> None:
        """`data` goes into the stream, all of it: what the kernel has not taken yet is its owner's next write."""
        self.written += len(data)
        kept = Kept(self.written, now_ns, way, data, deadline_ns, again)
        self._sent.append(kept)
        self.bytes += kept.size

    def acknowledge(self, acked: int) -> None:
        """The peer's kernel has the first `acked` bytes of the stream."""
        sent, recent = self._sent, self._recent
        while sent and sent[0].end <= acked:
            kept = sent.popleft()
            self.bytes -= kept.size
            if kept.again and self._replay_ns:
                recent.append(kept)
                self._recent_bytes += kept.size
        # By the newest that arrived, not by now: a peer may have been cut off for long when it is noticed.
        while recent and (
            recent[0].at_ns < recent[-1].at_ns - self._replay_ns or self._recent_bytes > self._limit
        ):
            self._recent_bytes -= recent.popleft().size

    def take(self, way: Hashable, acked: int) -> list[Kept]:
        """Take out what was written for `way` and not acknowledged, in order: it is to go another way."""
        self.acknowledge(acked)
        taken = [each for each in self._sent if each.way is way]
        self._sent = deque(each for each in self._sent if each.way is not way)
        self.bytes = sum(each.size for each in self._sent)
        return taken

    def lost(self, acked: int, *, read: bool) -> list[Kept]:
        """What to send again, in order, now that the connection has ended.

        `read`: the peer has ended it in good order. Then, if it has acknowledged everything, it has read everything.
        """
        self.acknowledge(acked)
        lost = [*([] if read and not self._sent else self._recent), *self._sent]
        self._sent.clear()
        self._recent.clear()
        self.bytes = self._recent_bytes = 0
        return lost
