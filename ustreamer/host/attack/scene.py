# SPDX-License-Identifier: Apache-2.0
"""What an attack has: the target, hostile nodes, and a bystander that shows whether the streamer still serves others."""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from threading import Event
from typing import Final

from ustreamer.host.attack.clients.zenoh_node import ZenohNode
from ustreamer.host.attack.probe import PROBE_ENTITY, probe_topic
from ustreamer.host.attack.target import SomeipPlace, Target, WampPlace
from ustreamer.host.demo.apps import DemoApp
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

SUBSCRIBE, UNSUBSCRIBE = 1, 2
_BYSTANDER_ENTITY: Final = 0xA77C
_BYSTANDER_MS: Final = 3_000
"""The patience of the bystander."""
_NS_PER_S: Final = 1_000_000_000
_FORGED: Final = b"forged"


class Scene:
    """The surroundings of all attacks on one streamer. `seconds` is the length of a window.

    Raises UStatusError(UNAVAILABLE) if the bystander finds no streamer.
    """

    forged: Final = _FORGED

    def __init__(self, target: Target, seconds: float) -> None:
        self.target = target
        self.seconds = seconds
        self.rng = random.Random(1)  # noqa: S311 - reproducible
        self.topic = probe_topic(target)
        self.subscriber = UUri(target.home.authority, PROBE_ENTITY, 1, 0)
        """The subscriber of the vehicle path."""
        self.ids = UuidSource(SYSTEM_CLOCK.wall_ms)
        self._closing = ExitStack()
        self._nodes: dict[str, ZenohNode] = {}
        # Threads have the priority of the one that starts them. An attack runs at the lowest one, the bystander must not:
        # so it is made here, with the threads of Zenoh in this process, and has a thread of its own.
        self._honest = ThreadPoolExecutor(1, "bystander")
        self._closing.callback(self._honest.shutdown)
        try:
            self.bystander = self._honest.submit(self._new_bystander).result()
            """An honest application next to the subscriber of the vehicle path."""
        except UStatusError:
            self.close()
            raise

    # --- time ---------------------------------------------------------------------------------------------------------

    def paced(self, per_s: float) -> Iterator[int]:
        """Count up, at most `per_s` times a second, until the window ends. Late ticks are made up for."""
        now_ns = SYSTEM_CLOCK.monotonic_ns
        began_ns, pause = now_ns(), Event()
        for number in range(max(1, round(per_s * self.seconds))):
            due_ns = began_ns + round(number / per_s * _NS_PER_S)
            while (left_ns := due_ns - now_ns()) > 0:
                pause.wait(max(left_ns / _NS_PER_S, 0.001))
            if now_ns() - began_ns > self.seconds * _NS_PER_S:
                return
            yield number

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` is true, for a window at most: the last effects of an attack may be late."""
        end_ns, pause = SYSTEM_CLOCK.monotonic_ns() + round(self.seconds * _NS_PER_S), Event()
        while not condition() and SYSTEM_CLOCK.monotonic_ns() < end_ns:
            pause.wait(0.01)

    def hold(self) -> None:
        """Wait for the rest of a window: the attack is what is open."""
        Event().wait(self.seconds)

    @contextmanager
    def whole_window(self) -> Iterator[None]:
        """Wait at the end until a window has passed since the beginning."""
        began_ns = SYSTEM_CLOCK.monotonic_ns()
        yield
        left_s = self.seconds - (SYSTEM_CLOCK.monotonic_ns() - began_ns) / _NS_PER_S
        Event().wait(max(0.0, left_s))

    # --- nodes --------------------------------------------------------------------------------------------------------

    @property
    def outsider(self) -> ZenohNode:
        """A node on a network apart from the vehicle's; on the vehicle's if there is no other."""
        place = self.target.outer or self.target.home
        if place.name not in self._nodes:
            self._nodes[place.name] = self.new_node()
        return self._nodes[place.name]

    def new_node(self) -> ZenohNode:
        """Another node at the place of the outsider."""
        place = self.target.outer or self.target.home
        node = ZenohNode(place.locator, place.authority)
        self._closing.callback(node.close)
        return node

    @property
    def someip(self) -> SomeipPlace:
        assert self.target.someip is not None  # by the needs of the attack
        return self.target.someip

    @property
    def wamp(self) -> WampPlace:
        assert self.target.wamp is not None  # by the needs of the attack
        return self.target.wamp

    # --- the bystander ------------------------------------------------------------------------------------------------

    def _new_bystander(self) -> DemoApp:
        home = self.target.home
        address = UUri(home.authority, _BYSTANDER_ENTITY, 1, 0)
        bystander = DemoApp("bystander", address, home.locator, self.target.usubscription_address)
        self._closing.callback(bystander.close)
        bystander.start()
        return bystander

    def service_denied(self) -> str:
        """The effect if the bystander cannot subscribe now; "" if it can."""
        return self._honest.submit(self._subscription_denied).result()

    def _subscription_denied(self) -> str:
        topic = self.topic.with_resource(0x8000 | self.rng.randrange(0x4000))
        try:
            self._call(SUBSCRIBE, pb.SubscriptionRequest(topic=topic.to_pb()).SerializeToString())
            self._call(UNSUBSCRIBE, pb.UnsubscribeRequest(topic=topic.to_pb()).SerializeToString())
        except UStatusError as error:
            return f"an honest application cannot subscribe: {error.code.name}, {error.message}"
        return ""

    def _call(self, method: int, payload: bytes) -> None:
        address = self.target.usubscription_address.with_resource(method)
        self.bystander.call(address, payload, UPayloadFormat.PROTOBUF, _BYSTANDER_MS)

    def close(self) -> None:
        self._closing.close()
