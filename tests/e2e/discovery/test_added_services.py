# SPDX-License-Identifier: Apache-2.0
"""A reload adds services to a SOME/IP network. Other services do not notice it."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.discovery.sd_vehicle import (
    CLIMATE,
    OFFERED,
    PROVIDER,
    SPEED,
    SdVehicle,
    offered_service_toml,
    sd_vehicle_toml,
    service_toml,
    subscription_state,
)
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ECHO, SomeipNode, ZenohEntity, ecu_response, eventually
from tests.e2e.rigs.sd_ecu import SdNotification
from tests.e2e.rigs.vehicle import Vehicle
from tests.e2e.rigs.wire import Uri

BEFORE: Final = service_toml(SPEED, "events = [{ id = 0x8001, eventgroup = 1 }]")
ADDED: Final = (
    service_toml(CLIMATE, "events = [{ id = 0x8001, eventgroup = 1, field = true }]", "methods = [0x0001]"),
    offered_service_toml(OFFERED, "events = [{ id = 0x8001, eventgroup = 1, field = true }]"),
)
FAST, WARM = Uri("chassis", SPEED, 1, 0x8001), Uri("chassis", CLIMATE, 1, 0x8001)


@pytest.fixture
def car(tmp_path: Path) -> Iterator[SdVehicle]:
    with ExitStack() as stack:
        yield SdVehicle(stack, tmp_path, BEFORE)


def reload(car: SdVehicle, *services: str, outcome: str = "streamer.reloaded") -> str:
    """Change the services; the log line with this outcome."""
    car.process.config.write_text(sd_vehicle_toml(car.ports, *services), encoding="utf-8")
    car.process.send_sighup()
    return car.process.stderr.wait_one(lambda line: f'"{outcome}"' in line)


def test_a_reload_adds_services_without_an_effect_on_others(car: SdVehicle) -> None:
    old = car.new_ecu()
    old.offer(SPEED, 1)
    eventually(lambda: car.subscription_state(FAST), wire.SUBSCRIBED)
    old.send_event(SPEED, 0x8001, b"before", car.address)
    car.app.wait_events(FAST)

    reload(car, BEFORE, *ADDED)

    new = car.new_ecu()
    new.offer(CLIMATE, 1)
    eventually(lambda: car.subscription_state(WARM), wire.SUBSCRIBED)
    new.send_event(CLIMATE, 0x8001, b"22", car.address)
    assert car.app.wait_events(WARM)[0].payload == b"22"
    late = car.new_app()
    assert subscription_state(late, WARM) == wire.SUBSCRIBED
    assert late.wait_events(WARM)[0].payload == b"22"
    assert car.app.call(Uri("chassis", CLIMATE, 1, ECHO), b"?").payload == b"?"

    with ZenohEntity(car.ports.zenoh, PROVIDER.authority, PROVIDER.ue_id) as provider:
        client = car.new_ecu()
        client.find(OFFERED)
        client.notifications.wait_one(lambda seen: seen == SdNotification("offered", OFFERED))

        def arrived() -> bool:
            provider.publish(PROVIDER.at(0x8001), b"on")
            return bool(client.data_socket.inbox.items(lambda frame: frame.head.payload == b"on"))

        client.subscribe(OFFERED, 1)
        eventually(arrived, True)

    old.send_event(SPEED, 0x8001, b"after", car.address)
    assert [each.payload for each in car.app.wait_events(FAST, 2)] == [b"before", b"after"]
    assert old.notifications.items() == [SdNotification("subscribed", SPEED, 1)]

    refused = reload(car, *ADDED, outcome="control.reload_refused")
    assert (
        f"endpoints.chassis.services: the removal of services[0] ({SPEED:#06x}) (further services go behind"
        in refused
    )


NEW_PROVIDER: Final = Uri("hpc.vin1", 0x8601, 1)
STATIC: Final = """
[[endpoints.chassis.services]]
service = 0x2001
major = 1
events = [{{ id = 0x8001, eventgroup = 1 }}]
methods = [{method:#06x}]
remote = "127.0.0.1:{ecu}"

[[endpoints.chassis.services]]
service = 0x2002
major = 1
events = [{{ id = 0x8001, eventgroup = 1 }}]
offered = true
provider = "//hpc.vin1/8601/1/0"
remote = "127.0.0.1:{receiver}"

[plugins.usubscription]
"""


def test_a_reload_adds_services_without_service_discovery(own_vehicle: Vehicle) -> None:
    car, old, new = own_vehicle, own_vehicle.unused_topic(), Uri("chassis", 0x2001, 1, 0x8001)
    with (
        ZenohEntity(car.ports.backbone, "hpc.vin1", 0x1001) as app,
        ZenohEntity(car.ports.backbone, NEW_PROVIDER.authority, NEW_PROVIDER.ue_id) as provider,
        SomeipNode(responder=ecu_response) as ecu,
        SomeipNode() as receiver,
    ):
        app.subscribe(old)
        app.subscribe(new)
        car.send_event(old, b"before")
        app.wait_events(old)

        text = car.process.config.read_text(encoding="utf-8")
        added = STATIC.format(method=ECHO, ecu=ecu.address[1], receiver=receiver.address[1])
        car.process.config.write_text(text.replace("[plugins.usubscription]", added, 1), encoding="utf-8")
        car.process.send_sighup()
        car.process.stderr.wait_one(lambda line: '"streamer.reloaded"' in line)

        def arrived() -> bool:
            ecu.send_to_port(wire.event(0x2001, 0x8001, b"hello", session=1), car.ports.someip)
            return bool(app.events(new))

        eventually(arrived, True)  # the first ones may come before the receiving thread knows the service
        assert app.call(new._replace(resource=ECHO), b"?").payload == b"?"
        provider.publish(NEW_PROVIDER.at(0x8001), b"on")
        assert receiver.inbox.wait_one().head.payload == b"on"
        car.send_event(old, b"after", session=2)
        assert [each.payload for each in app.wait_events(old, 2)] == [b"before", b"after"]
