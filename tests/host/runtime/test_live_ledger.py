# SPDX-License-Identifier: Apache-2.0
"""The ledger law holds in every reading of a running streamer, not only at rest."""

import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar

import pytest

from tests.host.streamer_bench import (
    OWN,
    TOPIC,
    Bench,
    FakeEndpoint,
    FakeTransport,
    FakeTransportsPlugin,
    NoConfig,
    fake,
    link,
)
from tests.host.waiting import DEADLINE_S, eventually
from ustreamer.core.delivery.ledger import LedgerSnapshot
from ustreamer.core.delivery.ports import SendBatch
from ustreamer.core.dispatch import dispatcher, ingress
from ustreamer.core.routing.subscriptions import Subscription
from ustreamer.hooks import PluginContext, hookimpl
from ustreamer.host.runtime.streamer import Streamer
from ustreamer.testing.messages import new_id
from ustreamer.transport_port import EndpointContext, TransportKind
from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.umessage import UMessage, notification, publish
from ustreamer.uprotocol.uuri import UUri

READINGS = 500
BATCH = 16
THEIRS = UUri("chassis", 0x1234, 1, 0x8001)


class SocketTransport(FakeTransport):
    """An inline link over a real socket: each send is a system call, in which other threads run."""

    inline: ClassVar[bool] = True

    def __init__(self, config: FakeEndpoint, context: EndpointContext) -> None:
        super().__init__(config, context)
        self._socket, self._other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)

    def _transmit(self, subscriber: UUri | None, message: UMessage) -> None:
        self.attempts += 1
        assert self.gate.wait(DEADLINE_S)
        self._socket.send(message.payload)
        self._other.recv(16)

    def subscriptions(self) -> Sequence[Subscription]:
        return [
            Subscription(topic, UUri.parse(each))
            for topic in (TOPIC, THEIRS)
            for each in self.config.receivers
        ]

    def batch_transmitter(self, subscriber: UUri | None) -> SendBatch:
        def transmit_batch(messages: Iterable[UMessage], /) -> int:
            sent = 0
            for message in messages:
                self._transmit(subscriber, message)
                sent += 1
            return sent

        return transmit_batch

    def close(self) -> None:
        self._socket.close()
        self._other.close()
        super().close()


class QueueingTransport(SocketTransport):
    """A unicast link of which the send thread sends every message."""

    inline: ClassVar[bool] = False
    unicast: ClassVar[bool] = True


class SocketsPlugin(FakeTransportsPlugin):
    """The plugin with the transports of this file."""

    def __init__(self, config: NoConfig, context: PluginContext) -> None: ...

    @staticmethod
    @hookimpl
    def ustreamer_transports() -> Mapping[str, TransportKind]:
        return {
            "socket": TransportKind(FakeEndpoint, SocketTransport, has_usubscription=False),
            "queueing": TransportKind(FakeEndpoint, QueueingTransport, has_usubscription=False),
        }


@contextmanager
def senders(streamer: Streamer) -> Iterator[threading.Event]:
    """Threads that send all the time: batches, equal batches and single messages, to inline and queueing endpoints.

    The event is set whenever one of them has dispatched.
    """
    ending, progress = threading.Event(), threading.Event()

    def batches() -> None:
        while not ending.is_set():
            streamer.dispatcher.ingress("inside").on_batch(messages(TOPIC))
            progress.set()

    def column_batches() -> None:
        while not ending.is_set():
            batch = MessageBatch.from_messages(messages(THEIRS))
            assert batch is not None
            streamer.dispatcher.ingress("chassis").on_batch(batch)
            progress.set()

    def single() -> None:
        while not ending.is_set():
            streamer.dispatcher.ingress("chassis").dispatch(messages(THEIRS, 1)[0])
            progress.set()

    threads = [threading.Thread(target=each, daemon=True) for each in (batches, column_batches, single)]
    for each in threads:
        each.start()
    try:
        yield progress
    finally:
        ending.set()
        for each in threads:
            each.join(DEADLINE_S)


def messages(topic: UUri, count: int = BATCH) -> list[UMessage]:
    return [publish(new_id(), topic, b"x") for _ in range(count)]


@pytest.mark.parametrize(
    "readings", [READINGS, pytest.param(10_000, marks=[pytest.mark.soak, pytest.mark.timeout(1_800)])]
)
def test_unaccounted_is_0_in_every_reading_under_load(bench: Bench, readings: int) -> None:
    streamer = bench.started(
        fake("inside", OWN, transport="socket"),
        fake("chassis", "chassis", transport="socket"),
        fake("cloud", "cloud", transport="socket", receivers=["//cloud/1/1/0"]),
        fake("dash", "dash", transport="queueing", receivers=["//dash/1/1/0", "//dash/2/1/0"]),
        "[plugins.throttle]",
        extra={"sockets": SocketsPlugin},
    )
    bad: list[LedgerSnapshot] = []
    last = streamer.ledger()
    with senders(streamer) as progress:
        for _ in range(readings):
            progress.clear()
            assert progress.wait(DEADLINE_S)  # at least one batch since the reading before
            before, last = last, streamer.ledger()
            if last.unaccounted or last.received < before.received or last.delivered < before.delivered:
                bad.append(last)
    assert not bad, (len(bad), bad[0], max(abs(each.unaccounted) for each in bad))
    assert last.delivered > readings


def test_a_reading_waits_for_the_message_in_progress_and_no_other_endpoint_waits_for_it(bench: Bench) -> None:
    streamer = bench.started(
        fake("inside", OWN),
        fake("chassis", "chassis"),
        fake("busy", "busy", transport="socket"),
        fake("cloud", "cloud", transport="socket"),
        extra={"sockets": SocketsPlugin},
    )
    busy = link(streamer, "busy")
    busy.gate.clear()
    message = notification(new_id(), TOPIC, UUri("busy", 1, 1, 0))
    sender = threading.Thread(
        target=streamer.dispatcher.ingress("inside").dispatch, args=(message,), daemon=True
    )
    sender.start()
    eventually(lambda: busy.attempts == 1, "the send that does not end")
    readings: list[LedgerSnapshot] = []
    reader = threading.Thread(target=lambda: readings.append(streamer.ledger()), daemon=True)
    reader.start()
    for n in range(100):
        message = notification(new_id(), THEIRS, UUri("cloud", 1, 1, 0), b"%d" % n)
        streamer.dispatcher.ingress("chassis").dispatch(message)
    assert (link(streamer, "cloud").attempts, readings) == (100, [])
    busy.gate.set()
    for each in (sender, reader):
        each.join(DEADLINE_S)
    assert [each.unaccounted for each in readings] == [0]


def test_a_dispatch_that_never_ends_blocks_neither_a_reading_nor_a_stop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "_MAX_BUSY_S", 0.05)
    monkeypatch.setattr(ingress, "_CLOSE_S", 0.05)
    streamer = bench.started(
        fake("inside", OWN), fake("busy", "busy", transport="socket"), extra={"sockets": SocketsPlugin}
    )
    busy = streamer.dispatcher.ingress("inside")
    in_progress, end = threading.Event(), threading.Event()

    def admit(message: UMessage, now_ns: int) -> None:
        in_progress.set()
        assert end.wait(DEADLINE_S)

    busy.dispatch(notification(new_id(), TOPIC, UUri("busy", 1, 1, 0)))
    [delivery] = busy._deliveries
    delivery.filter_calls = (admit,)
    message = notification(new_id(), TOPIC, UUri("busy", 1, 1, 0))
    sender = threading.Thread(target=busy.dispatch, args=(message,), daemon=True)
    sender.start()
    assert in_progress.wait(DEADLINE_S)
    assert streamer.ledger().unaccounted == 1
    streamer.stop(0)
    end.set()
    sender.join(DEADLINE_S)
    ledger = streamer.ledger()
    assert (ledger.unaccounted, ledger.queued, ledger.received) == (0, 0, 2)
