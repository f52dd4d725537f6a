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


class SentMessage(NamedTuple):
    """A message that was written whole, or is being written. `again`: to be sent again even if only its reading is in doubt."""

    end_offset: int
    sent_at_ns: int
    peer: Hashable
    data: bytes
    deadline_ns: int | None
    resend_if_unread: bool

    @property
    def size(self) -> int:
        return len(self.data) + OVERHEAD_BYTES


class UnackedWindow:
    """`limit` bytes that are not acknowledged, and as much again of what was acknowledged within `replay_ns`. Not locked."""

    def __init__(self, limit: int, replay_ns: int) -> None:
        self._limit = limit
        self._replay_ns = replay_ns
        self._sent: deque[SentMessage] = deque()
        self._recently_acked: deque[SentMessage] = deque()
        self._recently_acked_bytes = 0
        self.unacked_bytes = 0
        """Of what is not known to be acknowledged, with an overhead for each message."""
        self.written_bytes = 0
        """Bytes of the stream so far, the rest of a message that has begun included."""

    def has_room(self, size: int) -> bool:
        """Whether one more message of `size` bytes fits: always if none waits, however long it is."""
        return not self._sent or self.unacked_bytes + size + OVERHEAD_BYTES <= self._limit

    def add_sent(
        self, data: bytes, peer: Hashable, now_ns: int, deadline_ns: int | None, *, resend_if_unread: bool
    ) -> None:
        """`data` goes into the stream, all of it: what the kernel has not taken yet is its owner's next write."""
        self.written_bytes += len(data)
        sent_message = SentMessage(self.written_bytes, now_ns, peer, data, deadline_ns, resend_if_unread)
        self._sent.append(sent_message)
        self.unacked_bytes += sent_message.size

    def acknowledge(self, acked: int) -> None:
        """The peer's kernel has the first `acked` bytes of the stream."""
        sent, recent = self._sent, self._recently_acked
        while sent and sent[0].end_offset <= acked:
            sent_message = sent.popleft()
            self.unacked_bytes -= sent_message.size
            if sent_message.resend_if_unread and self._replay_ns:
                recent.append(sent_message)
                self._recently_acked_bytes += sent_message.size
        # By the newest that arrived, not by now: a peer may have been cut off for long when it is noticed.
        while recent and (
            recent[0].sent_at_ns < recent[-1].sent_at_ns - self._replay_ns
            or self._recently_acked_bytes > self._limit
        ):
            self._recently_acked_bytes -= recent.popleft().size

    def remove_for_peer(self, peer: Hashable, acked: int) -> list[SentMessage]:
        """Take out what was written for `way` and not acknowledged, in order: it is to go another way."""
        self.acknowledge(acked)
        removed = [each for each in self._sent if each.peer is peer]
        self._sent = deque(each for each in self._sent if each.peer is not peer)
        self.unacked_bytes = sum(each.size for each in self._sent)
        return removed

    def unconfirmed(self, acked: int, *, all_read: bool) -> list[SentMessage]:
        """What to send again, in order, now that the connection has ended.

        `read`: the peer has ended it in good order. Then, if it has acknowledged everything, it has read everything.
        """
        self.acknowledge(acked)
        unconfirmed = [*([] if all_read and not self._sent else self._recently_acked), *self._sent]
        self._sent.clear()
        self._recently_acked.clear()
        self.unacked_bytes = self._recently_acked_bytes = 0
        return unconfirmed
