# SPDX-License-Identifier: Apache-2.0
"""A streamer between a Zenoh network and a SOME/IP network with service discovery, as several tests have it.

Each says which services its configuration has; the rest of it is the same, and here.
"""

import itertools
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple, Self

from tests.e2e import wire
from tests.e2e.ecu import GROUP, Ecu
from tests.e2e.peers import USUBSCRIPTION, ZenohPeer
from tests.e2e.ports import tcp_ports, udp_ports
from tests.e2e.streamer import StreamerProcess
from tests.e2e.wire import Uri

SPEED, CLIMATE, OFFERED = 0x1234, 0x3001, 0x4001
PROVIDER: Final = Uri("hpc.vin1", 0x8401, 1)
PENDING: Final = 1
"""The state of a subscription."""

QUICK: Final[Mapping[str, int]] = {
    "initial_delay_min_ms": 1,
    "initial_delay_max_ms": 10,
    "repetitions_base_delay_ms": 20,
    "cyclic_offer_delay_ms": 200,
    "ttl_offer_s": 1,
    "ttl_subscribe_s": 1,
    "request_response_delay_min_ms": 1,
    "request_response_delay_max_ms": 5,
}

_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1", "cloud"]
listen = ["tcp/127.0.0.1:{ports.zenoh}"]

[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "{host}"
port = {ports.data}
port_tcp = {ports.tcp}

[endpoints.chassis.sd]
multicast = "{group}"
port = {ports.sd}
interface = "{host}"
{more}

[endpoints.chassis.sd.timings]
{timings}

{services}

[plugins.usubscription]
"""


class CarPorts(NamedTuple):
    """TCP ports, then UDP ports."""

    zenoh: int
    tcp: int
    data: int
    sd: int

    @classmethod
    def free(cls) -> Self:
        return cls(*tcp_ports(2), *udp_ports(2))


def service(number: int, *lines: str) -> str:
    """A service of the network in version 1, or one of ours; `lines` say the rest of it."""
    return "\n".join(["[[endpoints.chassis.services]]", f"service = {number}", "major = 1", *lines])


def offered(number: int, *lines: str, provider: Uri = PROVIDER) -> str:
    """A service that the streamer offers for an application."""
    behind = f'provider = "//{provider.authority}/{provider.ue_id:X}/{provider.version}/0"'
    return service(number, *lines, "offered = true", behind)


def configuration(
    ports: CarPorts,
    *services: str,
    host: str = "127.0.0.1",
    timings: Mapping[str, int] = QUICK,
    sd: str = "",
) -> str:
    """The streamer's, at `host`; `sd` are more lines of that section."""
    return _CONFIG.format(
        ports=ports,
        host=host,
        group=GROUP,
        more=sd,
        timings="\n".join(f"{name} = {value}" for name, value in timings.items()),
        services="\n\n".join(services),
    )


def state_of(app: ZenohPeer, topic: Uri) -> int:
    """What the application is to a topic, as our uSubscription says; it subscribes by asking."""
    answer = app.call(USUBSCRIPTION.at(wire.SUBSCRIBE), wire.subscription_request(topic))
    assert answer.head.commstatus in {None, wire.OK}, answer.status
    return wire.Subscribed.decode(answer.payload).state


class Car:
    """A streamer, an application, and ECUs as they come, each on a host of its own."""

    def __init__(self, stack: ExitStack, directory: Path, *services: str, sd: str = "") -> None:
        self._stack = stack
        self._hosts = itertools.count(10)
        self.ports = CarPorts.free()
        config = directory / "car.toml"
        config.write_text(configuration(self.ports, *services, sd=sd), encoding="utf-8")
        self.process = stack.enter_context(StreamerProcess(config))
        self.app = self.another_app()

    def another_app(self) -> ZenohPeer:
        return self._stack.enter_context(ZenohPeer(self.ports.zenoh, "hpc.vin1"))

    def ecu(self) -> Ecu:
        return self._stack.enter_context(Ecu(f"127.0.0.{next(self._hosts)}", self.ports.sd))

    @property
    def address(self) -> tuple[str, int]:
        return ("127.0.0.1", self.ports.data)

    def state_of(self, topic: Uri) -> int:
        """What the application is to a topic."""
        return state_of(self.app, topic)
