# SPDX-License-Identifier: Apache-2.0
"""Messages delivered together are one note and one BATCH; the rows read back equal those of single notes."""

import errno
import itertools
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ustreamer_recorder.batch_note import BatchNote, batch_note_of
from ustreamer_recorder.events import Gap, Row
from ustreamer_recorder.journal import ROW_BYTES
from ustreamer_recorder.layout import HEADER, RECORD, GapCause
from ustreamer_recorder.note_queue import row_of
from ustreamer_recorder.reader import Block, read_blocks, read_header
from ustreamer_recorder.segments import SegmentFile, list_segments

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Ledger, Verdict
from ustreamer.uprotocol.batch import IdColumns, MessageBatch
from ustreamer.uprotocol.uattributes import UPriority
from ustreamer.uprotocol.umessage import UMessage, notification, publish, request, response
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.conftest import Bench

TOPIC = UUri("chassis", 0x1234, 1, 0x8001)
APP, METHOD = UUri("hpc", 7, 1, 0), UUri("chassis", 0x1234, 1, 1)


def deliver_together(bench: "Bench", delivery: Delivery, messages: Sequence[UMessage], *ages_ns: int) -> None:
    """An endpoint queue sends these together; they were received long ago, or now."""
    now_ns = bench.time.now_ns
    times_ns = [now_ns - each for each in ages_ns] or [now_ns] * len(messages)
    bench.owner.taps = (bench._tap,)
    delivery.settle_delivered(Ledger(), messages, times_ns)


def batch_sizes(bench: "Bench") -> list[int]:
    """How many rows each note of many has that waits."""
    return [len(each) for each in bench.note_queue.notes if isinstance(each, BatchNote)]


def one_by_one(bench: "Bench") -> None:
    """A waiting batch is written as if each message had been delivered alone."""
    notes, note_queue = bench.note_queue.notes, bench.note_queue
    while notes:
        note = notes.popleft()
        if isinstance(note, BatchNote):
            note_queue.batch_popped(note)
            for number in range(len(note)):
                bench.journal._write_one(row_of(note, number), note_queue)
        else:
            bench.journal._write_one(note, note_queue)
    bench.drain()


def recorded(bench: "Bench") -> list[Row | Gap]:
    """The events without END and the repeated events of the next file. No row is missing between two blocks."""
    for file in list_segments(bench.directory):
        data = file.path.read_bytes()
        found = [each.header for each in read_blocks(data, read_header(file.path)) if isinstance(each, Block)]
        assert all(before.next_seq == after.first_seq for before, after in itertools.pairwise(found))
    return [each for each in bench.events() if isinstance(each, (Row, Gap))]


def rows(bench: "Bench") -> list[Row]:
    return [each for each in bench.events() if isinstance(each, Row)]


# ---------------------------------------------------------------------------------------------- the oracle, row for row

STORIES = st.lists(
    st.one_of(
        st.tuples(
            st.just("leave"),
            st.integers(0, 2),  # delivery
            st.lists(st.integers(0, 40), min_size=1, max_size=20),  # bytes of each
            st.booleans(),  # at different times
            st.sampled_from(["same", "ttl", "priority", "sink"]),
        ),
        st.tuples(st.just("settle"), st.integers(0, 2)),
        st.tuples(st.just("tune"), st.integers(0, 2)),
        st.tuples(st.just("configure")),
        st.tuples(st.just("tick")),
    ),
    max_size=25,
)


@settings(deadline=None, max_examples=40)
@given(story=STORIES, in_a_block=st.integers(3, 50), in_a_segment=st.integers(20, 200))
def test_batches_are_recorded_as_the_same_rows_as_single_messages(
    story: list[tuple[object, ...]],
    in_a_block: int,
    in_a_segment: int,
    benches: "type[Bench]",
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    written = []
    for write in (lambda bench: bench.drain(), one_by_one):
        with ExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setattr("ustreamer_recorder.encoder.MAX_RECORDS", in_a_block)
            bench = benches(tmp_path_factory.mktemp("segments"))
            bench.journal._rotate_at = HEADER + RECORD * in_a_segment
            bench.drain()
            play(bench, story, write)
            written.append(recorded(bench))
    assert written[0] == written[1]


def play(bench: "Bench", story: list[tuple[object, ...]], write: "Callable[[Bench], None]") -> None:
    topics = [TOPIC, TOPIC, UUri("chassis", 0x1234, 1, 0x8002)]
    deliveries = [bench.delivery(topic=each) for each in topics]
    for what, *how in story:
        bench.time.advance(ns=10)
        match what, how:
            case "leave", [int(place), list(sizes), differ, kind]:
                messages = [message(bench, topics[place], size, str(kind), n) for n, size in enumerate(sizes)]
                ages_ns = sorted((size for size in sizes), reverse=True) if differ else ()
                deliver_together(bench, deliveries[place], messages, *ages_ns)
            case "settle", [int(place)]:
                bench.settle(deliveries[place], message=bench.message(topics[place]))
            case "tune", [int(place)]:
                deliveries[place].period_ns += 5
                deliveries[place].period_since_ns = bench.time.now_ns - 3
                bench.note_queue.on_rate_change(deliveries[place])
            case "configure", _:
                bench.note_queue.on_configured(f"[{bench.time.now_ns}]")
            case _:
                write(bench)
    write(bench)


def message(bench: "Bench", topic: UUri, size: int, kind: str, number: int) -> UMessage:
    """One of a kind: of some, not all have the same attributes."""
    id = UUID(bench.message().id.msb, 0b10 << 62 | 7 * number)
    match kind:
        case "sink":
            return notification(id, topic, APP, bytes(size))
        case "ttl":
            return publish(id, topic, bytes(size), ttl=500 + number // 8)
        case "priority":
            return publish(id, topic, bytes(size), priority=UPriority(2 + number % 2))
        case _:
            return publish(id, topic, bytes(size))


# ------------------------------------------------------------------------------------------------------------- its rows


def test_a_row_of_a_batch_has_every_field(bench: "Bench") -> None:
    delivery = bench.delivery()
    messages = [bench.message(payload=bytes(size)) for size in (1, 70_000, 0)]
    deliver_together(bench, delivery, messages, 50, 30, 30)
    assert batch_sizes(bench) == [3]
    bench.drain()
    now_ns = bench.time.now_ns
    assert [(row.id, row.size, row.received_ns - now_ns) for row in rows(bench)] == [
        (messages[0].id, 1, -50),
        (messages[1].id, 70_000, -30),
        (messages[2].id, 0, -30),
    ]
    for row in rows(bench):
        assert row.arrived_ns == row.first_attempt_ns == row.received_ns
        assert (row.settled_ns, row.attempts, row.verdict) == (now_ns, 1, Verdict.DELIVERED)
        assert (row.target.ingress, row.target.egress, row.source) == ("chassis", "backbone", str(TOPIC))


def test_a_row_from_before_a_change_of_limit_has_the_earlier_limit(bench: "Bench") -> None:
    delivery = bench.delivery(period_ns=5)
    deliver_together(bench, delivery, [bench.message()] * 2)
    bench.time.advance(ns=100)
    delivery.period_ns, delivery.period_since_ns = 8, bench.time.now_ns - 20
    bench.note_queue.on_rate_change(delivery)
    deliver_together(bench, delivery, [bench.message()] * 4, 30, 21, 20, 10)
    bench.drain()
    assert [row.target.period_ns for row in rows(bench)] == [5, 5, 5, 5, 8, 8]


def test_a_new_file_defines_each_target_before_its_rows(bench: "Bench") -> None:
    """Also where another target has had the same topic there."""
    one, other = bench.delivery(), bench.delivery()
    for delivery in (one, other):
        deliver_together(bench, delivery, [bench.message()] * 2)
    bench.drain()
    bench.journal._rotate_at = 0
    bench.settle(one)
    bench.drain()
    bench.journal._rotate_at = 1 << 30
    deliver_together(bench, one, [bench.message()] * 2)
    deliver_together(bench, other, [bench.message()] * 2)
    bench.drain()
    assert [row.target.delivery for row in rows(bench)] == [1, 1, 2, 2, 1, 1, 1, 2, 2]
    assert len(bench.names()) == 2


def test_a_batch_note_keeps_no_payload(bench: "Bench") -> None:
    """Otherwise the notes that wait for the disk would be limited in rows and not in bytes."""
    payloads = [bytes(1_000) for _ in range(64)]
    before = [sys.getrefcount(each) for each in payloads]
    deliver_together(bench, bench.delivery(), [bench.message(payload=each) for each in payloads])
    assert batch_sizes(bench) == [64]
    assert [sys.getrefcount(each) for each in payloads] == before


def test_different_attributes_make_no_batch(bench: "Bench") -> None:
    delivery = bench.delivery()
    deliver_together(bench, delivery, [message(bench, TOPIC, 1, "priority", number) for number in range(4)])
    assert batch_sizes(bench) == []
    bench.drain()
    assert [row.priority for row in rows(bench)] == [1, 2, 1, 2]


def test_responses_make_no_batch(bench: "Bench") -> None:
    """Each names another request."""
    delivery = bench.delivery(topic=None)
    sent_request = [request(bench.message().id, APP, METHOD, ttl=500) for _ in range(3)]
    assert batch_note_of(sent_request, delivery, [1, 2, 3], 3) is not None
    deliver_together(bench, delivery, [response(bench.message().id, each) for each in sent_request])
    bench.drain()
    assert [row.request for row in rows(bench)] == [each.id for each in sent_request]


@pytest.mark.parametrize("id", [UUID(1 << 64, 0), UUID(0, 1 << 64), UUID(-1, 0)])
def test_a_row_with_a_number_that_does_not_fit_is_missing_alone(bench: "Bench", id: UUID) -> None:
    good = bench.message()
    deliver_together(bench, bench.delivery(), [good, UMessage(id, good.attributes), good])
    bench.drain()
    assert [row.id for row in rows(bench)] == [good.id, good.id]
    (gap,) = [each for each in bench.events() if isinstance(each, Gap)]
    assert (gap.cause, gap.rows[Verdict.DELIVERED]) == (GapCause.UNFIT, 1)


def test_on_a_big_endian_machine_each_row_has_a_note(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ustreamer_recorder.note_queue.AS_STORED", False)
    deliver_together(bench, bench.delivery(), [bench.message() for _ in range(3)])
    assert (batch_sizes(bench), bench.note_queue.waiting) == ([], 3 + 1)  # and the delivery's


# --------------------------------------------------------------------------------------------------------------- bounds


def test_each_row_of_a_batch_counts_towards_the_queue_limit(build: "Callable[..., Bench]") -> None:
    bench = build(buffer_rows=1024)
    bench.drain()
    delivery = bench.delivery()
    bench.drain()
    for _ in range(17):
        deliver_together(bench, delivery, [bench.message() for _ in range(64)])
    assert bench.note_queue.waiting == 1024
    bench.settle(delivery)
    bench.drain()
    assert len(rows(bench)) == 1024
    (gap,) = [each for each in bench.events() if isinstance(each, Gap)]
    assert (gap.cause, gap.rows[Verdict.DELIVERED]) == (GapCause.OVERRUN, 64 + 1)
    assert (bench.note_queue.waiting, bench.note_queue.has_batches) == (0, False)
    deliver_together(bench, delivery, [bench.message() for _ in range(64)])
    bench.drain()
    assert len(rows(bench)) == 1088


def test_a_batch_above_the_queue_limit_is_recorded_in_part(build: "Callable[..., Bench]") -> None:
    bench = build(buffer_rows=1024)
    bench.drain()
    delivery = bench.delivery()
    bench.drain()
    messages = [bench.message() for _ in range(1_100)]
    deliver_together(bench, delivery, messages[:1_000])
    deliver_together(bench, delivery, messages[1_000:])
    bench.drain()
    assert [row.id for row in rows(bench)] == [each.id for each in messages[:1_024]]


def test_a_file_of_batches_ends_before_it_expands_too_far(
    build: "Callable[..., Bench]",
) -> None:
    """A reader receives each row completely, also before the batch has its maximum size."""
    bench = build(segment_bytes=4_000_000, max_bytes=40_000_000)
    bench.drain()
    delivery = bench.delivery()
    most = bench.config.segment_bytes // ROW_BYTES
    while bench.journal.next_seq <= most:
        assert len(bench.names()) == 1
        for _ in range(8):
            deliver_together(bench, delivery, [bench.message()] * 1_000)
        bench.drain()
    assert len(bench.names()) == 2
    (finished,) = [each for each in list_segments(bench.directory) if not each.is_open]
    assert finished.bytes < bench.journal._rotate_at


# ------------------------------------------------------------------------------------------------------------- the disk


@pytest.mark.parametrize("write", [lambda bench: bench.drain(), one_by_one], ids=["batches", "one by one"])
@pytest.mark.parametrize("fails_at", range(5))
def test_a_disk_error_within_a_batch_leaves_no_row_uncounted(
    bench: "Bench",
    monkeypatch: pytest.MonkeyPatch,
    write: "Callable[[Bench], None]",
    fails_at: int,
) -> None:
    monkeypatch.setattr("ustreamer_recorder.encoder.MAX_RECORDS", 5)
    taken = itertools.count()
    really = SegmentFile.write

    def failing(file: SegmentFile, data: bytes) -> None:
        if next(taken) == fails_at:
            raise OSError(errno.ENOSPC, "no space left")
        really(file, data)

    delivery = bench.delivery()
    with monkeypatch.context() as patched:
        patched.setattr(SegmentFile, "write", failing)
        deliver_together(bench, delivery, [bench.message() for _ in range(64)])
        write(bench)
    bench.time.advance(s=11)  # the disk is left alone for a while
    deliver_together(bench, delivery, [bench.message() for _ in range(5)])
    write(bench)
    bench.drain()
    missing = sum(sum(each.rows) for each in bench.events() if isinstance(each, Gap))
    seqs = [row.seq for row in rows(bench)]
    assert missing > 0
    assert missing + len(seqs) == 69
    assert seqs == sorted(set(seqs))
    assert bench.journal.next_seq == 69


@pytest.mark.parametrize("number", [1, 2, 8, 128])
@pytest.mark.parametrize("apart_ns", [0, 1])
def test_a_message_batch_makes_the_same_note_as_its_messages(
    bench: "Bench", number: int, apart_ns: int
) -> None:
    delivery = bench.delivery()
    messages = [bench.message(payload=bytes(n % 5)) for n in range(number)]
    run, times_ns = MessageBatch.from_messages(messages), [1_000 + n * apart_ns for n in range(number)]
    assert run is not None
    of_run, of_messages = (batch_note_of(each, delivery, times_ns, 2_000) for each in (run, messages))
    assert of_run is not None
    assert of_run == of_messages
    assert (list(of_run.msbs), list(of_run.lsbs)) == (
        [each.id.msb for each in messages],
        [each.id.lsb for each in messages],
    )
    assert list(of_run.sizes) == [n % 5 for n in range(number)]
    assert [of_run.time_ns(n) for n in range(number)] == times_ns
    assert (of_run.attributes, of_run.delivery, of_run.settled_ns) == (
        messages[0].attributes,
        delivery,
        2_000,
    )


@pytest.mark.parametrize("msb", [1 << 64, -1])
def test_a_message_batch_with_a_number_that_does_not_fit_makes_no_note(bench: "Bench", msb: int) -> None:
    attributes = bench.message().attributes
    run = MessageBatch(attributes, IdColumns([0x7000, msb], [1 << 63] * 2), [b"", b""])
    assert batch_note_of(run, bench.delivery(), [1, 1], 1) is None


@pytest.mark.parametrize("number", [1, 2, 8, 128])
def test_responses_have_a_note_each_with_their_request(bench: "Bench", number: int) -> None:
    delivery = bench.delivery(topic=None)
    sent_request = [request(bench.message().id, APP, METHOD, ttl=500) for _ in range(number)]
    messages = [response(bench.message().id, each, bytes(n % 5)) for n, each in enumerate(sent_request)]
    ids = IdColumns([each.id.msb for each in messages], [each.id.lsb for each in messages])
    like = msgspec.structs.replace(messages[0].attributes, reqid=None)
    run = MessageBatch(like, ids, [each.payload for each in messages], [each.id for each in sent_request])
    assert list(run) == messages
    assert batch_note_of(run, delivery, [1] * number, 1) is None
    deliver_together(bench, delivery, run)
    assert batch_sizes(bench) == []
    bench.drain()
    assert [(row.id, row.request, row.size) for row in rows(bench)] == [
        (each.id, each.attributes.reqid, n % 5) for n, each in enumerate(messages)
    ]
    assert {row.verdict for row in rows(bench)} == {Verdict.DELIVERED}
