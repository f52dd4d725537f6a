# SPDX-License-Identifier: Apache-2.0
"""The ledger law: every accepted delivery ends in exactly one verdict.

    received = delivered + throttled + expired + dead_lettered + denied + no_subscriber + queued

A delivery is one message for one target; a message for nobody is one delivery too. `queued` is not counted up and down
but measured in the queues, so `unaccounted` is a check and not a tautology.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

import msgspec


class Verdict(IntEnum):
    """How a delivery ended; QUEUED is the one that is not final."""

    DELIVERED = 0
    THROTTLED = 1
    EXPIRED = 2
    DEAD_LETTERED = 3
    DENIED = 4
    NO_SUBSCRIBER = 5
    QUEUED = 6


class Ledger:
    """Counters with one writer: an ingress or a lane has its own, under its own lock, and reading adds them up."""

    __slots__ = ("received", "settled")

    def __init__(self) -> None:
        self.received = 0
        self.settled = [0] * len(Verdict)

    def settle(self, verdict: Verdict) -> None:
        self.settled[verdict] += 1


class LedgerSnapshot(msgspec.Struct, frozen=True):
    """The law at one moment. At a quiet moment `unaccounted` is 0; in between it may be off by what is in the air."""

    received: int
    delivered: int
    throttled: int
    expired: int
    dead_lettered: int
    denied: int
    no_subscriber: int
    queued: int

    @property
    def unaccounted(self) -> int:
        return self.received - (
            self.delivered
            + self.throttled
            + self.expired
            + self.dead_lettered
            + self.denied
            + self.no_subscriber
            + self.queued
        )


EMPTY_LEDGER: Final = LedgerSnapshot(0, 0, 0, 0, 0, 0, 0, 0)


def snapshot(ledgers: Iterable[Ledger], queued: int) -> LedgerSnapshot:
    """Add up the ledgers; `queued` is what the queues and holding filters contain now."""
    received, settled = 0, [0] * len(Verdict)
    for ledger in ledgers:
        received += ledger.received
        settled = [total + part for total, part in zip(settled, ledger.settled, strict=True)]
    return LedgerSnapshot(
        received=received,
        delivered=settled[Verdict.DELIVERED],
        throttled=settled[Verdict.THROTTLED],
        expired=settled[Verdict.EXPIRED],
        dead_lettered=settled[Verdict.DEAD_LETTERED],
        denied=settled[Verdict.DENIED],
        no_subscriber=settled[Verdict.NO_SUBSCRIBER],
        queued=queued,
    )
