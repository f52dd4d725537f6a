# SPDX-License-Identifier: Apache-2.0
"""An endpoint queue against transports with scripted failures. Every test ends with the ledger law."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from typing import ClassVar, Self

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.host.waiting import DEADLINE_S, eventually
from ustreamer.core.base.clock import Clock, ManualClock
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Ledger, LedgerSnapshot, Verdict, snapshot
from ustreamer.core.delivery.ports import BackloggedEgress, Filter, SendOne, Tap
from ustreamer.core.egress.limits import OVERHEAD_BYTES, EgressLimits, QueuedMessage
from ustreamer.core.routing.router import SELF
from ustreamer.host.egress.endpoint_queue import EndpointQueue, EndpointQueueStatistics
from ustreamer.host.egress.send_worker import OnUndelivered
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.transport_port import EndpointTransport, RouteUnavailable, SubscriberEnded
from ustreamer.uprotocol.uattributes import UMessageType, UPriority
from ustreamer.uprotocol.umessage import UMessage, publish, request
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.utransport import Listener
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

NS_PER_MS = 1_000_000
QUICK = EgressLimits(retry_first_ms=1, retry_max_ms=1)
TOPIC = UUri("chassis", 0x1234, 1, 0x8001)
OK = None
DOWN = UCode.UNAVAILABLE


# --- fakes -----------------------------------------------------------------------------------------------------------


class ScriptedTransport(EndpointTransport):
    """Notes sends and fails as scripted, attempt by attempt; `then` follows the script."""

    def __init__(self, *script: UCode | None, then: UCode | None = OK) -> None:
        self._script = iter(script)
        self._lock = threading.Lock()
        self.then = then
        self.attempts: list[tuple[UMessage, int, int]] = []  # message, monotonic ns, thread
        self.sent: list[UMessage] = []
        self.gate = threading.Event()  # blocks sends while closed
        self.gate.set()
        self.entered = threading.Event()

    def send(self, message: UMessage) -> None:
        with self._lock:
            outcome = next(self._script, self.then)
            self.attempts.append((message, time.monotonic_ns(), threading.get_ident()))
        self.entered.set()
        assert self.gate.wait(DEADLINE_S)
        if outcome is not None:
            raise UStatusError(outcome, f"attempt {len(self.attempts)}")
        self.sent.append(message)

    @property
    def threads(self) -> list[int]:
        return [thread for _, _, thread in self.attempts]

    def register_listener(
        self, source_filter: UUri, sink_filter: UUri | None, listener: Listener
    ) -> None: ...

    def unregister_listener(
        self, source_filter: UUri, sink_filter: UUri | None, listener: Listener
    ) -> None: ...

    def open(self) -> None: ...

    def stop_receiving(self) -> None: ...

    def close(self) -> None: ...

    def statistics(self) -> dict[str, int]:
        return {}


class InlineTransport(ScriptedTransport):
    """Like UDP: a send never waits."""

    inline = True


class BufferedTransport(ScriptedTransport):
    """Like a connection: a send does not wait while the buffer has room. `send_window` follows the script."""

    def __init__(self, *rooms: int, then_window: int = 0) -> None:
        super().__init__()
        self._rooms = iter(rooms)
        self.then_window = then_window
        self.window_calls = 0

    def send_window(self) -> int:
        self.window_calls += 1
        return next(self._rooms, self.then_window)


class FakeIngress:
    """An ingress that offers messages like a dispatcher, under its own lock."""

    held = 0

    def __init__(self, name: str, endpoint_queue: EndpointQueue, clock: Clock) -> None:
        self.name = name
        self.ledger = Ledger()
        self.taps: tuple[Tap, ...] = (self._note,)
        self.verdicts: list[
            tuple[int, Verdict, UStatus | None, int]
        ] = []  # number, verdict, reason, attempts
        self.delivery = Delivery(self, endpoint_queue)
        self._clock = clock

    def wake_at(self, when_ns: int, delivery: Delivery, holder: Filter) -> None: ...

    def on_filter_stop(
        self, message: UMessage, delivery: Delivery, verdict: Verdict, reason: UStatus
    ) -> None: ...

    def on_filter_error(self, plugin: object, error: BaseException) -> None: ...

    def on_tap_error(self, tap: Tap, error: BaseException) -> None: ...

    def on_backlog(self, egress: BackloggedEgress) -> None: ...

    def is_paused(self, delivery: Delivery) -> bool:
        return False

    def offer(self, message: UMessage) -> None:
        self.ledger.received += 1
        self.delivery.offer(message, self._clock.monotonic_ns())

    def _note(
        self,
        message: UMessage,
        delivery: Delivery | None,
        verdict: Verdict,
        reason: UStatus | None,
        attempts: int,
        arrived_ns: int,
        received_ns: int,
        first_attempt_ns: int,
        settled_ns: int,
    ) -> None:
        if attempts:
            assert arrived_ns == received_ns <= first_attempt_ns <= settled_ns
        else:
            assert (arrived_ns, first_attempt_ns) == (received_ns, 0)
            assert received_ns <= settled_ns
        self.verdicts.append((number(message), verdict, reason, attempts))


class EndpointQueueRig:
    """An endpoint queue on a fake transport, an ingress, and the undelivered messages."""

    def __init__(
        self,
        wire: ScriptedTransport,
        limits: EgressLimits = QUICK,
        clock: Clock = SYSTEM_CLOCK,
        rng: Callable[[], float] = lambda: 1.0,
        undelivered: OnUndelivered | None = None,
    ) -> None:
        self.wire = wire
        self.undelivered: list[tuple[int, UStatus, int]] = []  # number, status, attempts
        self.queue = EndpointQueue("backbone", wire, limits, clock, undelivered or self._note, rng)
        self._clock = clock
        self.gateways = [FakeIngress("chassis", self.queue, clock)]

    def _note(self, item: QueuedMessage, status: UStatus) -> None:
        self.undelivered.append((number(item.message), status, item.attempts))

    def start(self) -> Self:
        self.queue.start()
        return self

    def gateway(self) -> FakeIngress:
        """One more ingress with messages to this queue."""
        self.gateways.append(FakeIngress(f"ingress {len(self.gateways)}", self.queue, self._clock))
        return self.gateways[-1]

    def offer(self, *messages: UMessage) -> None:
        for message in messages:
            self.gateways[0].offer(message)

    def wait_attempts(self, n: int) -> None:
        eventually(lambda: len(self.wire.attempts) >= n, f"{n} attempts")

    def wait_retries(self, n: int) -> None:
        """Wait until the nth pause has begun."""
        eventually(lambda: self.queue.statistics().retries >= n, f"{n} retries")

    def wait_settled(self, n: int) -> None:
        eventually(lambda: sum(self.queue.ledger.settled) >= n, f"{n} verdicts")

    @property
    def sent(self) -> list[int]:
        return [number(message) for message in self.wire.sent]

    @property
    def routes(self) -> "RoutedTransport":
        assert isinstance(self.wire, RoutedTransport)
        return self.wire

    @property
    def verdicts(self) -> list[tuple[int, Verdict, UStatus | None, int]]:
        return [verdict for gateway in self.gateways for verdict in gateway.verdicts]

    def ledger_snapshot(self) -> LedgerSnapshot:
        return snapshot(
            [self.queue.ledger, *(gateway.ledger for gateway in self.gateways)], self.queue.queued
        )

    def finish(self) -> None:
        """Close the queue, and check the ledger law."""
        self.wire.gate.set()
        self.queue.close(DEADLINE_S)
        assert not self.queue._thread.is_alive()
        ledger = self.ledger_snapshot()
        assert ledger.unaccounted == 0, ledger


MakeRig = Callable[..., EndpointQueueRig]


@pytest.fixture
def make_rig() -> Iterator[MakeRig]:
    """Makes rigs; at the end each must close in time with a balanced ledger."""
    rigs: list[EndpointQueueRig] = []

    def make(*arguments: object, **keywords: object) -> EndpointQueueRig:
        rigs.append(EndpointQueueRig(*arguments, **keywords))  # type: ignore[arg-type]
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.finish()


def id_at(time_ms: int) -> UUID:
    return UUID(time_ms << 16 | 0x7000, 0b10 << 62)


def event(
    n: int, priority: UPriority = UPriority.CS1, *, ttl: int | None = None, made_ms: int | None = None
) -> UMessage:
    """Message number `n`, the number being its payload."""
    made_ms = SYSTEM_CLOCK.wall_ms() if made_ms is None else made_ms
    return publish(id_at(made_ms), TOPIC, n.to_bytes(4, "big"), priority=priority, ttl=ttl)


def number(message: UMessage) -> int:
    return int.from_bytes(message.payload[:4], "big")


def events(n: int) -> list[UMessage]:
    return [event(i) for i in range(n)]


def soon() -> int:
    return time.monotonic_ns() + int(DEADLINE_S * 1e9)


def test_an_endpoint_queue_is_unicast_if_its_transport_is() -> None:
    sent_request: list[UUri | None] = []

    class Sessions(ScriptedTransport):
        unicast = True

        def transmitter(self, subscriber: UUri | None) -> SendOne:
            sent_request.append(subscriber)
            return self.send

    wire = Sessions()
    endpoint_queue = EndpointQueue("dashboards", wire, QUICK, SYSTEM_CLOCK, lambda item, status: None)
    subscriber = UUri("dash", 1, 1, 0)
    assert endpoint_queue.transmitter(subscriber) == wire.send
    assert sent_request == [subscriber]
    assert endpoint_queue.unicast
    assert not EndpointQueue(
        "backbone", ScriptedTransport(), QUICK, SYSTEM_CLOCK, lambda item, status: None
    ).unicast


# ---------------------------------------------------------------------------------------------------- order, retry


def test_messages_are_sent_in_the_order_in_which_they_were_offered(make_rig: MakeRig) -> None:
    rig = make_rig(ScriptedTransport()).start()
    rig.offer(*events(300))
    assert rig.queue.wait_empty(soon())
    assert rig.sent == list(range(300))
    assert {verdict[1:] for verdict in rig.verdicts} == {(Verdict.DELIVERED, None, 1)}
    assert set(rig.wire.threads) == {rig.queue._thread.ident}


@pytest.mark.parametrize("seed", range(3))
def test_order_survives_unavailable_links_and_every_message_arrives_once(
    make_rig: MakeRig, seed: int
) -> None:
    dice = random.Random(seed)
    script = [dice.choice((DOWN, OK, OK, OK)) for _ in range(100)]
    rig = make_rig(ScriptedTransport(*script)).start()
    rig.offer(*events(300))
    assert rig.queue.wait_empty(soon())
    assert rig.sent == list(range(300))
    assert rig.undelivered == []
    assert rig.queue.statistics().retries == script.count(DOWN) > 10


@settings(max_examples=25, deadline=None)
@given(
    script=st.lists(st.sampled_from([OK, OK, DOWN, UCode.INVALID_ARGUMENT]), max_size=12),
    inline=st.booleans(),
    before=st.integers(0, 6),
)
def test_for_any_link_sent_messages_are_in_order_and_the_rest_are_dead_letters(
    script: list[UCode | None], inline: bool, before: int
) -> None:
    # `before` messages are offered before the queue starts, the others while it runs.
    rig = EndpointQueueRig((InlineTransport if inline else ScriptedTransport)(*script))
    messages = events(12)
    rig.offer(*messages[:before])
    rig.start()
    rig.offer(*messages[before:])
    assert rig.queue.wait_empty(soon())
    assert rig.sent == sorted(rig.sent)
    assert sorted(rig.sent + [number for number, _, _ in rig.undelivered]) == list(range(12))
    rig.finish()


@pytest.mark.parametrize("code", [code for code in UCode if code not in (UCode.OK, DOWN)])
def test_any_other_failure_is_a_dead_letter_at_once_and_the_next_message_follows(
    make_rig: MakeRig, code: UCode
) -> None:
    rig = make_rig(ScriptedTransport(DOWN, DOWN, code)).start()
    rig.offer(event(0), event(1))
    assert rig.queue.wait_empty(soon())
    assert rig.undelivered == [(0, UStatus(code, "attempt 3"), 3)]
    assert rig.verdicts == [
        (0, Verdict.DEAD_LETTERED, UStatus(code, "attempt 3"), 3),
        (1, Verdict.DELIVERED, None, 1),
    ]
    assert len(rig.wire.attempts) == 4


def test_a_settled_message_has_its_attempts_and_times(make_rig: MakeRig) -> None:
    items: list[QueuedMessage] = []
    rig = make_rig(
        ScriptedTransport(DOWN, DOWN, UCode.INTERNAL), undelivered=lambda item, _: items.append(item)
    ).start()
    rig.offer(event(0))
    rig.wait_settled(1)
    eventually(lambda: bool(items), "the dead letter")
    times = [at for _, at, _ in rig.wire.attempts]
    [item] = items
    assert item.attempts == 3
    assert item.received_ns <= item.first_attempt_ns <= times[0]
    assert times[1] <= item.last_attempt_ns <= times[2]


@pytest.mark.parametrize(
    ("rng", "pauses_ms"),
    [
        pytest.param(0.0, [4, 8, 16, 20, 20], id="the longest"),
        pytest.param(1.0, [2, 4, 8, 10, 10], id="the shortest"),
        pytest.param(0.5, [3, 6, 12, 15, 15], id="in the middle"),
    ],
)
def test_pauses_double_up_to_the_limit_and_are_jittered_by_half(
    make_rig: MakeRig, rng: float, pauses_ms: list[float]
) -> None:
    watch = Stopwatch()
    limits = EgressLimits(retry_first_ms=4, retry_max_ms=20)
    rig = make_rig(ScriptedTransport(*[DOWN] * 5), limits, watch.clock, lambda: rng)
    watch.attach(rig.queue)
    rig.start().offer(event(0))
    rig.wait_settled(1)
    assert watch.pauses_ms == pauses_ms


class Stopwatch:
    """A clock that advances only when a queue waits: pauses are exact and take no time."""

    def __init__(self) -> None:
        self.manual = ManualClock()
        self.clock = self.manual.clock()
        self.pauses_ms: list[float] = []

    def attach(self, endpoint_queue: EndpointQueue) -> None:
        stopwatch = self

        class Changed(threading.Condition):
            def wait(self, timeout: float | None = None) -> bool:
                if timeout is None:
                    return super().wait()
                stopwatch.pauses_ms.append(round(timeout * 1000, 6))
                stopwatch.manual.advance(s=timeout)
                return False

        endpoint_queue._changed = Changed(endpoint_queue._lock)


def test_each_pause_draws_a_new_jitter(make_rig: MakeRig) -> None:
    watch, throws = Stopwatch(), iter([0.0, 1.0, 0.5])
    limits = EgressLimits(retry_first_ms=4, retry_max_ms=4)
    rig = make_rig(ScriptedTransport(DOWN, DOWN, DOWN), limits, watch.clock, lambda: next(throws))
    watch.attach(rig.queue)
    rig.start().offer(event(0))
    rig.wait_settled(1)
    assert watch.pauses_ms == [4, 2, 3]


@pytest.mark.parametrize(
    ("script", "pauses_ms"),
    [
        pytest.param([DOWN, DOWN, DOWN], [4, 8, 16], id="a link that stays down"),
        pytest.param([DOWN, DOWN, OK, DOWN], [4, 8, 4], id="one message got through in between"),
    ],
)
def test_pauses_begin_short_again_once_something_was_sent(
    make_rig: MakeRig, script: list[UCode | None], pauses_ms: list[float]
) -> None:
    watch = Stopwatch()
    rig = make_rig(
        ScriptedTransport(*script), EgressLimits(retry_first_ms=4, retry_max_ms=20), watch.clock, lambda: 0.0
    )
    watch.attach(rig.queue)
    rig.offer(*events(5))
    rig.start().wait_settled(5)
    assert watch.pauses_ms == pauses_ms


def test_pauses_grow_on_while_messages_only_grow_too_old(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    # An expired message was not sent, so it contains no information about the link.
    watch = Stopwatch()
    limits = EgressLimits(retry_first_ms=4, retry_max_ms=20)
    rig = make_rig(ScriptedTransport(*[DOWN] * 3), limits, watch.clock, lambda: 0.0)
    watch.attach(rig.queue)
    made_ms = watch.clock.wall_ms()
    rig.offer(*(event(n, ttl=ttl, made_ms=made_ms) for n, ttl in enumerate((2, 6, 0))))
    with caplog.at_level("WARNING", "ustreamer.egress"):
        rig.start().wait_settled(3)
    assert [(n, status.code) for n, status, _ in rig.undelivered] == [
        (0, UCode.DEADLINE_EXCEEDED),
        (1, UCode.DEADLINE_EXCEEDED),
    ]
    assert watch.pauses_ms == [4, 8, 16]
    assert len(caplog.records) == 1


# ----------------------------------------------------------------------------------------------------- link up

SLOW = EgressLimits(retry_first_ms=3_600_000, retry_max_ms=3_600_000, max_age_ms=3_600_000)


def test_a_pause_ends_at_link_up(make_rig: MakeRig) -> None:
    rig = make_rig(ScriptedTransport(DOWN), SLOW).start()
    rig.offer(*events(3))
    rig.wait_retries(1)
    rig.queue.on_link_up()
    assert rig.queue.wait_empty(soon())
    assert rig.sent == [0, 1, 2]
    assert rig.verdicts[0] == (0, Verdict.DELIVERED, None, 2)


def test_each_link_up_is_one_try_and_no_more(make_rig: MakeRig) -> None:
    rig = make_rig(ScriptedTransport(then=DOWN), SLOW).start()
    rig.offer(event(0))
    for n in range(1, 4):
        rig.wait_retries(n)
        assert len(rig.wire.attempts) == n
        rig.queue.on_link_up()
    rig.wait_retries(4)
    assert len(rig.wire.attempts) == 4


def test_a_link_up_between_refusal_and_pause_is_noticed(
    make_rig: MakeRig,
) -> None:
    # The send is refused during the outage and returns after it: the pause would last an hour.
    rig = make_rig(ScriptedTransport(DOWN), SLOW).start()
    rig.wire.gate.clear()
    rig.offer(event(0))
    rig.wait_attempts(1)
    rig.queue.on_link_up()
    rig.wire.gate.set()
    assert rig.queue.wait_empty(soon())
    assert rig.sent == [0]
    assert rig.queue.statistics().retries == 1


def test_an_earlier_link_up_does_not_shorten_a_pause(make_rig: MakeRig) -> None:
    watch = Stopwatch()
    rig = make_rig(
        ScriptedTransport(OK, DOWN), EgressLimits(retry_first_ms=4, retry_max_ms=20), watch.clock, lambda: 0.0
    )
    watch.attach(rig.queue)
    rig.start()
    rig.queue.on_link_up()
    rig.offer(event(0))
    rig.wait_settled(1)
    rig.queue.on_link_up()
    rig.offer(event(1))
    rig.wait_settled(2)
    assert watch.pauses_ms == [4]


def test_a_link_up_resets_the_failure_count(make_rig: MakeRig) -> None:
    watch = Stopwatch()

    class UpAtTheFourth(ScriptedTransport):
        def send(self, message: UMessage) -> None:
            if len(self.attempts) == 3:
                rig.queue.on_link_up()  # during the fourth send, which is retried without a pause
            super().send(message)

    limits = EgressLimits(retry_first_ms=4, retry_max_ms=1000)
    rig = make_rig(UpAtTheFourth(*[DOWN] * 6), limits, watch.clock, lambda: 0.0)
    watch.attach(rig.queue)
    rig.offer(event(0))
    rig.start().wait_settled(1)
    assert watch.pauses_ms == [4, 8, 16, 4, 8]
    assert rig.queue.statistics().retries == 6


def test_a_closed_queue_stays_closed_after_link_changes(make_rig: MakeRig) -> None:
    rig = make_rig(ScriptedTransport(DOWN), SLOW).start()
    rig.offer(event(0))
    rig.wait_retries(1)
    rig.queue.close(DEADLINE_S)
    rig.queue.on_link_up()
    assert rig.sent == []
    assert rig.ledger_snapshot().queued == 1


def test_a_pause_is_real_time(make_rig: MakeRig) -> None:
    rig = make_rig(
        ScriptedTransport(DOWN, DOWN), EgressLimits(retry_first_ms=10, retry_max_ms=10), rng=lambda: 0.0
    ).start()
    rig.offer(event(0))
    rig.wait_settled(1)
    times = [at for _, at, _ in rig.wire.attempts]
    assert min(later - earlier for earlier, later in pairwise(times)) >= 10 * NS_PER_MS


def test_a_link_down_is_logged_once_until_it_is_up_again(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig(ScriptedTransport(DOWN, DOWN, DOWN)).start()
    with caplog.at_level("WARNING", "ustreamer.egress"):
        rig.offer(event(0))
        rig.wait_settled(1)
    [record] = [each for each in caplog.records if each.name == "ustreamer.egress"]
    assert record.getMessage() == "egress.unavailable"
    assert vars(record)["endpoint"] == "backbone"
    assert vars(record)["reason"] == "UNAVAILABLE: attempt 1"


def test_higher_priorities_overtake_messages_waiting_for_a_retry(make_rig: MakeRig) -> None:
    rig = make_rig(ScriptedTransport(then=DOWN)).start()
    rig.offer(event(0), event(1))
    rig.wait_attempts(1)
    rig.offer(event(2, UPriority.CS5), event(3, UPriority.CS3))
    rig.wire.then = OK
    assert rig.queue.wait_empty(soon())
    assert rig.sent == [2, 3, 0, 1]


# --------------------------------------------------------------------------------------------- subscribers that end


class EndingSubscriberTransport(ScriptedTransport):
    """A transport whose subscriber ends after that number of messages."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._after = after

    def send(self, message: UMessage) -> None:
        if len(self.sent) >= self._after:
            raise SubscriberEnded(UUri("wamp.hpc", 0x1_8001, 1, 0))
        super().send(message)


class InlineEndingSubscriberTransport(EndingSubscriberTransport):
    inline = True


@pytest.mark.parametrize("wire", [EndingSubscriberTransport, InlineEndingSubscriberTransport])
def test_a_message_for_an_ended_subscriber_is_no_subscriber_and_no_dead_letter(
    make_rig: MakeRig, wire: type[EndingSubscriberTransport]
) -> None:
    rig = make_rig(wire(3)).start()
    rig.offer(*events(10))
    rig.wait_settled(10)
    assert rig.sent == [0, 1, 2]
    ledger = rig.ledger_snapshot()
    assert (ledger.delivered, ledger.no_subscriber, ledger.dead_lettered, ledger.queued) == (3, 7, 0, 0)
    assert rig.undelivered == []
    ended = [(reason and str(reason), attempts) for _, verdict, reason, attempts in rig.verdicts[3:]]
    assert ended == [("NOT_FOUND: subscriber up://wamp.hpc/18001/1/0 has ended", 1)] * 7


# --------------------------------------------------------------------------------------------------- closed routes

HERE, THERE = UUri("chassis", 0x1234, 1, 0x8001), UUri("chassis", 0x1234, 1, 0x8002)
CALLER, METHOD = UUri("app", 0x10, 1, 0), UUri("chassis", 0x2001, 1, 1)


class RoutedTransport(ScriptedTransport):
    """A transport with a route for each topic; some are closed."""

    def __init__(self, *closed: UUri) -> None:
        super().__init__()
        self.closed = set(closed)

    def send(self, message: UMessage) -> None:
        topic = message.attributes.source
        if topic in self.closed:
            self.attempts.append((message, time.monotonic_ns(), threading.get_ident()))
            raise RouteUnavailable(topic, f"no listener for {topic}")
        super().send(message)


class AbsentReceivers(RoutedTransport):
    """Expects no receiver of a closed topic from `absent_from_ns` on."""

    def __init__(self, absent_from_ns: int, *closed: UUri) -> None:
        super().__init__(*closed)
        self.absent_from_ns = absent_from_ns

    def send(self, message: UMessage) -> None:
        try:
            super().send(message)
        except RouteUnavailable as error:
            raise RouteUnavailable(error.route, error.message, self.absent_from_ns) from None


class InlineRoutedTransport(RoutedTransport):
    inline = True


def on(topic: UUri, n: int, **keywords: object) -> UMessage:
    """Message number `n` on a topic."""
    made = event(n, **keywords)  # type: ignore[arg-type]
    return UMessage(made.id, msgspec.structs.replace(made.attributes, source=topic), made.payload)


@pytest.mark.parametrize("wire", [RoutedTransport, InlineRoutedTransport])
def test_a_closed_route_delays_no_other_stream(make_rig: MakeRig, wire: type[RoutedTransport]) -> None:
    rig = make_rig(wire(THERE), SLOW).start()
    for n in range(0, 200, 2):
        rig.offer(on(THERE, n), on(HERE, n + 1))
    eventually(lambda: len(rig.sent) == 100, "all that can be sent")
    assert rig.sent == list(range(1, 200, 2))
    eventually(lambda: rig.queue.statistics().blocked == 100, "all others to be blocked")
    statistics = rig.queue.statistics()
    assert (statistics.queued, statistics.closed_routes) == (100, 1)
    assert statistics.queued_bytes == 100 * (OVERHEAD_BYTES + 4)
    assert len(rig.wire.attempts) - 100 <= 2  # an inline queue tries once more on its own thread

    rig.routes.closed.clear()
    rig.queue.on_route_open(THERE)
    assert rig.queue.wait_empty(soon())
    assert rig.sent[100:] == list(range(0, 200, 2))


def test_blocked_messages_are_retried_after_their_own_delays(make_rig: MakeRig) -> None:
    watch = Stopwatch()

    class OpensAtTheFifth(RoutedTransport):
        def send(self, message: UMessage) -> None:
            if len(self.attempts) == 4:
                self.closed.clear()
            super().send(message)

    limits = EgressLimits(retry_first_ms=4, retry_max_ms=20)
    rig = make_rig(OpensAtTheFifth(THERE), limits, watch.clock, lambda: 0.0)
    watch.attach(rig.queue)
    rig.offer(*(on(THERE, n, made_ms=watch.clock.wall_ms()) for n in range(3)))
    rig.start().wait_settled(3)
    assert watch.pauses_ms == [4, 8, 16, 20]
    assert rig.sent == [0, 1, 2]
    assert [attempts for _, _, _, attempts in rig.verdicts] == [5, 1, 1]


def test_a_route_that_opens_while_its_message_is_refused_is_tried_at_once(make_rig: MakeRig) -> None:
    class OpensTooLate(RoutedTransport):
        def send(self, message: UMessage) -> None:
            try:
                super().send(message)
            except RouteUnavailable:
                self.closed.clear()
                rig.queue.on_route_open(THERE)
                raise

    rig = make_rig(OpensTooLate(THERE), SLOW).start()
    rig.offer(on(THERE, 0))
    assert rig.queue.wait_empty(soon())
    assert rig.sent == [0]


def call(caller: UUri, n: int) -> UMessage:
    """Call number `n`."""
    made = event(n)
    return request(made.id, caller, METHOD, made.payload, ttl=60_000)


def test_a_request_without_a_receiver_is_a_dead_letter_at_its_first_try(make_rig: MakeRig) -> None:
    rig = make_rig(AbsentReceivers(0, CALLER, THERE), SLOW).start()
    rig.offer(on(THERE, 0), call(CALLER, 1), call(CALLER, 2))
    rig.wait_settled(2)
    assert [(n, str(status)) for n, status, _ in rig.undelivered] == [
        (n, f"UNAVAILABLE: no listener for {CALLER}") for n in (1, 2)
    ]
    assert [(n, verdict) for n, verdict, _, _ in rig.verdicts] == [(n, Verdict.DEAD_LETTERED) for n in (1, 2)]
    assert rig.queue.statistics().blocked == 1  # a publication still waits for a subscriber


@pytest.mark.parametrize("calls", [64, 100, 128])  # 64 are tried at a time
def test_blocked_requests_are_settled_when_no_receiver_is_expected_any_more(
    make_rig: MakeRig, calls: int
) -> None:
    watch = Stopwatch()
    absent_from_ns = watch.clock.monotonic_ns() + 7 * NS_PER_MS
    limits = EgressLimits(retry_first_ms=4, retry_max_ms=1_000)
    rig = make_rig(AbsentReceivers(absent_from_ns, CALLER), limits, watch.clock, lambda: 0.0)
    watch.attach(rig.queue)
    rig.offer(*(call(CALLER, n) for n in range(calls)))
    rig.start().wait_settled(calls)
    assert watch.pauses_ms == [4, 3]
    assert [n for n, _, _ in rig.undelivered] == list(range(calls))
    assert rig.queue.statistics().closed_routes == 0


def test_blocked_requests_are_sent_in_order_to_a_receiver_that_appears(make_rig: MakeRig) -> None:
    rig = make_rig(AbsentReceivers(soon(), CALLER), SLOW).start()
    rig.offer(*(call(CALLER, n) for n in range(100)))
    eventually(lambda: rig.queue.statistics().blocked == 100, "all to be blocked")
    rig.routes.closed.clear()
    rig.queue.on_route_open(CALLER)
    assert rig.queue.wait_empty(soon())
    assert rig.sent == list(range(100))
    assert rig.undelivered == []


# ------------------------------------------------------------------------------------------------------ broadcasts


def broadcasts(rig: EndpointQueueRig) -> EndpointQueueRig:
    delivery = rig.gateways[0].delivery
    delivery.broadcast, delivery.topic = True, THERE
    return rig


def wait_no_subscriber(rig: EndpointQueueRig, number: int) -> None:
    rig.wait_settled(number)
    assert [verdict for _, verdict, _, _ in rig.verdicts] == [Verdict.NO_SUBSCRIBER] * number
    assert rig.undelivered == []
    assert rig.queue.queued == 0


class InlineAbsentReceivers(AbsentReceivers):
    inline = True


@pytest.mark.parametrize("wire", [AbsentReceivers, InlineAbsentReceivers])
def test_a_broadcast_whose_listeners_are_gone_is_no_dead_letter_and_logs_nothing(
    make_rig: MakeRig, wire: type[AbsentReceivers], caplog: pytest.LogCaptureFixture
) -> None:
    rig = broadcasts(make_rig(wire(0, THERE), SLOW)).start()
    rig.offer(*(on(THERE, n) for n in range(100)))
    wait_no_subscriber(rig, 100)
    assert rig.queue.statistics().closed_routes == 0
    assert caplog.records == []


@pytest.mark.parametrize("refusal", [DOWN, UCode.INTERNAL])
def test_a_refused_broadcast_is_not_tried_again(make_rig: MakeRig, refusal: UCode) -> None:
    rig = broadcasts(make_rig(ScriptedTransport(then=refusal), SLOW)).start()
    rig.offer(*events(10))
    wait_no_subscriber(rig, 10)
    assert len(rig.wire.attempts) == 10


def test_a_broadcast_waits_for_a_listener_that_may_be_back(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig = broadcasts(make_rig(AbsentReceivers(soon(), THERE), SLOW)).start()
    rig.offer(*(on(THERE, n) for n in range(10)))
    eventually(lambda: rig.queue.statistics().blocked == 10, "all to be blocked")
    rig.routes.closed.clear()
    rig.queue.on_route_open(THERE)
    assert rig.queue.wait_empty(soon())
    assert rig.sent == list(range(10))
    assert caplog.records == []


def test_broadcasts_that_wait_at_a_stop_are_no_dead_letters(make_rig: MakeRig) -> None:
    rig = broadcasts(make_rig(AbsentReceivers(soon(), THERE), SLOW)).start()
    rig.offer(*(on(THERE, n) for n in range(10)))
    eventually(lambda: rig.queue.statistics().blocked == 10, "all to be blocked")
    assert rig.queue.abandon_all(UStatus(UCode.UNAVAILABLE, "stopped")) == []
    wait_no_subscriber(rig, 10)


def test_at_the_end_of_retries_a_broadcast_that_waits_is_given_up(make_rig: MakeRig) -> None:
    rig = broadcasts(make_rig(AbsentReceivers(soon(), THERE), SLOW)).start()
    rig.offer(on(THERE, 1))
    eventually(lambda: rig.queue.statistics().blocked == 1, "it to be blocked")
    rig.queue.no_more_retries(UStatus(UCode.UNAVAILABLE, "stopping"))
    rig.queue.on_route_open(THERE)
    wait_no_subscriber(rig, 1)


def test_a_request_of_a_hosted_service_waits_for_its_receiver(make_rig: MakeRig) -> None:
    """A uSubscription waits for a device that starts; its own pauses between two calls are longer."""
    rig = make_rig(AbsentReceivers(0, CALLER), SLOW).start()
    rig.gateways[0].name = SELF
    rig.offer(call(CALLER, 0))
    eventually(lambda: rig.queue.statistics().blocked == 1, "the request to be blocked")
    rig.routes.closed.clear()
    rig.queue.on_route_open(CALLER)
    assert rig.queue.wait_empty(soon())
    assert (rig.sent, rig.undelivered) == ([0], [])


def test_a_link_up_retries_every_closed_route(make_rig: MakeRig) -> None:
    rig = make_rig(RoutedTransport(HERE, THERE), SLOW).start()
    rig.offer(on(HERE, 0), on(THERE, 1))
    eventually(lambda: rig.queue.statistics().closed_routes == 2, "two closed routes")
    rig.routes.closed.remove(THERE)
    rig.queue.on_link_up()
    eventually(lambda: rig.sent == [1], "the one that is open")
    rig.wait_retries(3)
    assert rig.queue.statistics().closed_routes == 1


def test_a_link_lost_during_a_route_probe_pauses_the_queue_and_loses_nothing(
    make_rig: MakeRig,
) -> None:
    class Outage(RoutedTransport):
        def send(self, message: UMessage) -> None:
            if len(self.attempts) == 1:
                self.closed.clear()
                self.attempts.append((message, 0, 0))
                raise UStatusError(DOWN, "no link")
            super().send(message)

    rig = make_rig(Outage(THERE), SLOW).start()
    rig.offer(on(THERE, 0), on(THERE, 1))
    eventually(lambda: rig.queue.statistics().blocked == 2, "both to be blocked")
    rig.queue.on_route_open(THERE)
    rig.wait_retries(2)
    rig.offer(on(HERE, 2))
    assert rig.sent == []
    rig.queue.on_link_up()
    assert rig.queue.wait_empty(soon())
    assert sorted(rig.sent) == [0, 1, 2]
    assert rig.sent.index(0) < rig.sent.index(1)


@pytest.mark.parametrize("ttl", [20, None])
def test_blocked_messages_expire_at_their_deadline(make_rig: MakeRig, ttl: int | None) -> None:
    limits = EgressLimits(retry_first_ms=3_600_000, retry_max_ms=3_600_000, max_age_ms=20)
    rig = make_rig(RoutedTransport(THERE), limits).start()
    rig.offer(*(on(THERE, n, ttl=ttl) for n in range(3)))
    rig.wait_settled(3)
    assert [(n, verdict) for n, verdict, _, _ in rig.verdicts] == [(n, Verdict.EXPIRED) for n in range(3)]
    eventually(lambda: len(rig.undelivered) == 3, "three dead letters")
    assert {status.code for _, status, _ in rig.undelivered} == {UCode.DEADLINE_EXCEEDED}
    assert rig.queue.statistics().closed_routes == 0


def test_after_a_final_failure_the_next_message_of_the_stream_is_tried(make_rig: MakeRig) -> None:
    class Picky(RoutedTransport):
        def send(self, message: UMessage) -> None:
            if THERE not in self.closed and number(message) == 0:
                raise UStatusError(UCode.INVALID_ARGUMENT, "never")
            super().send(message)

    rig = make_rig(Picky(THERE), SLOW).start()
    rig.offer(on(THERE, 0), on(THERE, 1))
    eventually(lambda: rig.queue.statistics().blocked == 2, "both to be blocked")
    rig.routes.closed.clear()
    rig.queue.on_route_open(THERE)
    assert rig.queue.wait_empty(soon())
    assert (rig.sent, [n for n, _, _ in rig.undelivered]) == ([1], [0])


def test_a_closed_route_is_logged_once_while_any_is_closed(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig(RoutedTransport(HERE, THERE), SLOW).start()
    with caplog.at_level("WARNING", "ustreamer.egress"):
        rig.offer(on(HERE, 0), on(THERE, 1))
        eventually(lambda: rig.queue.statistics().blocked == 2, "both to be blocked")
    [record] = caplog.records
    assert record.getMessage() == "egress.route_unavailable"
    assert vars(record)["reason"] == f"UNAVAILABLE: no listener for {HERE}"


def test_a_closed_route_is_ordinary_while_its_receiver_is_expected(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    expected = threading.Event()
    expected.set()

    class NewRoute(RoutedTransport):
        def send(self, message: UMessage) -> None:
            until_ns = time.monotonic_ns() + 60 * 10**9 if expected.is_set() else time.monotonic_ns()
            raise RouteUnavailable(HERE, "no listener yet", None, until_ns)

    def levels() -> list[str]:
        return [each.levelname for each in caplog.records if each.message == "egress.route_unavailable"]

    quick = EgressLimits(retry_first_ms=1, retry_max_ms=5, max_age_ms=3_600_000)
    rig = make_rig(NewRoute(HERE), quick).start()
    with caplog.at_level("INFO", "ustreamer.egress"):
        rig.offer(on(HERE, 0))
        eventually(lambda: rig.queue.statistics().retries >= 2, "a retry")
        assert levels() == ["INFO"]
        expected.clear()
        eventually(lambda: levels() == ["INFO", "WARNING"], "the warning")


def test_opening_an_unused_route_has_no_effect(make_rig: MakeRig) -> None:
    rig = make_rig(RoutedTransport()).start()
    rig.queue.on_route_open(THERE)
    rig.offer(on(THERE, 0))
    assert rig.queue.wait_empty(soon())
    assert rig.queue.statistics().retries == 0


def test_a_closed_queue_still_counts_blocked_messages_as_queued(make_rig: MakeRig) -> None:
    rig = make_rig(RoutedTransport(THERE), SLOW).start()
    rig.offer(*(on(THERE, n) for n in range(3)))
    eventually(lambda: rig.queue.statistics().blocked == 3, "all to be blocked")
    assert not rig.queue.wait_empty(time.monotonic_ns() + 5 * NS_PER_MS)
    rig.queue.close(DEADLINE_S)
    assert rig.ledger_snapshot().queued == 3


def test_blocked_messages_are_not_waited_for_and_can_be_abandoned(make_rig: MakeRig) -> None:
    rig = make_rig(RoutedTransport(THERE), SLOW).start()
    rig.offer(on(THERE, 0), on(HERE, 1), on(THERE, 2))
    eventually(lambda: rig.queue.blocked == 2, "both to be blocked")
    assert rig.queue.wait_sent(soon())
    assert not rig.queue.wait_empty(time.monotonic_ns() + 5 * NS_PER_MS)
    given_up = rig.queue.abandon_all(UStatus(UCode.UNAVAILABLE, "the end"))
    assert [int.from_bytes(item.message.payload, "big") for item in given_up] == [0, 2]
    assert (rig.queue.queued, rig.queue.blocked) == (0, 0)
    assert rig.ledger_snapshot().dead_lettered == 2


@pytest.mark.parametrize("wire", [RoutedTransport, InlineRoutedTransport])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_routes_close_and_open_each_stream_keeps_its_order_and_all_arrive(
    make_rig: MakeRig, wire: type[RoutedTransport], seed: int
) -> None:
    dice = random.Random(seed)
    topics = [UUri("chassis", 0x1234, 1, 0x8001 + n) for n in range(6)]
    rig = make_rig(wire(), EgressLimits(retry_first_ms=1, retry_max_ms=4)).start()
    priorities = (UPriority.CS1, UPriority.CS4)
    streams: dict[tuple[UUri, UPriority], list[int]] = {}
    for n in range(1500):
        topic, priority = dice.choice(topics), dice.choice(priorities)
        streams.setdefault((topic, priority), []).append(n)
        rig.offer(on(topic, n, priority=priority))
        if n % 10 == 0:
            rig.routes.closed = set(dice.sample(topics, dice.randrange(len(topics))))
            for opened in dice.sample(topics, 2):
                rig.queue.on_route_open(opened)
        if n % 100 == 0:
            tried = rig.queue.statistics().retries
            eventually(
                lambda tried=tried: rig.queue.statistics().retries > tried + 2 or not rig.queue.queued,  # type: ignore[misc]
                "pauses to end",
            )
    rig.routes.closed = set()
    assert rig.queue.wait_empty(soon())
    assert sorted(rig.sent) == list(range(1500))
    place = {n: index for index, n in enumerate(rig.sent)}
    for numbers in streams.values():
        places = [place[n] for n in numbers]
        assert places == sorted(places)
    assert rig.queue.statistics().retries > 20


# --- expiry ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ttl", "lives_ms"),
    [
        pytest.param(50, 50, id="by its ttl"),
        pytest.param(None, 200, id="by max_age where it has no ttl"),
        pytest.param(0, 200, id="by max_age where its ttl is 0"),
    ],
)
def test_a_message_that_grows_too_old_in_the_queue_is_a_dead_letter_and_was_not_tried_again(
    make_rig: MakeRig, ttl: int | None, lives_ms: int
) -> None:
    manual = ManualClock()
    manual.advance(s=1)
    clock = manual.clock()
    limits = EgressLimits(retry_first_ms=1, retry_max_ms=1, max_age_ms=200)
    rig = make_rig(ScriptedTransport(then=DOWN), limits, clock=clock).start()
    rig.offer(event(0, ttl=ttl, made_ms=clock.wall_ms()))
    rig.wait_retries(1)
    manual.advance(ms=lives_ms)  # just unexpired
    rig.wait_retries(2)
    assert rig.undelivered == []
    manual.advance(ms=1)
    eventually(lambda: bool(rig.undelivered), "the end of the message")

    [(_, status, attempts)] = rig.undelivered
    assert (status.code, attempts) == (UCode.DEADLINE_EXCEEDED, 2)
    assert "'backbone'" in status.message
    assert [(verdict, n) for _, verdict, _, n in rig.verdicts] == [(Verdict.EXPIRED, 2)]
    assert len(rig.wire.attempts) == 2
    assert rig.ledger_snapshot().expired == 1


def test_a_message_expired_before_its_first_attempt_is_never_sent(make_rig: MakeRig) -> None:
    manual = ManualClock()
    clock = manual.clock()
    rig = make_rig(ScriptedTransport(), clock=clock)
    rig.offer(event(0, ttl=10, made_ms=clock.wall_ms()), event(1, ttl=30, made_ms=clock.wall_ms()))
    manual.advance(ms=20)
    rig.start().wait_settled(2)
    assert rig.sent == [1]
    assert [(n, status.code, attempts) for n, status, attempts in rig.undelivered] == [
        (0, UCode.DEADLINE_EXCEEDED, 0)
    ]


def test_an_inline_queue_sends_no_expired_message(make_rig: MakeRig) -> None:
    # A filter may have held the message after the ingress check of its ttl.
    manual = ManualClock()
    clock = manual.clock()
    rig = make_rig(InlineTransport(), clock=clock).start()
    message = event(0, ttl=10, made_ms=clock.wall_ms())
    manual.advance(ms=11)
    rig.offer(message)
    rig.wait_settled(1)
    assert rig.sent == []
    assert rig.ledger_snapshot().expired == 1


# ---------------------------------------------------------------------------------------------------------- overflow

FULL_BY_MESSAGES = EgressLimits(queue_messages=2)
FULL_BY_BYTES = EgressLimits(queue_bytes=2 * (OVERHEAD_BYTES + 4))


@pytest.mark.parametrize("limits", [FULL_BY_MESSAGES, FULL_BY_BYTES])
@pytest.mark.parametrize("wire", [ScriptedTransport, InlineTransport])
def test_a_message_beyond_the_limits_is_a_dead_letter_with_endpoint_and_limits(
    make_rig: MakeRig, limits: EgressLimits, wire: type[ScriptedTransport]
) -> None:
    rig = make_rig(wire(then=DOWN), limits)
    rig.offer(*events(4))
    expected = UStatus(
        UCode.RESOURCE_EXHAUSTED,
        f"egress queue of endpoint 'backbone' is full ({limits.queue_messages} messages or "
        f"{limits.queue_bytes} bytes)",
    )
    assert rig.undelivered == [(2, expected, 0), (3, expected, 0)]
    assert [(n, verdict, reason) for n, verdict, reason, _ in rig.verdicts] == [
        (2, Verdict.DEAD_LETTERED, expected),
        (3, Verdict.DEAD_LETTERED, expected),
    ]
    assert rig.queue.queued == 2


def test_a_clock_step_neither_expires_nor_extends_waiting_messages(make_rig: MakeRig) -> None:
    """An ECU boots in the year 2000, and its clock is set while messages wait."""
    time = ManualClock()
    rig = make_rig(ScriptedTransport(), EgressLimits(), time.clock())
    now_ms = time.clock().wall_ms()
    rig.offer(event(0, ttl=50, made_ms=now_ms), event(1, ttl=20, made_ms=now_ms))
    time._wall_at_zero_ms += 26 * 365 * 86_400_000
    time.advance(ms=21)
    rig.start()
    rig.wait_settled(2)
    assert rig.sent == [0]
    assert [(number, status.code) for number, status, _ in rig.undelivered] == [(1, UCode.DEADLINE_EXCEEDED)]


def test_other_limits_apply_from_the_next_message_on(make_rig: MakeRig) -> None:
    time = ManualClock()
    rig = make_rig(ScriptedTransport(), FULL_BY_MESSAGES, time.clock())
    rig.offer(*events(2))
    rig.queue.set_limits(EgressLimits(queue_messages=3, max_age_ms=1))
    rig.offer(*(event(n) for n in (2, 3)))
    [(number, status, _)] = rig.undelivered
    assert (number, status.code) == (3, UCode.RESOURCE_EXHAUSTED)
    assert "(3 messages" in status.message
    time.advance(ms=2)
    rig.start()
    rig.wait_settled(4)
    assert rig.sent == [0, 1]  # queued messages keep their deadline
    assert [number for number, _, _ in rig.undelivered] == [3, 2]


def test_in_a_full_queue_the_unimportant_makes_room_for_the_important(make_rig: MakeRig) -> None:
    rig = make_rig(ScriptedTransport(), FULL_BY_MESSAGES)
    rig.offer(event(0, UPriority.CS1), event(1, UPriority.CS0), event(2, UPriority.CS4))
    assert [(n, status.code) for n, status, _ in rig.undelivered] == [(1, UCode.RESOURCE_EXHAUSTED)]
    rig.start()
    assert rig.queue.wait_empty(soon())
    assert rig.sent == [2, 0]


def test_a_request_that_does_not_fit_is_handed_over_so_that_it_can_be_answered(make_rig: MakeRig) -> None:
    items: list[tuple[QueuedMessage, UStatus]] = []
    rig = make_rig(
        ScriptedTransport(), EgressLimits(queue_messages=1), undelivered=lambda *what: items.append(what)
    )
    call = request(
        id_at(SYSTEM_CLOCK.wall_ms()), UUri("hpc", 1, 1, 0), UUri("chassis", 2, 1, 3), b"\0\0\0\1", ttl=1000
    )
    rig.offer(event(0, UPriority.CS6), call)
    [(item, status)] = items
    assert item.message is call
    assert item.message.attributes.type is UMessageType.REQUEST
    assert item.delivery.ingress == "chassis"
    assert status.code is UCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("wire", "limits"),
    [
        pytest.param(ScriptedTransport(), EgressLimits(queue_messages=1), id="overflow"),
        pytest.param(ScriptedTransport(UCode.INTERNAL, UCode.INTERNAL), QUICK, id="failure"),
        pytest.param(ScriptedTransport(), EgressLimits(max_age_ms=0), id="age"),
    ],
)
def test_the_queue_is_unlocked_during_the_undelivered_callback(
    make_rig: MakeRig, wire: ScriptedTransport, limits: EgressLimits
) -> None:
    free: list[bool] = []

    def notified(item: QueuedMessage, status: UStatus) -> None:
        reading = threading.Thread(target=rig.queue.statistics, daemon=True)
        reading.start()
        reading.join(DEADLINE_S)
        free.append(not reading.is_alive())

    rig = make_rig(wire, limits, undelivered=notified)
    rig.offer(*events(2))
    rig.start()
    eventually(lambda: bool(free), "a dead letter")
    assert rig.queue.wait_empty(soon())
    assert all(free)


# ------------------------------------------------------------------------------------------------------------ inline


def test_an_inline_queue_sends_on_the_thread_of_the_caller(make_rig: MakeRig) -> None:
    rig = make_rig(InlineTransport()).start()
    rig.offer(*events(3))
    assert rig.sent == [0, 1, 2]  # without waiting for other threads
    assert set(rig.wire.threads) == {threading.get_ident()}
    assert rig.verdicts == [(n, Verdict.DELIVERED, None, 1) for n in range(3)]


def test_an_inline_queue_queues_refused_messages_and_preserves_the_order(
    make_rig: MakeRig,
) -> None:
    rig = make_rig(InlineTransport(DOWN, then=OK))
    rig.offer(*events(3))
    assert rig.sent == []  # 1 and 2 could be sent, but 0 waits
    assert rig.queue.queued == 3
    rig.start()
    assert rig.queue.wait_empty(soon())
    assert rig.sent == [0, 1, 2]
    assert set(rig.wire.threads[1:]) == {rig.queue._thread.ident}


def test_an_inline_queue_does_not_overtake_messages_in_flight(make_rig: MakeRig) -> None:
    rig = make_rig(InlineTransport(DOWN))
    rig.offer(event(0))
    rig.wire.gate.clear()
    rig.start().wait_attempts(2)
    rig.offer(event(1))  # the queue is empty: its only message is being sent
    assert rig.queue.queued == 2
    assert len(rig.wire.attempts) == 2
    rig.wire.gate.set()
    assert rig.queue.wait_empty(soon())
    assert rig.sent == [0, 1]


def test_an_inline_queue_is_inline_again_when_empty(make_rig: MakeRig) -> None:
    rig = make_rig(InlineTransport(DOWN)).start()
    rig.offer(*events(5))
    assert rig.queue.wait_empty(soon())
    rig.offer(event(5))
    assert rig.sent == list(range(6))
    assert rig.wire.threads[-1] == threading.get_ident()


def test_a_permanently_refused_inline_message_is_one_dead_letter(make_rig: MakeRig) -> None:
    rig = make_rig(InlineTransport(then=UCode.INVALID_ARGUMENT)).start()
    rig.offer(event(0))
    rig.wait_settled(1)
    eventually(lambda: bool(rig.undelivered), "the dead letter")
    assert [(n, status.code) for n, status, _ in rig.undelivered] == [(0, UCode.INVALID_ARGUMENT)]
    assert [verdict for _, verdict, _, _ in rig.verdicts] == [Verdict.DEAD_LETTERED]
    assert rig.queue.statistics().retries == 0  # no send was refused with UNAVAILABLE


def test_an_inline_send_that_was_answered_unavailable_counts_as_an_attempt_and_a_retry(
    make_rig: MakeRig,
) -> None:
    rig = make_rig(InlineTransport(DOWN)).start()
    rig.offer(event(0))
    assert rig.queue.wait_empty(soon())
    assert len(rig.wire.attempts) == 2
    assert rig.verdicts == [(0, Verdict.DELIVERED, None, 2)]
    assert rig.queue.statistics().retries == 1


def small(n: int) -> int:
    """The buffer size of `n` messages of `events`."""
    return n * (OVERHEAD_BYTES + 4)


def test_while_a_buffer_has_room_a_message_is_sent_on_the_thread_of_the_caller(make_rig: MakeRig) -> None:
    wire = BufferedTransport(small(3))
    rig = make_rig(wire).start()
    rig.offer(*events(5))
    assert rig.queue.wait_empty(soon())
    assert rig.sent == [0, 1, 2, 3, 4]
    here = threading.get_ident()
    assert [thread == here for thread in wire.threads] == [True, True, True, False, False]


def test_one_send_window_query_serves_many_messages(make_rig: MakeRig) -> None:
    wire = BufferedTransport(then_window=1 << 40)
    rig = make_rig(wire).start()
    rig.offer(*events(3000))
    assert len(rig.sent) == 3000
    assert wire.window_calls == -(-small(3000) // (1 << 18))  # for 256 KB each time, regardless of the room


def test_a_full_send_window_is_not_queried_again_for_a_millisecond(make_rig: MakeRig) -> None:
    wire, clock = BufferedTransport(), ManualClock()
    clock.advance(s=1)
    rig = make_rig(wire, clock=clock.clock())
    rig.offer(event(0))
    rig.queue.abandon_all(UStatus(UCode.UNAVAILABLE, "makes way for the next"))
    wire.then_window = small(1)
    rig.offer(event(1))
    rig.queue.abandon_all(UStatus(UCode.UNAVAILABLE, "makes way for the next"))
    assert (wire.window_calls, rig.sent) == (1, [])
    clock.advance(ms=1)
    rig.offer(event(2))
    assert (wire.window_calls, rig.sent) == (2, [2])


def test_a_message_beyond_the_send_window_is_passed_to_the_send_thread(make_rig: MakeRig) -> None:
    wire = BufferedTransport(then_window=1 << 40)
    rig = make_rig(wire).start()
    large = msgspec.structs.replace(event(0), payload=bytes(1 << 18))
    rig.offer(large)
    assert rig.queue.wait_empty(soon())
    assert rig.sent == [0]
    assert wire.threads[0] != threading.get_ident()


def test_room_that_a_link_had_is_not_room_of_the_next_one(make_rig: MakeRig) -> None:
    wire = BufferedTransport(small(10), 0)
    rig = make_rig(wire).start()
    rig.offer(event(0))
    rig.queue.on_link_up()
    rig.offer(event(1))
    assert rig.queue.wait_empty(soon())
    here = threading.get_ident()
    assert [thread == here for thread in wire.threads] == [True, False]


# ----------------------------------------------------------------------------------------------- waiting, closing


def test_wait_empty_waits_for_messages_in_flight(make_rig: MakeRig) -> None:
    rig = make_rig(ScriptedTransport()).start()
    assert rig.queue.wait_empty(0)  # nothing to wait for, even after the deadline
    rig.wire.gate.clear()
    rig.offer(event(0))
    rig.wait_attempts(1)
    assert rig.queue.queued == 1
    assert not rig.queue.wait_empty(time.monotonic_ns() + 5 * NS_PER_MS)

    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(rig.queue.wait_empty(soon())), daemon=True)
    waiting.start()
    rig.wire.gate.set()
    waiting.join(DEADLINE_S / 2)  # woken by the end of the send, not by the deadline
    assert answers == [True]


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        pytest.param(ScriptedTransport(UCode.INTERNAL), event(0), id="failure"),
        pytest.param(ScriptedTransport(), event(0, ttl=1, made_ms=0), id="age"),
    ],
)
def test_wait_empty_waits_for_the_undelivered_callback(
    make_rig: MakeRig, wire: ScriptedTransport, message: UMessage
) -> None:
    # It causes an error response, which a stop must not miss.
    telling, notified = threading.Event(), threading.Event()

    def notify(item: QueuedMessage, status: UStatus) -> None:
        telling.set()
        assert notified.wait(DEADLINE_S)

    rig = make_rig(wire, undelivered=notify).start()
    rig.offer(message)
    assert telling.wait(DEADLINE_S)
    empty = rig.queue.wait_empty(time.monotonic_ns() + 5 * NS_PER_MS)
    notified.set()
    assert not empty
    assert rig.queue.wait_empty(soon())


def test_wait_empty_returns_at_its_deadline_while_the_link_is_down(make_rig: MakeRig) -> None:
    rig = make_rig(ScriptedTransport(then=DOWN)).start()
    rig.offer(event(0))
    deadline_ns = time.monotonic_ns() + 20 * NS_PER_MS
    assert not rig.queue.wait_empty(deadline_ns)
    assert time.monotonic_ns() >= deadline_ns
    assert rig.ledger_snapshot().queued == 1


def test_close_ends_a_long_pause_and_the_message_counts_as_queued(make_rig: MakeRig) -> None:
    rig = make_rig(
        ScriptedTransport(then=DOWN), EgressLimits(retry_first_ms=3_600_000, retry_max_ms=3_600_000)
    ).start()
    rig.offer(*events(3))
    rig.wait_retries(1)
    rig.queue.close(DEADLINE_S)
    assert not rig.queue._thread.is_alive()
    assert rig.ledger_snapshot().queued == 3
    assert rig.sent == []


def test_close_does_not_hang_on_a_send_that_does_not_return(make_rig: MakeRig) -> None:
    rig = make_rig(ScriptedTransport()).start()
    rig.wire.gate.clear()
    rig.offer(*events(3))
    rig.wait_attempts(1)
    rig.queue.close(0.02)
    assert rig.queue._thread.is_alive()
    assert rig.ledger_snapshot().queued == 3  # two waiting, and one not yet reported
    assert rig.ledger_snapshot().unaccounted == 0

    rig.wire.gate.set()
    eventually(lambda: not rig.queue._thread.is_alive(), "the end of the thread")
    assert rig.sent == [0]  # the send in progress completes; no other begins
    assert (rig.ledger_snapshot().delivered, rig.ledger_snapshot().queued) == (1, 2)


STOPPED = UStatus(UCode.UNAVAILABLE, "stopped")


def test_an_abandoned_message_is_a_dead_letter_and_is_returned(make_rig: MakeRig) -> None:
    rig = make_rig(ScriptedTransport()).start()
    rig.wire.gate.clear()
    rig.offer(event(0))
    rig.wait_attempts(1)
    rig.offer(event(1), event(2))
    assert [number(item.message) for item in rig.queue.abandon_all(STOPPED)] == [1, 2]
    assert rig.verdicts == [(1, Verdict.DEAD_LETTERED, STOPPED, 0), (2, Verdict.DEAD_LETTERED, STOPPED, 0)]
    assert (rig.undelivered, rig.ledger_snapshot().queued) == ([], 1)  # the one in flight

    rig.wire.gate.set()
    rig.wait_settled(3)
    assert rig.sent == [0]


def test_at_the_end_everything_is_tried_once(make_rig: MakeRig) -> None:
    rig = make_rig(
        ScriptedTransport(then=DOWN), EgressLimits(retry_first_ms=3_600_000, retry_max_ms=3_600_000)
    ).start()
    rig.offer(*events(3))
    rig.wait_retries(1)
    rig.queue.no_more_retries(STOPPED)  # the link up ends the pause
    rig.wait_settled(3)
    rig.offer(event(3))
    rig.wait_settled(4)
    assert {verdict for _, verdict, _, _ in rig.verdicts} == {Verdict.DEAD_LETTERED}
    assert [(n, status) for n, status, _ in rig.undelivered] == [(n, STOPPED) for n in range(4)]
    assert rig.queue.wait_empty(0)


def test_an_unstarted_queue_can_be_closed_twice(make_rig: MakeRig) -> None:
    rig = make_rig(ScriptedTransport())
    rig.offer(event(0))
    rig.queue.close(0)
    rig.queue.close(0)
    assert rig.ledger_snapshot().queued == 1


def test_statistics_are_a_snapshot_of_all_that_happened(make_rig: MakeRig) -> None:
    rig = make_rig(ScriptedTransport(OK, UCode.INTERNAL, DOWN)).start()
    rig.offer(*events(2))
    rig.wait_settled(2)
    rig.offer(event(2, ttl=10, made_ms=0))
    rig.wait_settled(3)
    rig.offer(event(3))
    rig.wait_settled(4)
    rig.wire.gate.clear()
    rig.offer(event(4))
    rig.wait_attempts(5)
    rig.offer(event(5))
    before = rig.queue.statistics()
    assert before == EndpointQueueStatistics(
        endpoint="backbone",
        queued=2,
        queued_bytes=OVERHEAD_BYTES + 4,  # messages in flight are not in the queue
        delivered=2,
        dead_lettered=1,
        expired=1,
        retries=1,
        blocked=0,
        closed_routes=0,
    )
    rig.wire.gate.set()
    assert rig.queue.wait_empty(soon())
    assert rig.queue.statistics() != before
    assert before.queued == 2


# ------------------------------------------------------------------------------------------------------- many threads


class UnreliableTransport(ScriptedTransport):
    """Fails randomly in every way, on any thread."""

    outcomes: ClassVar[list[UCode | None]] = [OK] * 12 + [DOWN, UCode.INVALID_ARGUMENT]

    def __init__(self) -> None:
        super().__init__(*random.Random(1).choices(self.outcomes, k=20_000))


class InlineUnreliableTransport(UnreliableTransport):
    inline = True


@pytest.mark.parametrize("wire", [UnreliableTransport, InlineUnreliableTransport])
def test_four_ingresses_at_once_lose_nothing_and_each_keeps_its_order(
    make_rig: MakeRig, wire: type[ScriptedTransport]
) -> None:
    each = 500
    rig = make_rig(wire(), EgressLimits(queue_messages=60, retry_first_ms=1, retry_max_ms=2)).start()
    numbers = count()
    gateways = [rig.gateway() for _ in range(4)]
    offered = [[event(next(numbers)) for _ in range(each)] for _ in gateways]
    together = threading.Barrier(4)

    def pour(gateway: FakeIngress, messages: list[UMessage]) -> None:
        together.wait(DEADLINE_S)
        for position, message in enumerate(messages):
            gateway.offer(message)
            if position % 50 == 0:  # otherwise nearly all would overflow
                eventually(lambda: rig.queue.queued < 30, "the queue to be serviced")

    pouring = [
        threading.Thread(target=pour, args=pair, daemon=True) for pair in zip(gateways, offered, strict=True)
    ]
    for thread in pouring:
        thread.start()
    for thread in pouring:
        thread.join(DEADLINE_S)
    assert rig.queue.wait_empty(soon())

    counted = Counter(verdict for _, verdict, _, _ in rig.verdicts)
    assert sorted(n for n, _, _, _ in rig.verdicts) == list(range(4 * each))  # one verdict each
    assert counted.keys() == {Verdict.DELIVERED, Verdict.DEAD_LETTERED}
    assert counted[Verdict.DELIVERED] == len(rig.sent)
    # The undelivered callback follows the settlement.
    eventually(lambda: len(rig.undelivered) == counted[Verdict.DEAD_LETTERED], "all dead letters")
    for block in range(4):
        of_one = [n for n in rig.sent if n // each == block]
        assert of_one == sorted(of_one)
    ledger = rig.ledger_snapshot()
    assert (ledger.received, ledger.queued, ledger.unaccounted) == (4 * each, 0, 0)


class BrokenWindow(ScriptedTransport):
    """Its send window raises; its sends work."""

    def send_window(self) -> int:
        raise ZeroDivisionError("on purpose")


def test_a_message_waits_where_the_room_of_a_transport_cannot_be_read(
    make_rig: MakeRig,
) -> None:
    rig = make_rig(BrokenWindow()).start()
    rig.offer(*map(event, range(3)))
    rig.wait_settled(3)
    assert rig.sent == [0, 1, 2]


def test_an_input_does_not_fail_where_the_room_of_a_transport_cannot_be_read(make_rig: MakeRig) -> None:
    rig = make_rig(BrokenWindow()).start()
    rig.wire.gate.clear()
    rig.offer(event(0))
    rig.queue.wait_backlog()


class Exiting(ScriptedTransport):
    """Foreign code that tries to end the process."""

    def send(self, message: UMessage) -> None:
        if number(message) == 0:
            raise SystemExit("on purpose")
        super().send(message)


def test_a_transport_that_exits_does_not_end_the_send_thread(
    make_rig: MakeRig,
) -> None:
    rig = make_rig(Exiting()).start()
    rig.offer(*map(event, range(3)))
    rig.wait_settled(3)
    assert rig.sent == [1, 2]
    assert [(number, status.code) for number, status, _ in rig.undelivered] == [(0, UCode.INTERNAL)]
