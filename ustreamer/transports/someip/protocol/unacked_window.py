# SPDX-License-Identifier: Apache-2.0
"""The messages that a TCP connection may lose: sans-IO, one window per connection.

A broken connection loses the bytes that the peer's kernel has not acknowledged, up to the buffers of both kernels
(measured on loopback against a peer that stops reading: 3.8 of 3.9 MB). The kernel reports the number of acknowledged
bytes exactly, even after a reset. Acknowledged bytes may be unread in the peer's kernel when its process is killed.
Recently acknowledged bytes therefore count as unread, unless the connection ends in good order with nothing in
flight. The exact number of unread bytes is unknown: the peer's window reports 84 kB of 127 kB.
"""

from collections import deque
from collections.abc import Hashable
from typing import Final, NamedTuple

OVERHEAD_BYTES: Final = 200  # memory of a remembered message besides its bytes


class SentMessage(NamedTuple):
    """A message that was written, at least in part. `resend_if_unread`: resend it also if it may be acknowledged but
    unread.
    """

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
    """`limit` unacknowledged bytes, and as many bytes acknowledged within `retransmit_ns`. Not locked."""

    def __init__(self, limit: int, retransmit_ns: int) -> None:
        self._limit = limit
        self._replay_ns = retransmit_ns
        self._sent: deque[SentMessage] = deque()
        self._recently_acked: deque[SentMessage] = deque()
        self._recently_acked_bytes = 0
        self.unacked_bytes = 0
        """Unacknowledged bytes, with an overhead for each message."""
        self.written_bytes = 0
        """Bytes of the stream so far, including the unwritten rest of the last message."""

    def has_room(self, size: int) -> bool:
        """Whether one more message of `size` bytes fits. An empty window accepts any size."""
        return not self._sent or self.unacked_bytes + size + OVERHEAD_BYTES <= self._limit

    def add_sent(
        self, data: bytes, peer: Hashable, now_ns: int, deadline_ns: int | None, *, resend_if_unread: bool
    ) -> None:
        """Add `data`, all of it: the owner writes next the part that the kernel has not accepted yet."""
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
        # Relative to the newest acknowledged message, not to now: the loss of a peer may be noticed late.
        while recent and (
            recent[0].sent_at_ns < recent[-1].sent_at_ns - self._replay_ns
            or self._recently_acked_bytes > self._limit
        ):
            self._recently_acked_bytes -= recent.popleft().size

    def remove_for_peer(self, peer: Hashable, acked: int, since_ns: int) -> list[SentMessage]:
        """Remove the unconfirmed messages for `peer`; returns those that move to another connection, in order.

        These are the unacknowledged ones and, if sent since `since_ns`, the acknowledged ones that may be unread. The
        peer may have restarted, and after the end of this connection they would come after newer messages.
        """
        self.acknowledge(acked)
        recent = [each for each in self._recently_acked if each.sent_at_ns >= since_ns]
        removed = [each for each in (*recent, *self._sent) if each.peer is peer]
        self._sent = deque(each for each in self._sent if each.peer is not peer)
        self._recently_acked = deque(each for each in self._recently_acked if each.peer is not peer)
        self.unacked_bytes = sum(each.size for each in self._sent)
        self._recently_acked_bytes = sum(each.size for each in self._recently_acked)
        return removed

    def unconfirmed(self, acked: int, *, all_read: bool) -> list[SentMessage]:
        """The messages to send again, in order, after the end of the connection.

        `all_read`: the peer closed in good order. If it also acknowledged everything, it has read everything.
        """
        unconfirmed = self._unconfirmed(acked, all_read=all_read)
        self._sent.clear()
        self._recently_acked.clear()
        self.unacked_bytes = self._recently_acked_bytes = 0
        return unconfirmed

    def unacked_count(self, acked: int) -> int:
        """The number of messages that the peer's kernel does not have whole."""
        self.acknowledge(acked)
        return len(self._sent)

    def unconfirmed_count(self, acked: int, *, all_read: bool) -> int:
        """The number of messages that `unconfirmed` would return."""
        return len(self._unconfirmed(acked, all_read=all_read))

    def _unconfirmed(self, acked: int, *, all_read: bool) -> list[SentMessage]:
        self.acknowledge(acked)
        return [*([] if all_read and not self._sent else self._recently_acked), *self._sent]
