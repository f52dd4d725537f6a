# SPDX-License-Identifier: Apache-2.0
"""A dispatcher with the throttle and the recorder, on a clock that tests move."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from ustreamer_recorder.config import RecorderConfig
from ustreamer_recorder.events import Event
from ustreamer_recorder.journal import Journal
from ustreamer_recorder.note_queue import NoteQueue, Skipped
from ustreamer_recorder.reader import read_segment
from ustreamer_recorder.segments import list_segments
from ustreamer_throttle.plugin import ThrottleConfig, ThrottlePlugin

from ustreamer.core.base.clock import ManualClock
from ustreamer.core.base.timers import Timers
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import EMPTY_LEDGER, Ledger, Verdict
from ustreamer.core.delivery.ports import Filter, SendOne
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.egress.dead_letter import dead_letter_topic
from ustreamer.core.routing.router import SELF, AuthorityTable, Router
from ustreamer.core.routing.subscriptions import Change, Subscription
from ustreamer.hooks import PluginContext
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import UUri

MS: Final = 1_000_000
TOPICS: Final = [UUri("chassis", 0x1234, 1, 0x8000 + number) for number in range(2)]
SUBSCRIBERS: Final = [UUri("hpc", 7, 1, 0), UUri("hpc", 8, 1, 0)]


class MutableDirectory:
    """A directory that changes during the test."""

    def __init__(self) -> None:
        self.version = 0
        self._subscriptions: dict[tuple[UUri, UUri], Subscription] = {}

    def set_subscription(self, topic: UUri, subscriber: UUri, period_ns: int | None) -> None:
        if period_ns is None:
            self._subscriptions.pop((topic, subscriber), None)
        else:
            self._subscriptions[topic, subscriber] = Subscription(topic, subscriber, period_ns)
        self.version += 1

    def subscribers(self, topic: UUri) -> Sequence[Subscription]:
        return [
            subscription
            for (subscribed, _), subscription in self._subscriptions.items()
            if subscribed == topic
        ]


class DelayedEgress:
    """Delivers on request, which settles rows."""

    unicast = True

    def __init__(self, name: str, time: ManualClock) -> None:
        self.name = name
        self.ledger = Ledger()
        self._time = time
        self._waiting: list[tuple[Delivery, UMessage, int]] = []

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        return lambda message: None

    def offer(self, delivery: Delivery, message: UMessage, now_ns: int) -> None:
        self._waiting.append((delivery, message, now_ns))

    def send(self) -> None:
        for delivery, message, received_ns in self._waiting:
            now_ns = self._time.now_ns
            delivery.settle(self.ledger, message, Verdict.DELIVERED, received_ns, now_ns, None, 1, now_ns)
        self._waiting = []


class ReplayRig:
    """A dispatcher with throttle and recorder, and the events of a test."""

    def __init__(self, directory: Path, mode: Literal["drop", "latest"], tolerance: float = 0.1) -> None:
        self.time = ManualClock()
        clock = self.time.clock()
        self.timers = Timers()
        self.late_ns = 0
        """How late each timer is."""
        self.directory = MutableDirectory()
        self.mode: Literal["drop", "latest"] = mode
        context = PluginContext("hpc", ("hpc",), directory, clock, self.timers.schedule)
        self.throttle = ThrottlePlugin(ThrottleConfig(tolerance, mode), context)
        self.intake = NoteQueue(100_000, clock.monotonic_ns, dead_letter_topic("hpc"))
        self._directory = directory
        self._journal = Journal(RecorderConfig(keep_free_bytes=0), directory, "hpc", clock, 1)
        self._journal.tick(Skipped())
        self.egress = {name: DelayedEgress(name, self.time) for name in (SELF, "chassis", "backbone")}
        places = AuthorityTable({"chassis": "chassis", "hpc": "backbone"})
        self.set_tolerance(tolerance, swap=False)
        self.dispatcher = Dispatcher(
            "hpc",
            clock,
            Router(places, self.directory, dict.fromkeys(self.egress, True)),
            self.egress,
            filters=self.filters,
            taps=lambda endpoint: [self.intake.tap(endpoint)],
            schedule=self.timers.schedule,
        )
        self._ids = UuidSource(clock.wall_ms)

    def filters(self, delivery: Delivery) -> list[Filter]:
        self.intake.on_rate_change(delivery)
        found = self.throttle.ustreamer_filters(delivery)
        return [] if found is None else [found]

    def set_tolerance(self, tolerance: float, *, swap: bool = True) -> None:
        """A reload with another tolerance."""

        def change() -> None:
            config = ThrottleConfig(tolerance, self.mode)
            self.throttle.reconfigure(config)()
            self.intake.on_configured(json.dumps({"throttle": {"tolerance": tolerance}}))

        if swap:
            self.dispatcher.swap_router(self.dispatcher.router, change)
        else:
            change()

    def set_subscription(self, topic: UUri, subscriber: UUri, period_ns: int | None) -> None:
        """Change a subscription, and record the change; None removes it."""
        self.directory.set_subscription(topic, subscriber, period_ns)
        change = Change.UNSUBSCRIBED if period_ns is None else Change.CHANGED
        self.intake.on_subscription_change(Subscription(topic, subscriber, period_ns or 0), change)

    def publish(self, topic: UUri, age_ms: int = 0) -> None:
        """A message that was created `age_ms` ago arrives."""
        id = self._ids.next()
        self.dispatcher.ingress("chassis").dispatch(
            publish(UUID(id.msb - (age_ms << 16), id.lsb), topic, b"speed")
        )

    def advance(self, ns: int) -> None:
        end_ns = self.time.now_ns + ns
        while (due_ns := self.timers.next_due_ns) is not None and due_ns + self.late_ns <= end_ns:
            self.time.now_ns = max(self.time.now_ns, due_ns + self.late_ns) + 1
            for action in self.timers.pop_due(due_ns):
                action()
                self.time.now_ns += 1  # no two decisions at one moment, as on a real clock
        self.time.now_ns = max(self.time.now_ns, end_ns)

    def recorded(self) -> list[Event]:
        for endpoint_queue in self.egress.values():
            endpoint_queue.send()
        self._journal.write(self.intake.notes, len(self.intake.notes), self.intake)
        self._journal.finish(EMPTY_LEDGER)
        found: list[Event] = []
        for file in list_segments(self._directory):
            for event in read_segment(file.path.read_bytes(), file.path.name):
                assert not hasattr(event, "torn")
                found.append(event)
        return found
