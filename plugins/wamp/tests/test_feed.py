# SPDX-License-Identifier: Apache-2.0
"""What the streamer writes to the process of its sessions, and on which thread; the process is a real socket."""

import socket
from collections import Counter, deque
from collections.abc import Iterator
from threading import Event, Thread

import pytest
from ustreamer_wamp.process import frames
from ustreamer_wamp.process.feed import Feed
from ustreamer_wamp.vehicle.batch import VehicleBatch, VehicleEvent, rate_entity

from tests.waiting import wait_until
from ustreamer.core.base.decoder import Decoder
from ustreamer.uprotocol.umessage import publish
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

TOPIC = UUri("car", 0x2001, 1, 0x8001)
OTHER = UUri("car", 0x2001, 1, 0x8002)
RATE = rate_entity("wamp.hpc", 1)
ID = UUID(1_700_000_000_000 << 16 | 0x7000, 0b10 << 62)
ALONE_NS = 2_000_000


class Inbox:
    """Events in order, one in each batch. Each has a decoder of its topic, if there is one."""

    def __init__(self) -> None:
        self.events: deque[VehicleEvent] = deque()
        self.decoders: dict[UUri, Decoder] = {}

    def decoder(self, topic: UUri) -> Decoder | None:
        return self.decoders.get(topic)

    def next_batch(self) -> tuple[VehicleBatch, bool]:
        events = [self.events.popleft()] if self.events else []
        return VehicleBatch((), {}, events), bool(self.events)


class FeedRig:
    """A feed, the other end of its socket, and a clock that stands still."""

    def __init__(self) -> None:
        self.inbox, self.counts, self.now_ns, self.stalls = Inbox(), Counter[str](), 0, 0
        self.feed = Feed(self.inbox, lambda: self.now_ns, self.counts, self._on_stall)
        self._reader = frames.reader_in_child()
        self._thread = Thread(target=self.feed.run, daemon=True)
        self.attach()

    def _on_stall(self) -> None:
        self.stalls += 1

    def attach(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.settimeout(10.0)
        self.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        self.theirs.settimeout(10.0)
        self.feed.attach(self.ours)

    def learn(self, *topics: UUri) -> None:
        """Let the thread `wamp feed` ask for the decoders of topics."""
        for each in topics:
            self.enqueue(each, b"")
            self.feed._send_batch(self.inbox.next_batch()[0])
            assert self.receive()[2] == b""

    def enqueue(self, topic: UUri, payload: bytes) -> None:
        self.inbox.events.append((RATE, publish(ID, topic, payload), None))

    def publish(self, topic: UUri, payload: bytes) -> None:
        """As the transport of the endpoint."""
        if self.inbox.events or not self.feed.write_at_once(RATE, publish(ID, topic, payload)):
            self.enqueue(topic, payload)
            self.feed.wake()

    def start_thread(self) -> None:
        self._thread.start()

    def is_empty(self) -> bool:
        """Whether nothing has been written."""
        self.theirs.setblocking(False)
        try:
            self.theirs.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        finally:
            self.theirs.settimeout(10.0)
        return False

    def receive(self) -> tuple[bytes, bytes | None, bytes]:
        """The header, the value and the payload of the next event."""
        while (frame := self._reader.next_frame()) is None:
            self._reader.feed(self.theirs.recv(65_536))
        assert isinstance(frame, frames.Event)
        return frame.header, frame.value, frame.payload

    def close(self) -> None:
        if self._thread.is_alive():
            self.feed.close()
            self._thread.join(10.0)
            assert not self._thread.is_alive()
        self.feed.detach()
        self.theirs.close()


@pytest.fixture
def rig() -> Iterator[FeedRig]:
    made = FeedRig()
    yield made
    made.close()


def test_an_event_that_comes_alone_is_written_on_the_thread_that_brings_it(rig: FeedRig) -> None:
    rig.learn(TOPIC)
    for number in range(3):
        rig.now_ns += ALONE_NS
        rig.publish(TOPIC, bytes([number]))
        assert rig.receive()[2] == bytes([number]), "and there is no other thread"


def test_the_rest_of_a_burst_is_written_by_the_feed_in_order(rig: FeedRig) -> None:
    rig.learn(TOPIC)
    rig.now_ns += ALONE_NS
    for number in range(3):
        rig.publish(TOPIC, bytes([number]))
    assert rig.receive()[2] == b"\0"
    assert rig.is_empty(), "the burst waits for the other thread"
    rig.start_thread()
    assert [rig.receive()[2] for _ in range(2)] == [b"\1", b"\2"]


@pytest.mark.parametrize(("topic", "value"), [(TOPIC, b"\x81\xa1x\x01"), (OTHER, None)])
def test_a_plugin_never_decodes_on_the_thread_that_brings_an_event(
    rig: FeedRig, topic: UUri, value: bytes | None
) -> None:
    rig.inbox.decoders[TOPIC] = lambda payload: {"x": payload[0]}
    rig.now_ns += ALONE_NS
    rig.publish(topic, b"\x01")
    assert rig.is_empty(), "the plugin is asked on the other thread"
    rig.start_thread()
    assert rig.receive()[1:] == (value, b"\x01")


def test_a_process_that_reads_slowly_gets_the_rest_of_a_frame(rig: FeedRig) -> None:
    rig.learn(TOPIC)
    for number in range(20):  # 20 KB each: more than the socket takes
        rig.now_ns += ALONE_NS
        rig.publish(TOPIC, bytes([number]) * 20_000)
    assert len(rig.inbox.events) > 10, "the thread that brings events does not wait"
    rig.start_thread()
    assert [rig.receive()[2] for _ in range(20)] == [bytes([number]) * 20_000 for number in range(20)]


def test_a_process_that_reads_slowly_but_reads_is_no_stalled_one(rig: FeedRig) -> None:
    rig.learn(TOPIC)
    rig.ours.settimeout(1.0)
    rig.enqueue(TOPIC, bytes(4_000_000))
    rig.start_thread()
    rig.feed.wake()
    pause, received = Event(), 0
    while received < 4_000_000:  # in two seconds or more, and never without a byte in one second
        pause.wait(0.01)
        received += len(rig.theirs.recv(20_000))
    assert (rig.stalls, rig.counts["events_no_subscriber"]) == (0, 0)


def test_the_next_process_does_not_get_the_rest_of_a_frame(rig: FeedRig) -> None:
    rig.learn(TOPIC)
    while not rig.inbox.events:
        rig.now_ns += ALONE_NS
        rig.publish(TOPIC, bytes(20_000))
    rig.inbox.events.clear()
    rig.feed.detach()
    assert rig.counts["events_no_subscriber"] == 1
    rig.theirs.close()
    rig.attach()
    rig._reader = frames.reader_in_child()
    rig.now_ns += ALONE_NS
    rig.start_thread()
    rig.publish(TOPIC, b"next")
    assert rig.receive()[2] == b"next"


def test_a_control_frame_that_comes_without_a_process_is_for_the_next_one(rig: FeedRig) -> None:
    """The next process has its first configuration already, and does not read from the feed yet."""
    rig.feed.send_control(frames.ChangeUsers(b"for the first process"))
    rig.feed.detach()
    rig.theirs.close()
    rig.feed.send_control(frames.ChangeUsers(b"for the second process"))
    rig.start_thread()
    rig.publish(TOPIC, b"lost")
    wait_until(lambda: rig.counts["events_no_subscriber"] == 1)
    rig.attach()
    rig.publish(TOPIC, b"next")
    rig._reader = frames.reader_in_child()
    while (frame := rig._reader.next_frame()) is None:
        rig._reader.feed(rig.theirs.recv(65_536))
    assert frame == frames.ChangeUsers(b"for the second process")


def test_events_after_the_end_of_a_process_are_counted(rig: FeedRig) -> None:
    rig.learn(TOPIC)
    rig.theirs.close()
    rig.now_ns += ALONE_NS
    rig.publish(TOPIC, b"lost")
    rig.feed.detach()
    rig.enqueue(TOPIC, b"lost, too")
    rig.start_thread()
    rig.feed.close()
    rig._thread.join(10.0)
    assert rig.counts["events_no_subscriber"] == 2
