# SPDX-License-Identifier: Apache-2.0
"""The SOME/IP network of the simulation: its addresses, its services, and the streamer's endpoint there.

ECU A finds the streamer by service discovery, and is found by it. ECU B is in the configuration. Both have events over
UDP and TCP in both directions.
"""

import importlib
import pkgutil
from typing import Final, NamedTuple

from tests.simulation.someip.ecu import GROUP, SD_PORT, TCP_GROUP, UDP_GROUP, EcuConfig
from tests.simulation.someip.wire import TCP, UDP
from ustreamer.transports import someip
from ustreamer.transports.someip.config import (
    EventConfig,
    MethodConfig,
    ReceiverConfig,
    ServiceConfig,
    SomeipEndpoint,
)
from ustreamer.transports.someip.protocol.tcp_config import TcpConfig
from ustreamer.transports.someip.sd.config import SdConfig
from ustreamer.uprotocol.uuri import UUri

for _module in pkgutil.walk_packages(someip.__path__, f"{someip.__name__}."):
    importlib.import_module(_module.name)  # product modules are patched only if they are loaded

CHASSIS: Final = "chassis"
STREAMER_IP: Final = "10.0.0.1"
STREAMER_PORT: Final = 30_500
ECU_A: Final = EcuConfig("10.0.0.2", 30_501, 0x2001, 0x10A1, (STREAMER_IP, STREAMER_PORT))
ECU_B: Final = EcuConfig("10.0.0.3", 30_503, 0x2002, 0x10A2, (STREAMER_IP, STREAMER_PORT), sd=False)
ECUS: Final = (ECU_A, ECU_B)
UDP_EVENT, TCP_EVENT, UDP_METHOD, TCP_METHOD = 0x8001, 0x8002, 1, 2


class SomeipConfig(NamedTuple):
    """What a seed decides of the endpoint. Sizes in bytes, times in ms."""

    receive_buffer: int = 4_194_304
    send_buffer: int = 1_048_576
    ack_timeout_ms: int = 30_000


class SomeipFlow(NamedTuple):
    """A kind of traffic. `kind`: "out" are events for an ECU, "in" are events of an ECU; "call" are calls of a method of
    an ECU, "ecu call" are calls by an ECU.
    """

    name: str
    kind: str
    ecu: EcuConfig
    service: int
    id: int
    protocol: int = UDP

    @property
    def uuri(self) -> UUri:
        """The topic, or the method."""
        authority = "hpc" if self.kind in ("out", "ecu call") else CHASSIS
        return UUri(authority, self.service, 1, self.id)


FLOWS: Final = (
    SomeipFlow("out udp", "out", ECU_A, 0x10A1, UDP_EVENT),
    SomeipFlow("out tcp", "out", ECU_A, 0x10A1, TCP_EVENT, TCP),
    SomeipFlow("static udp", "out", ECU_B, 0x10A2, UDP_EVENT),
    SomeipFlow("static tcp", "out", ECU_B, 0x10A2, TCP_EVENT, TCP),
    SomeipFlow("in udp", "in", ECU_A, 0x2001, UDP_EVENT),
    SomeipFlow("in tcp", "in", ECU_A, 0x2001, TCP_EVENT, TCP),
    SomeipFlow("static in", "in", ECU_B, 0x2002, UDP_EVENT),
    SomeipFlow("call udp", "call", ECU_A, 0x2001, UDP_METHOD),
    SomeipFlow("call tcp", "call", ECU_A, 0x2001, TCP_METHOD, TCP),
    SomeipFlow("ecu call", "ecu call", ECU_A, 0x10A1, UDP_METHOD),
)
FLOW_NUMBERS: Final = {each.name: number for number, each in enumerate(FLOWS)}


def _events() -> tuple[EventConfig, ...]:
    return EventConfig(UDP_EVENT, UDP_GROUP), EventConfig(TCP_EVENT, TCP_GROUP, protocol="tcp")


def someip_endpoint(config: SomeipConfig) -> SomeipEndpoint:
    """The section of the streamer's endpoint."""
    methods = UDP_METHOD, MethodConfig(TCP_METHOD, protocol="tcp")
    remote_b = f"{ECU_B.ip}:{ECU_B.port}"
    services = (
        ServiceConfig(
            service=0x10A1,
            major=1,
            events=_events(),
            methods=methods,
            offered=True,
            provider="//hpc/10A1/1/0",
        ),
        ServiceConfig(
            service=0x10A2,
            major=1,
            events=_events(),
            offered=True,
            provider="//hpc/10A2/1/0",
            receivers=(ReceiverConfig(remote_b),),
        ),
        ServiceConfig(service=0x2001, major=1, events=_events(), methods=methods),
        ServiceConfig(service=0x2002, major=1, events=_events()[:1], remote=remote_b),
    )
    return SomeipEndpoint(
        transport="someip",
        authorities=(CHASSIS,),
        bind=STREAMER_IP,
        port=STREAMER_PORT,
        sd=SdConfig(GROUP, STREAMER_IP, SD_PORT),
        services=services,
        receive_buffer=config.receive_buffer,
        tcp=TcpConfig(send_buffer=config.send_buffer, ack_timeout_ms=config.ack_timeout_ms),
    )
