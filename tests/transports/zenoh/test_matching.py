# SPDX-License-Identifier: Apache-2.0
"""Simulation of the calls between a sender and Zenoh. In the end a route is open if a subscriber matches.

Then each accepted message has been received, in order. Hypothesis draws 500 interleavings: real threads would meet in
few of them. The network is simulated, the sender is the real one. A subscriber does not change during a put.
"""

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ustreamer.core.base.clock import ManualClock
from ustreamer.transport_port import EndpointContext, RouteUnavailable
from ustreamer.transports.zenoh.publisher import ZenohSender
from ustreamer.transports.zenoh.retransmit import AnsweredRequests, RetransmitConfig
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

TOPIC = UUri("hpc.vin1", 0x10A1, 1, 0x8001)
EVENTS = ("nothing", "subscriber changes", "status arrives", "both")


class Network:
    """One topic with at most one subscriber. Reports of its changes reach the listener late, in their order."""

    def __init__(self, events: list[str]) -> None:
        self._events = deque(events)
        self._watcher: Callable[[Any], None] | None = None
        self._reports: deque[bool] = deque()
        self.has_subscriber = False
        self.received: list[bytes] = []

    def advance(self) -> None:
        """Let the next event happen, as on another thread between two calls."""
        event = self._events.popleft() if self._events else "nothing"
        if event in ("subscriber changes", "both"):
            self.change_subscriber()
        if event in ("status arrives", "both"):
            self.deliver_report()

    def change_subscriber(self) -> None:
        self.has_subscriber = not self.has_subscriber
        self._report()

    def end_events(self) -> None:
        self._events.clear()

    def _report(self) -> None:
        if self._watcher is not None:
            self._reports.append(self.has_subscriber)

    def deliver_report(self) -> bool:
        if self._watcher is None or not self._reports:
            return False
        self._watcher(SimpleNamespace(matching=self._reports.popleft()))
        return True

    # --- the calls of a session and of a publisher --------------------------------------------------------------------

    def declare_publisher(self, key: str, **_: object) -> "Network":
        self.advance()
        return self

    def declare_matching_listener(self, callback: Any) -> None:
        self.advance()
        self._watcher = callback.callback
        if self.has_subscriber:
            self._report()
        self.advance()

    @property
    def matching_status(self) -> SimpleNamespace:
        self.advance()
        status = SimpleNamespace(matching=self.has_subscriber)
        self.advance()
        return status

    def put(self, payload: bytes, *, attachment: bytes) -> None:
        if self.has_subscriber:
            self.received.append(payload)

    def is_closed(self) -> bool:
        return False


class Simulation:
    """The sender with the tasks of its monitor thread, which run when the test says so."""

    def __init__(self, events: list[str]) -> None:
        self.network = Network(events)
        self._tasks: deque[Callable[[], None]] = deque()
        self._ticks: list[Callable[[], None]] = []
        clock = ManualClock().clock()
        links: Any = SimpleNamespace(
            up=True,
            multicast=False,
            settled_ns=0,
            confirmed_ns=0,
            all_suspect=False,
            sample=lambda: None,
            run_on_monitor=self._tasks.append,
            add_tick=self._ticks.append,
            add_link_watcher=lambda on_replaced: None,
            lost_since_ns=lambda noticed_ns: None,
        )
        context = EndpointContext("backbone", "hpc.vin1", clock)
        session: Any = self.network
        self._sender = ZenohSender(session, links, context, RetransmitConfig(), AnsweredRequests(0))
        self._ids = UuidSource(clock.wall_ms)
        self.accepted: list[bytes] = []

    def new_message(self, number: int) -> UMessage:
        return publish(self._ids.next(), TOPIC, b"%d" % number)

    def put(self, message: UMessage) -> bool:
        try:
            self._sender.put_message(message)
        except RouteUnavailable:
            return False
        self.accepted.append(message.payload)
        return True

    def tick(self) -> None:
        for each in self._ticks:
            each()

    def run_task(self) -> bool:
        if not self._tasks:
            return False
        self._tasks.popleft()()
        return True

    def settle(self) -> None:
        """Nothing changes any more: all reports arrive, and all tasks run."""
        self.network.end_events()
        while self.network.deliver_report() or self.run_task():
            self.tick()


@settings(max_examples=500)
@given(st.lists(st.sampled_from(EVENTS), max_size=24), st.lists(st.booleans(), max_size=8))
@example(["nothing"] * 7 + ["both"] * 2, [])
@example(["nothing"] * 9 + ["both", "nothing", "both"], [True])
def test_in_the_end_a_route_is_open_if_a_subscriber_matches(events: list[str], tasks: list[bool]) -> None:
    simulation = Simulation(events)
    for number, runs in enumerate(tasks or [False]):
        simulation.put(simulation.new_message(number))
        simulation.network.advance()
        if runs:
            simulation.run_task()
            simulation.tick()
    simulation.settle()
    last = simulation.new_message(100)
    is_sent = simulation.put(last)
    simulation.settle()
    assert (is_sent or simulation.put(last)) == simulation.network.has_subscriber
    if simulation.network.has_subscriber:
        received = iter(simulation.network.received)
        # `in` advances the iterator: the accepted messages are a subsequence of the received ones.
        assert all(each in received for each in simulation.accepted), "lost, or only received out of order"


def test_a_message_is_put_again_once_for_each_return_of_a_subscriber() -> None:
    simulation = Simulation([])
    simulation.network.change_subscriber()
    simulation.put(simulation.new_message(0))
    for _ in range(6):
        for _ in ("lost", "returned"):
            simulation.network.change_subscriber()
            simulation.settle()
    assert simulation.network.received == [b"0"] * 7
