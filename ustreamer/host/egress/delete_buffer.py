# SPDX-License-Identifier: Apache-2.0
"""What is to be removed from the disk: keys of messages whose delivery has ended, but not before their send is really out.

What Zenoh's put has taken waits for a thread of Zenoh's to be written to its socket: up to some ms on a busy machine. Removed
from the disk at once, a whole round of 128 was once lost with a kill. So a key rests for a while, and a kill meanwhile sends its
message again.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

DELETE_DELAY_NS: Final = 10_000_000
"""From the end of a delivery to its removal: what Zenoh has taken is in the kernel by then, even with eight others on two cores."""


class DeleteBuffer:
    """Keys in the order in which their deliveries ended. Not locked."""

    def __init__(self, monotonic_ns: Callable[[], int], delay_ns: int = DELETE_DELAY_NS) -> None:
        self._now_ns = monotonic_ns
        self._delay_ns = delay_ns
        self._keys: deque[tuple[int, bytes]] = deque()

    def add_key(self, key: bytes, *, due_now: bool = False) -> None:
        """Have `key` removed once it has rested; at once if nothing of it can be on its way."""
        if due_now:
            self._keys.appendleft((0, key))
        else:
            self._keys.append((self._now_ns() + self._delay_ns, key))

    def pop_due(self, *, everything: bool = False) -> list[bytes]:
        """Take out the keys that have rested, or all."""
        keys, now_ns = self._keys, self._now_ns()
        due = []
        while keys and (everything or keys[0][0] <= now_ns):
            due.append(keys.popleft()[1])
        return due

    @property
    def remaining_s(self) -> float:
        """For how long the first has to rest yet; 0 if there is none."""
        return max(0, self._keys[0][0] - self._now_ns()) / 1e9 if self._keys else 0.0

    def __len__(self) -> int:
        return len(self._keys)
