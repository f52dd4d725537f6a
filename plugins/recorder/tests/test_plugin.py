# SPDX-License-Identifier: Apache-2.0
"""The plugin in a real dispatcher: the recording matches the ledger, and a replay gives the same verdicts."""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pluggy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ustreamer_recorder.config import RecorderConfig
from ustreamer_recorder.events import Config, Counters, Letter, Row
from ustreamer_recorder.layout import CountersCause
from ustreamer_recorder.plugin import RecorderPlugin
from ustreamer_recorder.reader import read_segment
from ustreamer_recorder.segments import list_segments

from ustreamer.core.base.clock import Clock
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Ledger, LedgerSnapshot, Verdict
from ustreamer.core.delivery.ports import Filter, SendOne
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.egress.dead_letter import DeadLetter
from ustreamer.core.egress.limits import EgressLimits
from ustreamer.core.routing.router import SELF, AuthorityTable, Router
from ustreamer.core.routing.subscriptions import StaticDirectory, Subscription
from ustreamer.hooks import PROJECT, Hooks, PluginContext, StreamerSettings
from ustreamer.uprotocol.umessage import UMessage, publish, request
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

SPEED, DOOR = UUri("chassis", 0x1234, 1, 0x8001), UUri("chassis", 0x1234, 1, 0x8002)
APP, METHOD = UUri("hpc", 7, 1, 0), UUri("hpc", 7, 1, 1)


class FakeEgress:
    """Delivers at once, or fails permanently."""

    unicast = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.ledger = Ledger()
        self.broken = False
        self.dispatcher: Dispatcher | None = None

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        return lambda message: None

    def offer(self, delivery: Delivery, message: UMessage, now_ns: int) -> None:
        if not self.broken:
            delivery.settle(self.ledger, message, Verdict.DELIVERED, now_ns, now_ns, None, 1, now_ns)
            return
        reason = UStatus(UCode.UNAVAILABLE, "broken")
        delivery.settle(self.ledger, message, Verdict.DEAD_LETTERED, now_ns, now_ns, reason, 1, now_ns)
        assert self.dispatcher is not None
        self.dispatcher.dead_letter(message, reason, self.name, 1, now_ns, now_ns, delivery.ingress)


class Refusing(Filter):
    def __init__(self) -> None:
        self.on = False

    def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
        return Verdict.DENIED if self.on else None


class Streamer:
    """As the host puts it together, without transports: `read` after `stop`."""

    def __init__(self, state_dir: Path, **config: object) -> None:
        self.egresses = {name: FakeEgress(name) for name in (SELF, "chassis", "backbone")}
        self.letters: list[DeadLetter] = []
        self.refusing = Refusing()
        clock = Clock(time.monotonic_ns, lambda: time.time_ns() // 1_000_000)
        context = PluginContext(
            "hpc", ("hpc",), state_dir, clock, lambda when, action: None, ledger=self.ledger
        )
        self.state_dir = state_dir
        self.plugin = RecorderPlugin(RecorderConfig(keep_free_bytes=0, **config), context)  # type: ignore[arg-type]
        manager = pluggy.PluginManager(PROJECT)
        manager.add_hookspecs(Hooks)
        manager.register(self.plugin)
        manager.check_pending()
        self.hook = manager.hook
        self.hook.ustreamer_configured(settings=self.settings(100))
        directory = StaticDirectory([Subscription(SPEED, APP, 1000)])
        for notified in self.hook.ustreamer_subscription_watch():
            directory.watch(notified)
        self.dispatcher = Dispatcher(
            "hpc",
            clock,
            Router(
                AuthorityTable({"chassis": "chassis", "hpc": "backbone"}),
                directory,
                dict.fromkeys(self.egresses, False),
            ),
            self.egresses,
            filters=self._filters,
            taps=lambda endpoint: self.hook.ustreamer_taps(endpoint=endpoint),
            schedule=lambda when, action: None,
            on_dead_letter=self.letters.append,
        )
        for queue in self.egresses.values():
            queue.dispatcher = self.dispatcher
        self.ids = UuidSource(clock.wall_ms)

    def _filters(self, delivery: Delivery) -> list[Filter]:
        assert self.hook.ustreamer_filters(delivery=delivery) == []  # it decides nothing
        return [self.refusing]

    def settings(self, queue_messages: int) -> StreamerSettings:
        return StreamerSettings(
            {"backbone": EgressLimits(queue_messages=queue_messages)}, {"recorder": RecorderConfig()}
        )

    def ledger(self) -> LedgerSnapshot:
        return self.dispatcher.ledger_snapshot([queue.ledger for queue in self.egresses.values()], 0)

    def receive(self, kind: str) -> None:
        self.refusing.on = kind == "refused"
        self.egresses["backbone"].broken = kind == "broken"
        id = self.ids.next()
        match kind:
            case "request":
                message = request(id, UUri("chassis", 9, 1, 0), METHOD, ttl=1000)
            case "expired":
                message = publish(UuidSource(lambda: 1000).next(), SPEED, ttl=1)
            case "spoofed":
                message = publish(id, UUri("hpc", 1, 1, 0x8001))
            case "unwanted":
                message = publish(id, DOOR)
            case _:
                message = publish(id, SPEED, b"payload")
        self.dispatcher.ingress("chassis").dispatch(message)

    def stop(self) -> None:
        self.hook.ustreamer_stopped()

    def events(self) -> list[Any]:
        files = list_segments(self.state_dir / "recordings")
        return [event for file in files for event in read_segment(file.path.read_bytes(), file.path.name)]


KINDS = ["delivered", "refused", "broken", "request", "expired", "spoofed", "unwanted"]


@given(kinds=st.lists(st.sampled_from(KINDS), max_size=30))
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
def test_the_recording_matches_the_dispatchers_ledger(
    kinds: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    streamer = Streamer(tmp_path_factory.mktemp("state"), flush_ms=10)
    for kind in kinds:
        streamer.receive(kind)
    streamer.dispatcher.publish_dead_letters()
    streamer.stop()
    events, ledger = streamer.events(), streamer.ledger()
    verdicts = Counter(each.verdict.name.lower() for each in events if isinstance(each, Row))
    books = msgspec.to_builtins(ledger)
    assert ledger.unaccounted == 0
    assert dict(verdicts) == {
        name: count for name, count in books.items() if count and name not in ("received", "queued")
    }
    last = [each for each in events if isinstance(each, Counters)][-1]
    assert (last.cause, last.ledger, last.next_seq) == (CountersCause.STOPPED, ledger, ledger.received)
    assert [each.id for each in events if isinstance(each, Letter)] == [
        letter.message.id for letter in streamer.letters
    ]


def test_a_reload_starts_an_epoch_with_new_targets(tmp_path: Path) -> None:
    streamer = Streamer(tmp_path)
    streamer.receive("delivered")
    streamer.dispatcher.swap_router(
        streamer.dispatcher.router,
        lambda: streamer.hook.ustreamer_configured(settings=streamer.settings(7)),
    )
    streamer.receive("delivered")
    streamer.stop()
    events = streamer.events()
    configs = [each for each in events if isinstance(each, Config)]
    limits = [json.loads(each.text)["egress"]["backbone"]["queue_messages"] for each in configs]
    assert limits == [100, 7]
    assert json.loads(configs[0].text)["throttle"] is None
    first, second = (each for each in events if isinstance(each, Row))
    assert (first.epoch, second.epoch) == (0, 1)
    assert first.target.delivery == second.target.delivery
    assert first.target.tuned_ns < configs[1].since_ns <= second.target.tuned_ns <= second.received_ns
    assert (first.target.period_ns, first.target.topic) == (1000, str(SPEED))


def test_constructing_the_plugin_touches_no_file(tmp_path: Path) -> None:
    clock = Clock(time.monotonic_ns, lambda: 0)
    context = PluginContext("hpc", ("hpc",), tmp_path / "state", clock, lambda when, action: None)
    RecorderPlugin(RecorderConfig(), context).ustreamer_stopped()
    assert list(tmp_path.iterdir()) == []
