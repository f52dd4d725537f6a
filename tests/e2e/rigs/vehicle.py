# SPDX-License-Identifier: Apache-2.0
"""The vehicle of these tests: two Zenoh networks and one SOME/IP network, with a streamer in the middle."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import SomeipNode, ecu_response, eventually
from tests.e2e.rigs.ports import tcp_ports, udp_ports
from tests.e2e.rigs.streamer import StreamerProcess, statistics
from tests.e2e.rigs.wire import Uri

SPEED: Final = 0x1234
"""The service with the events of the ECU; version 1, events 0x8001 to 0x8040."""
SECOND_SPEED: Final = 0x1235
"""Another service, instance 2 of its type."""
CLIMATE: Final = 0x3001
"""The service with the methods of the ECU."""
OFFERED: Final = 0x4001
"""The service that the streamer offers for the uEntity PROVIDER."""
PROVIDER: Final = Uri("hpc.vin1", 0x8401, 1)
OFFERED_FOR_CLOUD: Final = 0x4002
"""The service that the streamer offers for CLOUD_PROVIDER, which is behind the other Zenoh network."""
CLOUD_PROVIDER: Final = Uri("cloud", 0x8501, 1)
EVENTS: Final = range(0x8001, 0x8041)

_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1"]
mode = "peer"
listen = ["tcp/127.0.0.1:{ports.backbone}"]

[endpoints.cloud]
transport = "zenoh"
authorities = ["cloud"]
mode = "peer"
listen = ["tcp/127.0.0.1:{ports.cloud}"]

[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "127.0.0.1"
port = {ports.someip}
sd = false
request_ttl_ms = 4_000

[[endpoints.chassis.services]]
service = 0x1234
instance = 1
major = 1
events = [{events}]
remote = "127.0.0.1:{ports.ecu}"

[[endpoints.chassis.services]]
service = 0x1235
instance = 2
major = 1
events = [{{ id = 0x8001, eventgroup = 1 }}]
remote = "127.0.0.1:{ports.ecu}"

[[endpoints.chassis.services]]
service = 0x3001
instance = 1
major = 1
methods = [0x0001, 0x0002, 0x0003, 0x0004]
remote = "127.0.0.1:{ports.ecu}"

[[endpoints.chassis.services]]
service = 0x4001
instance = 1
major = 1
events = [{{ id = 0x8001, eventgroup = 1 }}, {{ id = 0x8002, eventgroup = 1 }}]
methods = [0x0001, 0x0002]
offered = true
provider = "//hpc.vin1/8401/1/0"
remote = "127.0.0.1:{ports.receiver}"

[[endpoints.chassis.services]]
service = 0x4002
instance = 1
major = 1
events = [{{ id = 0x8001, eventgroup = 1 }}]
offered = true
provider = "//cloud/8501/1/0"
remote = "127.0.0.1:{ports.receiver}"

[plugins.usubscription]
may_reset = ["//cloud/0/FF/0"]
[plugins.throttle]
"""


class VehiclePorts(NamedTuple):
    """Ports on loopback: two TCP ports, then three UDP ports."""

    backbone: int
    cloud: int
    someip: int
    ecu: int
    receiver: int


def free_ports() -> VehiclePorts:
    """Free ports, all different."""
    ports = VehiclePorts(*tcp_ports(2), *udp_ports(3))
    return ports if len(set(ports)) == len(ports) else free_ports()


def write_config(directory: Path, ports: VehiclePorts) -> Path:
    """Write a configuration for these ports, with its state next to it."""
    events = ", ".join(f"{{ id = {number:#06x}, eventgroup = 1 }}" for number in EVENTS)
    file = directory / "vehicle.toml"
    file.write_text(_CONFIG.format(ports=ports, events=events), encoding="utf-8")
    return file


class Vehicle:
    """A running streamer, the ECU, and a receiver of the events that the streamer offers."""

    def __init__(
        self, ports: VehiclePorts, process: StreamerProcess, ecu: SomeipNode, receiver: SomeipNode
    ) -> None:
        self.ports = ports
        self.process = process
        self.ecu = ecu
        self.receiver = receiver
        self._unused = iter(EVENTS)

    def unused_topic(self) -> Uri:
        """A topic of the ECU that no other test uses."""
        return Uri("chassis", SPEED, 1, next(self._unused))

    def send_event(self, topic: Uri, payload: bytes = b"", *, session: int = 1) -> None:
        """Let the ECU send an event, which is a publication on `topic`."""
        datagram = wire.event(topic.ue_id & 0xFFFF, topic.resource, payload, session=session)
        self.ecu.send_to_port(datagram, self.ports.someip)

    def wait_received(self, count: int) -> None:
        """Wait until this number of datagrams was read since the start: a stop loses datagrams in the kernel."""
        state = self.process.config.parent / "state"
        eventually(lambda: statistics(state)["endpoints"]["chassis"]["datagrams"] >= count, True)


@contextmanager
def running_vehicle(
    directory: Path, *arguments: str, launch: Callable[..., StreamerProcess] = StreamerProcess
) -> Iterator[Vehicle]:
    """Start everything; at the end the streamer must exit with 0 and a balanced ledger."""
    ports = free_ports()
    config = write_config(directory, ports)
    with (
        SomeipNode(ports.ecu, responder=ecu_response) as ecu,
        SomeipNode(ports.receiver) as receiver,
        launch(config, *arguments) as process,
    ):
        yield Vehicle(ports, process, ecu, receiver)
