# SPDX-License-Identifier: Apache-2.0
"""The contract of a kind of transport holds for the built-in ones, given as those of a plugin."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import msgspec

from tests.e2e.rigs.ports import tcp_ports, udp_ports
from ustreamer.hooks import PluginContext, hookimpl
from ustreamer.testing.endpoint_contract import EndpointContract
from ustreamer.transport_port import TransportKind
from ustreamer.transports import BuiltinTransports


class NoConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True): ...


class RenamedTransports:
    """The built-in transports under other names."""

    Config = NoConfig

    def __init__(self, config: NoConfig, context: PluginContext) -> None: ...

    @staticmethod
    @hookimpl
    def ustreamer_transports() -> Mapping[str, TransportKind]:
        return {f"my-{name}": kind for name, kind in BuiltinTransports().ustreamer_transports().items()}


class TestLocal(EndpointContract):
    plugin = RenamedTransports
    kind = "my-local"
    wrong_sections: ClassVar[Mapping[str, Mapping[str, Any]]] = {"network": {"network": ""}}

    @contextmanager
    def make_section(self) -> Iterator[Mapping[str, Any]]:
        yield {"network": "endpoint-contract"}


class TestZenoh(EndpointContract):
    plugin = RenamedTransports
    kind = "my-zenoh"
    wrong_sections: ClassVar[Mapping[str, Mapping[str, Any]]] = {"mode": {"mode": "boss"}}

    @contextmanager
    def make_section(self) -> Iterator[Mapping[str, Any]]:
        [port] = tcp_ports(1)
        yield {"listen": [f"tcp/127.0.0.1:{port}"]}

    @contextmanager
    def make_unavailable_section(self) -> Iterator[tuple[Mapping[str, Any], str]]:
        with socket.create_server(("127.0.0.1", 0)) as busy:
            locator = f"tcp/127.0.0.1:{busy.getsockname()[1]}"
            yield {"listen": [locator]}, locator


class TestSomeip(EndpointContract):
    plugin = RenamedTransports
    kind = "my-someip"
    wrong_sections: ClassVar[Mapping[str, Mapping[str, Any]]] = {"port": {"port": 70_000}}

    @contextmanager
    def make_section(self) -> Iterator[Mapping[str, Any]]:
        [port] = udp_ports(1)
        yield {"bind": "127.0.0.1", "port": port, "sd": False}

    @contextmanager
    def make_unavailable_section(self) -> Iterator[tuple[Mapping[str, Any], str]]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as busy:
            busy.bind(("127.0.0.1", 0))
            port = busy.getsockname()[1]
            yield {"bind": "127.0.0.1", "port": port, "sd": False}, str(port)
