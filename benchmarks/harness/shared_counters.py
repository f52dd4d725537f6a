# SPDX-License-Identifier: Apache-2.0
"""Counters that the processes of a measurement share: a mapped file, each counter with one writer.

Reading a counter needs no system call and disturbs no process. The count of the sink is the credit of the generator,
and the measuring process reads both at any time.
"""

import mmap
import os
from pathlib import Path
from typing import Final

SEND_ENABLED: Final = 0
"""1 while the generator shall send; written by the measuring process."""
SENT: Final = 1
"""Messages sent; written by the generator."""
RECEIVED: Final = 2
"""Messages received, of a traffic model those of steady topics; written by the sink."""
NEWEST_PLUS_1: Final = 3
"""Number of the newest message received, plus 1; written by the sink. The difference to RECEIVED is the loss."""
AGES_ENABLED: Final = 4
"""1 while the sink shall note the age of every message; 0 while it shall only count."""
AGE_COUNT: Final = 5
"""Number of noted ages; written by the sink."""
OUT_OF_ORDER: Final = 6
"""Messages that arrived after a newer one of their topic; written by the sinks that check it."""
SWITCH_ENABLED: Final = 7
"""1 while a sink shall end and begin subscriptions; written by the measuring process."""
STEADY_SENT: Final = 8
"""Messages sent on steady topics of a traffic model; written by the generator."""
_FIRST_AGE: Final = 9
MAX_AGES: Final = 65_536

_COUNTER_BYTES: Final = 8
SIZE: Final = (_FIRST_AGE + MAX_AGES) * _COUNTER_BYTES


class SharedCounters:
    """The mapped counters: `counters[SENT] += 1`."""

    def __init__(self, path: Path) -> None:
        """Map the file `path`; creates it if it does not exist."""
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
        """Note the age of one message; ignored above MAX_AGES."""
        count = self.slots[AGE_COUNT]
        if count < MAX_AGES:
            self.slots[_FIRST_AGE + count] = age_ns
            self.slots[AGE_COUNT] = count + 1

    def ages_ns(self) -> list[int]:
        """The noted ages, in order of arrival."""
        return list(self.slots[_FIRST_AGE : _FIRST_AGE + self.slots[AGE_COUNT]])
