# SPDX-License-Identifier: Apache-2.0
"""Counts refused input by its peer: who is refused, and why. No I/O. The host finds intrusions in the counts.

A peer is what a network knows of a sender: a host, an address, or the authority that a message claims. Senders choose
their number, so the peer that was refused the longest ago is forgotten above `MAX_PEERS`.
"""

from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import Final

import msgspec

MAX_PEERS: Final = 256
"""Pairs of reason and peer that are counted."""


class Intrusion(msgspec.Struct, frozen=True):
    """A peer that is refused again and again, since `since_ms` (ms since the epoch); `per_s` of late."""

    endpoint: str
    reason: str
    peer: str
    refusals: int
    per_s: float
    since_ms: int


class PeerRefusals:
    """Refusals by (reason, peer). From any thread; a refusal costs 0.3 us."""

    __slots__ = ("_counts", "_lock")

    def __init__(self) -> None:
        self._counts: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._lock = Lock()

    def add(self, reason: str, peer: str) -> None:
        key = (reason, peer)
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + 1
            self._counts.move_to_end(key)
            if len(self._counts) > MAX_PEERS:
                self._counts.popitem(last=False)

    def counts(self) -> Mapping[tuple[str, str], int]:
        """A copy."""
        with self._lock:
            return dict(self._counts)
