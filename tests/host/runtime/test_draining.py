# SPDX-License-Identifier: Apache-2.0
"""The last sends of a stopping streamer."""

import threading
import time
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from tests.host.streamer_bench import (
    NOTES,
    OWN,
    QUICK_RETRY,
    TOPIC,
    USUBSCRIPTION,
    WITH_USUBSCRIPTION,
    Bench,
    NoConfig,
    NotingPlugin,
    fake,
    leftovers,
    link,
)
from tests.host.waiting import DEADLINE_S, eventually
from ustreamer.core.delivery.ledger import EMPTY_LEDGER, Ledger, LedgerSnapshot
from ustreamer.core.egress.limits import QueuedMessage
from ustreamer.hooks import PluginContext, hookimpl
from ustreamer.host.egress.endpoint_queue import EndpointQueue
from ustreamer.host.runtime import draining
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.host.runtime.draining import counted_losses, drain, stop_summary
from ustreamer.host.storage.dead_letter_store import DIRECTORY, read_letters
from ustreamer.testing.messages import new_id
from ustreamer.transport_port import EndpointTransport, Unconfirmed
from ustreamer.uprotocol.umessage import (
    UMessage,
    notification,
    publish,
    request,
    response,
)
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.utransport import UTransport
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import ANY, UUri

THEIRS = UUri("chassis", 0x1234, 1, 0x8001)


def test_stop_sends_accepted_messages_and_accepts_no_more(
    bench: Bench,
) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"), QUICK_RETRY)
    chassis, app = link(streamer, "chassis"), bench.app("inside")
    chassis.gate.clear()
    sink = UUri("chassis", 1, 1, 0)
    for n in range(5):
        app.transport.send(notification(new_id(), TOPIC, sink, b"%d" % n))
    left: list[int] = []
    stopping = threading.Thread(target=lambda: left.append(streamer.stop(DEADLINE_S)), daemon=True)
    stopping.start()
    eventually(lambda: "stop_receiving chassis" in NOTES, "the stop")
    app.transport.send(notification(new_id(), TOPIC, sink, b"too late"))
    chassis.gate.set()
    stopping.join(DEADLINE_S)
    assert left == [0]
    assert [message.payload for _, message in chassis.sent] == [b"0", b"1", b"2", b"3", b"4"]
    assert streamer.ledger().received == 5
    assert leftovers(streamer) == []


def test_stop_returns_the_number_of_unsent_messages(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"), QUICK_RETRY)
    link(streamer, "chassis").fault = UCode.UNAVAILABLE
    for _ in range(3):
        bench.app("inside").transport.send(notification(new_id(), TOPIC, UUri("chassis", 1, 1, 0)))
    began = time.monotonic()
    assert streamer.stop(0.05) == 3
    assert 0.05 <= time.monotonic() - began < 4.5  # the default is 5 s
    assert (streamer.ledger().queued, streamer.ledger().dead_lettered) == (0, 3)
    assert leftovers(streamer) == []


def test_sent_messages_that_may_not_have_arrived_are_dead_letters(bench: Bench) -> None:
    streamer = bench.started(fake("app", "app"), fake("chassis", "chassis"))
    sink = UUri("chassis", 1, 1, 0)
    call = request(new_id(), UUri("app", 2, 1, 0), UUri("chassis", 3, 1, 1), ttl=60_000)
    sent = [*(notification(new_id(), UUri("app", 1, 1, 0x8000), sink, b"%d" % n) for n in range(4)), call]
    for message in sent:
        link(streamer, "app").receive_message(message)
    eventually(lambda: len(link(streamer, "chassis").sent) == 5, "the sends")
    link(streamer, "chassis").unconfirmed = Unconfirmed([*sent[2:4], call], forgotten=7)
    assert streamer.stop(DEADLINE_S) == 0
    assert streamer.unconfirmed == 3 + 7
    # The error Response is a delivery too.
    ledger = streamer.ledger()
    assert (ledger.delivered, ledger.dead_lettered, ledger.queued, ledger.unaccounted) == (3, 3, 0, 0)
    [(_, answer)] = link(streamer, "app").sent
    assert (answer.attributes.reqid, answer.attributes.commstatus) == (call.id, UCode.UNAVAILABLE)
    letters = list(read_letters(streamer.context.state_dir / DIRECTORY))
    assert [(each.message.id, each.endpoint, each.ingress, each.attempts) for _, each in letters] == [
        (message.id, "chassis", "app", 1) for message in [*sent[2:4], call]
    ]
    assert {each.reason for _, each in letters} == {"sent to endpoint 'chassis', but it may not have arrived"}


@pytest.mark.parametrize("grace_ns", [10_000_000_000, 0])
def test_the_dead_letters_of_a_stop_are_published_or_counted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, grace_ns: int
) -> None:
    monkeypatch.setattr(draining, "_RESPONSE_GRACE_NS", grace_ns)
    streamer = bench.started(fake("app", "app"), fake("chassis", "chassis"))
    source, sink = UUri("app", 1, 1, 0x8000), UUri("chassis", 1, 1, 0)
    link(streamer, "chassis").unconfirmed = Unconfirmed(
        [notification(new_id(), source, sink) for _ in range(2_000)]
    )
    streamer.stop(DEADLINE_S)
    unpublished = streamer.dispatcher.dead_letters.unpublished
    ledger = streamer.ledger()
    assert (ledger.dead_lettered, ledger.no_subscriber + unpublished) == (2_000, 2_000)
    assert (unpublished == 0) == bool(grace_ns)


def test_what_only_a_queue_had_and_its_disk_refuses_is_a_dead_letter(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transport has no copy of it."""
    streamer = bench.started(fake("app", "app"), fake("chassis", "chassis"))
    message = notification(new_id(), UUri("app", 1, 1, 0x8000), UUri("chassis", 1, 1, 0))
    link(streamer, "app").receive_message(message)
    eventually(lambda: len(link(streamer, "chassis").sent) == 1, "the send")
    reclaim = EndpointQueue.reclaim

    def refuse(
        queue: EndpointQueue, sent: Sequence[QueuedMessage], stored: Collection[UUID] = ()
    ) -> Sequence[QueuedMessage]:
        delivery = streamer.dispatcher.restored_delivery("app", "chassis", None, None)
        refused = [queue.sent_message(delivery, message)] if message.id in stored else []
        return reclaim(queue, [*sent, *refused])

    monkeypatch.setattr(EndpointQueue, "reclaim", refuse)
    link(streamer, "chassis").unconfirmed = Unconfirmed(stored=[message.id])
    assert (streamer.stop(DEADLINE_S), streamer.unconfirmed) == (0, 1)
    ledger = streamer.ledger()
    assert (ledger.delivered, ledger.dead_lettered, ledger.unaccounted) == (0, 1, 0)
    [(_, letter)] = read_letters(streamer.context.state_dir / DIRECTORY)
    assert letter.message.id == message.id


class Changes:
    """Has a topic that needs no subscription."""

    Config = NoConfig

    def __init__(self, config: NoConfig, context: PluginContext) -> None:
        pass

    @hookimpl
    def ustreamer_broadcast_topics(self) -> Collection[UUri]:
        return [TOPIC]


def test_broadcasts_that_may_not_have_arrived_are_no_dead_letters(bench: Bench) -> None:
    """They have no subscriber. A topic whose subscriber left is still reported."""
    streamer = bench.started(fake("chassis", "chassis"), extra={"changes": Changes})
    assert streamer.dispatcher.router.broadcast_endpoints(TOPIC) == ("chassis",)
    other = publish(new_id(), TOPIC.with_resource(0x8002))
    link(streamer, "chassis").unconfirmed = Unconfirmed([publish(new_id(), TOPIC), other])
    assert streamer.stop(DEADLINE_S) == 0
    assert streamer.unconfirmed == 1
    letters = list(read_letters(streamer.context.state_dir / DIRECTORY))
    assert [each.message.id for _, each in letters] == [other.id]


def test_a_stop_ends_transports_when_nothing_waits_and_closes_them_later(bench: Bench) -> None:
    streamer = bench.started(fake("app", "app"), fake("chassis", "chassis"))
    NOTES.clear()
    assert (streamer.stop(DEADLINE_S), streamer.unconfirmed) == (0, 0)
    assert [note for note in NOTES if note.endswith("chassis")] == [
        "stop_receiving chassis",
        "finish chassis",
        "close chassis",
    ]


def test_stop_waits_for_messages_held_by_a_filter(bench: Bench) -> None:
    streamer = bench.started(
        bench.local("inside", OWN),
        bench.local("outside", "cloud"),
        WITH_USUBSCRIPTION,
        "[plugins.throttle]\nmode = 'latest'",
    )
    sensor, fleet = bench.app("inside"), bench.app("outside", "cloud")
    fleet.subscribe(period_ms=1_500)  # how long a message must be held for the test to observe it
    for payload in (b"first", b"displaced", b"newest"):
        sensor.publish(payload)
    fleet.wait_received(1)
    eventually(lambda: streamer.ledger().queued == 1, "quiet, but for what is held")
    assert streamer.stop(DEADLINE_S) == 0
    assert [message.payload for message in fleet.received] == [b"first", b"newest"]
    assert streamer.ledger().throttled == 1


class Slow(NotingPlugin):
    """A service that responds to accepted requests during its stop, and not before."""

    def __init__(self, config: NoConfig, context: PluginContext) -> None:
        self._asked: list[UMessage] = []

    def start(self, bus: UTransport) -> None:
        self._bus = bus
        bus.register_listener(ANY, UUri(OWN, 7, 1, 1), self._asked.append)

    def stop(self) -> None:
        while self._asked:
            self._bus.send(response(new_id(), self._asked.pop(0), b"at last"))


def test_during_a_stop_a_hosted_service_can_respond_to_accepted_requests(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), extra={"slow": Slow})
    app = bench.app("inside")
    app.listen(ANY, app.address)
    for _ in range(3):
        app.transport.send(request(new_id(), app.address, UUri(OWN, 7, 1, 1), ttl=60_000))
    assert streamer.stop(DEADLINE_S) == 0
    assert [message.payload for message in app.received] == [b"at last"] * 3
    assert streamer.ledger().delivered == 6


def test_a_call_that_fails_while_the_streamer_stops_is_still_answered(bench: Bench) -> None:
    # Repeated, because of the moment between the last message of a queue and the error response to it.
    for _ in range(20):
        streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"))
        chassis, app = link(streamer, "chassis"), bench.app("inside")
        chassis.fault = UCode.INTERNAL
        chassis.gate.clear()
        app.listen(ANY, app.address)
        app.transport.send(request(new_id(), app.address, UUri("chassis", 1, 1, 2), ttl=60_000))
        eventually(lambda chassis=chassis: chassis.attempts == 1, "the attempt")  # type: ignore[misc]
        stopping = threading.Thread(target=streamer.stop, daemon=True)
        stopping.start()
        eventually(lambda: "stop_receiving chassis" in NOTES, "the stop")
        chassis.gate.set()
        stopping.join(DEADLINE_S)
        assert [message.attributes.commstatus for message in app.received] == [UCode.INTERNAL]
        app.transport.close()
        NOTES.clear()


def test_messages_held_by_a_filter_are_abandoned_and_counted_at_the_deadline(bench: Bench) -> None:
    streamer = bench.started(
        bench.local("inside", OWN),
        bench.local("outside", "cloud"),
        WITH_USUBSCRIPTION,
        "[plugins.throttle]\nmode = 'latest'",
    )
    sensor, fleet = bench.app("inside"), bench.app("outside", "cloud")
    fleet.subscribe(period_ms=60_000)
    for payload in (b"first", b"held"):
        sensor.publish(payload)
    fleet.wait_received(1)
    eventually(lambda: streamer.ledger().queued == 1, "quiet, but for what is held")
    assert drain(streamer.dispatcher, [], SYSTEM_CLOCK.monotonic_ns, 0) == 1
    assert (streamer.ledger().queued, streamer.ledger().dead_lettered) == (0, 1)


@pytest.mark.parametrize("kind", ["notification", "request", "publications"])
def test_a_message_that_arrives_after_the_drain_is_a_dead_letter_and_not_queued(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """WAMP sessions that end while their transport closes call uSubscription, when nothing is sent any more."""
    streamer = bench.started(
        bench.local("inside", OWN),
        fake("chassis", "chassis"),
        WITH_USUBSCRIPTION,
        "[plugins.throttle]\nmode = 'latest'",
    )
    bench.app("inside").subscribe(THEIRS, period_ms=60_000)
    chassis, sender = link(streamer, "chassis"), THEIRS.with_resource(0)
    late = {
        "notification": [notification(new_id(), THEIRS, UUri(OWN, 0x77, 1, 0))],
        "request": [request(new_id(), sender, USUBSCRIPTION.with_resource(1), ttl=5_000)],
        "publications": [publish(new_id(), THEIRS, b"%d" % n) for n in range(2)],  # the throttle holds one
    }[kind]

    def close() -> None:
        for each in late:
            chassis.receive_message(each)
        NOTES.append("late")

    monkeypatch.setattr(chassis, "close", close)
    before = streamer.ledger().received
    streamer.stop(DEADLINE_S)
    ledger = streamer.ledger()
    assert "late" in NOTES
    assert ledger.received >= before + len(late)
    assert (ledger.queued, ledger.unaccounted) == (0, 0), ledger
    letters = [each.message for _, each in read_letters(streamer.context.state_dir / DIRECTORY)]
    assert [each.id for each in letters][: len(late)] == [each.id for each in late]


@pytest.mark.parametrize(
    ("ledger", "left", "sentence"),
    [
        (EMPTY_LEDGER, (0, 0, 0, {}), "0 received: nothing to deliver; 0 unaccounted"),
        (
            LedgerSnapshot(9, 6, 2, 0, 0, 0, 1, 0),
            (0, 0, 0, {}),
            "9 received: 6 delivered, 2 throttled, 1 no_subscriber; 0 unaccounted",
        ),
        (
            LedgerSnapshot(9, 6, 0, 0, 2, 0, 0, 0),
            (2, 3, 4, {}),
            "9 received: 6 delivered, 2 dead_lettered; 1 unaccounted, 2 not sent in time, 3 not confirmed, 4 kept on disk",
        ),
        (
            LedgerSnapshot(9, 9, 0, 0, 0, 0, 0, 0),
            (0, 0, 0, {"tcp_dropped": 2, "udp_dropped": 31}),
            "9 received: 9 delivered; 0 unaccounted; may be lost: 2 tcp_dropped, 31 udp_dropped",
        ),
    ],
)
def test_the_end_of_a_run_is_one_sentence(
    ledger: LedgerSnapshot, left: tuple[int, int, int, dict[str, int]], sentence: str
) -> None:
    assert stop_summary(ledger, *left) == sentence


def test_the_counters_of_losses_are_added_over_all_endpoints() -> None:
    chassis = cast(EndpointTransport, SimpleNamespace(loss_counters=("tcp_dropped", "udp_dropped")))
    backbone = cast(EndpointTransport, SimpleNamespace(loss_counters=("not_retransmitted",)))
    found = counted_losses(
        {"front": chassis, "rear": chassis, "backbone": backbone},
        {
            "front": {"udp_dropped": 3, "tcp_dropped": 0, "sent": 9},
            "rear": {"udp_dropped": 4, "spool_lost": 1},
            "backbone": {"udp_dropped": 5, "not_retransmitted": 2},
        },
    )
    assert found == {"not_retransmitted": 2, "spool_lost": 1, "udp_dropped": 7}


class Retried:
    """A queue whose only message is blocked, and is tried once more when the stop counts what is left."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.queued = 1
        self._sendable = iter([0, 1])

    @property
    def sendable(self) -> int:
        return next(self._sendable)

    def wait_sent(self, deadline_ns: int) -> bool:
        return True

    def wait_empty(self, deadline_ns: int) -> bool:
        return False

    def no_more_retries(self, status: UStatus) -> None: ...

    def abandon_all(self, status: UStatus) -> list[QueuedMessage]:
        self.queued = 0
        return []


def test_a_blocked_message_that_is_tried_just_now_is_no_unsent_one(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN))
    queue = cast(EndpointQueue, Retried())
    assert drain(streamer.dispatcher, [queue], SYSTEM_CLOCK.monotonic_ns, 0) == 0
    assert queue.queued == 0
