# SPDX-License-Identifier: Apache-2.0
"""Invalid inputs without a fuzzer."""

import random
from collections.abc import Sequence


class Mutations:
    """Invalid inputs from valid ones: bytes changed, removed and inserted, and wrong lengths."""

    def __init__(self, seed: int, good: Sequence[bytes]) -> None:
        self._rng = random.Random(seed)
        self._good = good

    def next(self) -> bytes:
        rng = self._rng.random()
        raw = bytearray(self._good[int(rng * 7919) % len(self._good)])
        kind = int(rng * 10)
        at = int(rng * 104_729) % len(raw)
        if kind < 4:
            raw[at] = int(rng * 1_299_709) & 0xFF
        elif kind < 6:
            del raw[at:]
        elif kind == 6:
            raw[at:at] = self._rng.randbytes(int(rng * 15_485_863) % 20)
        elif kind == 7:
            at = at // 4 * 4
            raw[at : at + 4] = self._rng.choice(
                (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x07", b"\0\0\0\x10", b"\x7f\xff\xff\xff")
            )
        elif kind == 8:
            raw += raw[at:]
        else:
            return self._rng.randbytes(at)
        return bytes(raw)
