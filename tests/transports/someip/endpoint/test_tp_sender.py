# SPDX-License-Identifier: Apache-2.0
"""Sending segments: threads, kernel errors, full queues, and the errors that the egress queue gets."""

import errno
from collections.abc import Hashable

import pytest

from ustreamer.transport_port import RouteUnavailable
from ustreamer.transports.someip.endpoint.tp_sender import TpSender
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import MessageType, SomeIpMessage, encode, split
from ustreamer.transports.someip.protocol.tp import Reassembly
from ustreamer.transports.someip.protocol.tp_config import TpLimits, TpSegmentation
from ustreamer.transports.someip.protocol.tp_segmenter import RETRY_INTERVAL_NS, RETRY_TIMEOUT_NS
from ustreamer.uprotocol.ustatus import UCode, UStatusError

PEER: Address = ("10.0.0.2", 30509)
OTHER: Address = ("10.0.0.3", 30509)
MS = 1_000_000
SLOW = TpSegmentation(segment_bytes=32, separation_us=5_000)
AT_ONCE = TpSegmentation(segment_bytes=32)


def event(size: int, session: int = 1, number: int = 0x8001) -> bytes:
    kind = int(MessageType.NOTIFICATION)
    return encode(SomeIpMessage(0x1234, number, 0, session, 1, kind, payload=bytes([session]) * size))


class Wire:
    """A segmenter, its sent segments, and a kernel that may refuse."""

    def __init__(self, **limits: int) -> None:
        self.now_ns = 0
        self.sent: list[tuple[bytes, Address]] = []
        self.refusal: int | None = None
        self.wakes: list[int] = []
        self.opened: list[Hashable] = []
        self.segmenter = TpSender(TpLimits(**limits), self._sendto, lambda: self.now_ns, self.wakes.append)
        self.segmenter.watch_routes(self.opened.append)

    def _sendto(self, datagram: bytes, address: Address) -> None:
        if self.refusal is not None:
            raise OSError(self.refusal, "refused")
        self.sent.append((datagram, address))

    def run(self, until_ms: int = 10_000) -> None:
        """Advance the time from deadline to deadline."""
        while (due_ns := self.segmenter.next_deadline_ns) is not None and due_ns <= until_ms * MS:
            self.now_ns = max(self.now_ns, due_ns)
            self.segmenter.on_tick()

    def arrived(self) -> list[bytes]:
        """The payloads, reassembled as by a receiver."""
        reassembly = Reassembly(TpLimits())
        payloads = []
        for datagram, address in self.sent:
            (message,), _ = split(datagram)
            whole = reassembly.feed(message, address, 0) if message.is_tp else message
            if isinstance(whole, SomeIpMessage):
                payloads.append(whole.payload)
        return payloads

    def count(self, name: str) -> int:
        return self.segmenter.statistics()[name]


def test_the_first_segment_is_sent_at_once_and_the_others_when_due() -> None:
    wire = Wire()
    wire.segmenter.send(event(100), PEER, SLOW)
    assert len(wire.sent) == 1
    assert wire.wakes == [5 * MS]
    assert (wire.count("tp_waiting"), wire.count("tp_waiting_bytes")) == (1, 100)

    wire.run(5)
    assert len(wire.sent) == 2
    wire.run(15)
    assert wire.arrived() == [b"\1" * 100]
    assert (wire.count("tp_waiting"), wire.count("tp_segmented")) == (0, 1)


def test_a_short_message_is_sent_unchanged() -> None:
    wire = Wire()
    wire.segmenter.send(event(32), PEER, SLOW)
    assert wire.sent == [(event(32), PEER)]
    assert (wire.wakes, wire.count("tp_segmented")) == ([], 0)


def test_messages_behind_a_long_one_wait_and_other_streams_do_not() -> None:
    wire = Wire()
    wire.segmenter.send(event(64, 1), PEER, SLOW)
    wire.segmenter.send(event(8, 2), PEER, SLOW)
    wire.segmenter.send(event(8, 3), OTHER, SLOW)
    wire.segmenter.send(event(8, 4, number=0x8002), PEER, SLOW)
    wire.run()
    assert wire.arrived() == [b"\3" * 8, b"\4" * 8, b"\1" * 64, b"\2" * 8]


def test_without_a_pause_one_tick_sends_a_limited_number_of_segments() -> None:
    wire = Wire()
    wire.segmenter.send(event(32 * 64), PEER, AT_ONCE)
    wire.segmenter.on_tick()
    assert len(wire.sent) == 64
    wire.segmenter.send(event(32 * 100), PEER, AT_ONCE)
    wire.segmenter.on_tick()
    assert len(wire.sent) == 64 + 1 + 64
    assert wire.segmenter.next_deadline_ns == 0
    wire.segmenter.on_tick()
    assert len(wire.sent) == 64 + 100


def test_an_unreachable_receiver_fails_the_first_segment_and_nothing_waits() -> None:
    wire = Wire()
    wire.refusal = errno.EHOSTUNREACH
    with pytest.raises(OSError, match="refused"):
        wire.segmenter.send(event(100), PEER, SLOW)
    assert (wire.count("tp_waiting"), wire.count("tp_segmented")) == (0, 0)
    assert wire.segmenter.next_deadline_ns is None

    wire.refusal = None
    wire.segmenter.send(event(100, 2), PEER, SLOW)
    wire.run()
    assert wire.arrived() == [b"\2" * 100]


def test_a_segment_that_the_kernel_rejects_is_tried_again() -> None:
    wire = Wire()
    wire.segmenter.send(event(100), PEER, SLOW)
    wire.refusal = errno.ENOBUFS
    wire.run(7)
    assert wire.segmenter.next_deadline_ns == 5 * MS + 3 * RETRY_INTERVAL_NS
    wire.refusal = None
    wire.run()
    assert wire.arrived() == [b"\1" * 100]
    assert wire.count("tp_unsent") == 0


def test_a_message_blocked_for_too_long_is_abandoned_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wire = Wire()
    wire.segmenter.send(event(100), PEER, SLOW)
    wire.segmenter.send(event(100, 2), PEER, SLOW)
    wire.refusal = errno.ENETDOWN
    wire.run(5 + RETRY_TIMEOUT_NS // MS)
    wire.refusal = None
    wire.run()
    assert wire.arrived() == [b"\2" * 100]
    assert wire.count("tp_unsent") == 1
    assert [(r.message, vars(r)["receiver"]) for r in caplog.records] == [
        ("someip.segments_abandoned", "10.0.0.2:30509")
    ]


def test_a_full_queue_blocks_the_route_until_there_is_room() -> None:
    wire = Wire(waiting_bytes=150)
    wire.segmenter.send(event(100), PEER, SLOW)
    with pytest.raises(RouteUnavailable, match="100 of 150 bytes in 1 messages wait") as refused:
        wire.segmenter.send(event(100, 2), OTHER, SLOW)
    wire.run(10)
    assert wire.opened == []
    wire.run(15)
    assert wire.opened == [refused.value.route]

    wire.segmenter.send(event(100, 2), OTHER, SLOW)
    wire.run()
    assert wire.arrived() == [b"\1" * 100, b"\2" * 100]
    assert wire.opened == [refused.value.route]


def test_an_abandoned_message_makes_room_and_opens_the_blocked_routes() -> None:
    wire = Wire(waiting_bytes=150)
    wire.segmenter.send(event(100), PEER, SLOW)
    with pytest.raises(RouteUnavailable) as refused:
        wire.segmenter.send(event(100, 2), OTHER, SLOW)
    wire.refusal = errno.ENETDOWN
    wire.run(5 + RETRY_TIMEOUT_NS // MS)
    assert (wire.count("tp_unsent"), wire.opened) == (1, [refused.value.route])


def test_a_message_above_the_limit_is_an_error_and_no_blocked_route() -> None:
    wire = Wire(waiting_bytes=99)
    with pytest.raises(UStatusError, match="at most 99 are sent in segments") as refused:
        wire.segmenter.send(event(100), PEER, SLOW)
    assert refused.value.code is UCode.INVALID_ARGUMENT
    assert (wire.sent, wire.count("tp_waiting")) == ([], 0)


def test_flush_sends_waiting_segments_and_counts_the_rest() -> None:
    wire = Wire()
    wire.segmenter.send(event(100), PEER, AT_ONCE)
    assert wire.segmenter.flush(1.0) == 0
    assert wire.arrived() == [b"\1" * 100]
    assert wire.count("tp_unsent") == 0

    wire.segmenter.send(event(100), PEER, AT_ONCE)
    assert wire.segmenter.flush(0.0) == 1
    assert (wire.count("tp_unsent"), wire.count("tp_waiting")) == (1, 0)
    assert wire.segmenter.flush(0.0) == 0


def test_a_message_that_waits_longer_than_its_ttl_is_dropped_and_makes_room() -> None:
    wire = Wire(waiting_messages=2)
    wire.segmenter.send(event(64, session=1), PEER, SLOW, 1 * MS)  # has begun: all of it is sent
    wire.segmenter.send(event(64, session=2), PEER, SLOW, 1 * MS)
    wire.run(5)
    wire.segmenter.send(event(64, session=3), PEER, SLOW, 1_000 * MS)
    with pytest.raises(RouteUnavailable) as refused:
        wire.segmenter.send(event(64, session=4), PEER, SLOW)
    assert wire.opened == []
    wire.run(10)  # nothing is sent completely in this time
    assert wire.opened == [refused.value.route]
    wire.run()
    assert wire.arrived() == [b"\1" * 64, b"\3" * 64]
    assert (wire.count("tp_expired"), wire.count("tp_waiting"), wire.count("tp_unsent")) == (1, 0, 0)
