# SPDX-License-Identifier: Apache-2.0
"""Backpressure: the input waits for a queue that the streamer drains too slowly, and for no slow receiver.

A real dispatcher with real egress queues and threads. Only the networks are simulated.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.host.waiting import DEADLINE_S, eventually
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.egress.limits import EgressLimits, QueuedMessage
from ustreamer.core.egress.wait_budget import FULL_NS
from ustreamer.core.routing.router import AuthorityTable, Router
from ustreamer.core.routing.subscriptions import StaticDirectory
from ustreamer.host.egress.endpoint_queue import EndpointQueue
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.transport_port import UNBOUNDED, EndpointTransport, RouteUnavailable
from ustreamer.uprotocol.uattributes import UPriority
from ustreamer.uprotocol.umessage import UMessage, notification
from ustreamer.uprotocol.ustatus import UStatus
from ustreamer.uprotocol.utransport import Listener
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

QUEUE: Final = 1_500
BATCH: Final = 64
ENDPOINTS: Final = ("left", "right", "other")


class CpuBoundNetwork(EndpointTransport):
    """A network whose sends never wait and cost CPU time. The send thread sends all: an empty queue sees no room."""

    def __init__(self) -> None:
        self.sent: list[UMessage] = []
        self.queued: Callable[[], int] = int

    def send(self, message: UMessage) -> None:
        sum(range(1_000))
        self.sent.append(message)

    def send_window(self) -> int:
        return UNBOUNDED if self.queued() else 0

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


class StoppedNetwork(CpuBoundNetwork):
    """A network whose receiver reads nothing until `reads` is set: the first send waits."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = threading.Event()

    def send(self, message: UMessage) -> None:
        assert self.reads.wait(DEADLINE_S)
        super().send(message)

    def send_window(self) -> int:
        return super().send_window() if self.reads.is_set() else 1


class AbsentReceiver(CpuBoundNetwork):
    """A network where no receiver listens."""

    def send(self, message: UMessage) -> None:
        raise RouteUnavailable("absent", "no receiver")


class Streamer:
    """A dispatcher between networks, one endpoint queue for each."""

    def __init__(self, **networks: CpuBoundNetwork) -> None:
        self.networks = {name: networks.get(name) or CpuBoundNetwork() for name in ENDPOINTS}
        self.undelivered: list[UMessage] = []
        limits = EgressLimits(queue_messages=QUEUE, max_age_ms=600_000)
        self.queues = {
            name: EndpointQueue(name, network, limits, SYSTEM_CLOCK, self._on_undelivered)
            for name, network in self.networks.items()
        }
        for name, queue in self.queues.items():
            self.networks[name].queued = partial(getattr, queue, "queued")
        self._ids = UuidSource(SYSTEM_CLOCK.wall_ms)
        router = Router(
            AuthorityTable({name: name for name in ENDPOINTS}),
            StaticDirectory(()),
            dict.fromkeys(ENDPOINTS, False),
        )
        self.dispatcher = Dispatcher(
            "own", SYSTEM_CLOCK, router, self.queues, schedule=lambda when_ns, call: None
        )
        for queue in self.queues.values():
            queue.start()

    def _on_undelivered(self, item: QueuedMessage, status: UStatus) -> None:
        self.undelivered.append(item.message)

    def messages(
        self, source: str, sink: str, count: int, priority: UPriority = UPriority.CS1
    ) -> list[UMessage]:
        addresses = UUri(source, 1, 1, 0x8000), UUri(sink, 1, 1, 0)
        return [
            notification(self._ids.next(), *addresses, b"%d" % number, priority=priority)
            for number in range(count)
        ]

    def receive(self, endpoint: str, messages: Sequence[UMessage]) -> None:
        """The receiving thread of `endpoint`: batches, one after the other."""
        ingress = self.dispatcher.ingress(endpoint)
        for start in range(0, len(messages), BATCH):
            ingress.on_batch(messages[start : start + BATCH])

    def wait_sent(self, endpoint: str, count: int) -> list[UMessage]:
        network = self.networks[endpoint]
        eventually(lambda: len(network.sent) >= count, f"{count} messages at {endpoint}")
        return network.sent

    def close(self) -> None:
        for network in self.networks.values():
            if isinstance(network, StoppedNetwork):
                network.reads.set()
        for queue in self.queues.values():
            queue.close(DEADLINE_S)
            assert not queue._thread.is_alive()
        queued = sum(queue.queued for queue in self.queues.values())
        ledger = self.dispatcher.ledger_snapshot([each.ledger for each in self.queues.values()], queued)
        assert ledger.unaccounted == 0, ledger


@pytest.fixture
def streamers() -> Iterator[list[Streamer]]:
    """Streamers that are closed at the end."""
    opened: list[Streamer] = []
    yield opened
    for each in opened:
        each.close()


def test_an_input_faster_than_the_send_thread_waits_and_nothing_is_lost(streamers: list[Streamer]) -> None:
    streamers.append(streamer := Streamer())
    messages = streamer.messages("left", "right", 6 * QUEUE)
    streamer.receive("left", messages)
    assert streamer.wait_sent("right", len(messages)) == messages
    assert streamer.undelivered == []
    assert streamer.queues["right"].counters()["backpressure_waits"] > 0
    assert streamer.queues["right"].counters()["backpressure_refused"] == 0


def test_a_wait_that_a_busy_machine_ends_late_counts_for_no_slow_receiver(
    streamers: list[Streamer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wait of the input ends 0.2 s after the receiver has taken everything."""
    streamers.append(streamer := Streamer())
    queue, late_ns = streamer.queues["right"], 0
    clock = SYSTEM_CLOCK._replace(monotonic_ns=lambda: SYSTEM_CLOCK.monotonic_ns() + late_ns)
    monkeypatch.setattr(queue, "_clock", clock)
    wait = queue._changed.wait

    def wait_late(timeout: float | None = None) -> bool:
        nonlocal late_ns
        if threading.current_thread() is not queue._thread:
            eventually(lambda: wait(0.001) or queue._is_drained(), "an empty queue")
            late_ns += 4 * FULL_NS
        return wait(timeout)

    monkeypatch.setattr(queue._changed, "wait", wait_late)
    messages = streamer.messages("left", "right", 6 * QUEUE)
    streamer.receive("left", messages)
    assert streamer.wait_sent("right", len(messages)) == messages
    counters = queue.counters()
    assert (counters["backpressure_refused"], counters["backpressure_waits"] > 0) == (0, True)


def test_single_messages_wait_as_well(streamers: list[Streamer]) -> None:
    streamers.append(streamer := Streamer())
    messages = streamer.messages("left", "right", 5 * QUEUE)
    for each in messages:
        streamer.dispatcher.ingress("left").dispatch(each)
    assert streamer.wait_sent("right", len(messages)) == messages
    assert streamer.undelivered == []


def test_endpoints_that_feed_each_other_do_not_wait_for_each_other_forever(streamers: list[Streamer]) -> None:
    streamers.append(streamer := Streamer())
    there = streamer.messages("left", "right", 4 * QUEUE)
    back = streamer.messages("right", "left", 4 * QUEUE)
    receiving = [
        threading.Thread(target=streamer.receive, args=arguments)
        for arguments in (("left", there), ("right", back))
    ]
    for thread in receiving:
        thread.start()
    assert streamer.wait_sent("right", len(there)) == there
    assert streamer.wait_sent("left", len(back)) == back
    for thread in receiving:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert streamer.undelivered == []


def test_a_stopped_receiver_overflows_its_own_queue_and_delays_the_input_once(
    streamers: list[Streamer],
) -> None:
    streamers.append(streamer := Streamer(right=StoppedNetwork()))
    stopped, served = (streamer.messages("left", sink, 5 * QUEUE) for sink in ("right", "other"))
    mixed = [message for pair in zip(stopped, served, strict=True) for message in pair]
    streamer.receive("left", mixed)
    assert streamer.wait_sent("other", len(served)) == served
    assert streamer.queues["other"].counters()["backpressure_refused"] == 0
    lost = [each for each in streamer.undelivered if each.attributes.sink == UUri("right", 1, 1, 0)]
    assert lost == streamer.undelivered
    assert len(stopped) - QUEUE - BATCH <= len(lost) < len(stopped)
    counters = streamer.queues["right"].counters()
    # The budget ends the wait at the first tick after it: a busy machine makes that tick longer.
    assert FULL_NS // 1_000_000 <= counters["backpressure_ms"] < DEADLINE_S * 1_000 / 4
    assert counters["backpressure_waits"] <= FULL_NS // 1_000_000
    assert counters["backpressure_refused"] > 0


def test_an_absent_receiver_delays_nothing(streamers: list[Streamer]) -> None:
    streamers.append(streamer := Streamer(right=AbsentReceiver()))
    first, *others = streamer.messages("left", "right", 5 * QUEUE)
    streamer.receive("left", [first])
    eventually(lambda: streamer.queues["right"].statistics().blocked == 1, "a blocked message")
    streamer.receive("left", others)
    # A retry may have one in flight.
    assert 4 * QUEUE - 1 <= len(streamer.undelivered) <= 4 * QUEUE
    assert streamer.queues["right"].counters()["backpressure_waits"] == 0


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["left", "right"]),
            st.integers(1, QUEUE),
            st.sampled_from([UPriority.CS1, UPriority.CS4, UPriority.CS6]),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_whatever_comes_in_on_both_sides_arrives_once_and_in_the_order_of_its_class(
    inputs: list[tuple[str, int, UPriority]],
) -> None:
    streamer = Streamer()
    sink_of = {"left": "right", "right": "left"}
    received = {
        side: [
            message
            for source, count, priority in inputs
            if source == side
            for message in streamer.messages(side, sink_of[side], count, priority)
        ]
        for side in sink_of
    }
    threads = [threading.Thread(target=streamer.receive, args=each) for each in received.items()]
    try:
        for thread in threads:
            thread.start()
        for side, messages in received.items():
            arrived = streamer.wait_sent(sink_of[side], len(messages))
            for priority in (UPriority.CS1, UPriority.CS4, UPriority.CS6):
                of_class = [each for each in messages if each.attributes.priority is priority]
                assert [each for each in arrived if each.attributes.priority is priority] == of_class
        assert streamer.undelivered == []
    finally:
        for thread in threads:
            thread.join(DEADLINE_S)
        streamer.close()
