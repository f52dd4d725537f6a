# SPDX-License-Identifier: Apache-2.0
"""The plugin in the real dispatcher: correct rates per target, correct verdicts in the ledger."""

import gc
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from ustreamer_throttle.pacer import LATE_TIMER_NS
from ustreamer_throttle.plugin import ThrottleConfig as Config
from ustreamer_throttle.plugin import ThrottlePlugin

from ustreamer.core.base.clock import ManualClock
from ustreamer.core.base.timers import Timers
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Ledger, LedgerSnapshot, Verdict
from ustreamer.core.delivery.ports import SendOne
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.routing.router import SELF, AuthorityTable, Router
from ustreamer.core.routing.subscriptions import Subscription, period_of
from ustreamer.hooks import PluginContext
from ustreamer.host.runtime.late_subscribers import MAX_THROTTLED, LateSubscribers
from ustreamer.transport_port import EndpointTransport
from ustreamer.transports.local.transport import LocalNetwork, LocalTransport
from ustreamer.uprotocol import UMessage, UuidSource, UUri
from ustreamer.uprotocol.umessage import notification, publish, request
from ustreamer.uprotocol.ustatus import UCode, UStatus

SPEED = UUri("chassis", 0x1234, 1, 0x8001)
DOOR = UUri("chassis", 0x1234, 1, 0x8002)
MS = 1_000_000
APP = UUri("hpc.vin1", 0x10AB, 1, 0)
CLOUD_APP = UUri("cloud", 0x10AB, 1, 0)
OTHER_APP = UUri("cloud", 0x10AC, 1, 0)


class FakeDirectory:
    """A directory that a test changes."""

    def __init__(self) -> None:
        self.version = 0
        self._subscriptions: dict[tuple[UUri, UUri], Subscription] = {}

    def subscribe(self, topic: UUri, subscriber: UUri, hz: float | None) -> None:
        self._subscriptions[topic, subscriber] = Subscription(topic, subscriber, period_of(hz) if hz else 0)
        self.version += 1

    def unsubscribe(self, topic: UUri, subscriber: UUri) -> None:
        del self._subscriptions[topic, subscriber]
        self.version += 1

    def subscribers(self, topic: UUri) -> Sequence[Subscription]:
        return [desired for (wished, _), desired in self._subscriptions.items() if wished == topic]


class RecordingEgress:
    """An egress that delivers at once and records the times."""

    unicast = False

    def __init__(self, name: str, clock: ManualClock) -> None:
        self.name = name
        self.ledger = Ledger()
        self.messages: list[tuple[int, UMessage]] = []
        self._clock = clock

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        return lambda message: None

    def offer(self, delivery: Delivery, message: UMessage, now_ns: int) -> None:
        self.messages.append((self._clock.now_ns, message))
        delivery.settle(self.ledger, message, Verdict.DELIVERED, now_ns, now_ns, attempts=1)


class Bench:
    """The dispatcher with this plugin, a clock, and two networks behind it."""

    def __init__(self, config: Config) -> None:
        self.time = ManualClock()
        clock = self.time.clock()
        self.timers = Timers()
        self.directory = FakeDirectory()
        context = PluginContext("hpc.vin1", ("hpc.vin1",), Path("unused"), clock, self.timers.schedule)
        self.plugin = ThrottlePlugin(config, context)
        self.egresses = {
            name: RecordingEgress(name, self.time) for name in (SELF, "chassis", "backbone", "cloud")
        }
        places = AuthorityTable({"chassis": "chassis", "hpc.vin1": "backbone", "cloud": "cloud"})
        self.dispatcher = Dispatcher(
            "hpc.vin1",
            clock,
            Router(places, self.directory, dict.fromkeys(self.egresses, False)),
            self.egresses,
            filters=self._filters,
            schedule=self.timers.schedule,
        )
        self.ids = UuidSource(clock.wall_ms)
        self.chassis = self.dispatcher.ingress("chassis")

    def _filters(self, delivery: Delivery) -> list:  # type: ignore[type-arg]
        found = self.plugin.ustreamer_filters(delivery)
        return [found] if found else []

    def made(self, count: int, *, hz: float) -> list[UMessage]:
        """Publications with the creation times of a steady publisher, not yet dispatched."""
        messages = []
        for number in range(count):
            self.advance_to(round(number * 1e9 / hz))
            messages.append(publish(self.ids.next(), SPEED, b"%d" % number))
        return messages

    def publish(self, topic: UUri = SPEED, payload: bytes = b"") -> None:
        self.chassis.dispatch(publish(self.ids.next(), topic, payload))

    def run(self, *, hz: float, seconds: float, topic: UUri = SPEED) -> None:
        """Publish at `hz` for `seconds`, with timers firing in between as they are due."""
        for n in range(round(hz * seconds)):
            self.advance_to(round(n * 1e9 / hz))
            self.publish(topic, str(n).encode())

    def advance_to(self, when_ns: int) -> None:
        while (due := self.timers.next_due_ns) is not None and due <= when_ns:
            self.time.now_ns = max(self.time.now_ns, due)
            for action in self.timers.pop_due(due):
                action()
        self.time.now_ns = max(self.time.now_ns, when_ns)

    def got(self, endpoint: str) -> list[bytes]:
        return [message.payload for _, message in self.egresses[endpoint].messages]

    def ledger(self) -> LedgerSnapshot:
        return self.dispatcher.ledger_snapshot([queue.ledger for queue in self.egresses.values()], queued=0)


def test_each_target_gets_its_own_rate_and_the_rest_is_counted_as_throttled() -> None:
    bench = Bench(Config())
    bench.directory.subscribe(SPEED, APP, 40)
    bench.directory.subscribe(SPEED, CLOUD_APP, 10)
    bench.run(hz=100, seconds=10)
    assert abs(len(bench.got("backbone")) - 400) <= 2
    assert abs(len(bench.got("cloud")) - 100) <= 2
    ledger = bench.ledger()
    assert ledger.received == 2000
    assert ledger.throttled == 2000 - ledger.delivered
    assert ledger.dead_lettered == 0
    assert ledger.unaccounted == 0
    assert not bench.dispatcher.dead_letters


@pytest.mark.parametrize("hz", [100, 77, 30])
def test_a_publisher_that_is_not_faster_than_the_limit_is_untouched(hz: float) -> None:
    bench = Bench(Config())
    bench.directory.subscribe(SPEED, APP, 100)
    bench.run(hz=hz, seconds=5)
    assert len(bench.got("backbone")) == round(hz * 5)
    assert bench.ledger().throttled == 0


def test_without_a_limit_there_is_no_gate() -> None:
    bench = Bench(Config())
    bench.directory.subscribe(SPEED, APP, None)
    bench.run(hz=1000, seconds=1)
    assert len(bench.got("backbone")) == 1000


def test_topics_do_not_use_up_each_others_rate() -> None:
    bench = Bench(Config())
    bench.directory.subscribe(SPEED, APP, 10)
    bench.directory.subscribe(DOOR, APP, 10)
    for topic in (SPEED, DOOR):
        bench.publish(topic)
    assert len(bench.got("backbone")) == 2


def test_a_subscription_of_another_subscriber_does_not_reset_a_target() -> None:
    bench = Bench(Config())
    bench.directory.subscribe(SPEED, APP, 1)
    bench.publish()
    for n in range(5):
        bench.directory.subscribe(DOOR, UUri("hpc.vin1", n + 1, 1, 0), None)
        bench.time.advance(ms=1)
        bench.publish()
    assert len(bench.got("backbone")) == 1


def test_a_new_limit_holds_at_once_and_buys_no_message() -> None:
    bench = Bench(Config())
    bench.directory.subscribe(SPEED, APP, 1)
    bench.publish()
    for _ in range(5):  # back and forth
        bench.directory.subscribe(SPEED, APP, 1000)
        bench.directory.subscribe(SPEED, APP, 1)
        bench.publish()
    assert len(bench.got("backbone")) == 1
    bench.directory.subscribe(SPEED, APP, 1000)
    bench.publish()
    bench.time.advance(ms=1)
    bench.publish()
    assert len(bench.got("backbone")) == 2
    bench.directory.subscribe(SPEED, APP, None)
    for _ in range(10):
        bench.publish()
    assert len(bench.got("backbone")) == 12


def test_rpc_and_notifications_are_never_throttled() -> None:
    bench = Bench(Config())
    bench.directory.subscribe(SPEED, APP, 0.001)
    for _ in range(20):
        bench.chassis.dispatch(notification(bench.ids.next(), SPEED, APP))
        bench.chassis.dispatch(
            request(bench.ids.next(), UUri("chassis", 1, 1, 0), APP.with_resource(1), ttl=1000)
        )
    assert len(bench.got("backbone")) == 40
    assert bench.ledger().throttled == 0


# --- mode latest ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [Config(mode="latest"), Config(latest=("//*/FFFF1234/FF/FFFF",))], ids=str)
def test_in_mode_latest_the_last_value_always_arrives(config: Config) -> None:
    bench = Bench(config)
    bench.directory.subscribe(SPEED, APP, 40)
    bench.run(hz=100, seconds=10)
    assert bench.ledger().queued == 1
    bench.advance_to(11_000_000_000)
    assert bench.got("backbone")[-1] == b"999"
    assert abs(len(bench.got("backbone")) - 400) <= 2
    ledger = bench.ledger()
    assert (ledger.received, ledger.unaccounted, ledger.queued) == (1000, 0, 0)
    assert ledger.throttled == 1000 - ledger.delivered


def test_a_held_message_is_not_sent_after_an_unsubscribe() -> None:
    bench = Bench(Config(mode="latest"))
    bench.directory.subscribe(SPEED, APP, 1)
    bench.publish(payload=b"first")
    bench.publish(payload=b"held")
    bench.directory.unsubscribe(SPEED, APP)
    bench.advance_to(2_000_000_000)
    assert bench.got("backbone") == [b"first"]
    ledger = bench.ledger()
    assert (ledger.no_subscriber, ledger.queued, ledger.unaccounted) == (1, 0, 0)


def test_a_held_message_is_sent_when_the_new_limit_permits_it() -> None:
    bench = Bench(Config(mode="latest"))
    bench.directory.subscribe(SPEED, APP, 1)
    bench.publish(payload=b"first")
    bench.publish(payload=b"held")
    bench.directory.subscribe(SPEED, APP, 100)
    bench.publish(payload=b"newer")
    bench.advance_to(50_000_000)
    assert bench.got("backbone") == [b"first", b"newer"]
    bench.directory.subscribe(SPEED, APP, 1)
    bench.publish(payload=b"held again")
    bench.directory.subscribe(SPEED, APP, None)
    bench.publish(payload=b"free")
    bench.advance_to(5_000_000_000)
    assert sorted(bench.got("backbone")) == sorted([b"first", b"newer", b"held again", b"free"])
    assert bench.ledger().unaccounted == 0


def bunched(mode: Literal["drop", "latest"], at_ns: int) -> tuple[Bench, list[UMessage]]:
    """A limit of 100 Hz, and 8 messages of 100 Hz: the first one came in time, the next 6 as a bunch now, one is left."""
    bench = Bench(Config(mode=mode))
    bench.directory.subscribe(SPEED, APP, 100)
    made = bench.made(8, hz=100)
    bench.chassis.dispatch(made[0])
    bench.advance_to(at_ns)
    for message in made[1:7]:
        bench.chassis.dispatch(message)
    return bench, made


@pytest.mark.parametrize("mode", ["drop", "latest"])
def test_at_a_lifted_limit_the_order_is_kept(mode: Literal["drop", "latest"]) -> None:
    bench, made = bunched(mode, 140_000_000)
    assert bench.got("backbone") == [b"0", b"1"]
    bench.directory.subscribe(SPEED, APP, None)
    bench.chassis.dispatch(made[7])
    assert bench.got("backbone") == [b"%d" % n for n in range(8)]
    assert bench.ledger().unaccounted == bench.ledger().queued == 0


@pytest.mark.parametrize("mode", ["drop", "latest"])
def test_a_bunch_leaves_at_the_limit_in_order(mode: Literal["drop", "latest"]) -> None:
    bench, _ = bunched(mode, 130_000_000)
    assert bench.ledger().queued == 5
    bench.advance_to(1_000_000_000)
    assert bench.got("backbone") == [b"%d" % n for n in range(7)]
    times = [at for at, _ in bench.egresses["backbone"].messages[1:]]
    assert min(later - earlier for earlier, later in itertools.pairwise(times)) >= 9_000_000
    assert bench.ledger().unaccounted == bench.ledger().queued == bench.ledger().throttled == 0


@pytest.mark.parametrize("mode", ["drop", "latest"])
def test_at_a_slower_limit_no_message_of_a_bunch_waits_for_long(mode: Literal["drop", "latest"]) -> None:
    bench, made = bunched(mode, 130_000_000)
    bench.directory.subscribe(SPEED, APP, 20)
    bench.chassis.dispatch(made[7])
    bench.advance_to(1_000_000_000)
    times = [at for at, payload in bench.egresses["backbone"].messages[2:]]
    assert bench.got("backbone")[:2] == [b"0", b"1"]
    assert bench.got("backbone") == sorted(bench.got("backbone"))
    assert 1 <= len(times) <= 3
    # Mode latest holds a message before it waits: for up to a period of its gate, and for the lateness of the bunch.
    hold_ns = 0 if mode == "drop" else 80_000_000
    assert max(times) - 130_000_000 <= 100_000_000 + LATE_TIMER_NS + hold_ns
    ledger = bench.ledger()
    assert (ledger.unaccounted, ledger.queued, ledger.throttled) == (0, 0, 8 - len(bench.got("backbone")))


def test_gates_go_with_their_targets() -> None:
    bench = Bench(Config(mode="latest"))
    bench.directory.subscribe(SPEED, APP, 10)
    bench.publish()
    assert len(bench.plugin._filters) == 1
    bench.directory.unsubscribe(SPEED, APP)
    bench.publish()
    bench.chassis._routes.clear()
    gc.collect()
    assert len(bench.plugin._filters) == 0


@pytest.mark.parametrize("mode", ["drop", "latest"])
def test_another_tolerance_holds_from_the_next_message_on_for_old_and_new_targets(
    mode: Literal["drop", "latest"],
) -> None:
    bench = Bench(Config(mode=mode, tolerance=0))
    bench.directory.subscribe(SPEED, APP, 10)
    bench.publish(payload=b"1")
    apply = bench.plugin.reconfigure(Config(mode=mode, tolerance=0.5))
    bench.advance_to(60_000_000)
    assert bench.got("backbone") == [b"1"]
    bench.dispatcher.swap_router(bench.dispatcher.router, apply)
    bench.publish(payload=b"2")
    bench.directory.subscribe(DOOR, APP, 10)
    bench.publish(DOOR, b"3")
    bench.advance_to(120_000_000)
    bench.publish(DOOR, b"4")
    assert bench.got("backbone") == [b"1", b"2", b"3", b"4"]


def test_a_message_held_during_a_change_of_the_tolerance_is_sent_once() -> None:
    bench = Bench(Config(mode="latest"))
    bench.directory.subscribe(SPEED, APP, 10)
    bench.publish(payload=b"first")
    bench.publish(payload=b"held")
    bench.dispatcher.swap_router(
        bench.dispatcher.router, bench.plugin.reconfigure(Config(mode="latest", tolerance=0.5))
    )
    bench.advance_to(1_000_000_000)
    assert bench.got("backbone") == [b"first", b"held"]
    assert bench.ledger().unaccounted == bench.ledger().queued == 0


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (Config(mode="latest"), "mode: needs a restart"),
        (Config(latest=("//a/1/1/8001",)), "latest: needs a restart"),
        (Config(mode="latest", latest=("//a/1/1/8001",), tolerance=0.2), "mode and latest: needs a restart"),
    ],
)
def test_another_mode_needs_a_restart(config: Config, words: str) -> None:
    bench = Bench(Config())
    with pytest.raises(ValueError, match=f"^{words}$"):
        bench.plugin.reconfigure(config)


# --- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"tolerance": 0.6}, "tolerance"),
        ({"tolerance": -0.1}, "tolerance"),
        ({"mode": "newest"}, "mode"),
        ({"tolerence": 0.1}, "tolerence"),
    ],
)
def test_a_mistake_in_the_section_is_named(section: dict[str, object], words: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=words):
        msgspec.convert(section, Config)


def test_a_pattern_that_is_no_address_is_refused_with_its_place() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"latest\[1\]: UUri 'speed'"):
        msgspec.convert({"latest": ["//*/1/1/8001", "speed"]}, Config)


def test_a_limit_changes_at_the_time_of_the_message_that_brought_the_change() -> None:
    """Not at another value of the clock, because a replay of a recording has only this value."""
    bench = Bench(Config())
    bench.directory.subscribe(SPEED, APP, 10)
    bench.publish()
    [(delivery, paced)] = bench.plugin._filters.items()
    notified: list[tuple[int, int]] = []
    paced.retune = lambda *times: notified.append(times)  # type: ignore[method-assign]
    bench.directory.subscribe(SPEED, APP, 20)
    bench.time.advance(ms=30)
    bench.publish()
    assert notified == [(50_000_000, delivery.period_since_ns)] == [(50_000_000, 30_000_000)]


# --- late subscribers of a field ----------------------------------------------------------------------------------------


class FieldBench(Bench):
    """The dispatcher with a limit, and a network that keeps the last publication of each topic."""

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config or Config())
        self.values: dict[UUri, bytes] = {}
        bench = self

        class Network(LocalTransport):
            def field_values(self, topic: UUri) -> Sequence[UMessage]:
                kept = [(each, value) for each, value in bench.values.items() if topic.matches(each)]
                return [publish(bench.ids.next(), each, value) for each, value in kept]

        networks: dict[str, EndpointTransport] = {"chassis": Network(LocalNetwork(), "hpc.vin1")}
        networks |= {name: LocalTransport(LocalNetwork(), "hpc.vin1") for name in ("backbone", "cloud")}
        places = {"chassis": "chassis", "hpc.vin1": "backbone", "cloud": "cloud"}
        self.late = LateSubscribers(
            self.dispatcher, networks, places.get, self.time.clock(), self.timers.schedule
        )

    def value(self, payload: bytes, topic: UUri = SPEED) -> None:
        """The field changes."""
        self.values[topic] = payload
        self.publish(topic, payload)

    def subscribe(self, hz: float | None, app: UUri = CLOUD_APP, topic: UUri = SPEED) -> None:
        self.directory.subscribe(topic, app, hz)
        self.late.on_subscribe(Subscription(topic, app))
        self.advance_to(self.time.now_ns)

    def times(self, endpoint: str = "cloud") -> list[tuple[float, bytes]]:
        """When which value was sent, in ms."""
        return [(at_ns / MS, message.payload) for at_ns, message in self.egresses[endpoint].messages]

    def check(self) -> None:
        assert self.ledger().unaccounted == 0


@pytest.fixture
def bench() -> FieldBench:
    bench = FieldBench()
    bench.subscribe(1.0)
    bench.value(b"1")
    return bench


def test_a_throttled_value_is_sent_a_period_later_and_once(bench: FieldBench) -> None:
    bench.advance_to(300 * MS)
    bench.subscribe(1.0, OTHER_APP)
    bench.advance_to(20_000 * MS)
    assert bench.times() == [(0, b"1"), (1_300, b"1")]
    bench.check()


def test_each_late_subscriber_gets_a_value(bench: FieldBench) -> None:
    bench.advance_to(500 * MS)
    bench.subscribe(1.0, OTHER_APP)
    bench.advance_to(1_050 * MS)
    bench.value(b"2")
    bench.advance_to(1_200 * MS)
    bench.subscribe(1.0, UUri("cloud", 0x10AD, 1, 0))
    bench.advance_to(20_000 * MS)
    assert bench.times() == [(0, b"1"), (1_050, b"2"), (2_200, b"2")]


def test_a_faster_subscriber_does_not_wait_for_the_period_of_a_slower_one() -> None:
    bench = FieldBench()
    bench.subscribe(0.01)
    bench.value(b"1")
    bench.advance_to(1_000 * MS)
    bench.subscribe(0.01, OTHER_APP)
    bench.advance_to(1_100 * MS)
    bench.subscribe(10.0, OTHER_APP)
    bench.advance_to(1_300 * MS)
    assert bench.times() == [(0, b"1"), (1_200, b"1")]
    bench.advance_to(300_000 * MS)
    assert len(bench.times()) == 2


@pytest.mark.parametrize(("newer_ms", "sent_ms"), [(400, 1_300), (1_100, 1_100)])
def test_only_the_newest_value_is_sent_again(bench: FieldBench, newer_ms: int, sent_ms: int) -> None:
    """One that the limit throttled, too, is sent instead; one that has passed it ends the wait."""
    bench.advance_to(300 * MS)
    bench.subscribe(1.0, OTHER_APP)
    bench.advance_to(newer_ms * MS)
    bench.value(b"2")
    bench.advance_to(20_000 * MS)
    assert bench.times() == [(0, b"1"), (sent_ms, b"2")]


def test_a_subscriber_that_subscribes_again_does_not_wait_twice(bench: FieldBench) -> None:
    bench.advance_to(700 * MS)
    bench.subscribe(1.0, OTHER_APP)
    bench.advance_to(1_010 * MS)
    bench.value(b"2")
    bench.advance_to(1_020 * MS)
    bench.value(b"3")
    bench.subscribe(1.0, OTHER_APP)
    bench.advance_to(20_000 * MS)
    assert bench.times()[:2] == [(0, b"1"), (1_010, b"2")]
    ((at_ms, value),) = bench.times()[2:]
    assert value == b"3"
    assert 1_500 <= at_ms <= 2_150  # the subscriber came at 1 020 ms


def test_in_mode_latest_the_filter_holds_the_value() -> None:
    bench = FieldBench(Config(mode="latest"))
    bench.subscribe(1.0)
    bench.value(b"1")
    for at_ms in (300, 400):
        bench.advance_to(at_ms * MS)
        bench.subscribe(1.0, OTHER_APP)
    bench.advance_to(20_000 * MS)
    assert [value for _, value in bench.times()] == [b"1", b"1"]
    bench.check()


def test_a_wildcard_gets_each_throttled_value_once(bench: FieldBench) -> None:
    others = [SPEED.with_resource(0x8100 + number) for number in range(3)]
    for topic in others:
        bench.directory.subscribe(topic, CLOUD_APP, 1.0)
        bench.value(str(topic).encode(), topic)
    bench.advance_to(300 * MS)
    bench.late.on_subscribe(Subscription(SPEED.with_resource(0xFFFF), CLOUD_APP))
    bench.advance_to(20_000 * MS)
    sent = [value for at_ms, value in bench.times() if at_ms > 0]
    assert sorted(sent) == sorted([b"1", *(str(each).encode() for each in others)])


def test_after_an_unsubscribe_nothing_is_sent_or_kept() -> None:
    bench = FieldBench()
    bench.subscribe(0.001)
    bench.value(b"1")
    for _ in range(100):
        bench.subscribe(0.001, OTHER_APP)
    assert len(bench.late._throttled) == 1
    bench.directory.unsubscribe(SPEED, OTHER_APP)
    bench.directory.unsubscribe(SPEED, CLOUD_APP)
    bench.advance_to(60_000 * MS)
    assert bench.times() == [(0, b"1")]
    assert not bench.late._throttled
    assert bench.timers.next_due_ns is None


def test_the_number_of_waiting_values_has_a_bound(bench: FieldBench) -> None:
    for number in range(MAX_THROTTLED + 10):
        bench.late.on_subscribe(Subscription(SPEED, UUri("cloud", 0x20000 + number, 1, 0)))
    bench.advance_to(bench.time.now_ns)
    assert len(bench.late._throttled) == MAX_THROTTLED


def test_a_closed_streamer_sends_no_value_again(bench: FieldBench) -> None:
    bench.advance_to(300 * MS)
    bench.subscribe(1.0, OTHER_APP)
    bench.chassis.close(UStatus(UCode.UNAVAILABLE, "stopped"))
    bench.advance_to(20_000 * MS)
    assert bench.times() == [(0, b"1")]


def test_a_subscriber_without_a_limit_gets_the_value_at_once(bench: FieldBench) -> None:
    bench.directory.subscribe(SPEED, APP, None)
    bench.advance_to(300 * MS)
    bench.subscribe(None, APP)
    assert bench.times("backbone") == [(300, b"1")]
