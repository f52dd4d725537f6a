# SPDX-License-Identifier: Apache-2.0
"""The rig of durable queue tests: a `DurableQueue` without threads. The test decides when it sends, writes and is
killed.
"""

from collections.abc import Callable
from pathlib import Path
from threading import Condition

import lmdb
import msgspec

from tests.host.egress.test_endpoint_queue import FakeIngress, ScriptedTransport, event, number
from ustreamer.core.base.clock import ManualClock
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import LedgerSnapshot, Verdict, snapshot
from ustreamer.core.egress.limits import EgressLimits, QueuedMessage
from ustreamer.host.egress.durable_queue import DurableQueue
from ustreamer.host.storage.spool import SpoolLimits
from ustreamer.host.storage.spool_records import SpoolSummary, summarize
from ustreamer.uprotocol.uattributes import UPriority
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatus
from ustreamer.uprotocol.uuri import UUri

HOUR_MS = 3_600_000
LIMITS = EgressLimits(retry_first_ms=1, retry_max_ms=1, max_age_ms=HOUR_MS)
BOOT = b"one boot"


class WouldWait(BaseException):
    """No Exception: the queue handles exceptions of a transport."""


class NoWaiting(Condition):
    """The condition of a queue without threads: a wait ends the step."""

    def wait(self, timeout: float | None = None) -> bool:
        raise WouldWait


class DurableQueueRig:
    """One life of a durable queue: an ingress, a transport, and the undelivered messages."""

    def __init__(
        self,
        path: Path,
        wire: ScriptedTransport,
        limits: EgressLimits = LIMITS,
        clock: ManualClock | None = None,
        boot: bytes = BOOT,
        *,
        threads: bool = False,
        quick: bool = False,
        rest_ns: int = 0,
    ) -> None:
        """With `threads` the queue runs its own threads; `quick` opens the spool without a verify process.

        The record of a sent message stays on disk for `rest_ns`.
        """
        self.clock = clock or ManualClock()
        self.wire = wire
        self.undelivered: list[tuple[UMessage, UStatus]] = []
        self.queue = DurableQueue(
            "backbone",
            wire,
            limits,
            self.clock.clock(),
            self._note,
            path / "backbone",
            self._restored_delivery,
            lambda: 1.0,
            boot=boot,
            delete_delay_ns=rest_ns,
        )
        self.gateway = FakeIngress("chassis", self.queue, self.clock.clock())
        self._restored: dict[tuple[str, UUri | None, UUri | None], Delivery] = {}
        if quick:
            self.queue._spool._summarize = self._walked  # type: ignore[method-assign]
        if not threads:
            self.queue._changed = NoWaiting(self.queue._lock)
        self.queue.restore()
        if threads:
            self.queue.start()

    def _walked(self, mode: str) -> SpoolSummary:
        with lmdb.open(str(self.queue._spool.path), readonly=True, lock=False) as env, env.begin() as txn:
            return summarize(txn.cursor())

    def _restored_delivery(self, ingress: str, topic: UUri | None, subscriber: UUri | None) -> Delivery:
        assert ingress == self.gateway.name
        return Delivery(self.gateway, self.queue, topic, subscriber)

    def _note(self, item: QueuedMessage, status: UStatus) -> None:
        self.undelivered.append((item.message, status))

    def offer(self, *messages: UMessage, to: UUri | None = None) -> None:
        for message in messages:
            if to is None:
                self.gateway.offer(message)
            else:
                self.gateway.ledger.received += 1
                Delivery(self.gateway, self.queue, None, to).offer(message, self.clock.now_ns)

    def number(self, n: int, priority: UPriority = UPriority.CS1, *, ttl: int | None = None) -> UMessage:
        """Message number `n`, created now."""
        return event(n, priority, ttl=ttl, made_ms=self.clock.clock().wall_ms())

    def numbers(self, *numbers: int) -> list[UMessage]:
        return [self.number(n) for n in numbers]

    def send(self) -> None:
        """Run the send thread's loop until it would wait."""
        try:
            self.queue._run()
        except WouldWait:
            return
        raise AssertionError("the queue is closed")

    def limit_spool(self, messages: int, size: int = 10_000_000) -> None:
        """Make the disk full at other limits than the queue's."""
        self.queue._spool.set_limits(SpoolLimits(messages, size))

    def write(self) -> bool:
        """Run one write of the writer thread."""
        return self.queue._write_once()

    def write_all(self) -> None:
        while (self.queue.write_buffer or self.queue._deletes) and self.write():
            pass

    def die(self) -> None:
        """End like a process under SIGKILL: committed data survives, all else is lost."""
        self.queue._spool._release(orderly=False)

    @property
    def sent(self) -> list[int]:
        return [number(message) for message in self.wire.sent]

    @property
    def verdicts(self) -> list[tuple[int, Verdict]]:
        return [verdict[:2] for verdict in self.gateway.verdicts]

    def ledger_snapshot(self) -> LedgerSnapshot:
        return snapshot([self.queue.ledger, self.gateway.ledger], self.queue.queued)


MakeDurableQueueRig = Callable[..., DurableQueueRig]


def with_limits(**changes: int) -> EgressLimits:
    return msgspec.structs.replace(LIMITS, **changes)
