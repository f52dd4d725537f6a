# SPDX-License-Identifier: Apache-2.0
"""The rig of the recorder's tests: a journal, a manual clock and verdicts, without dispatcher and thread."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from ustreamer_recorder.config import RecorderConfig
from ustreamer_recorder.events import Damage, Event
from ustreamer_recorder.journal import Journal
from ustreamer_recorder.note_queue import NoteQueue
from ustreamer_recorder.reader import read_segment
from ustreamer_recorder.segments import list_segments

from ustreamer.core.base.clock import ManualClock
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Ledger, Verdict
from ustreamer.core.delivery.ports import BackloggedEgress, Filter, SendOne, Tap
from ustreamer.core.storage.store_states import StoreStates
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UStatus
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

TOPIC = UUri("chassis", 0x1234, 1, 0x8001)
DEAD_LETTERS = UUri("hpc", 4, 1, 0x8000)
SMALLEST = 4 * 96 * 2049


class Owner:
    """As much of an ingress as a delivery needs to be settled."""

    name = "chassis"
    held = 0

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.taps: tuple[Tap, ...] = ()

    def wake_at(self, when_ns: int, delivery: Delivery, holder: Filter) -> None: ...
    def on_filter_stop(
        self, message: UMessage, delivery: Delivery, verdict: Verdict, reason: UStatus
    ) -> None: ...
    def on_filter_error(self, plugin: object, error: BaseException) -> None: ...
    def on_tap_error(self, tap: Tap, error: BaseException) -> None: ...

    def on_backlog(self, egress: BackloggedEgress) -> None: ...

    def is_paused(self, delivery: Delivery) -> bool:
        return False


class Egress:
    unicast = False

    def __init__(self, name: str = "backbone") -> None:
        self.name = name

    def offer(self, delivery: Delivery, message: UMessage, now_ns: int) -> None: ...

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        return lambda message: None


class Bench:
    """Drives the recorder as a streamer does, step by step."""

    def __init__(self, directory: Path, **config: object) -> None:
        settings = {"segment_bytes": SMALLEST, "max_bytes": 10 * SMALLEST, "keep_free_bytes": 0}
        self.config = RecorderConfig(**{**settings, **config})  # type: ignore[arg-type]
        self.directory = directory
        self.time = ManualClock()
        self.time.advance(s=1)
        self.clock = self.time.clock()
        self.prepared: list[OSError] = []
        self.owner = Owner()
        self._ids = UuidSource(self.clock.wall_ms, lambda _: 0)  # the same ids in every bench
        self.begin(1)

    def begin(self, run: int) -> None:
        """A streamer starts."""
        payload_bytes = self.config.payload_bytes if self.config.payloads else None
        self.note_queue = NoteQueue(
            self.config.buffer_rows,
            self.clock.monotonic_ns,
            DEAD_LETTERS,
            payload_bytes,
            self.config.sampler(),
        )
        self.states = StoreStates()
        self.journal = Journal(
            self.config, self.directory, "hpc", self.clock, run, self._prepare, self.states
        )
        self._tap = self.note_queue.tap("chassis")

    def _prepare(self) -> None:
        if self.prepared:
            raise self.prepared[-1]

    def delivery(self, period_ns: int = 0, topic: UUri | None = TOPIC) -> Delivery:
        delivery = Delivery(self.owner, Egress(), topic, None, period_ns)
        delivery.period_since_ns = self.time.now_ns
        self.note_queue.on_rate_change(delivery)
        return delivery

    def message(self, topic: UUri = TOPIC, payload: bytes = b"payload") -> UMessage:
        return publish(self._ids.next(), topic, payload)

    def settle(
        self,
        delivery: Delivery | None = None,
        verdict: Verdict = Verdict.DELIVERED,
        message: UMessage | None = None,
        reason: UStatus | None = None,
        attempts: int = 1,
        arrived_ns: int | None = None,
        received_ns: int | None = None,
    ) -> UMessage:
        """One delivery ends now."""
        message = message or self.message()
        now_ns = self.time.now_ns
        received_ns = now_ns if received_ns is None else received_ns
        arrived_ns = received_ns if arrived_ns is None else arrived_ns
        self._tap(message, delivery, verdict, reason, attempts, arrived_ns, received_ns, received_ns, now_ns)
        return message

    def drain(self) -> None:
        """The steps of the writer's thread at each flush."""
        self.journal.write(self.note_queue.notes, len(self.note_queue.notes), self.note_queue)
        self.journal.tick(self.note_queue.pop_skipped())

    def events(self) -> list[Event]:
        """The files of the directory; none of them is damaged."""
        found = [
            event
            for file in list_segments(self.directory)
            for event in read_segment(file.path.read_bytes(), file.path.name)
        ]
        assert not [each for each in found if isinstance(each, Damage)]
        return [each for each in found if not isinstance(each, Damage)]

    def names(self) -> list[str]:
        return [file.path.name for file in list_segments(self.directory)]


@pytest.fixture(scope="session")
def benches() -> type[Bench]:
    """The class itself, for a test that creates several recorders."""
    return Bench


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Bench]:
    """Creates benches that record into the test's directory; the keys are configuration keys."""
    return partial(Bench, tmp_path)


@pytest.fixture
def bench(build: Callable[..., Bench]) -> Bench:
    bench = build()
    bench.drain()
    return bench
