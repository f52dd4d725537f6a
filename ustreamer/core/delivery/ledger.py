# SPDX-License-Identifier: Apache-2.0
"""The ledger law: every accepted delivery ends in exactly one verdict.

    received = delivered + throttled + expired + dead_lettered + denied + no_subscriber + queued

A delivery is one message for one target. A message without target is one delivery too. `queued` is measured in the
queues and not counted up and down, so `unaccounted` is a real check.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

import msgspec


class Verdict(IntEnum):
    """The outcome of a delivery; only QUEUED is not final."""

    DELIVERED = 0
    THROTTLED = 1
    EXPIRED = 2
    DEAD_LETTERED = 3
    DENIED = 4
    NO_SUBSCRIBER = 5
    QUEUED = 6


class Ledger:
    """Counters with one writer: each ingress and each egress queue has a ledger under its own lock. See `snapshot`."""

    __slots__ = ("received", "settled")

    def __init__(self) -> None:
        self.received = 0
        self.settled = [0] * len(Verdict)

    def settle(self, verdict: Verdict) -> None:
        self.settled[verdict] += 1

    def copy(self) -> "Ledger":
        """The counters of this moment. Called under the lock of the writer."""
        copied = Ledger()
        copied.received, copied.settled = self.received, self.settled.copy()
        return copied


class LedgerSnapshot(msgspec.Struct, frozen=True):
    """The ledger law at one moment. `unaccounted` is 0, also under load (`Dispatcher.at_rest`)."""

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
        """What the ledger law does not explain: 0, or a defect."""
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
    """Sum the ledgers; `queued` is the number of messages in queues and held by filters now."""
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
