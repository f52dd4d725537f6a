# SPDX-License-Identifier: Apache-2.0
"""The bytes on the wire and on disk are golden, and today's code reads golden stores and recordings."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from ustreamer_pipeline.recording import segments as pipeline_segments
from ustreamer_pipeline.recording.layout import DELIVERY
from ustreamer_recorder.events import Damage, Letter, Row, SubscriptionChange
from ustreamer_recorder.reader import read_segment
from ustreamer_recorder.segments import recover_segments
from ustreamer_usubscription.model.declared_topics import TopicState
from ustreamer_usubscription.model.subscription import Observer, SubscriptionRecord
from ustreamer_usubscription.store import store_contents
from ustreamer_usubscription.store.records import EVENT_PREFIX, read_event
from ustreamer_usubscription.store.store import SubscriptionStore

from tests.golden.frames import Frame, format_frames, parse_frames
from tests.golden.generate import FILES, RECORDING, RUNS, STORES, unpacked
from tests.golden.recording_run import frames_of_recording
from tests.golden.store_runs import frames_of_store, messages
from tests.golden.usubscription_run import APP, EVERY_INSTANCE, OTHER_APP, REMOTE, SECOND, TOPIC
from ustreamer.core.base.clock import ManualClock
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.routing.subscriptions import Change
from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.host.storage.dead_letter_store import DeadLettersConfig, DeadLetterStore, read_letters
from ustreamer.host.storage.spool import Spool, SpoolLimits
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuri import ANY, ANY_RESOURCE, UUri
from ustreamer.uprotocol.wire import decode

SPOOL_TOPIC = UUri("chassis", 0x1234, 1, 0x8001)
SEGMENTS = sorted(each.name.removesuffix(".gz") for each in FILES.glob("*.useg*"))
MAX_TOTAL_BYTES = 200_000
EXPIRE_MS = 1_700_000_600_500


def golden_frames(name: str) -> list[Frame]:
    return parse_frames((FILES / f"{name}.txt").read_text())


def differences(found: list[Frame], expected: list[Frame]) -> list[str]:
    """The names of missing, new and changed frames, and a line if only the order differs."""
    ours, golden = dict(found), dict(expected)
    named = [name for name in {**golden, **ours} if ours.get(name) != golden.get(name)]
    return named or ([] if found == expected else ["the order of the frames"])


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """The golden recording as a directory."""
    for name in SEGMENTS:
        (tmp_path / name).write_bytes(unpacked(name))
    return tmp_path


def golden_store(name: str, directory: Path) -> Path:
    """The golden store of a run in a directory, as after a crash: the store is verified when it is opened."""
    store = directory / name
    store.mkdir()
    (store / "data.mdb").write_bytes(unpacked(f"{name}.mdb"))
    (directory / f"{name}.lock").write_bytes(b"1")
    return store


# --- the same bytes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(RUNS.keys() - {RECORDING}))
def test_a_run_produces_the_golden_frames(name: str, tmp_path: Path) -> None:
    assert differences(RUNS[name](tmp_path), golden_frames(name)) == []


def test_a_recording_has_the_golden_bytes(tmp_path: Path, recording: Path) -> None:
    (directory := tmp_path / "run").mkdir()
    frames = RUNS[RECORDING](directory)
    assert differences(frames, frames_of_recording(recording)) == []
    written = {each.name: each.read_bytes() for each in (directory / "recordings").iterdir()}
    assert written == {name: unpacked(name) for name in SEGMENTS}


@pytest.mark.parametrize("name", STORES)
def test_a_golden_store_holds_the_golden_records(name: str, tmp_path: Path) -> None:
    stored = frames_of_store(golden_store(name, tmp_path))
    assert stored == [frame for frame in golden_frames(name) if frame[0].startswith("key ")]
    assert len(stored) > 10


def test_the_golden_files_are_complete_and_small() -> None:
    expected = {f"{name}.txt" for name in RUNS if name != RECORDING} | {f"{name}.mdb.gz" for name in STORES}
    assert {each.name for each in FILES.iterdir()} == expected | {f"{name}.gz" for name in SEGMENTS}
    assert len(SEGMENTS) == 3
    assert sum(each.stat().st_size for each in FILES.iterdir()) < MAX_TOTAL_BYTES


def test_each_kind_of_difference_is_named() -> None:
    golden = [("a", b"1"), ("b", b"2"), ("c", b"3")]
    assert differences([("a", b"1"), ("b", b"9"), ("d", b"4")], golden) == ["b", "c", "d"]
    assert differences([golden[1], golden[0], golden[2]], golden) == ["the order of the frames"]
    assert parse_frames(format_frames(golden)) == golden
    with pytest.raises(ValueError, match="'a': occurs twice"):
        format_frames([*golden, golden[0]])


# --- golden stores are read -----------------------------------------------------------------------------------------


def test_a_golden_spool_is_read(tmp_path: Path) -> None:
    clock = ManualClock()
    clock.advance(s=100)
    by_class = sorted(enumerate(messages(clock)), key=lambda each: each[1].attributes.priority_class)
    deleted = [each for each in by_class if each[1].attributes.priority_class == 1][:2]
    expected = [each for each in by_class if each not in deleted]
    with closing(Spool(golden_store("spool", tmp_path), SpoolLimits(1_000, 1_000_000))) as spool:
        assert spool.open() == [1, 3, 1, 1, 3, 1, 1]
        found = [record for rank in range(7) for _, record in spool.read(rank, None, 99, 1 << 20)]
        assert (spool.lost, spool.quarantined) == (0, 0)
        assert spool.commit([(1, found[1])] if found[1] else []) == [bytes.fromhex("010000000000000006")]
    records = [record for record in found if record is not None]
    assert [UMessage(*decode(each.attributes), each.payload) for each in records] == [m for _, m in expected]
    second_ns = 1_000_000_000
    for (number, message), each in zip(expected, records, strict=True):
        to = (str(SPOOL_TOPIC), None) if number % 2 == 0 else (None, str(APP))
        assert (each.ingress, each.topic, each.subscriber) == ("chassis", *to)
        assert (each.boot, each.received_ns) == (
            b"a fixed boot id.",
            100 * second_ns + (number + 1) * 1_000_000,
        )
        assert each.deadline_ns > each.received_ns
        assert message.attributes.ttl is None or each.deadline_ms > 1_700_000_000_000


def test_golden_dead_letters_are_read(tmp_path: Path) -> None:
    sent, store = messages(ManualClock()), golden_store("dead_letters", tmp_path)
    expected = {number: code for number, code in enumerate(UCode, 1) if number != 3}
    letters = dict(read_letters(store))
    assert letters.keys() == expected.keys()
    for number, code in expected.items():
        letter, message = letters[number], sent[(number - 1) % len(sent)]
        too_large = len(message.payload) > 1_000
        assert letter.message == (UMessage(message.id, message.attributes) if too_large else message)
        assert (letter.payload is None, letter.payload_size) == (too_large, len(message.payload))
        assert letter.status == UStatus(code, f"reason {number - 1}")
        assert (letter.endpoint, letter.ingress, letter.attempts) == ("backbone", "chassis", number - 1)
        times = (letter.first_attempt_ms, letter.last_attempt_ms)
        assert times == (1_700_000_000_000 + number - 1, 1_700_000_001_000 + number - 1)
    with closing(DeadLetterStore(store, DeadLettersConfig())) as opened:
        assert opened.numbers() == list(expected)
        assert opened.get(4) == letters[4]
        opened.append([letters[1]])
        assert opened.numbers()[-1] == len(UCode) + 1
        assert opened.damaged == 0


def test_golden_subscriptions_are_read(tmp_path: Path) -> None:
    every_remote = UUri("device3", 0xFFFF_10AB, 3, 0x80CD)
    details = bytes.fromhex("12360a")
    with closing(SubscriptionStore(golden_store("usubscription", tmp_path), 1 << 20)) as store:
        store.open()
        found = {each.pair: each for each in store.load_subscriptions()}
        observers, topics = list(store.load_observers()), list(store.load_declared_topics())
        remote = dict(store.load_remote_states())
        assert store.statistics()["store_quarantined"] == store.statistics()["store_migrated"] == 0
    numbers = {pair: (each.period_ns, each.expire_ms, each.version) for pair, each in found.items()}
    assert numbers == {
        (TOPIC, APP): (100_000_000, None, 3),
        (SECOND, APP): (16_666_667, None, 3),
        (SECOND, OTHER_APP): (40_000_000, EXPIRE_MS, 3),
        (EVERY_INSTANCE, APP): (17_000_000, 1_700_000_900_000, 4),
        (REMOTE, APP): (30_000_000, None, 3),
        (REMOTE, OTHER_APP): (10_000_000, EXPIRE_MS, 3),
        (every_remote, APP): (17_000_000, None, 4),
    }
    assert [type(each) for each in found.values()] == [SubscriptionRecord] * len(found)
    assert {pair for pair, each in found.items() if each.details.startswith(details)} == {
        (SECOND, OTHER_APP),
        (REMOTE, OTHER_APP),
    }
    assert observers == [Observer(ANY.with_resource(ANY_RESOURCE), OTHER_APP, 4), Observer(TOPIC, OTHER_APP)]
    assert topics == [(TOPIC, TopicState.DEPRECATED)]
    pending = UUri("device3", 0x10AB, 3, 0x80CF)
    assert remote == {
        REMOTE: Status.SUBSCRIBED,
        pending: Status.UNSUBSCRIBE_PENDING,
        every_remote: Status.SUBSCRIBE_PENDING,
    }


def test_the_history_of_golden_subscriptions_is_read(tmp_path: Path) -> None:
    found = store_contents.read_store(golden_store("usubscription", tmp_path), "verify")
    events = [read_event(*each) for each in found.records_with_prefix(EVENT_PREFIX)]
    assert found.lost_total == 0
    assert [each.time_ms for each in events] == sorted(each.time_ms for each in events)
    assert events[0][1:] == (TOPIC, APP, Status.SUBSCRIBED, "", 3)
    assert {each.status for each in events} == {
        Status.SUBSCRIBED,
        Status.SUBSCRIBE_PENDING,
        Status.UNSUBSCRIBED,
    }


# --- golden recordings are read -------------------------------------------------------------------------------------


def events_of(recording: Path) -> Iterator[object]:
    for name in SEGMENTS:
        for event in read_segment((recording / name).read_bytes(), name):
            assert not isinstance(event, Damage), (name, event)
            yield event


def test_a_golden_recording_is_read(recording: Path) -> None:
    events = list(events_of(recording))
    rows = [each for each in events if isinstance(each, Row)]
    assert [each.seq for each in rows] == [*range(161), 0]
    assert Counter(each.verdict for each in rows) == {
        Verdict.DELIVERED: 149,
        Verdict.THROTTLED: 1,
        Verdict.EXPIRED: 2,
        Verdict.DEAD_LETTERED: 7,
        Verdict.DENIED: 1,
        Verdict.NO_SUBSCRIBER: 2,
    }
    letters = [(each.size, each.payload) for each in events if isinstance(each, Letter)]
    first = [(7, b"payload")] * 2 + [(256, bytes(range(100))), (0, b"")]
    assert letters == first + [(4, b"over")] * 4
    assert [each.change for each in events if isinstance(each, SubscriptionChange)] == list(Change)


def test_the_pipeline_reads_a_golden_recording(recording: Path) -> None:
    segments = [pipeline_segments.read_segment((recording / name).read_bytes(), name) for name in SEGMENTS]
    assert [each.faults for each in segments] == [()] * len(SEGMENTS)
    assert [each.torn for each in segments] == [False] * len(SEGMENTS)
    seqs = [seq for each in segments for seq in each.records(DELIVERY)["seq"].tolist()]
    assert seqs == [event.seq for event in events_of(recording) if isinstance(event, Row)]


def test_the_open_segment_of_a_golden_recording_is_finished(recording: Path) -> None:
    before = list(events_of(recording))
    recover_segments(recording)
    assert [each.name for each in sorted(recording.iterdir())] == [
        name.removesuffix(".open") for name in SEGMENTS
    ]
    after = [
        event for path in sorted(recording.iterdir()) for event in read_segment(path.read_bytes(), path.name)
    ]
    assert after == before
