# SPDX-License-Identifier: Apache-2.0
"""Verdicts of a dispatcher in, spans out: which messages have one, and what is in it."""

import itertools
import threading
from collections.abc import Callable, Sequence

import msgspec
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from ustreamer_tracing.span_queue import SpanQueue
from ustreamer_tracing.spans import WallTime, export_request

from tests.otlp_collector import attributes_of, spans_of
from ustreamer.core.base.clock import ManualClock
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.delivery.ports import Filter, Tap
from ustreamer.core.routing.subscriptions import Subscription
from ustreamer.hooks import hookimpl
from ustreamer.testing.virtual_time import DispatcherBench, VirtualTime
from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE_ID}-{PARENT_ID}-01"
TOPIC, APP = UUri("chassis", 0x1234, 1, 0x8001), UUri("hpc", 7, 1, 0)
STARTED_MS = 1_700_000_000_000


class Held(Filter):
    """Holds each message for 30 ms."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._held: UMessage | None = None

    def admit(self, message: UMessage, now_ns: int) -> Verdict:
        self._held = message
        self._delivery.wake_at(now_ns + 30_000_000, self)
        return Verdict.QUEUED

    def release_due(self, now_ns: int) -> UMessage | None:
        message, self._held = self._held, None
        return message


class Refused(Filter):
    def admit(self, message: UMessage, now_ns: int) -> Verdict:
        return Verdict.DENIED


class Rig:
    """A dispatcher in virtual time with the tap of the plugin. `spans` are those of the messages so far."""

    def __init__(self, time: VirtualTime, make_filter: "Callable[[Delivery], Filter] | None" = None) -> None:
        self.queue = SpanQueue(16, time.clock().monotonic_ns)
        self._time = time
        self._make_filter = make_filter
        self.bench = DispatcherBench(
            time, {"chassis": "chassis", "hpc": "backbone"}, [self], [Subscription(TOPIC, APP)]
        )
        self._new_id = UuidSource(time.clock().wall_ms)

    @hookimpl
    def ustreamer_taps(self, endpoint: str) -> Tap:
        return self.queue.tap(endpoint)

    @hookimpl
    def ustreamer_filters(self, delivery: Delivery) -> Filter | None:
        return self._make_filter and self._make_filter(delivery)

    def message(self, traceparent: str | None, topic: UUri = TOPIC) -> UMessage:
        made = publish(self._new_id.next(), topic, b"payload")
        return msgspec.structs.replace(
            made, attributes=msgspec.structs.replace(made.attributes, traceparent=traceparent)
        )

    def dispatch(self, traceparent: str | None = SAMPLED, topic: UUri = TOPIC) -> UMessage:
        message = self.message(traceparent, topic)
        self.bench.dispatch(message)
        return message

    def spans(self) -> Sequence[Span]:
        numbers = itertools.count(1)
        request = export_request(
            "hpc",
            self.queue.pop(100),
            WallTime(self._time.clock()).offset_ns(),
            lambda: next(numbers).to_bytes(8, "big"),
        )
        resource = attributes_of(request.resource_spans[0].resource.attributes)
        assert (resource["service.name"], resource["service.instance.id"]) == ("ustreamer", "hpc")
        return spans_of(request)


@pytest.fixture
def rig(virtual_time: VirtualTime) -> Rig:
    virtual_time.advance(s=5)
    return Rig(virtual_time)


def test_a_delivery_of_a_sampled_message_is_a_child_span(rig: Rig) -> None:
    message = rig.dispatch()
    [span] = rig.spans()
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE_ID, PARENT_ID)
    assert (span.span_id.hex(), span.flags) == ("0000000000000001", 0x301)
    assert (span.name, span.kind) == ("forward up://chassis/1234/1/8001", Span.SPAN_KIND_CONSUMER)
    assert attributes_of(span.attributes) == {
        "uprotocol.id": str(message.id),
        "uprotocol.type": "publish",
        "uprotocol.source": "up://chassis/1234/1/8001",
        "ustreamer.ingress": "chassis",
        "ustreamer.endpoint": "backbone",
        "ustreamer.verdict": "delivered",
        "ustreamer.attempts": 0,  # the egress of the bench counts none
    }
    assert span.start_time_unix_nano == span.end_time_unix_nano == (STARTED_MS + 5_000) * 1_000_000
    assert span.status.code == Status.STATUS_CODE_UNSET


def test_the_message_itself_is_forwarded_unchanged(rig: Rig) -> None:
    message = rig.dispatch()
    assert rig.bench.sent("backbone") == [message]


@pytest.mark.parametrize(
    "traceparent",
    [
        None,
        "",
        SAMPLED[:-1] + "0",
        SAMPLED[:-1] + "2",
        SAMPLED + "-more",
        "01",
        "f" * 5_000 + "1",
    ],
)
def test_a_message_that_is_not_sampled_is_not_queued(rig: Rig, traceparent: str | None) -> None:
    rig.dispatch(traceparent)
    assert not rig.queue.notes
    assert len(rig.bench.sent("backbone")) == 1


@pytest.mark.parametrize(
    "traceparent",
    [
        f"ff-{TRACE_ID}-{PARENT_ID}-01",
        f"00-{'0' * 32}-{PARENT_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"00-{TRACE_ID.upper()}-{PARENT_ID}-01",
        "x" * 54 + "1",
    ],
)
def test_an_invalid_traceparent_has_no_span(rig: Rig, traceparent: str) -> None:
    rig.dispatch(traceparent)
    assert rig.spans() == []


def test_a_later_version_with_other_flags_has_a_span(rig: Rig) -> None:
    rig.dispatch(f"cc-{TRACE_ID}-{PARENT_ID}-03")
    assert [each.flags for each in rig.spans()] == [0x303]


def test_a_message_without_target_has_a_span(rig: Rig) -> None:
    rig.dispatch(topic=TOPIC.with_resource(0x8002))
    [span] = rig.spans()
    found = attributes_of(span.attributes)
    assert (found["ustreamer.verdict"], found["ustreamer.attempts"]) == ("no_subscriber", 0)
    assert "ustreamer.endpoint" not in found
    assert not span.events


def test_a_held_message_has_the_times_of_its_release_and_of_its_send(virtual_time: VirtualTime) -> None:
    rig = Rig(virtual_time, Held)
    rig.dispatch()
    virtual_time.advance(ms=30)
    [span] = rig.spans()
    began = span.start_time_unix_nano
    assert span.end_time_unix_nano - began == 30_000_000
    assert [(each.name, each.time_unix_nano - began) for each in span.events] == [
        ("released", 30_000_000),
    ]


def test_a_queued_message_has_the_time_of_its_first_attempt_and_the_reason_of_its_end(rig: Rig) -> None:
    [delivery] = deliveries(rig)
    reason = UStatus(UCode.UNAVAILABLE, "no receiver")
    times = (1_000, 2_000, 9_000, 50_000)  # arrived, received, first attempt, settled
    rig.queue.tap("chassis")(rig.message(SAMPLED), delivery, Verdict.DEAD_LETTERED, reason, 3, *times)
    [span] = rig.spans()
    began = span.start_time_unix_nano
    assert span.end_time_unix_nano - began == 49_000
    assert [(each.name, each.time_unix_nano - began) for each in span.events] == [
        ("released", 1_000),
        ("first_attempt", 8_000),
    ]
    assert (span.status.code, span.status.message) == (
        Status.STATUS_CODE_ERROR,
        "UNAVAILABLE: no receiver",
    )
    assert attributes_of(span.attributes)["ustreamer.attempts"] == 3


def test_a_denied_message_is_an_error(virtual_time: VirtualTime) -> None:
    rig = Rig(virtual_time, lambda _: Refused())
    rig.dispatch()
    [span] = rig.spans()
    assert attributes_of(span.attributes)["ustreamer.verdict"] == "denied"
    assert span.status.code == Status.STATUS_CODE_ERROR


def test_messages_delivered_together_have_a_span_each(rig: Rig) -> None:
    tap = rig.queue.tap("chassis")
    delivery = deliveries(rig)[0]
    mixed = [rig.message(SAMPLED), rig.message(None), rig.message(SAMPLED)]
    tap.on_delivered_batch(mixed, delivery, [1, 2, 3])
    assert [attributes_of(each.attributes)["uprotocol.id"] for each in rig.spans()] == [
        str(mixed[0].id),
        str(mixed[2].id),
    ]


@pytest.mark.parametrize(("traceparent", "count"), [(None, 0), (SAMPLED, 9)])
def test_a_batch_has_spans_only_if_it_is_sampled(rig: Rig, traceparent: str | None, count: int) -> None:
    batch = MessageBatch.from_messages([rig.message(traceparent) for _ in range(9)])
    assert batch is not None
    rig.queue.tap("chassis").on_delivered_batch(batch, deliveries(rig)[0], range(9))
    assert len(rig.spans()) == count


def deliveries(rig: Rig) -> Sequence[Delivery]:
    """The deliveries of the rig, found as the tap finds them."""
    rig.dispatch()
    return [note[3] for note in rig.queue.pop(100) if note[3] is not None]


def test_a_full_queue_drops_and_counts(rig: Rig) -> None:
    for _ in range(20):
        rig.dispatch()
    assert (len(rig.queue.notes), rig.queue.pop_dropped(), rig.queue.pop_dropped()) == (16, 4, 0)
    assert len(rig.bench.sent("backbone")) == 20


def test_drops_of_several_threads_are_all_counted(rig: Rig) -> None:
    deliveries(rig)
    tap, message = rig.queue.tap("chassis"), rig.message(SAMPLED)

    def settle() -> None:
        for _ in range(500):
            tap(message, None, Verdict.NO_SUBSCRIBER, None, 0, 1, 1, 0, 1)

    threads = [threading.Thread(target=settle) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    kept = len(rig.queue.notes)
    assert 16 <= kept < 20  # each thread may pass the test of the length once before another appends
    assert kept + rig.queue.pop_dropped() == 2_000


def test_the_wall_time_is_the_latest_of_readings_within_a_millisecond() -> None:
    clock = ManualClock(STARTED_MS)
    wall = WallTime(clock.clock())
    clock.advance(ns=900_000)
    early = wall.offset_ns()
    clock.advance(ns=100_000)
    best = wall.offset_ns()
    assert best - early == 900_000  # ms of the wall clock: 0.9 ms too early, and exact
    clock.advance(ns=500_000)
    assert wall.offset_ns() == best
    clock.step(s=-60)
    assert wall.offset_ns() == pytest.approx(best - 60_000_000_000, abs=1_000_000)
