# SPDX-License-Identifier: Apache-2.0
"""Payloads kept by topic: which ones, how many, and what a reader of earlier recordings finds."""

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import pytest
from ustreamer_recorder import payload_sampler, reader
from ustreamer_recorder.config import RecorderConfig
from ustreamer_recorder.events import Event, Letter, Row, Sample, Samples
from ustreamer_recorder.layout import Kind
from ustreamer_recorder.note_queue import MAX_WAITING_PAYLOAD_BYTES
from ustreamer_recorder.payload_sampler import PayloadSampler
from ustreamer_recorder.segments import SegmentFile, list_segments

from ustreamer.core.delivery.ledger import EMPTY_LEDGER, Ledger, Verdict
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.conftest import Bench

TOPIC, OTHER = UUri("chassis", 0x1234, 1, 0x8001), UUri("chassis", 0x2001, 1, 0x8001)
KEPT = ("//chassis/1234/1/*",)


def begun(build: "Callable[..., Bench]", **config: object) -> "Bench":
    """A recorder whose first file is open."""
    bench = build(payloads=KEPT, **config)
    bench.drain()
    return bench


def samples(bench: "Bench") -> list[Sample]:
    return [each for event in bench.events() if isinstance(event, Samples) for each in event.samples]


def dropped(bench: "Bench") -> int:
    return sum(event.dropped for event in bench.events() if isinstance(event, Samples))


def publish_many(bench: "Bench", count: int, every_ms: int, *topics: UUri) -> list[UMessage]:
    messages: list[UMessage] = []
    for _ in range(count):
        for topic in topics:
            messages.append(bench.message(topic, b"%d" % len(messages)))
            bench.settle(message=messages[-1])
        bench.time.advance(s=every_ms / 1000)
    bench.drain()
    return messages


def test_payloads_of_the_named_topics_are_kept_at_most_at_their_rate(build: "Callable[..., Bench]") -> None:
    bench = begun(build, payload_hz=10.0)
    messages = publish_many(bench, 50, 20, TOPIC, OTHER)  # 50 Hz for a second
    due = messages[0 : 2 * 50 : 2 * 5]
    assert [(each.id, each.topic, each.payload) for each in samples(bench)] == [
        (each.id, str(TOPIC), each.payload) for each in due
    ]
    assert dropped(bench) == 0
    assert len([event for event in bench.events() if isinstance(event, Row)]) == 100


def test_a_message_for_two_targets_is_kept_once(build: "Callable[..., Bench]") -> None:
    bench = begun(build, payload_hz=1000.0)
    message = bench.message(TOPIC)
    for verdict in (Verdict.THROTTLED, Verdict.DELIVERED):
        bench.settle(bench.delivery(), verdict, message)
    bench.drain()
    assert [each.id for each in samples(bench)] == [message.id]


def test_headers_of_one_topic_share_its_limit_when_the_caches_are_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(payload_sampler, "_MAX_HEADERS", 3)
    topics = [UUri("chassis", 0x1234, 1, 0x8001 + number) for number in range(4)]
    sampler = PayloadSampler([UUri("chassis", 0x1234, 1, 0xFFFF)], hz=10.0, bytes_per_s=1000)

    def topic_of(topic: UUri, ttl: int) -> payload_sampler.SampledTopic:
        return sampler.topic_of(UAttributes(type=UMessageType.PUBLISH, source=topic, ttl=ttl))

    for topic in topics[:3]:
        topic_of(topic, 1)
    known = topic_of(topics[0], 2)
    topic_of(topics[3], 1)
    assert topic_of(topics[0], 3) is known
    assert (len(sampler.headers), len(sampler._latest_topics)) == (3, 3)


def test_headers_of_one_topic_share_its_limit() -> None:
    sampler = PayloadSampler([TOPIC], hz=10.0, bytes_per_s=1000)
    plain = UAttributes(type=UMessageType.PUBLISH, source=TOPIC)
    with_ttl = msgspec.structs.replace(plain, ttl=500)
    called = msgspec.structs.replace(plain, type=UMessageType.NOTIFICATION, sink=OTHER)
    assert sampler.admit(sampler.topic_of(plain), 0, 1)
    assert not sampler.admit(sampler.topic_of(with_ttl), 99_999_999, 1)
    assert sampler.admit(sampler.topic_of(with_ttl), 100_000_000, 1)
    assert not sampler.admit(sampler.topic_of(called), 10**12, 1)
    assert sampler.pop_dropped() == 0


def test_a_long_payload_is_cut_and_has_its_size(build: "Callable[..., Bench]") -> None:
    bench = begun(build, payload_bytes=100)
    bench.settle(message=bench.message(TOPIC, b"x" * 300))
    bench.drain()
    [kept] = samples(bench)
    assert (kept.size, kept.payload) == (300, b"x" * 100)


def test_payloads_above_the_budget_are_dropped_and_counted(build: "Callable[..., Bench]") -> None:
    bench = begun(build, payload_hz=1000.0, payload_bytes_per_s=50)
    publish_many(bench, 9, 10, TOPIC)  # one byte each
    for _ in range(3):
        bench.settle(message=bench.message(TOPIC, b"x" * 30))
        bench.time.advance(s=0.01)
    bench.drain()
    assert [len(each.payload) for each in samples(bench)] == [1] * 9 + [30]
    assert dropped(bench) == 2
    bench.time.advance(s=1)
    publish_many(bench, 1, 10, TOPIC)
    assert len(samples(bench)) == 11


def test_a_full_queue_drops_payloads_and_counts_them(build: "Callable[..., Bench]") -> None:
    """The queue has a bound of rows, and one of bytes of payloads."""
    limits = {"payload_hz": 10_000.0, "payload_bytes": 65_536, "payload_bytes_per_s": 1 << 30}
    bench = begun(build, buffer_rows=1024, **limits)
    room = MAX_WAITING_PAYLOAD_BYTES // 65_536
    for count, size, most in ((room + 4, 65_536, room), (1030, 0, 512)):
        before = len(samples(bench)), dropped(bench)
        for _ in range(count):
            bench.settle(message=bench.message(TOPIC, bytes(size)))
            bench.time.advance(s=0.001)
        bench.drain()
        assert bench.note_queue._waiting_payload_bytes == 0
        kept, missing = len(samples(bench)) - before[0], dropped(bench) - before[1]
        assert (kept, missing) == (most, count - most)


def test_messages_delivered_together_keep_the_same_payloads_as_single_ones(
    benches: "type[Bench]", tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = []
    for together in (True, False):
        bench = benches(tmp_path_factory.mktemp("samples"), payloads=KEPT, payload_hz=20.0)
        bench.drain()
        delivery = bench.delivery()
        messages = [bench.message(TOPIC, b"%d" % number) for number in range(40)]
        times_ns = [bench.time.now_ns + number * 10_000_000 for number in range(40)]
        bench.time.advance(s=1)
        if together:
            bench.owner.taps = (bench._tap,)
            delivery.settle_delivered(Ledger(), messages, times_ns)
        else:
            for message, at_ns in zip(messages, times_ns, strict=True):
                bench.settle(delivery, message=message, received_ns=at_ns)
        bench.drain()
        found.append(samples(bench))
    assert len(found[0]) == 8
    assert found[0] == found[1]


def test_a_reader_that_does_not_know_payloads_reads_the_rest(
    build: "Callable[..., Bench]", monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = begun(build)
    publish_many(bench, 10, 50, TOPIC)
    bench.journal.finish(EMPTY_LEDGER)

    def others() -> list[Event]:
        return [each for each in bench.events() if not isinstance(each, Samples)]

    expected = others()
    assert len(bench.events()) > len(expected)
    for kind in (Kind.SAMPLES, Kind.SAMPLES_PART):
        monkeypatch.delitem(reader._DECODERS, kind)
    assert bench.events() == expected


def test_payloads_lost_to_the_disk_are_counted(
    build: "Callable[..., Bench]", monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = begun(build)

    def fail(file: SegmentFile, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(SegmentFile, "write", fail)
        publish_many(bench, 4, 100, TOPIC)
        publish_many(bench, 3, 100, TOPIC)  # not tried again yet
    bench.time.advance(s=11)
    bench.drain()
    publish_many(bench, 1, 100, TOPIC)
    assert (len(samples(bench)), dropped(bench)) == (1, 7)


def test_dead_letters_of_other_topics_keep_no_payload(build: "Callable[..., Bench]") -> None:
    bench = begun(build)
    for topic in (TOPIC, OTHER):
        reason = UStatus(UCode.UNAVAILABLE, "x")
        bench.settle(verdict=Verdict.DEAD_LETTERED, message=bench.message(topic), reason=reason)
    bench.drain()
    letters = [event for event in bench.events() if isinstance(event, Letter)]
    assert [each.payload for each in letters] == [b"payload", None]
    assert {file.path.stat().st_mode & 0o777 for file in list_segments(bench.directory)} == {0o600}


def test_a_wrong_topic_is_named() -> None:
    with pytest.raises(ValueError, match=r"payloads\[1\]: .*'//chassis/\*/1/8001'"):
        RecorderConfig(payloads=("//chassis/1234/1/*", "//chassis/*/1/8001"))
