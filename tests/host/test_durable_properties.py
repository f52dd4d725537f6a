# SPDX-License-Identifier: Apache-2.0
"""What is promised of a durable lane, in any story: links and routes that fail, kills, stops, reboots, a full disk.

The lane, its queue and its spool are real; the threads are taken out, so a story can be told again. The model knows only
what was offered, what a commit has made safe, and what was sent or said.
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

from tests.host.durable_rig import BOOT, Process
from tests.host.test_lanes import DOWN, Routes, on
from ustreamer.core.base.clock import ManualClock
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.egress.limits import EgressLimits
from ustreamer.host.egress.durable_queue import MAX_REPEATED
from ustreamer.host.storage.spool import SpoolLimits
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


class Link(Routes):
    """Notes when it takes a message, on the clock of the story, and in which life of the process."""

    def __init__(self, story: "DurableStory") -> None:
        super().__init__()
        self._story = story

    def send(self, message: UMessage) -> None:
        super().send(message)
        n = int.from_bytes(message.payload[:4], "big")
        self._story.sent.append(Sent(n, self._story.life, self._story.wall_ms))


class DurableStory(RuleBasedStateMachine):
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
        self.process = self._started()

    def _started(self) -> Process:
        path = Path(self._directory.name)
        return Process(path, self.link, LIMITS, self.clock, self.boot, quick=True)

    @property
    def wall_ms(self) -> int:
        return self.clock.clock().wall_ms()

    def _note_ends(self) -> None:
        verdicts = self.process.gateway.verdicts
        self.ended |= {n for n, verdict, _, _ in verdicts if verdict is not Verdict.QUEUED}

    # --- what happens ---------------------------------------------------------------------------------------------------

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
            self.process.offer(message)

    @rule()
    def write(self) -> None:
        if self.process.write():
            self._note_ends()
            self.safe |= set(self.offered)  # a commit has room for all that can wait here

    @rule()
    def send(self) -> None:
        self.process.send()

    @rule(down=st.booleans())
    def turn_the_link(self, down: bool) -> None:
        self.link.then = DOWN if down else None
        if not down:
            self.process.lane.link_up()

    @rule(topic=st.sampled_from(TOPICS))
    def close_a_route(self, topic: UUri) -> None:
        self.link.closed.add(topic)

    @rule(told=st.booleans())
    def open_all_routes(self, told: bool) -> None:
        routes, self.link.closed = self.link.closed, set()
        for route in routes if told else ():
            self.process.lane.route_open(route)

    @rule(ms=st.sampled_from([1, 5, 40, 150, 400]))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms=ms)

    @rule(messages=st.sampled_from([3, 100]))
    def fill_the_disk(self, messages: int) -> None:
        self.process.lane._spool.use(SpoolLimits(messages, 10_000_000))

    @rule(rest_ms=st.sampled_from([0, 10, 250]), reboot=st.booleans())
    def kill(self, rest_ms: int, reboot: bool) -> None:
        self._note_ends()
        waiting = set(self.offered) - self.ended - self.safe
        self.process.die()
        self.ended |= waiting  # only memory had them: that is the window of loss
        self.clock.advance(ms=rest_ms)
        if reboot:
            self.clock = ManualClock(self.wall_ms)
            self.boot = bytes(reversed(self.boot)) + bytes([self.life % 256])
        self.life += 1
        self.process = self._started()

    @precondition(lambda self: self.process.lane.owed == 0)
    @rule()
    def stop(self) -> None:
        lane = self.process.lane
        before = lane.queued
        lane.try_once(OVER)
        assert lane.take_back(OVER) == []
        assert lane.queued == lane.kept == before
        self._note_ends()
        self.process.write_all()
        lane._spool.close()
        self.life += 1
        self.process = self._started()
        assert self.process.lane.queued == before

    # --- what is promised -----------------------------------------------------------------------------------------------

    @invariant()
    def the_books_balance(self) -> None:
        books = self.process.books()
        assert books.unaccounted == 0, books

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
        assert len(self.sent) - len(numbers) <= self.life * MAX_REPEATED

    def teardown(self) -> None:
        """Mend everything: each message that was safe has been sent, or has ended and was said."""
        self.link.then, self.link.closed = None, set()
        self.process.lane._spool.use(SpoolLimits(1_000, 10_000_000))
        self.process.lane.link_up()
        self.clock.advance(ms=30)
        for _ in range(10):
            self.process.send()
            self.process.write_all()
        self._note_ends()
        queued, counters = self.process.lane.queued, self.process.lane.counters()
        self.process.die()
        self._directory.cleanup()
        assert queued == 0
        assert counters["spooled"] == counters["spool_lost"] == 0
        assert self.ended == set(self.offered)
        sent = {each.number for each in self.sent}
        delivered = {n for n in self.ended if n in sent}
        assert delivered == sent


def test_whatever_happens_nothing_that_was_committed_is_lost_or_late_or_out_of_order() -> None:
    run_state_machine_as_test(
        DurableStory, settings=settings(max_examples=40, stateful_step_count=40, deadline=None)
    )
