# SPDX-License-Identifier: Apache-2.0
"""Each subscriber of a unicast transport has its own queue, isolated from the others."""

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator

import msgspec
import pytest

from tests.host.egress.test_endpoint_queue import (
    DOWN,
    HERE,
    NS_PER_MS,
    QUICK,
    SLOW,
    STOPPED,
    THERE,
    EndpointQueueRig,
    ScriptedTransport,
    Stopwatch,
    event,
    number,
    on,
    soon,
)
from tests.host.waiting import DEADLINE_S, eventually
from ustreamer.core.base.clock import ManualClock
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.delivery.ports import SendBatch, SendOne
from ustreamer.core.egress.limits import OVERHEAD_BYTES, EgressLimits
from ustreamer.host.egress.endpoint_queue import SubscriberQueueStatistics
from ustreamer.host.egress.send_worker import OnUndelivered
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.transport_port import RouteUnavailable, SubscriberEnded
from ustreamer.uprotocol.uattributes import UPriority
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuri import UUri

ANN, BOB, CAT = (UUri("dash", entity, 1, 0) for entity in (1, 2, 3))


class PerSubscriberTransport(ScriptedTransport):
    """Sends to each subscriber separately. `faults` has the exception of a send to one, or a function to call before
    it.
    """

    unicast = True

    def __init__(self, faults: dict[UUri | None, Callable[[], None]] | None = None) -> None:
        super().__init__()
        self.faults = faults or {}
        self.order: list[tuple[UUri | None, int]] = []
        self.tries: dict[UUri | None, int] = defaultdict(int)

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        def transmit(message: UMessage, /) -> None:
            self.tries[subscriber] += 1
            self.attempts.append((message, time.monotonic_ns(), threading.get_ident()))
            if subscriber in self.faults:
                self.faults[subscriber]()
            self.sent.append(message)
            self.order.append((subscriber, number(message)))

        return transmit

    def to(self, subscriber: UUri | None) -> list[int]:
        """The messages sent to one subscriber."""
        return [n for who, n in self.order if who == subscriber]


class InlinePerSubscriberTransport(PerSubscriberTransport):
    inline = True


def unavailable() -> None:
    raise UStatusError(DOWN, "takes nothing")


def away() -> None:
    raise RouteUnavailable("the way there", "is away")


def broken() -> None:
    raise ZeroDivisionError


def ended() -> None:
    raise SubscriberEnded(ANN)


class Scene(EndpointQueueRig):
    """A rig whose messages have subscribers."""

    def __init__(
        self,
        wire: PerSubscriberTransport,
        limits: EgressLimits = QUICK,
        rng: Callable[[], float] = lambda: 1.0,
        undelivered: OnUndelivered | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        super().__init__(wire, limits, clock.clock() if clock else SYSTEM_CLOCK, rng, undelivered)
        self.transport = wire
        self._deliveries: dict[UUri | None, Delivery] = {}

    def offer_to(self, subscriber: UUri | None, *messages: UMessage) -> None:
        gateway = self.gateways[0]
        delivery = self._deliveries.setdefault(subscriber, Delivery(gateway, self.queue, None, subscriber))
        for message in messages:
            gateway.ledger.received += 1
            delivery.offer(message, self._clock.monotonic_ns())

    def offer_batch_to(self, subscriber: UUri | None, messages: list[UMessage]) -> None:
        """Like an ingress with a batch."""
        delivery = self._deliveries.setdefault(
            subscriber, Delivery(self.gateways[0], self.queue, None, subscriber)
        )
        self.gateways[0].ledger.received += len(messages)
        now_ns = self._clock.monotonic_ns()
        delivery.outgoing.items = [(delivery, each, now_ns) for each in messages]
        delivery.outgoing.flush(has_ttl=False)

    @property
    def subscriber_queues(self) -> dict[UUri, SubscriberQueueStatistics]:
        return {each.subscriber: each for each in self.queue.statistics().fullest}


@pytest.fixture
def scene() -> Iterator[Callable[..., Scene]]:
    scenes: list[Scene] = []

    def make(*arguments: object, **keywords: object) -> Scene:
        scenes.append(Scene(*arguments, **keywords))  # type: ignore[arg-type]
        return scenes[-1]

    yield make
    for each in scenes:
        each.finish()


MakeScene = Callable[..., Scene]

# ------------------------------------------------------------------------------------------------------------ isolation


@pytest.mark.parametrize("wire", [PerSubscriberTransport, InlinePerSubscriberTransport])
@pytest.mark.parametrize("fault", [unavailable, away])
def test_an_unavailable_subscriber_delays_no_other(
    scene: MakeScene, wire: type[PerSubscriberTransport], fault: Callable[[], None]
) -> None:
    rig = scene(wire({ANN: fault}), SLOW).start()
    for n in range(0, 300, 3):
        rig.offer_to(ANN, event(n))
        rig.offer_to(BOB, event(n + 1))
        rig.offer_to(None, event(n + 2))
    eventually(lambda: len(rig.sent) == 200, "all that can be sent")
    assert rig.transport.to(BOB) == list(range(1, 300, 3))
    assert rig.transport.to(None) == list(range(2, 300, 3))
    eventually(lambda: rig.queue.statistics().queued == 100, "all else to wait")
    assert rig.transport.tries[ANN] <= 3  # the rest of the hour is left
    [endpoint_queue] = rig.queue.statistics().fullest
    assert (endpoint_queue.subscriber, endpoint_queue.queued, endpoint_queue.queued_bytes) == (
        ANN,
        100,
        100 * (OVERHEAD_BYTES + 4),
    )

    rig.transport.faults.clear()
    rig.queue.on_link_up()
    assert rig.queue.wait_empty(soon())
    assert rig.transport.to(ANN) == list(range(0, 300, 3))


@pytest.mark.parametrize(
    ("fault", "verdict"), [(broken, Verdict.DEAD_LETTERED), (ended, Verdict.NO_SUBSCRIBER)]
)
def test_a_transmitter_that_raises_costs_its_own_messages_and_no_others(
    scene: MakeScene, fault: Callable[[], None], verdict: Verdict
) -> None:
    rig = scene(PerSubscriberTransport({ANN: fault}), SLOW).start()
    for n in range(0, 100, 2):
        rig.offer_to(ANN, event(n))
        rig.offer_to(BOB, event(n + 1))
    assert rig.queue.wait_empty(soon())
    assert rig.transport.to(BOB) == list(range(1, 100, 2))
    assert {each[:2] for each in rig.verdicts if each[0] % 2 == 0} == {(n, verdict) for n in range(0, 100, 2)}


@pytest.mark.parametrize("refuses", [unavailable, away])
def test_a_subscriber_that_takes_one_now_and_then_costs_the_others_a_turn_at_most(
    scene: MakeScene, refuses: Callable[[], None]
) -> None:
    """5 000 messages wait for a subscriber that accepts every second try; sends to another one are unaffected."""
    tries = 0

    def every_other() -> None:
        nonlocal tries
        tries += 1
        if tries % 2 or tries > 1_000:
            refuses()

    rig = scene(PerSubscriberTransport({ANN: every_other}), EgressLimits(retry_first_ms=1, retry_max_ms=1))
    rig.offer_to(ANN, *(event(n) for n in range(5_000)))
    rig.start()
    eventually(lambda: len(rig.transport.to(ANN)) > 3, "it to take some")
    between: list[int] = []
    rig.transport.faults[BOB] = lambda: between.append(tries)
    for n in range(5_000, 5_200):
        with rig.queue._lock:
            between.append(-tries)
            rig.offer_to(BOB, event(n))
        eventually(lambda: rig.transport.to(BOB)[-1:] == [n], "the other's")  # noqa: B023
        assert sum(between) <= 64
        between.clear()
    assert rig.transport.to(BOB) == list(range(5_000, 5_200))
    assert rig.queue.statistics().queued >= 4_500
    rig.transport.faults.clear()
    rig.queue.on_link_up()
    assert rig.queue.wait_empty(soon())
    assert rig.transport.to(ANN) == list(range(5_000))


def test_5_000_that_are_released_delay_the_first_of_another_by_a_turn(scene: MakeScene) -> None:
    rig = scene(PerSubscriberTransport({ANN: away}), SLOW).start()
    rig.offer_to(ANN, *(event(n) for n in range(5_000)))
    eventually(lambda: rig.queue.blocked == 5_000, "all to be blocked")

    taken = threading.Event()

    def stall_once() -> None:
        rig.transport.faults.clear()
        taken.set()
        assert rig.wire.gate.wait(DEADLINE_S)

    rig.wire.gate.clear()
    rig.transport.faults[ANN] = stall_once
    rig.queue.on_route_open("the way there")
    assert taken.wait(DEADLINE_S)
    rig.offer_to(BOB, event(9_000), event(9_001))
    rig.wire.gate.set()
    assert rig.queue.wait_empty(soon())
    assert [n for _, n in rig.transport.order].index(9_001) <= 1 + 64 + 1
    assert rig.transport.to(ANN) == list(range(5_000))


@pytest.mark.parametrize("too_old", [True, False])
def test_messages_with_other_outcomes_delay_subscribers_a_few_at_a_time(
    scene: MakeScene, too_old: bool
) -> None:
    """1 000 dead letters in a row would take more than 10 ms."""
    time = ManualClock()
    letters: list[int] = []
    rig = scene(
        PerSubscriberTransport({ANN: away}),
        EgressLimits(retry_first_ms=3_600_000, retry_max_ms=3_600_000, max_age_ms=100),
        undelivered=lambda item, _: letters.append(number(item.message)),
        clock=time,
    )
    rig.offer_to(ANN, *(event(n) for n in range(1_000)))
    rig.start()
    eventually(lambda: rig.queue.blocked == 1_000, "all to be blocked")
    before: list[int] = []
    rig.transport.faults = {ANN: broken, BOB: lambda: before.append(len(letters))}
    with rig.queue._lock:
        if too_old:
            time.advance(ms=200)
        else:
            rig.queue.on_route_open("the way there")
        rig.offer_to(BOB, event(1_000, made_ms=time.clock().wall_ms()))
    assert rig.queue.wait_empty(soon())
    assert before[0] <= 64
    assert letters == list(range(1_000))


class SubscriberBatchTransport(InlinePerSubscriberTransport):
    """Notes the batches sent to each subscriber."""

    def __init__(self, faults: dict[UUri | None, Callable[[], None]]) -> None:
        super().__init__(faults)
        self.batch_sizes: list[tuple[UUri | None, int]] = []

    def batch_transmitter(self, subscriber: UUri | None) -> SendBatch:
        one_by_one = super().batch_transmitter(subscriber)

        def transmit_all(messages: Iterable[UMessage], /) -> int:
            taken = one_by_one(messages)
            self.batch_sizes.append((subscriber, taken))
            return taken

        return transmit_all


@pytest.mark.parametrize("fault", [unavailable, away])
def test_while_one_is_away_others_are_sent_to_at_once_and_in_one_go(
    scene: MakeScene, fault: Callable[[], None]
) -> None:
    wire = SubscriberBatchTransport({ANN: fault})
    rig = scene(wire, SLOW).start()
    rig.offer_to(ANN, event(0))
    eventually(lambda: rig.queue.statistics().retries >= 2, "the first attempt of the send thread")
    eventually(lambda: rig.queue._in_flight == 0, "the message to wait")
    rig.offer_to(BOB, event(1))
    rig.offer_batch_to(BOB, [event(n) for n in range(2, 51)])
    assert rig.transport.to(BOB) == list(range(1, 51))
    assert wire.batch_sizes == [(BOB, 49)]
    here = threading.get_ident()
    assert {thread for message, _, thread in wire.attempts if 1 <= number(message) <= 50} == {here}

    rig.transport.faults.clear()
    rig.offer_to(ANN, event(51))
    rig.offer_batch_to(ANN, [event(n) for n in range(52, 60)])
    assert rig.transport.to(ANN) == []  # 0 is paused
    rig.queue.on_link_up()
    assert rig.queue.wait_empty(soon())
    assert rig.transport.to(ANN) == [0, *range(51, 60)]


# --- retry delays ----------------------------------------------------------------------------------------------------


def test_each_has_a_retry_clock_of_its_own(scene: MakeScene) -> None:
    watch = Stopwatch()
    times: dict[str, list[int]] = {"ann": [], "bob": []}

    def fails(who: str, until: int) -> Callable[[], None]:
        def fault() -> None:
            times[who].append(watch.manual.now_ns // NS_PER_MS)
            if len(times[who]) <= until:
                unavailable()

        return fault

    wire = PerSubscriberTransport({ANN: fails("ann", 4), BOB: fails("bob", 1)})
    rig = scene(wire, EgressLimits(retry_first_ms=4, retry_max_ms=100), lambda: 0.0, clock=watch.manual)
    watch.attach(rig.queue)
    rig.offer_to(ANN, event(0, made_ms=0))
    rig.offer_to(BOB, event(1, made_ms=0), event(2, made_ms=0))
    rig.start().wait_settled(3)
    assert times == {"ann": [0, 4, 12, 28, 60], "bob": [0, 4, 4]}
    assert rig.queue.statistics().retries == 5


def test_a_route_opening_for_another_subscriber_does_not_shorten_a_pause(scene: MakeScene) -> None:
    rig = scene(PerSubscriberTransport(), SLOW)

    def refused_while_another_opens() -> None:
        rig.queue.on_route_open("another way")
        away()

    rig.transport.faults[ANN] = refused_while_another_opens
    rig.start().offer_to(ANN, event(0))
    eventually(lambda: rig.queue.blocked == 1, "it to be blocked")
    rig.offer_to(BOB, event(1))
    eventually(lambda: rig.transport.to(BOB) == [1], "the other's")
    assert rig.transport.tries[ANN] == 1


def test_order_and_classes_hold_through_pauses_and_releases(scene: MakeScene) -> None:
    rig = scene(PerSubscriberTransport({ANN: unavailable}), SLOW).start()
    rig.offer_to(ANN, event(0))
    rig.wait_retries(1)
    rig.offer_to(ANN, *(event(n) for n in range(1, 200)))
    rig.offer_to(ANN, *(event(n, UPriority.CS5) for n in range(200, 300)))
    rig.transport.faults.clear()
    rig.queue.on_link_up()
    assert rig.queue.wait_empty(soon())
    order = rig.transport.to(ANN)
    assert [n for n in order if n < 200] == list(range(200))
    assert [n for n in order if n >= 200] == list(range(200, 300))
    # 32 of CS5 for 2 of CS1, from the first one on.
    assert [n < 200 for n in order[:68]] == [*[False] * 32, *[True] * 2] * 2


@pytest.mark.parametrize("wire", [PerSubscriberTransport, InlinePerSubscriberTransport])
@pytest.mark.parametrize("seed", range(3))
def test_with_changing_subscribers_each_stream_is_complete_and_in_order(
    scene: MakeScene, wire: type[PerSubscriberTransport], seed: int
) -> None:
    rng = random.Random(seed)
    subscribers: list[UUri | None] = [ANN, BOB, CAT, None]
    topics, priorities = (HERE, THERE), (UPriority.CS1, UPriority.CS4)
    faults = [unavailable, away]
    rig = scene(wire(), EgressLimits(retry_first_ms=1, retry_max_ms=4)).start()
    streams: dict[Hashable, list[int]] = defaultdict(list)
    for n in range(2_000):
        subscriber, topic, priority = rng.choice(subscribers), rng.choice(topics), rng.choice(priorities)
        streams[subscriber, topic, priority].append(n)
        rig.offer_to(subscriber, on(topic, n, priority=priority))
        if n % 10 == 0:
            rig.transport.faults = {
                who: rng.choice(faults) for who in rng.sample(subscribers, rng.randrange(4))
            }
            if rng.random() < 0.3:
                rig.queue.on_route_open("the way there")
        if n % 100 == 0:
            tried = rig.queue.statistics().retries
            eventually(
                lambda tried=tried: rig.queue.statistics().retries > tried + 2 or not rig.queue.queued,  # type: ignore[misc]
                "pauses to end",
            )
    rig.transport.faults = {}
    assert rig.queue.wait_empty(soon())
    assert sorted(n for _, n in rig.transport.order) == list(range(2_000))
    place = {n: index for index, (_, n) in enumerate(rig.transport.order)}
    for numbers in streams.values():
        places = [place[n] for n in numbers]
        assert places == sorted(places)
    assert rig.queue.statistics().subscribers == 0


# -------------------------------------------------------------------------------------------------------------- overflow

NARROW = msgspec.structs.replace(SLOW, queue_messages=10, subscriber_messages=3, subscriber_bytes=5_000)


@pytest.mark.parametrize("fault", [unavailable, away])
def test_a_message_beyond_the_subscriber_limit_is_a_dead_letter_with_subscriber_and_limits(
    scene: MakeScene, fault: Callable[[], None]
) -> None:
    rig = scene(PerSubscriberTransport({ANN: fault, BOB: fault}), NARROW).start()
    rig.offer_to(ANN, event(0))
    eventually(lambda: rig.queue.statistics().retries >= 1 and not rig.queue._in_flight, "a try")
    rig.offer_to(ANN, *(event(n) for n in range(1, 6)))
    rig.offer_to(BOB, event(6))
    full = UStatus(
        UCode.RESOURCE_EXHAUSTED,
        f"egress queue of subscriber {ANN} at endpoint 'backbone' is full (3 messages or 5000 bytes)",
    )
    assert [(n, status) for n, status, _ in rig.undelivered] == [(n, full) for n in (3, 4, 5)]
    assert [each for each in rig.verdicts if each[0] == 3] == [(3, Verdict.DEAD_LETTERED, full, 0)]
    # A message in the hands of the send thread cannot be evicted.
    eventually(lambda: not rig.queue._in_flight, "all messages to wait")
    rig.offer_to(ANN, event(7, UPriority.CS5))
    assert [n for n, _, _ in rig.undelivered] == [3, 4, 5, 2]
    eventually(lambda: not rig.queue._in_flight, "all messages to wait")
    rig.offer_to(ANN, msgspec.structs.replace(event(8, UPriority.CS6), payload=bytes(4_900)))
    assert rig.undelivered[-1][:2] == (0, full)
    assert rig.queue.statistics().evicted_subscriber_limit == 5
    eventually(
        # The send thread may hold the message: then there is no queue.
        lambda: getattr(rig.subscriber_queues.get(BOB), "queued", 0) == 1 and not rig.queue._in_flight,
        "the other message to wait",
    )
    assert rig.subscriber_queues[ANN].queued == 3


def test_an_absent_subscriber_cannot_fill_the_queue_of_its_endpoint(scene: MakeScene) -> None:
    rig = scene(
        PerSubscriberTransport({ANN: away}), msgspec.structs.replace(SLOW, queue_messages=1_000)
    ).start()
    rig.offer_to(ANN, *(event(n) for n in range(2_000)))
    # Including the messages that the send thread may hold.
    assert 500 <= rig.queue.queued <= 500 + 64
    assert len(rig.undelivered) == 2_000 - rig.queue.queued
    rig.offer_to(None, *(event(n) for n in range(2_000, 2_400)))
    eventually(lambda: len(rig.transport.to(None)) == 400, "the others'")


def test_other_subscriber_limits_apply_from_the_next_message_on(scene: MakeScene) -> None:
    rig = scene(PerSubscriberTransport({ANN: away}), SLOW)
    rig.offer_to(ANN, *(event(n) for n in range(3)))
    rig.queue.set_limits(NARROW)
    rig.offer_to(ANN, event(3))
    [(n, status, _)] = rig.undelivered
    assert (n, status.code) == (3, UCode.RESOURCE_EXHAUSTED)
    assert "(3 messages or 5000 bytes)" in status.message


# ------------------------------------------------------------------------------------------------- stopping and reading


def test_at_the_end_every_subscriber_is_tried_once(scene: MakeScene) -> None:
    rig = scene(PerSubscriberTransport({ANN: unavailable, BOB: unavailable}), SLOW).start()
    for n, who in enumerate((ANN, BOB, ANN, BOB)):
        rig.offer_to(who, event(n))
    rig.wait_retries(2)
    tries = len(rig.wire.attempts)
    rig.transport.faults.pop(BOB)
    rig.queue.no_more_retries(STOPPED)  # the link up ends the pauses
    assert rig.queue.wait_empty(soon())
    assert rig.transport.to(BOB) == [1, 3]
    assert sorted(rig.undelivered) == [(0, STOPPED, 2), (2, STOPPED, 0)]
    assert len(rig.wire.attempts) == tries + 3


def test_all_subscriber_queues_can_be_abandoned(scene: MakeScene) -> None:
    rig = scene(PerSubscriberTransport({ANN: unavailable, BOB: away}), SLOW).start()
    for n, who in enumerate((ANN, BOB, ANN, BOB)):
        rig.offer_to(who, event(n))
    rig.wait_retries(2)
    eventually(lambda: not rig.queue._in_flight, "the thread to wait")
    assert sorted(number(item.message) for item in rig.queue.abandon_all(STOPPED)) == [0, 1, 2, 3]
    assert (rig.queue.queued, rig.queue.statistics().subscribers) == (0, 0)


def test_statistics_have_the_number_of_subscriber_queues_and_the_fullest(scene: MakeScene) -> None:
    rig = scene(PerSubscriberTransport(), SLOW)
    subscribers = [UUri("dash", entity, 1, 0) for entity in range(1, 8)]
    for many, subscriber in enumerate(subscribers, 1):
        rig.offer_to(subscriber, *(event(n) for n in range(many)))
    rig.offer_to(None, *(event(n) for n in range(20)))
    found = rig.queue.statistics()
    assert (found.subscribers, found.queued) == (7, 28 + 20)
    assert found.fullest == tuple(
        SubscriberQueueStatistics(subscribers[many - 1], many, many * (OVERHEAD_BYTES + 4), 0, 0)
        for many in (7, 6, 5)
    )


def test_an_unavailable_subscriber_is_logged_once(scene: MakeScene, caplog: pytest.LogCaptureFixture) -> None:
    rig = scene(PerSubscriberTransport({ANN: unavailable, BOB: unavailable}), SLOW).start()
    with caplog.at_level("WARNING", "ustreamer.egress"):
        rig.offer_to(ANN, event(0))
        rig.wait_retries(1)
        rig.offer_to(BOB, event(1))
        rig.wait_retries(2)
        assert len(caplog.records) == 1
        rig.transport.faults.clear()
        rig.queue.on_link_up()
        assert rig.queue.wait_empty(soon())
        rig.transport.faults[CAT] = unavailable
        rig.offer_to(CAT, event(2))
        rig.wait_retries(3)
    notified = [(record.getMessage(), vars(record)["subscriber"]) for record in caplog.records]
    assert notified == [("egress.unavailable", str(ANN)), ("egress.unavailable", str(CAT))]
