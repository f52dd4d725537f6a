# SPDX-License-Identifier: Apache-2.0
"""Two instances of one service are offered, each at a port of its own: found, called and subscribed separately."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.discovery.sd_vehicle import OFFERED, PROVIDER, SdVehicle, offered_service_toml
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ZenohEntity, eventually
from tests.e2e.rigs.ports import udp_ports
from tests.e2e.rigs.sd_ecu import SdEcu, SdNotification
from tests.e2e.rigs.wire import Uri

SECOND: Final = Uri("hpc.vin1", 0x8402, 1)
EVENTS: Final = ("events = [{ id = 0x8001, eventgroup = 1 }]", "methods = [0x0001]")


class TwoInstances(SdVehicle):
    """Instance 1 at the port of the endpoint, and instance 2 at another."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        [self.second_port] = udp_ports(1)
        super().__init__(
            stack,
            directory,
            offered_service_toml(OFFERED, *EVENTS),
            offered_service_toml(
                OFFERED, "instance = 2", f"port = {self.second_port}", *EVENTS, provider=SECOND
            ),
        )
        self.ends = {1: (PROVIDER, self.ports.data), 2: (SECOND, self.second_port)}
        self.providers = {
            instance: stack.enter_context(ZenohEntity(self.ports.zenoh, uri.authority, uri.ue_id))
            for instance, (uri, _) in self.ends.items()
        }


@pytest.fixture(scope="module")
def car(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoInstances]:
    with ExitStack() as stack:
        yield TwoInstances(stack, tmp_path_factory.mktemp("car"))


def ecu_of(car: TwoInstances, instance: int) -> SdEcu:
    """An ECU that has found this instance at its port."""
    ecu = car.new_ecu()
    ecu.find(OFFERED, instance=instance)
    offered = SdNotification("offered", OFFERED)
    ecu.notifications.wait_one(lambda seen: seen == offered)
    assert ecu.endpoints[offered] == ("127.0.0.1", car.ends[instance][1])
    return ecu


# [itest->RPC-648, RPC-1079]
def test_each_instance_is_called_at_its_port(car: TwoInstances) -> None:
    for instance, provider in car.providers.items():
        ecu = ecu_of(car, instance)
        payload = b"to %d" % instance
        call = wire.someip(OFFERED, 1, wire.SOMEIP_REQUEST, payload, client=7, session=instance)
        ecu.data_socket.send_to(call, ("127.0.0.1", car.ends[instance][1]))
        request = provider.inbox.wait_one(
            lambda sample: sample.attributes is not None and sample.payload == payload  # noqa: B023
        )
        assert request.head.sink == car.ends[instance][0].at(1)
        provider.respond(request, b"from %d" % instance)
        answer = ecu.data_socket.inbox.wait_one()
        assert (answer.head.session_id, answer.head.payload) == (instance, b"from %d" % instance)
        assert answer.sender == ("127.0.0.1", car.ends[instance][1])


# [itest->SD-850]
@pytest.mark.parametrize("instance", [1, 2])
def test_each_instance_sends_its_events_from_its_port(car: TwoInstances, instance: int) -> None:
    ecu = ecu_of(car, instance)
    ecu.subscribe(OFFERED, 1, instance=instance)

    def arrived() -> bool:
        for each, provider in car.providers.items():
            provider.publish(car.ends[each][0].at(0x8001), b"event of %d" % each)
        return len(ecu.data_socket.inbox.items()) > 1

    eventually(arrived, True)
    frames = ecu.data_socket.inbox.items()
    assert {frame.sender for frame in frames} == {("127.0.0.1", car.ends[instance][1])}
    assert {frame.head.payload for frame in frames} == {b"event of %d" % instance}
