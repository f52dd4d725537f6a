# SPDX-License-Identifier: Apache-2.0
"""Batches at an endpoint queue: sends, queueing and losses are the same as for single messages."""

import threading
from collections.abc import Iterable, Sequence

import pytest
from ustreamer_recorder.batch_note import BatchNote
from ustreamer_recorder.note_queue import NoteQueue

from tests.host.egress.test_endpoint_queue import (
    DOWN,
    OK,
    QUICK,
    TOPIC,
    BufferedTransport,
    EndpointQueueRig,
    InlineTransport,
    MakeRig,
    ScriptedTransport,
    event,
    events,
    make_rig,  # noqa: F401  a fixture
)
from tests.host.waiting import eventually
from ustreamer.core.base.clock import ManualClock
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.delivery.ports import SendBatch, Tap
from ustreamer.core.egress.limits import OVERHEAD_BYTES
from ustreamer.host.egress.endpoint_queue import EndpointQueue
from ustreamer.uprotocol.batch import MIN_BATCH, MessageBatch
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuri import UUri


def offer_all(rig: EndpointQueueRig, messages: list[UMessage], *, has_ttl: bool = False) -> None:
    """Like an ingress with a batch."""
    gateway = rig.gateways[0]
    gateway.ledger.received += len(messages)
    delivery, now_ns = gateway.delivery, rig._clock.monotonic_ns()
    delivery.outgoing.items = [(delivery, each, now_ns) for each in messages]
    delivery.outgoing.flush(has_ttl=has_ttl)


class BatchSizeTransport(InlineTransport):
    """Notes the sizes of its batches."""

    def __init__(self, *script: UCode | None, then: UCode | None = OK) -> None:
        super().__init__(*script, then=then)
        self.batch_sizes: list[int] = []

    def batch_transmitter(self, subscriber: UUri | None) -> SendBatch:
        one_by_one = super().batch_transmitter(subscriber)

        def transmit_all(messages: Iterable[UMessage], /) -> int:
            taken = one_by_one(messages)
            self.batch_sizes.append(taken)
            return taken

        return transmit_all


def test_a_batch_within_the_credit_is_sent_at_once_and_reported_to_taps(make_rig: MakeRig) -> None:  # noqa: F811
    wire = BatchSizeTransport()
    rig = make_rig(wire)
    offer_all(rig, events(50))
    assert (wire.batch_sizes, rig.sent) == ([50], list(range(50)))
    assert rig.verdicts == [(n, Verdict.DELIVERED, None, 1) for n in range(50)]
    assert rig.gateways[0].delivery.delivered == 50


def test_a_transport_without_waits_gets_a_whole_batch(make_rig: MakeRig) -> None:  # noqa: F811
    wire = BatchSizeTransport()
    rig = make_rig(wire)
    for _ in range(2):
        offer_all(rig, [publish(each.id, TOPIC, each.payload + bytes(100_000)) for each in events(64)])
    assert wire.batch_sizes == [64, 64]


def test_taps_do_not_change_the_ledger(make_rig: MakeRig) -> None:  # noqa: F811
    rig = make_rig(InlineTransport())
    rig.gateways[0].taps = ()
    offer_all(rig, events(5))
    assert rig.queue.ledger.settled[Verdict.DELIVERED] == rig.gateways[0].delivery.delivered == 5


def test_after_a_refusal_messages_are_sent_one_by_one_in_order(make_rig: MakeRig) -> None:  # noqa: F811
    rig = make_rig(InlineTransport(OK, OK, UCode.INTERNAL, UCode.INTERNAL, OK, OK)).start()
    offer_all(rig, events(6))
    rig.wait_settled(6)
    lost = [each for each in rig.verdicts if each[1] is Verdict.DEAD_LETTERED]
    assert [n for n, *_ in lost] == [number for number, *_ in rig.undelivered]
    assert rig.sent == [n for n in range(6) if n not in [number for number, *_ in lost]]
    assert len(lost) <= 1


def test_an_outage_loses_nothing_and_preserves_the_order(make_rig: MakeRig) -> None:  # noqa: F811
    rig = make_rig(InlineTransport(OK, OK, DOWN, DOWN, DOWN), QUICK).start()
    offer_all(rig, events(20))
    rig.wait_settled(20)
    assert rig.sent == list(range(20))


def test_waiting_messages_are_not_overtaken(make_rig: MakeRig) -> None:  # noqa: F811
    wire = BatchSizeTransport()
    rig = make_rig(wire)
    wire.then = DOWN
    rig.offer(event(0))
    wire.then = OK
    offer_all(rig, [event(n) for n in range(1, 9)])
    assert (wire.batch_sizes, rig.sent, rig.queue.queued) == ([], [], 9)
    rig.start().wait_settled(9)
    assert rig.sent == list(range(9))


def test_messages_in_flight_are_not_overtaken(make_rig: MakeRig) -> None:  # noqa: F811
    wire = BatchSizeTransport(DOWN)
    rig = make_rig(wire)
    rig.offer(event(0))
    wire.gate.clear()
    rig.start().wait_attempts(2)
    sender = threading.Thread(target=offer_all, args=(rig, [event(n) for n in range(1, 5)]))
    sender.start()  # on its own thread: a queue that overtakes would wait for the gate forever
    eventually(lambda: rig.queue.queued == 5, "all to be queued")  # one of them in flight
    assert (wire.batch_sizes, len(wire.attempts)) == ([], 2)
    wire.gate.set()
    sender.join()
    rig.wait_settled(5)
    assert rig.sent == list(range(5))


def test_no_more_is_sent_at_once_than_there_is_room_for(make_rig: MakeRig) -> None:  # noqa: F811
    rig = make_rig(BufferedTransport(3 * (OVERHEAD_BYTES + 4)))
    offer_all(rig, events(5))
    assert (rig.sent, rig.queue.queued) == ([0, 1, 2], 2)


def test_a_batch_larger_than_one_credit_is_still_sent_at_once(make_rig: MakeRig) -> None:  # noqa: F811
    wire = BufferedTransport(then_window=1 << 20)
    rig = make_rig(wire)
    offer_all(rig, [publish(each.id, TOPIC, each.payload + bytes(5_000)) for each in events(64)])
    assert (rig.sent, rig.queue.queued, wire.window_calls) == (list(range(64)), 0, 2)


def test_a_message_larger_than_any_credit_is_queued_in_order(make_rig: MakeRig) -> None:  # noqa: F811
    rig = make_rig(BufferedTransport(then_window=1 << 20))
    messages = events(4)
    messages[2] = publish(messages[2].id, TOPIC, messages[2].payload + bytes(300_000))
    offer_all(rig, messages)
    assert (rig.sent, rig.queue.queued) == ([0, 1], 2)
    rig.start().wait_settled(4)
    assert rig.sent == [0, 1, 2, 3]


def test_a_queue_without_send_window_queues_all_messages(make_rig: MakeRig) -> None:  # noqa: F811
    rig = make_rig(ScriptedTransport())
    offer_all(rig, events(5))
    assert (rig.sent, rig.queue.queued) == ([], 5)


def test_a_batch_excludes_messages_that_expire_during_its_send(make_rig: MakeRig) -> None:  # noqa: F811
    time = ManualClock()
    clock = time.clock()

    class Slow(InlineTransport):
        def send(self, message: UMessage) -> None:
            super().send(message)
            time.advance(ms=7)

    rig = make_rig(Slow(), QUICK, clock)
    offer_all(rig, [event(n, ttl=20, made_ms=clock.wall_ms()) for n in range(6)], has_ttl=True)
    assert rig.sent == [0, 1, 2]
    rig.start().wait_settled(6)
    assert [(n, verdict) for n, verdict, *_ in rig.verdicts if verdict is Verdict.EXPIRED] == [
        (n, Verdict.EXPIRED) for n in (3, 4, 5)
    ]


def test_a_transport_that_raises_over_many_costs_none_of_them_and_is_reported_once(
    make_rig: MakeRig,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(InlineTransport):
        def batch_transmitter(self, subscriber: UUri | None) -> SendBatch:
            def transmit_all(messages: Iterable[UMessage], /) -> int:
                raise KeyError(next(iter(messages)).id)

            return transmit_all

    rig = make_rig(Broken())
    for first in (0, 5):
        offer_all(rig, [event(n) for n in range(first, first + 5)])
    assert rig.sent == list(range(10))
    assert [record.message for record in caplog.records] == ["egress.failed"]


@pytest.mark.parametrize("count", [0, 1])
def test_none_or_one_is_not_a_batch(make_rig: MakeRig, count: int) -> None:  # noqa: F811
    wire = BatchSizeTransport()
    rig = make_rig(wire)
    offer_all(rig, events(count))
    assert (wire.batch_sizes, rig.sent) == ([], list(range(count)))


# --- batches ---------------------------------------------------------------------------------------------------------


def message_batch(messages: Sequence[UMessage]) -> MessageBatch:
    batch = MessageBatch.from_messages(messages)
    assert batch is not None
    return batch


@pytest.mark.parametrize("sizes", [[], [0], [4] * 3, [0, 1, 2, 1_000], [65_000] * 128])
def test_a_batch_is_as_large_as_its_messages(sizes: list[int]) -> None:
    messages = [publish(event(0).id, TOPIC, bytes(size)) for size in sizes]
    expected = sum(size + OVERHEAD_BYTES for size in sizes)
    assert EndpointQueue._size_of(messages) == expected
    assert EndpointQueue._size_of(message_batch([event(0), *messages])[1:]) == expected


@pytest.mark.parametrize("number", [MIN_BATCH - 1, MIN_BATCH, 3 * MIN_BATCH])
@pytest.mark.parametrize("room", [0, 1, MIN_BATCH - 1, MIN_BATCH + 1, 100])
def test_a_batch_is_sent_queued_and_counted_as_its_messages(
    make_rig: MakeRig,  # noqa: F811
    number: int,
    room: int,
) -> None:
    rig = make_rig(BufferedTransport(room * (OVERHEAD_BYTES + 4)))
    offer_all(rig, events(number))
    at_once = min(room, number)
    assert (rig.sent, rig.queue.queued) == (list(range(at_once)), number - at_once)
    assert [n for n, *_ in rig.verdicts] == rig.sent
    # The remaining room covers as many more.
    more = max(room - number, 0)
    for n in range(2):
        rig.offer(event(number + n))
    assert len(rig.sent) == at_once + min(more, 2)


@pytest.mark.parametrize("taken", [1, MIN_BATCH - 1, MIN_BATCH])
def test_messages_refused_from_a_batch_are_sent_one_by_one(
    make_rig: MakeRig,  # noqa: F811
    taken: int,
) -> None:
    wire = BatchSizeTransport(*[OK] * taken, DOWN)
    rig = make_rig(wire)
    offer_all(rig, events(2 * MIN_BATCH))
    assert (wire.batch_sizes, rig.verdicts) == (
        [taken],
        [(n, Verdict.DELIVERED, None, 1) for n in rig.sent],
    )
    rig.start().wait_settled(2 * MIN_BATCH)
    assert rig.sent == list(range(2 * MIN_BATCH))


# --- taps ------------------------------------------------------------------------------------------------------------


class Notes:
    """A batch tap, with the batches it received."""

    def __init__(self) -> None:
        self.together: list[list[bytes]] = []
        self.alone: list[bytes] = []

    def __call__(
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
        self.alone.append(message.payload)

    def on_delivered_batch(
        self, messages: Sequence[UMessage], delivery: Delivery, times_ns: Sequence[int]
    ) -> None:
        assert len(messages) == len(times_ns)
        self.together.append([each.payload for each in messages])


class NoBatchTransport(BatchSizeTransport):
    """Refuses batches and takes single messages."""

    def batch_transmitter(self, subscriber: UUri | None) -> SendBatch:
        def transmit_all(messages: Iterable[UMessage], /) -> int:
            self.batch_sizes.append(0)
            return 0

        return transmit_all


def tapped(rig: EndpointQueueRig, tap: Tap, monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Install only this tap; returns its exceptions, for which a streamer would disable it."""
    failed: list[Exception] = []
    gateway = rig.gateways[0]
    gateway.taps = (tap,)
    monkeypatch.setattr(gateway, "on_tap_error", lambda tap, error: failed.append(error))
    return failed


@pytest.mark.parametrize("number", [2, MIN_BATCH, 3 * MIN_BATCH])
def test_a_refused_batch_is_not_reported_to_taps(
    make_rig: MakeRig,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    wire, tap = NoBatchTransport(), Notes()
    rig = make_rig(wire)
    failed = tapped(rig, tap, monkeypatch)
    offer_all(rig, events(number))
    assert (wire.batch_sizes, tap.together, failed) == ([0], [], [])
    assert rig.sent == list(range(number))
    assert len(tap.alone) == number


@pytest.mark.parametrize("number", [2, MIN_BATCH])
def test_the_recorder_handles_a_refused_batch(
    make_rig: MakeRig,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    wire = NoBatchTransport()
    rig = make_rig(wire)
    intake = NoteQueue(1_000, rig._clock.monotonic_ns, TOPIC, None)
    failed = tapped(rig, intake.tap("chassis"), monkeypatch)
    offer_all(rig, events(number))
    assert (wire.batch_sizes, failed, intake.waiting) == ([0], [], number)
    rig.gateways[0].delivery.transmit_batch = InlineTransport.batch_transmitter(wire, None)  # and continues
    offer_all(rig, events(number))
    assert [len(each) for each in intake.notes if isinstance(each, BatchNote)] == [number]
    assert (failed, intake.waiting) == ([], 2 * number)
