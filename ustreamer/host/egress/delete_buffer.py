# SPDX-License-Identifier: Apache-2.0
"""Spool keys of ended deliveries, deleted from disk only after a delay.

A message that Zenoh's put accepts waits for a Zenoh thread to write it to the socket: up to some ms on a busy machine.
With an immediate delete, a kill once lost a whole batch of 128 messages. With the delay, a kill duplicates those
messages instead.
"""

from collections import deque
from collections.abc import Callable, Collection
from typing import Final

from ustreamer.core.egress.limits import NEVER_NS

DELETE_DELAY_NS: Final = 10_000_000
"""From the end of a delivery to the delete. By then an accepted Zenoh put is in the kernel, even with eight busy
processes on two cores.
"""


class DeleteBuffer:
    """Keys in the order in which their deliveries ended. Not thread-safe."""

    def __init__(self, monotonic_ns: Callable[[], int], delay_ns: int = DELETE_DELAY_NS) -> None:
        self._now_ns = monotonic_ns
        self._delay_ns = delay_ns
        self._keys: deque[tuple[int, bytes]] = deque()

    def add_key(self, key: bytes, *, due_now: bool = False) -> None:
        """Delete `key` after the delay; at once if no send of it can be in progress."""
        if due_now:
            self._keys.appendleft((0, key))
        else:
            self._keys.append((self._now_ns() + self._delay_ns, key))

    def expedite(self, keys: Collection[bytes]) -> None:
        """Delete these keys with the next commit."""
        due = [each for each in self._keys if each[1] in keys]
        self._keys = deque([*((0, key) for _, key in due), *(each for each in self._keys if each not in due)])

    def pop_due(self, ended_before_ns: int = NEVER_NS, *, everything: bool = False) -> list[bytes]:
        """Remove and return the due keys of deliveries that ended before the given time, or all keys."""
        keys, due_ns = self._keys, min(self._now_ns(), ended_before_ns - 1 + self._delay_ns)
        due = []
        while keys and (everything or keys[0][0] <= due_ns):
            due.append(keys.popleft()[1])
        return due

    @property
    def remaining_s(self) -> float:
        """Seconds until the first key is due; 0 if there is none."""
        return max(0, self._keys[0][0] - self._now_ns()) / 1e9 if self._keys else 0.0

    def __len__(self) -> int:
        return len(self._keys)
