# SPDX-License-Identifier: Apache-2.0
"""Notes become records: each row has the inputs of its decision, and missing rows are counted."""

import errno
import gc
import os
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import pytest
from ustreamer_recorder.events import (
    Anchor,
    Config,
    Counters,
    End,
    Gap,
    Letter,
    Row,
    SubscriptionChange,
)
from ustreamer_recorder.layout import AnchorCause, CountersCause, EndCause, GapCause
from ustreamer_recorder.segments import SegmentFile, list_segments
from ustreamer_recorder.targets import TargetHistory

from ustreamer.core.delivery.expiry import STEP_GRACE_NS
from ustreamer.core.delivery.ledger import EMPTY_LEDGER, LedgerSnapshot, Verdict
from ustreamer.core.routing.subscriptions import Change, Subscription
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import notification, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.conftest import Bench

TOPIC = UUri("chassis", 0x1234, 1, 0x8001)
APP, METHOD = UUri("hpc", 7, 1, 0), UUri("chassis", 0x1234, 1, 1)
SMALLEST = 4 * 96 * 2049
E = TypeVar("E")


def of(bench: "Bench", kind: type[E]) -> list[E]:
    return [each for each in bench.events() if isinstance(each, kind)]


def seqs(bench: "Bench") -> list[int]:
    return [row.seq for row in of(bench, Row)]


# ---------------------------------------------------------------------------------------------------------------- rows


def test_a_row_has_every_argument_of_the_tap(bench: "Bench") -> None:
    delivery = bench.delivery(period_ns=5)
    message = bench.message(payload=b"12345")
    bench.time.advance(ns=7)
    reason = UStatus(UCode.RESOURCE_EXHAUSTED, "full")
    now_ns = bench.time.now_ns
    bench.settle(
        delivery, Verdict.THROTTLED, message, reason, 3, arrived_ns=now_ns - 5, received_ns=now_ns - 2
    )
    bench.drain()
    [row] = of(bench, Row)
    assert (row.seq, row.id, row.verdict, row.type) == (
        0,
        message.id,
        Verdict.THROTTLED,
        UMessageType.PUBLISH,
    )
    assert (row.source, row.sink, row.priority, row.size, row.ttl_ms) == (str(TOPIC), None, 1, 5, None)
    assert (row.code, row.reason, row.attempts, row.held, row.epoch) == (8, "full", 3, True, 0)
    times = (row.arrived_ns, row.received_ns, row.first_attempt_ns, row.settled_ns)
    assert times == (now_ns - 5, now_ns - 2, now_ns - 2, now_ns)
    target = row.target
    assert (target.ingress, target.egress, target.topic) == ("chassis", "backbone", str(TOPIC))
    assert (target.subscriber, target.period_ns, target.tuned_ns) == (None, 5, 1_000_000_000)


def test_every_type_of_message_is_read_back_with_its_fields(bench: "Bench") -> None:
    sent_request = request(bench.message().id, APP, METHOD, ttl=500)
    notified = notification(bench.message().id, TOPIC, APP, ttl=0)
    messages = [bench.message(), sent_request, response(bench.message().id, sent_request), notified]
    unicast = bench.delivery(topic=None)
    for message in messages * 2:  # the second time from the cache of the first
        bench.settle(unicast, message=message)
    bench.drain()
    rows = of(bench, Row)
    assert [row.id for row in rows] == [message.id for message in messages] * 2
    assert [row.type.name for row in rows[:4]] == ["PUBLISH", "REQUEST", "RESPONSE", "NOTIFICATION"]
    assert [row.ttl_ms for row in rows[:4]] == [None, 500, 500, 0]
    assert [row.priority for row in rows[:4]] == [1, 4, 4, 1]
    assert [row.sink for row in rows[:4]] == [None, str(METHOD), str(APP), str(APP)]
    assert [row.request for row in rows] == [None, None, sent_request.id, None] * 2
    assert {row.target.topic for row in rows} == {None}


def test_a_message_without_subscriber_is_a_row(bench: "Bench") -> None:
    for verdict in (Verdict.NO_SUBSCRIBER, Verdict.DENIED, Verdict.NO_SUBSCRIBER):
        bench.settle(None, verdict, attempts=0)
    bench.drain()
    rows = of(bench, Row)
    assert [row.verdict for row in rows] == [Verdict.NO_SUBSCRIBER, Verdict.DENIED, Verdict.NO_SUBSCRIBER]
    assert {(row.target.ingress, row.target.egress, row.target.delivery) for row in rows} == {
        ("chassis", None, 0)
    }


def test_an_inline_send_that_reads_no_clock_has_the_time_of_its_end(bench: "Bench") -> None:
    """As for SOME/IP: without it every latency there would be 0."""
    delivery = bench.delivery()
    now_ns = bench.time.now_ns
    bench.time.advance(ns=70)
    bench._tap(bench.message(), delivery, Verdict.DELIVERED, None, 1, now_ns, now_ns, now_ns, now_ns)
    bench._tap(bench.message(), delivery, Verdict.THROTTLED, None, 0, now_ns, now_ns, 0, now_ns)
    bench.drain()
    assert [row.settled_ns - now_ns for row in of(bench, Row)] == [70, 0]


# ------------------------------------------------------------------------------------------- targets, epochs, changes


def test_a_row_has_the_limit_of_its_decision(bench: "Bench") -> None:
    """A sent message waits in a queue, and is settled when another limit is in force."""
    delivery = bench.delivery(period_ns=5)
    early_ns = bench.time.now_ns
    bench.time.advance(ms=10)
    delivery.period_ns, delivery.period_since_ns = 7, bench.time.now_ns
    bench.note_queue.on_rate_change(delivery)
    bench.settle(delivery)
    bench.settle(delivery, received_ns=early_ns)
    bench.settle(delivery, received_ns=early_ns - 1)  # before anything is known: the oldest that is
    bench.drain()
    assert [(row.target.period_ns, row.target.tuned_ns) for row in of(bench, Row)] == [
        (7, early_ns + 10_000_000),
        (5, early_ns),
        (5, early_ns),
    ]
    assert len({row.target.delivery for row in of(bench, Row)}) == 1


def test_a_new_delivery_for_the_same_topic_has_its_own_number(bench: "Bench") -> None:
    """For it has a new gate."""
    bench.settle(bench.delivery(period_ns=5))
    bench.settle(bench.delivery(period_ns=5))
    bench.drain()
    first, second = of(bench, Row)
    assert first.target.delivery != second.target.delivery


def test_a_deleted_delivery_leaves_no_state(bench: "Bench") -> None:
    for _ in range(50):
        bench.settle(bench.delivery())
        bench.drain()
    gc.collect()
    assert len(bench.journal._targets.states) == 0
    assert len({row.target.delivery for row in of(bench, Row)}) == 50


def test_the_history_of_limits_is_bounded(bench: "Bench") -> None:
    delivery = bench.delivery()
    for period_ns in range(100):
        delivery.period_ns = period_ns
        bench.note_queue.on_rate_change(delivery)
    bench.drain()
    [state] = bench.journal._targets.states.values()
    assert isinstance(state, TargetHistory)
    assert len(state.targets) <= 17
    assert state.target_at(-1).period_ns == 83  # the oldest that is known


def test_the_cache_of_headers_is_bounded(bench: "Bench") -> None:
    bench.journal._headers.limit = 10
    for number in range(100):
        topic = UUri("chassis", number, 1, 0x8000)
        bench.settle(None, Verdict.NO_SUBSCRIBER, bench.message(topic))
    bench.drain()
    assert len(bench.journal._headers) <= 10
    assert len({row.source for row in of(bench, Row)}) == 100


def test_a_row_has_the_epoch_of_its_decision(bench: "Bench") -> None:
    delivery = bench.delivery()
    bench.note_queue.on_configured('{"first": 1}')
    early_ns = bench.time.now_ns
    bench.time.advance(ms=10)
    bench.note_queue.on_configured('{"second": 2}')
    bench.settle(delivery)
    bench.settle(delivery, received_ns=early_ns)
    bench.drain()
    assert [row.epoch for row in of(bench, Row)] == [1, 0]
    assert of(bench, Config) == [
        Config(0, early_ns, '{"first": 1}'),
        Config(1, early_ns + 10_000_000, '{"second": 2}'),
    ]


def test_every_change_of_a_subscription_is_recorded_with_its_time(bench: "Bench") -> None:
    desired = Subscription(TOPIC, APP, 5)
    for change in Change:
        bench.time.advance(ns=10)
        bench.note_queue.on_subscription_change(desired, change)
    bench.drain()
    assert of(bench, SubscriptionChange) == [
        SubscriptionChange(n, 1_000_000_010 + 10 * n, change, str(TOPIC), str(APP), 5)
        for n, change in enumerate(Change)
    ]


# --------------------------------------------------------------------------------------------------------- dead letters


def test_a_dead_letter_has_a_payload_only_if_configured(bench: "Bench") -> None:
    reason = UStatus(UCode.UNAVAILABLE, "no receiver")
    bench.settle(bench.delivery(), Verdict.DEAD_LETTERED, reason=reason, attempts=4)
    bench.settle(bench.delivery(), Verdict.EXPIRED)
    bench.settle(bench.delivery(), Verdict.DENIED)
    bench.drain()
    first, second = of(bench, Letter)
    assert (first.seq, first.code, first.reason, first.attempts, first.size) == (0, 14, "no receiver", 4, 7)
    assert (first.payload, first.id, first.target) == (None, of(bench, Row)[0].id, of(bench, Row)[0].target)
    assert second.seq == 1


def test_payloads_are_cut_to_the_configured_size(build: "Callable[..., Bench]") -> None:
    bench = build(payloads=True, payload_bytes=100)
    bench.drain()
    for payload in (b"", b"short", bytes(100), bytes(101)):
        message = bench.message(payload=payload)
        bench.settle(bench.delivery(), Verdict.DEAD_LETTERED, message)
    bench.drain()
    assert [(each.payload, each.size) for each in of(bench, Letter)] == [
        (b"", 0),
        (b"short", 5),
        (bytes(100), 100),
        (bytes(100), 101),
    ]
    assert bench.note_queue._waiting_payload_bytes == 0
    [path] = bench.directory.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


def test_queued_payloads_are_bounded(build: "Callable[..., Bench]", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ustreamer_recorder.note_queue.MAX_WAITING_PAYLOAD_BYTES", 10)
    bench = build(payloads=True)
    bench.drain()
    for _ in range(3):
        bench.settle(bench.delivery(), Verdict.DEAD_LETTERED, bench.message(payload=b"12345"))
    bench.drain()
    bench.settle(bench.delivery(), Verdict.DEAD_LETTERED, bench.message(payload=b"67890"))
    bench.drain()
    assert [each.payload for each in of(bench, Letter)] == [b"12345", b"12345", None, b"67890"]


def test_an_undelivered_dead_letter_makes_no_other(bench: "Bench") -> None:
    lost = bench.message(UUri("hpc", 4, 1, 0x8000))
    bench.settle(bench.delivery(), Verdict.DEAD_LETTERED, lost)
    bench.drain()
    assert (len(of(bench, Row)), of(bench, Letter)) == (1, [])


def test_a_dropped_note_counts_as_the_dead_letter_that_it_would_make(build: "Callable[..., Bench]") -> None:
    bench = build(buffer_rows=1024)
    for _ in range(1024):
        bench.settle()
    for verdict in (Verdict.DEAD_LETTERED, Verdict.EXPIRED, Verdict.DENIED):
        bench.settle(verdict=verdict)
        bench.settle(verdict=verdict, message=bench.message(UUri("hpc", 4, 1, 0x8000)))
    skipped = bench.note_queue.pop_skipped()
    assert (sum(skipped.rows), skipped.letters) == (6, 2)


# ------------------------------------------------------------------------------------------------------------ segments


def test_a_full_segment_ends_and_the_next_continues(build: "Callable[..., Bench]") -> None:
    bench = build(max_bytes=100 * SMALLEST)
    bench.drain()
    delivery = bench.delivery()
    bench.note_queue.on_configured("{}")
    for _ in range(20):
        for _ in range(1000):
            bench.settle(delivery)
        bench.time.advance(ms=200)
        bench.drain()
    bench.journal.finish(EMPTY_LEDGER)
    assert seqs(bench) == list(range(20_000))
    names = bench.names()
    assert len(names) >= 3
    assert not [name for name in names if name.endswith(".open")]
    assert max(path.stat().st_size for path in bench.directory.iterdir()) <= SMALLEST
    assert [end.cause for end in of(bench, End)] == [EndCause.ROTATED] * (len(names) - 1) + [EndCause.STOPPED]
    assert len(of(bench, Config)) == len(names)
    assert {row.target.delivery for row in of(bench, Row)} == {1}


def test_one_burst_may_fill_many_segments(build: "Callable[..., Bench]") -> None:
    bench = build(max_bytes=100 * SMALLEST, buffer_rows=100_000)
    bench.drain()
    delivery = bench.delivery()
    for _ in range(20_000):
        bench.settle(delivery)
    bench.drain()
    assert seqs(bench) == list(range(20_000))
    assert max(path.stat().st_size for path in bench.directory.iterdir()) <= SMALLEST


def test_a_segment_is_finished_after_some_time_but_not_an_empty_one(build: "Callable[..., Bench]") -> None:
    bench = build(segment_s=60)
    bench.drain()
    bench.time.advance(s=61)
    bench.drain()
    assert len(bench.names()) == 1
    bench.settle(bench.delivery())
    bench.drain()
    assert len(bench.names()) == 2
    assert of(bench, End)[0].cause is EndCause.ROTATED


def test_a_segment_with_too_many_texts_is_finished(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ustreamer_recorder.encoder.MAX_STRINGS", 16_384 + 50)
    for number in range(60):
        bench.settle(None, Verdict.NO_SUBSCRIBER, bench.message(UUri("chassis", number, 1, 0x8000)))
    bench.drain()
    assert len(bench.names()) == 2
    assert seqs(bench) == list(range(60))


def test_an_open_segment_has_its_whole_length_reserved(bench: "Bench") -> None:
    [path] = bench.directory.iterdir()
    assert path.name.endswith(".useg.open")
    assert path.stat().st_size == SMALLEST
    assert path.stat().st_blocks * 512 >= SMALLEST
    bench.journal.finish(EMPTY_LEDGER)
    [path] = bench.directory.iterdir()
    assert path.stat().st_size < 1_000


def test_two_runs_share_a_directory(bench: "Bench") -> None:
    bench.settle(bench.delivery())
    bench.drain()
    bench.journal.finish(EMPTY_LEDGER)
    bench.begin(2)
    bench.drain()
    bench.settle(bench.delivery())
    bench.drain()
    bench.journal.finish(EMPTY_LEDGER)
    assert bench.names() == ["0000000000000001-000000.useg", "0000000000000002-000000.useg"]
    assert seqs(bench) == [0, 0]


# ---------------------------------------------------------------------------------------------- missing parts


def test_dropped_notes_are_counted_in_a_gap(build: "Callable[..., Bench]") -> None:
    bench = build(buffer_rows=1024)
    bench.drain()
    delivery = bench.delivery()
    for number in range(1024 + 10):
        bench.settle(delivery, Verdict.DEAD_LETTERED if number % 2 else Verdict.DELIVERED)
    bench.time.advance(ms=1)
    bench.note_queue.on_subscription_change(Subscription(TOPIC, APP), Change.SUBSCRIBED)
    bench.drain()
    bench.settle(delivery)
    bench.drain()
    [gap] = of(bench, Gap)
    recorded = len([row for row in of(bench, Row) if row.seq < gap.first_seq])
    assert gap.cause is GapCause.OVERRUN
    assert (gap.first_seq, sum(gap.rows)) == (recorded, 1034 - recorded)
    assert sum(gap.rows) >= 10
    assert gap.rows[Verdict.DELIVERED] + gap.rows[Verdict.DEAD_LETTERED] == sum(gap.rows)
    assert (gap.changes, gap.letters) == (1, gap.rows[Verdict.DEAD_LETTERED])
    assert (gap.from_ns, gap.until_ns) == (1_000_000_000, 1_001_000_000)
    assert seqs(bench)[-1] == 1034
    bench.note_queue.on_subscription_change(Subscription(TOPIC, APP), Change.SUBSCRIBED)
    bench.drain()
    assert [change.number for change in of(bench, SubscriptionChange)] == [1]


def test_the_queue_of_notes_is_bounded(build: "Callable[..., Bench]") -> None:
    bench = build(buffer_rows=1024)
    delivery = bench.delivery()
    for _ in range(3000):
        bench.settle(delivery)
        bench.note_queue.on_rate_change(delivery)
    assert len(bench.note_queue.notes) == 2048


def test_a_rate_change_that_does_not_fit_is_a_gap_and_is_noted_soon(build: "Callable[..., Bench]") -> None:
    bench = build(buffer_rows=1024)
    delivery = bench.delivery()
    for _ in range(2047):
        bench.note_queue.on_rate_change(delivery)
    bench.time.advance(ms=1)
    delivery.period_ns, delivery.period_since_ns = 100_000_000, bench.time.now_ns
    bench.note_queue.on_rate_change(delivery)
    bench.drain()
    [gap] = of(bench, Gap)
    assert (gap.cause, gap.from_ns, sum(gap.rows)) == (GapCause.OVERRUN, bench.time.now_ns, 0)
    bench.settle(delivery)
    bench.drain()
    [row] = of(bench, Row)
    assert row.target.period_ns == 100_000_000


def test_a_message_with_a_number_that_does_not_fit_is_counted(bench: "Bench") -> None:
    delivery = bench.delivery()
    odd = notification(bench.message().id, TOPIC, APP, ttl=2**40)
    for message in (bench.message(), odd, odd, bench.message()):
        bench.settle(delivery, message=message)
    bench.drain()
    [gap] = of(bench, Gap)
    assert (gap.cause, gap.rows[Verdict.DELIVERED], gap.first_seq) == (GapCause.UNFIT, 2, 2)
    assert seqs(bench) == [0, 1]


class Full:
    """A disk that takes nothing, from a moment on: `SegmentFile.write` fails as pwrite does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        write = SegmentFile.write

        def failing(file: SegmentFile, data: bytes) -> None:
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write(file, data)

        monkeypatch.setattr(SegmentFile, "write", failing)


@pytest.mark.parametrize("rows", [5, 5000])
def test_rows_lost_to_a_full_disk_are_in_a_gap_after_it(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """5000 rows are more than a block, so one fails in the midst of them."""
    disk = Full(monkeypatch)
    delivery = bench.delivery()
    reason = UStatus(UCode.ABORTED, "x")
    for _ in range(3):
        bench.settle(delivery)
    bench.drain()
    disk.is_full = True
    for _ in range(rows):
        bench.settle(delivery, Verdict.EXPIRED, reason=reason)
    bench.note_queue.on_subscription_change(Subscription(TOPIC, APP), Change.SUBSCRIBED)
    bench.drain()
    bench.settle(delivery)
    bench.drain()  # not yet tried again
    [(store, state)] = bench.states.snapshot().items()
    assert (store, state.refused) == (str(bench.directory), 1)
    assert os.strerror(errno.ENOSPC) in state.degraded
    disk.is_full = False
    bench.time.advance(s=5)
    bench.settle(delivery)
    bench.drain()
    assert len(of(bench, Row)) == 3
    bench.time.advance(s=6)
    bench.drain()
    bench.settle(delivery)
    bench.drain()
    bench.journal.finish(EMPTY_LEDGER)
    assert bench.states.snapshot()[str(bench.directory)].degraded == ""
    [gap] = of(bench, Gap)
    assert (gap.cause, gap.first_seq, gap.changes, gap.letters) == (GapCause.DISK, 3, 1, rows)
    assert (gap.rows[Verdict.EXPIRED], gap.rows[Verdict.DELIVERED]) == (rows, 2)
    assert seqs(bench) == [0, 1, 2, 3 + rows + 2]
    assert [end.cause for end in of(bench, End)] == [EndCause.STOPPED]
    assert of(bench, Counters)[-1].skipped == rows + 2


def test_a_lost_gap_is_written_again(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Full(monkeypatch)
    odd = notification(bench.message().id, TOPIC, APP, ttl=2**40)
    bench.settle(bench.delivery(), message=odd)
    disk.is_full = True
    bench.drain()
    disk.is_full = False
    bench.time.advance(s=11)
    bench.drain()
    bench.journal.finish(EMPTY_LEDGER)
    assert [(gap.first_seq, sum(gap.rows)) for gap in of(bench, Gap)] == [(0, 1)]
    assert of(bench, Counters)[-1].skipped == 1


def test_an_unavailable_directory_is_retried(bench: "Bench") -> None:
    bench.journal.finish(EMPTY_LEDGER)
    bench.begin(2)
    bench.prepared.append(OSError(errno.EACCES, "no"))
    bench.drain()
    bench.settle(bench.delivery())
    bench.drain()
    assert len(bench.names()) == 1
    bench.prepared.clear()
    bench.time.advance(s=11)
    bench.drain()
    assert [sum(gap.rows) for gap in of(bench, Gap)] == [1]


# ---------------------------------------------------------------------------------------- clocks, ledger


def test_a_clock_step_without_a_file_is_in_the_next_anchor(bench: "Bench") -> None:
    bench.journal.finish(EMPTY_LEDGER)
    bench.begin(2)
    bench.prepared.append(OSError(errno.EACCES, "no"))
    bench.drain()
    bench.time.step(s=-3_600)
    bench.prepared.clear()
    bench.time.advance(s=11)
    bench.drain()
    assert [(each.cause, each.clock_step_ms) for each in of(bench, Anchor)] == [
        (AnchorCause.SEGMENT, 0),  # of the run before
        (AnchorCause.SEGMENT, -3_600_000),
    ]


def test_a_clock_step_makes_an_anchor_and_keeps_monotonic_times(bench: "Bench") -> None:
    delivery = bench.delivery()
    bench.settle(delivery)
    bench.drain()
    bench.time.step(s=86_400 * 9000)
    bench.settle(delivery)
    bench.drain()
    bench.time.step(ms=-49)  # drift, not worth an anchor
    bench.drain()
    bench.time.step(ms=-2)
    bench.drain()
    anchors = of(bench, Anchor)
    assert [(each.cause, each.clock_step_ms) for each in anchors] == [
        (AnchorCause.SEGMENT, 0),
        (AnchorCause.CLOCK_STEP, 86_400_000 * 9000),
        (AnchorCause.CLOCK_STEP, -51),
    ]
    first, second = of(bench, Row)
    assert second.received_ns == first.received_ns
    assert anchors[1].wall_us(second.received_ns) == bench.clock.wall_ms() * 1000 + 51_000
    assert all(before.mono_ns <= after.mono_ns for before, after in pairwise(anchors))


def test_the_ledger_is_recorded_periodically_and_at_the_end(bench: "Bench") -> None:
    books = LedgerSnapshot(9, 8, 7, 6, 5, 4, 3, 2)
    for _ in range(3):
        bench.journal.count(books)  # nothing has happened since
        bench.settle(bench.delivery())
        bench.drain()
        bench.journal.count(books)
        bench.time.advance(s=9)
    bench.journal.finish(books)
    counted = of(bench, Counters)
    assert [(each.cause, each.next_seq) for each in counted] == [
        (CountersCause.RUNNING, 1),
        (CountersCause.STOPPED, 3),
    ]
    assert counted[0].ledger == books


@pytest.mark.parametrize("step_s", [14 * 365 * 86_400, 100 * 86_400], ids=["to 2040", "100 days"])
def test_a_clock_glitch_deletes_no_recording_for_its_age(bench: "Bench", step_s: int) -> None:
    fill_segments(bench, 1)
    for file in list_segments(bench.directory):
        os.utime(file.path, ns=(bench.clock.wall_ms() * 1_000_000,) * 2)
    first = list_segments(bench.directory)[0].path
    bench.time.step(s=step_s)
    fill_segments(bench, 2)
    assert first.exists()
    bench.time.step(s=-step_s)
    fill_segments(bench, 3)
    assert first.exists()
    bench.time.step(s=step_s)
    bench.drain()
    bench.time.advance(ns=STEP_GRACE_NS + 1)
    fill_segments(bench, 4)  # the clock shows this for longer than a glitch
    assert not first.exists()


def fill_segments(bench: "Bench", number: int) -> None:
    """Record rows until the journal begins the segment with this number."""
    while not any(file.number >= number for file in list_segments(bench.directory)):
        for _ in range(200):
            bench.settle()
        bench.drain()
