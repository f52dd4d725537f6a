# SPDX-License-Identifier: Apache-2.0
"""The guarantees of a durable queue under failing links and routes, kills, stops, reboots and a full disk.

The queue and its spool are real; the threads are removed, so every case is deterministic. The model knows the
offered, committed, sent and undelivered messages.
"""

import tempfile
from collections import defaultdict
from collections.abc import Hashable
from pathlib import Path
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.host.egress.durable_queue_rig import BOOT, DurableQueueRig
from tests.host.egress.test_endpoint_queue import DOWN, RoutedTransport, on
from ustreamer.core.base.clock import ManualClock
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.egress.limits import EgressLimits
from ustreamer.host.egress.durable_queue import MAX_DUPLICATES
from ustreamer.uprotocol.uattributes import UPriority
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuri import UUri

LIMITS = EgressLimits(queue_messages=4, spool_messages=20, retry_first_ms=5, retry_max_ms=20, max_age_ms=300)
TOPICS = [UUri("chassis", entity, 1, 0x8001) for entity in (1, 2, 3)]
OVER = UStatus(UCode.UNAVAILABLE, "stopped")


class Sent(NamedTuple):
    number: int
    life: int
    wall_ms: int


class Link(RoutedTransport):
    """Notes the time and the process life of each send."""

    def __init__(self, scenario: "DurableQueueMachine") -> None:
        super().__init__()
        self._scenario = scenario

    def send(self, message: UMessage) -> None:
        super().send(message)
        n = int.from_bytes(message.payload[:4], "big")
        self._scenario.sent.append(Sent(n, self._scenario.life, self._scenario.wall_ms))


class DurableQueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self.clock = ManualClock()
        self.boot = BOOT
        self.life = 0
        self.sent: list[Sent] = []
        self.offered: dict[int, UMessage] = {}
        self.until_ms: dict[int, int] = {}
        self.safe: set[int] = set()
        self.ended: set[int] = set()
        self.link = Link(self)
        self.rig = self._started()

    def _started(self) -> DurableQueueRig:
        path = Path(self._directory.name)
        return DurableQueueRig(path, self.link, LIMITS, self.clock, self.boot, quick=True)

    @property
    def wall_ms(self) -> int:
        return self.clock.clock().wall_ms()

    def _note_ends(self) -> None:
        verdicts = self.rig.gateway.verdicts
        self.ended |= {n for n, verdict, _, _ in verdicts if verdict is not Verdict.QUEUED}

    # --- rules -------------------------------------------------------------------------------------------------------

    @rule(
        topic=st.sampled_from(TOPICS),
        priority=st.sampled_from([UPriority.CS1, UPriority.CS1, UPriority.CS5]),
        ttl=st.sampled_from([None, None, 20, 200, 10_000]),
        count=st.integers(1, 8),
    )
    def offer(self, topic: UUri, priority: UPriority, ttl: int | None, count: int) -> None:
        for _ in range(count):
            n = len(self.offered)
            message = on(topic, n, priority=priority, ttl=ttl, made_ms=self.wall_ms)
            self.offered[n] = message
            self.until_ms[n] = self.wall_ms + (ttl or LIMITS.max_age_ms)
            self.rig.offer(message)

    @rule()
    def write(self) -> None:
        if self.rig.write():
            self._note_ends()
            self.safe |= set(self.offered)  # a commit has room for all messages that can wait here

    @rule()
    def send(self) -> None:
        self.rig.send()

    @rule(down=st.booleans())
    def set_link(self, down: bool) -> None:
        self.link.then = DOWN if down else None
        if not down:
            self.rig.queue.on_link_up()

    @rule(topic=st.sampled_from(TOPICS))
    def close_a_route(self, topic: UUri) -> None:
        self.link.closed.add(topic)

    @rule(notified=st.booleans())
    def open_all_routes(self, notified: bool) -> None:
        routes, self.link.closed = self.link.closed, set()
        for route in routes if notified else ():
            self.rig.queue.on_route_open(route)

    @rule(ms=st.sampled_from([1, 5, 40, 150, 400]))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms=ms)

    @rule(messages=st.sampled_from([3, 100]))
    def fill_the_disk(self, messages: int) -> None:
        self.rig.limit_spool(messages)

    @rule(rest_ms=st.sampled_from([0, 10, 250]), reboot=st.booleans())
    def kill(self, rest_ms: int, reboot: bool) -> None:
        self._note_ends()
        waiting = set(self.offered) - self.ended - self.safe
        self.rig.die()
        self.ended |= waiting  # in memory only: the window of loss
        self.clock.advance(ms=rest_ms)
        if reboot:
            self.clock = ManualClock(self.wall_ms)
            self.boot = bytes(reversed(self.boot)) + bytes([self.life % 256])
        self.life += 1
        self.rig = self._started()

    @precondition(lambda self: self.rig.queue.sendable == 0)
    @rule()
    def stop(self) -> None:
        endpoint_queue = self.rig.queue
        before = endpoint_queue.queued
        endpoint_queue.no_more_retries(OVER)
        assert endpoint_queue.abandon_all(OVER) == []
        assert endpoint_queue.queued == endpoint_queue.persisted == before
        self._note_ends()
        self.rig.write_all()
        endpoint_queue._spool.close()
        self.life += 1
        self.rig = self._started()
        assert self.rig.queue.queued == before

    # --- guarantees --------------------------------------------------------------------------------------------------

    @invariant()
    def ledger_balances(self) -> None:
        ledger = self.rig.ledger_snapshot()
        assert ledger.unaccounted == 0, ledger

    @invariant()
    def nothing_is_sent_after_its_time(self) -> None:
        for each in self.sent:
            assert each.wall_ms <= self.until_ms[each.number], each

    @invariant()
    def order_holds_for_each_topic_and_class(self) -> None:
        streams: dict[Hashable, list[Sent]] = defaultdict(list)
        for each in self.sent:
            attributes = self.offered[each.number].attributes
            streams[attributes.source, attributes.priority].append(each)
        for sent in streams.values():
            numbers = list(dict.fromkeys(each.number for each in sent))
            assert numbers == sorted(numbers), sent

    @invariant()
    def only_a_kill_repeats_and_not_much(self) -> None:
        assert len({(each.number, each.life) for each in self.sent}) == len(self.sent)
        numbers = {each.number for each in self.sent}
        assert len(self.sent) - len(numbers) <= self.life * MAX_DUPLICATES

    def teardown(self) -> None:
        """Repair everything: each persisted message has been sent, or has ended with a report."""
        self.link.then, self.link.closed = None, set()
        self.rig.limit_spool(1_000)
        self.rig.queue.on_link_up()
        self.clock.advance(ms=30)
        for _ in range(10):
            self.rig.send()
            self.rig.write_all()
        self._note_ends()
        queued, counters = self.rig.queue.queued, self.rig.queue.counters()
        self.rig.die()
        self._directory.cleanup()
        assert queued == 0
        assert counters["spooled"] == counters["spool_lost"] == 0
        assert self.ended == set(self.offered)
        sent = {each.number for each in self.sent}
        delivered = {n for n in self.ended if n in sent}
        assert delivered == sent


def test_whatever_happens_nothing_that_was_committed_is_lost_or_late_or_out_of_order() -> None:
    run_state_machine_as_test(
        DurableQueueMachine, settings=settings(max_examples=25, stateful_step_count=40, deadline=None)
    )
