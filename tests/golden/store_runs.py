# SPDX-License-Identifier: Apache-2.0
"""Fixed runs that write a spool and dead letters: the real durable queue and the real store, in a directory.

The frames are what LMDB holds, key by key: `frames_of_store`. The pages of the file are not golden.
"""

from contextlib import closing
from pathlib import Path

import lmdb

from tests.golden.frames import Frame, numbered
from ustreamer.core.base.clock import ManualClock
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Ledger, Verdict
from ustreamer.core.delivery.ports import BackloggedEgress, Filter, Tap
from ustreamer.core.egress.dead_letter import DeadLetter, dead_letter_topic
from ustreamer.core.egress.limits import EgressLimits, QueuedMessage
from ustreamer.host.egress.durable_queue import DurableQueue
from ustreamer.host.storage.dead_letter_store import DeadLettersConfig, DeadLetterStore, StoredDeadLetter
from ustreamer.host.storage.spool import Spool, SpoolLimits
from ustreamer.transport_port import EndpointTransport
from ustreamer.uprotocol.uattributes import UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage, notification, publish, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.utransport import Listener
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import encode

SPOOL = "spool/backbone"
DEAD_LETTERS = "dead-letters"
TOPIC = UUri("chassis", 0x1234, 1, 0x8001)
APP = UUri("device1", 0x300EF, 4, 0)
METHOD = UUri("chassis", 0x1234, 1, 1)
LIMITS = EgressLimits(max_age_ms=3_600_000)
CLOSE_S = 30.0


def frames_of_store(path: Path) -> list[Frame]:
    """All keys and values of an LMDB environment, in order of the keys."""
    with lmdb.open(str(path), readonly=True, lock=False) as env, env.begin() as txn:
        return [(f"key {key.hex()}", value) for key, value in txn.cursor()]


class Ingress:
    """As much of an ingress as a delivery needs."""

    held = 0

    def __init__(self, name: str = "chassis") -> None:
        self.name = name
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


class _UnavailableTransport(EndpointTransport):
    """A network that is down, so that messages stay in the spool."""

    def send(self, message: UMessage) -> None:
        raise UStatusError(UCode.UNAVAILABLE, "the network is down")

    def register_listener(
        self, source_filter: UUri, sink_filter: UUri | None, listener: Listener
    ) -> None: ...
    def unregister_listener(
        self, source_filter: UUri, sink_filter: UUri | None, listener: Listener
    ) -> None: ...
    def open(self) -> None: ...
    def stop_receiving(self) -> None: ...
    def close(self) -> None: ...
    def statistics(self) -> dict[str, int]:
        return {}


def messages(clock: ManualClock) -> list[UMessage]:
    """A message of each type and class, with and without a ttl."""
    ids = UuidSource(clock.clock().wall_ms, lambda _: 7)
    asked = request(ids.next(), APP, METHOD, b"asked", ttl=5_000)
    return [
        *(
            publish(
                ids.next(), TOPIC, bytes([each]) * each, UPayloadFormat.RAW, priority=each, ttl=each * 1_000
            )
            for each in UPriority
        ),
        publish(ids.next(), TOPIC, b""),
        notification(ids.next(), TOPIC, APP, b"told"),
        asked,
        response(ids.next(), asked, b"answered"),
        publish(ids.next(), TOPIC, bytes(range(256)) * 12),
    ]


def run_spool(directory: Path) -> list[Frame]:
    """A durable queue whose network is down; then two of its messages are deleted."""
    clock, path = ManualClock(), directory / SPOOL
    clock.advance(s=100)
    undelivered = list[object]()

    def no_restored_delivery(ingress: str, topic: UUri | None, subscriber: UUri | None) -> Delivery:
        raise AssertionError("the spool was empty")

    def note_undelivered(item: QueuedMessage, status: UStatus) -> None:
        undelivered.append((item, status))

    queue = DurableQueue(
        "backbone",
        _UnavailableTransport(),
        LIMITS,
        clock.clock(),
        note_undelivered,
        path,
        no_restored_delivery,
        lambda: 0.0,
        boot=b"a fixed boot id.",
    )
    queue.restore()
    queue.start()
    ingress = Ingress()
    deliveries = [Delivery(ingress, queue, TOPIC), Delivery(ingress, queue, None, APP)]
    for number, message in enumerate(messages(clock)):
        clock.advance(ms=1)
        ingress.ledger.received += 1
        deliveries[number % 2].offer(message, clock.now_ns)
    queue.close(CLOSE_S)
    assert undelivered == []
    with closing(Spool(path, SpoolLimits(1_000, 1_000_000))) as spool:
        spool.open()
        spool.delete_messages([key for key, _ in spool.read(1, None, 99, 1 << 20)][:2])
    return frames_of_store(path)


def run_dead_letters(directory: Path) -> list[Frame]:
    """Dead letters of each code, as publications and on disk; then one is deleted. One payload is above the limit."""
    clock, path = ManualClock(), directory / DEAD_LETTERS
    sent = messages(clock)
    letters = [
        DeadLetter(
            sent[number % len(sent)],
            UStatus(code, f"reason {number}"),
            "backbone",
            number,
            1_700_000_000_000 + number,
            1_700_000_001_000 + number,
            "chassis",
        )
        for number, code in enumerate(UCode)
    ]
    with closing(DeadLetterStore(path, DeadLettersConfig(payload_bytes=1_000))) as store:
        store.open()
        store.append([StoredDeadLetter.from_dead_letter(each, 1_000) for each in letters])
        store.delete([3])
    ids, topic = UuidSource(clock.clock().wall_ms, lambda _: 8), dead_letter_topic("hpc.vin1")
    published = [each.to_message(ids.next(), topic) for each in letters[:3]]
    frames = numbered(
        "published", (encode(each.id, each.attributes) + b"|" + each.payload for each in published)
    )
    return [*frames, *frames_of_store(path)]
