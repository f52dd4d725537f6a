# SPDX-License-Identifier: Apache-2.0
"""A streamer between a Zenoh network and a SOME/IP network with service discovery, shared by several tests.

Each test passes the services of its configuration; the rest is common.
"""

import itertools
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple, Self

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import USUBSCRIPTION, ZenohEntity
from tests.e2e.rigs.ports import tcp_ports, udp_ports
from tests.e2e.rigs.sd_ecu import SD_GROUP, SdEcu
from tests.e2e.rigs.streamer import StreamerProcess
from tests.e2e.rigs.wire import Uri

SPEED, CLIMATE, OFFERED = 0x1234, 0x3001, 0x4001
PROVIDER: Final = Uri("hpc.vin1", 0x8401, 1)
SUBSCRIBE_PENDING: Final = 1
"""The state of a subscription."""

QUICK_SD_TIMINGS: Final[Mapping[str, int]] = {
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
{chassis}

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


class SdVehiclePorts(NamedTuple):
    """TCP ports, then UDP ports."""

    zenoh: int
    tcp: int
    data: int
    sd: int

    @classmethod
    def free(cls) -> Self:
        return cls(*tcp_ports(2), *udp_ports(2))


def service_toml(number: int, *lines: str) -> str:
    """The configuration of a remote service in version 1, or of an offered one; `lines` are further keys."""
    return "\n".join(["[[endpoints.chassis.services]]", f"service = {number}", "major = 1", *lines])


def offered_service_toml(number: int, *lines: str, provider: Uri = PROVIDER) -> str:
    """The configuration of a service that the streamer offers for an application."""
    provider_line = f'provider = "//{provider.authority}/{provider.ue_id:X}/{provider.version}/0"'
    return service_toml(number, *lines, "offered = true", provider_line)


def sd_vehicle_toml(
    ports: SdVehiclePorts,
    *services: str,
    host: str = "127.0.0.1",
    timings: Mapping[str, int] = QUICK_SD_TIMINGS,
    sd: str = "",
    chassis: str = "",
) -> str:
    """The configuration of the streamer at `host`; `sd` and `chassis` have further lines of these sections."""
    return _CONFIG.format(
        ports=ports,
        host=host,
        group=SD_GROUP,
        more=sd,
        chassis=chassis,
        timings="\n".join(f"{name} = {value}" for name, value in timings.items()),
        services="\n\n".join(services),
    )


def subscription_state(app: ZenohEntity, topic: Uri) -> int:
    """The subscription state of the application for a topic; the request also subscribes."""
    answer = app.call(USUBSCRIPTION.at(wire.SUBSCRIBE), wire.subscription_request(topic))
    assert answer.head.commstatus in {None, wire.OK}, answer.status
    return wire.SubscriptionResponse.decode(answer.payload).state


class SdVehicle:
    """A streamer, an application, and ECUs on separate hosts."""

    def __init__(self, stack: ExitStack, directory: Path, *services: str, sd: str = "") -> None:
        self._stack = stack
        self._hosts = itertools.count(10)
        self.ports = SdVehiclePorts.free()
        config = directory / "car.toml"
        config.write_text(sd_vehicle_toml(self.ports, *services, sd=sd), encoding="utf-8")
        self.process = stack.enter_context(StreamerProcess(config))
        self.app = self.new_app()

    def new_app(self) -> ZenohEntity:
        return self._stack.enter_context(ZenohEntity(self.ports.zenoh, "hpc.vin1"))

    def new_ecu(self) -> SdEcu:
        return self._stack.enter_context(SdEcu(f"127.0.0.{next(self._hosts)}", self.ports.sd))

    @property
    def address(self) -> tuple[str, int]:
        return ("127.0.0.1", self.ports.data)

    def subscription_state(self, topic: Uri) -> int:
        """The subscription state of the application for a topic."""
        return subscription_state(self.app, topic)
