# SPDX-License-Identifier: Apache-2.0
"""What the processes of a measurement share: a few counters in a mapped file, each with one writer.

Reading a counter costs no system call and disturbs nobody: the sink's count is the generator's credit, and whoever measures
reads both at its own time.
"""

import mmap
import os
from pathlib import Path
from typing import Final

FLOW: Final = 0
"""1 while the generator shall send; written by whoever measures."""
SENT: Final = 1
"""Messages sent; written by the generator."""
RECEIVED: Final = 2
"""Messages received; written by the sink."""
NEWEST: Final = 3
"""Number of the newest message received, plus 1; written by the sink. Differs from RECEIVED by what was lost."""
TIMED: Final = 4
"""1 while the sink shall wait for every single message and note its age; 0 while it shall only count."""
AGES: Final = 5
"""How many ages have been noted; written by the sink."""
_FIRST_AGE: Final = 8
MAX_AGES: Final = 65_536

_WORD: Final = 8
SIZE: Final = (_FIRST_AGE + MAX_AGES) * _WORD


class Board:
    """The mapped counters: `board[SENT] += 1`."""

    def __init__(self, path: Path) -> None:
        """Map the file `path`, which is made if it is not there."""
        self.path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, SIZE)
            self.words = memoryview(mmap.mmap(descriptor, SIZE)).cast("q")
        finally:
            os.close(descriptor)

    def __getitem__(self, word: int) -> int:
        return self.words[word]

    def __setitem__(self, word: int, value: int) -> None:
        self.words[word] = value

    def note_age(self, age_ns: int) -> None:
        """Note the age of one message; above MAX_AGES they are no longer noted."""
        noted = self.words[AGES]
        if noted < MAX_AGES:
            self.words[_FIRST_AGE + noted] = age_ns
            self.words[AGES] = noted + 1

    def ages_ns(self) -> list[int]:
        """The ages noted so far, in order of arrival."""
        return list(self.words[_FIRST_AGE : _FIRST_AGE + self.words[AGES]])
