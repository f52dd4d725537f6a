# SPDX-License-Identifier: Apache-2.0
"""What the processes of a measurement share: a few counters in a mapped file, each with one writer.

Reading a counter costs no system call and disturbs nobody: the sink's count is the generator's credit, and whoever measures
reads both at its own time.
"""

import mmap
import os
from pathlib import Path
from typing import Final

SEND_ENABLED: Final = 0
"""1 while the generator shall send; written by whoever measures."""
SENT: Final = 1
"""Messages sent; written by the generator."""
RECEIVED: Final = 2
"""Messages received; written by the sink."""
NEWEST_PLUS_1: Final = 3
"""Number of the newest message received, plus 1; written by the sink. Differs from RECEIVED by what was lost."""
AGES_ENABLED: Final = 4
"""1 while the sink shall wait for every single message and note its age; 0 while it shall only count."""
AGE_COUNT: Final = 5
"""How many ages have been noted; written by the sink."""
_FIRST_AGE: Final = 8
MAX_AGES: Final = 65_536

_COUNTER_BYTES: Final = 8
SIZE: Final = (_FIRST_AGE + MAX_AGES) * _COUNTER_BYTES


class SharedCounters:
    """The mapped counters: `board[SENT] += 1`."""

    def __init__(self, path: Path) -> None:
        """Map the file `path`, which is made if it is not there."""
        self.path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, SIZE)
            self.slots = memoryview(mmap.mmap(descriptor, SIZE)).cast("q")
        finally:
            os.close(descriptor)

    def __getitem__(self, slot: int) -> int:
        return self.slots[slot]

    def __setitem__(self, slot: int, value: int) -> None:
        self.slots[slot] = value

    def record_age(self, age_ns: int) -> None:
        """Note the age of one message; above MAX_AGES they are no longer noted."""
        count = self.slots[AGE_COUNT]
        if count < MAX_AGES:
            self.slots[_FIRST_AGE + count] = age_ns
            self.slots[AGE_COUNT] = count + 1

    def ages_ns(self) -> list[int]:
        """The ages noted so far, in order of arrival."""
        return list(self.slots[_FIRST_AGE : _FIRST_AGE + self.slots[AGE_COUNT]])
