# SPDX-License-Identifier: Apache-2.0
"""Three streamers in a row, where only the application behind the last one subscribes.

    publisher -> a1 -> a2 -> a3 -> application

With `via`, a3 subscribes at a2, and a2 at a1. Without it, a3 subscribes at a1, and a2 drops the publications.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.e2e.multi_streamer.zenoh_networks import ZenohNetworks
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import eventually
from tests.e2e.rigs.subscriber import Subscriber
from tests.e2e.rigs.wire import Uri
from tests.waiting import wait_until

_ENDPOINTS: Final = {
    "a1.vin1": {"first": ["a1.vin1"], "second": ["a2.vin1", "a3.vin1", "b.vin1"]},
    "a2.vin1": {"second": ["a1.vin1"], "third": ["a3.vin1", "b.vin1"]},
    "a3.vin1": {"third": ["a1.vin1", "a2.vin1"], "fourth": ["b.vin1"]},
}
USUBSCRIPTION: Final = Uri("a3.vin1", 0, 3)


class Chain:
    def __init__(self, directory: Path, stack: ExitStack, via: str = "") -> None:
        nets = ZenohNetworks(directory, stack, "first", "second", "third", "fourth")
        self.gateways = {
            authority: nets.launch_streamer(
                authority, each, usubscription_toml=via if authority == "a3.vin1" else ""
            )
            for authority, each in _ENDPOINTS.items()
        }
        for gateway in self.gateways.values():
            gateway.wait_ready()
        self.first_port = nets.ports["first"]
        self.publisher = nets.connect_entity("first", "a1.vin1")
        self.reader = stack.enter_context(Subscriber(nets.ports["fourth"], "b.vin1"))
        self.reader.usubscription = USUBSCRIPTION
        self.topic = self.publisher.address.at(0x8001)

    def no_subscriber(self, authority: str) -> int:
        return self.gateways[authority].ledger_and_counters()[0]["no_subscriber"]

    def arrives(self) -> bool:
        self.publisher.publish(self.topic)
        return bool(self.reader.events(self.topic))

    def wait_dropped(self, authority: str) -> None:
        """Publish until the streamer has no subscriber for a publication."""
        dropped = self.no_subscriber(authority)

        def is_dropped() -> bool:
            self.publisher.publish(self.topic)
            return self.no_subscriber(authority) > dropped

        wait_until(is_dropped)


def test_via_relays_a_subscription_along_a_chain_and_its_end(tmp_path: Path) -> None:
    with ExitStack() as stack:
        chain = Chain(tmp_path, stack, 'via = { "a1.vin1" = "a2.vin1" }')
        chain.reader.subscribe_and_wait(chain.topic)
        eventually(chain.arrives, True)
        chain.reader.unsubscribe(chain.topic)
        listed = wire.topic_request(chain.topic)
        probe = stack.enter_context(Subscriber(chain.first_port, "a1.vin1"))
        eventually(lambda: probe.call(Uri("a1.vin1", 0, 3).at(wire.FETCH_SUBSCRIPTIONS), listed).payload, b"")
        chain.wait_dropped("a1.vin1")


def test_without_via_the_streamer_in_the_middle_has_no_subscriber(tmp_path: Path) -> None:
    with ExitStack() as stack:
        chain = Chain(tmp_path, stack)
        chain.reader.subscribe_and_wait(chain.topic)
        chain.wait_dropped("a2.vin1")
        assert not chain.reader.events(chain.topic)
