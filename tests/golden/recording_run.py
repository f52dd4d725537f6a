# SPDX-License-Identifier: Apache-2.0
"""A fixed run of the plugin recorder, without its thread: finished segments and one that a killed process left.

The clock is set by hand, so the files are golden byte for byte. A frame is one row of the grid of 96 bytes.
"""

from pathlib import Path

from ustreamer_recorder.config import RecorderConfig
from ustreamer_recorder.journal import Journal
from ustreamer_recorder.note_queue import NoteQueue
from ustreamer_recorder.segments import list_segments

from tests.golden.frames import Frame
from tests.golden.store_runs import APP, METHOD, TOPIC, Ingress
from ustreamer.core.base.clock import ManualClock
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import LedgerSnapshot, Verdict
from ustreamer.core.delivery.ports import SendOne
from ustreamer.core.egress.dead_letter import dead_letter_topic
from ustreamer.core.routing.subscriptions import Change, Subscription
from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.umessage import UMessage, error_response, notification, publish, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

RECORDING = "recordings"
ROW = 96
SEGMENT_BYTES = 4 * ROW * 2049
RUN = 0x18BCFE568010001
LEDGER = LedgerSnapshot(30, 20, 1, 2, 3, 1, 2, 1)


def run(directory: Path) -> list[Frame]:
    """The frames of the run; the recording stays in the directory."""
    path = directory / RECORDING
    path.mkdir()
    rig = _Rig(path, RUN)
    _verdicts(rig)
    _batches(rig)
    rig.journal.finish(LEDGER)
    killed = _Rig(path, RUN + 1)
    killed.tap(killed.publish(TOPIC, b"last"), Verdict.DELIVERED, None)
    killed.drain()
    return frames_of_recording(path)


def frames_of_recording(path: Path) -> list[Frame]:
    """The rows of all segments, without those of zeros behind the last block: an open segment reserves its length."""
    frames = list[Frame]()
    for segment in list_segments(path):
        data = segment.path.read_bytes().rstrip(b"\0")
        rows = [data[at : at + ROW].ljust(ROW, b"\0") for at in range(0, len(data), ROW)]
        frames += [(f"{segment.path.name} row {number}", row) for number, row in enumerate(rows)]
    return frames


class _Egress:
    name = "backbone"
    unicast = False

    def offer(self, delivery: Delivery, message: UMessage, now_ns: int) -> None: ...

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        return lambda message: None


class _Rig:
    """The queue and the journal of one process, and a clock that moves by hand."""

    def __init__(self, directory: Path, run_number: int) -> None:
        self.time = ManualClock()
        self.time.advance(s=1)
        clock = self.time.clock()
        self.ids = UuidSource(clock.wall_ms, lambda _: 3)
        config = RecorderConfig(
            payloads=True,
            payload_bytes=100,
            segment_bytes=SEGMENT_BYTES,
            max_bytes=10 * SEGMENT_BYTES,
            keep_free_bytes=0,
            segment_s=60,
            buffer_rows=1_024,
        )
        self.note_queue = NoteQueue(64, clock.monotonic_ns, dead_letter_topic("hpc"), 100)
        self.journal = Journal(config, directory, "hpc.vin1", clock, run_number, lambda: None)
        self.batch_tap = self.note_queue.tap("chassis")
        self.ingress = Ingress()
        self.drain()  # opens the first segment

    def delivery(self, topic: UUri | None, subscriber: UUri | None = None, period_ns: int = 0) -> Delivery:
        delivery = Delivery(self.ingress, _Egress(), topic, subscriber, period_ns)
        delivery.period_since_ns = self.time.now_ns
        self.note_queue.on_rate_change(delivery)
        return delivery

    def publish(self, topic: UUri, payload: bytes, ttl: int | None = None) -> UMessage:
        return publish(self.ids.next(), topic, payload, ttl=ttl)

    def tap(
        self,
        message: UMessage,
        verdict: Verdict,
        delivery: Delivery | None,
        reason: UStatus | None = None,
        attempts: int = 1,
        held_ns: int = 0,
    ) -> None:
        """One verdict, 3 ms after the arrival."""
        arrived_ns = self.time.now_ns
        self.time.advance(ms=3)
        received_ns = arrived_ns + held_ns
        first_ns = received_ns + 1_000 if attempts else 0
        self.batch_tap(
            message,
            delivery,
            verdict,
            reason,
            attempts,
            arrived_ns,
            received_ns,
            first_ns,
            self.time.now_ns,
        )

    def drain(self) -> None:
        """One flush of the writer."""
        notes = self.note_queue.notes
        self.journal.write(notes, len(notes), self.note_queue)
        self.journal.tick(self.note_queue.pop_skipped())


def _verdicts(rig: _Rig) -> None:
    """Every verdict, type and change of a subscription; a configuration, a gap, a clock step and counters."""
    queue = rig.note_queue
    queue.on_configured('{"egress": {}, "throttle": null}')
    for change in Change:
        queue.on_subscription_change(Subscription(TOPIC, APP, 25_000_000), change)
    slow, all_of_them = rig.delivery(TOPIC, period_ns=100_000_000), rig.delivery(TOPIC)
    to_sink = rig.delivery(None, APP)
    for verdict in sorted(set(Verdict) - {Verdict.QUEUED}):
        reason = (
            None if verdict is Verdict.DELIVERED else UStatus(UCode.UNAVAILABLE, f"because {verdict.name}")
        )
        rig.tap(rig.publish(TOPIC, b"payload", ttl=250), verdict, slow, reason, attempts=int(verdict) % 3)
    rig.tap(rig.publish(TOPIC, b"held"), Verdict.DELIVERED, all_of_them, held_ns=2_000_000)
    rig.tap(rig.publish(TOPIC, b"for nobody"), Verdict.NO_SUBSCRIBER, None, attempts=0)
    long_reason = UStatus(UCode.DEADLINE_EXCEEDED, "a long reason " * 10)
    rig.tap(rig.publish(TOPIC, bytes(range(256))), Verdict.DEAD_LETTERED, slow, long_reason, attempts=70_000)
    rig.tap(rig.publish(TOPIC, b""), Verdict.DEAD_LETTERED, slow, UStatus(UCode.INTERNAL, ""))
    rig.tap(rig.publish(dead_letter_topic("hpc"), b"letter"), Verdict.EXPIRED, slow, long_reason)
    asked = request(rig.ids.next(), APP, METHOD, b"asked", ttl=1_000)
    for message in (
        notification(rig.ids.next(), TOPIC, APP, b"told"),
        asked,
        response(rig.ids.next(), asked, b"answered"),
        error_response(rig.ids.next(), asked, UStatus(UCode.NOT_FOUND, "no seat")),
    ):
        rig.tap(message, Verdict.DELIVERED, to_sink)
    rig.drain()
    slow.period_ns, slow.period_since_ns = 50_000_000, rig.time.now_ns
    queue.on_rate_change(slow)
    rig.tap(rig.publish(TOPIC, b"faster"), Verdict.DELIVERED, slow)
    queue.on_configured('{"egress": {"backbone": {}}, "throttle": {}}')
    rig.tap(rig.publish(TOPIC, b"configured"), Verdict.DELIVERED, slow)
    rig.time.step(s=-30)
    rig.time.advance(s=11)
    rig.drain()
    rig.journal.count(LEDGER)
    rig.drain()


def _batches(rig: _Rig) -> None:
    """Batches of equal and different times and sizes in a second segment, and rows that the full queue dropped."""
    rig.time.advance(s=60)
    delivery = rig.delivery(TOPIC)
    for sizes, times_ms in (((4, 4), (0, 0)), ((4, 9), (0, 0)), ((4, 4), (0, 1)), ((4, 9), (0, 1))):
        messages = [rig.publish(TOPIC, b"x" * sizes[number % 2]) for number in range(20)]
        batch = MessageBatch.from_messages(messages)
        assert batch is not None
        times_ns = [rig.time.now_ns + times_ms[number // 10] * 1_000_000 for number in range(20)]
        rig.time.advance(ms=5)
        rig.batch_tap.on_delivered_batch(batch, delivery, times_ns)
        rig.drain()
    over = [rig.publish(TOPIC, b"over") for _ in range(70)]
    batch = MessageBatch.from_messages(over[:60])
    assert batch is not None
    rig.batch_tap.on_delivered_batch(batch, delivery, [rig.time.now_ns] * 60)
    for message in over[60:]:
        rig.tap(message, Verdict.DEAD_LETTERED, delivery, UStatus(UCode.UNAVAILABLE, "down"))
    rig.drain()
