# SPDX-License-Identifier: Apache-2.0
"""Whole streamers in the process of a test, between in-process networks, SOME/IP ECUs and Zenoh nodes on loopback."""

import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from ustreamer.core.routing.subscriptions import StaticDirectory, Subscription
from ustreamer.hooks import PluginContext, hookimpl
from ustreamer.host.config import config as configuration
from ustreamer.host.config.config import StreamerConfig
from ustreamer.host.demo.ecu import EcuMethods, SimulatedEcu
from ustreamer.host.runtime import plugins
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.host.runtime.streamer import Streamer
from ustreamer.testing.entity import Entity
from ustreamer.testing.ledger import assert_accounted
from ustreamer.testing.messages import ALPHA, BETA
from ustreamer.testing.waiting import wait_until
from ustreamer.transport_port import EndpointConfig, EndpointContext, EndpointTransport, TransportKind
from ustreamer.transports.local.transport import LocalNetwork, LocalTransport
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from ustreamer.transports.zenoh.transport import ZenohTransport

_FIRST_ENTITY = 0x10A0


class StreamerBench:
    """Builds streamers and what is around them; `finish`, or the end of a `with` block, stops all and checks ledgers.

    Files are below `directory`. Other installed plugins and transports can be used in a configuration, too.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._networks: dict[str, LocalNetwork] = {}
        self.streamers: list[Streamer] = []
        self._entities = 0
        self._around = ExitStack()
        self._threads_before = threading.active_count()

    # --- streamers ----------------------------------------------------------------------------------------------------

    def make_streamer(
        self,
        toml: str,
        plugin_classes: Mapping[str, type[Any]] | None = None,
        kinds: Mapping[str, TransportKind] | None = None,
    ) -> Streamer:
        """An unstarted streamer with this configuration. Raises ConfigError and PluginError as `ustreamer check`.

        `plugin_classes` and `kinds` are more plugins and transports, which need no entry point.
        """
        classes, every_kind = _with_installed(plugin_classes, kinds)
        config = self.load(toml, plugin_classes, kinds)
        streamer = Streamer(config, every_kind, {name: classes[name] for name in config.plugins})
        self.streamers.append(streamer)
        return streamer

    def start_streamer(
        self,
        toml: str,
        plugin_classes: Mapping[str, type[Any]] | None = None,
        kinds: Mapping[str, TransportKind] | None = None,
    ) -> Streamer:
        """A running streamer; arguments as `make_streamer`. Raises UStatusError if an endpoint cannot be opened."""
        streamer = self.make_streamer(toml, plugin_classes, kinds)
        streamer.start()
        return streamer

    def load(
        self,
        toml: str,
        plugin_classes: Mapping[str, type[Any]] | None = None,
        kinds: Mapping[str, TransportKind] | None = None,
    ) -> StreamerConfig:
        """The checked configuration; arguments as `make_streamer`. Raises ConfigError."""
        classes, every_kind = _with_installed(plugin_classes, kinds)
        path = self._directory / "ustreamer.toml"
        path.write_text(toml, encoding="utf-8")
        return configuration.load(path, every_kind, {name: cls.Config for name, cls in classes.items()})

    # --- what is around them ------------------------------------------------------------------------------------------

    def network(self, name: str) -> LocalNetwork:
        """An in-process network of this bench; `network(name).name` is its name in a configuration."""
        return self._networks.setdefault(name, LocalNetwork.named(f"{self._directory.name}/{name}"))

    def next_address(self, authority: str) -> UUri:
        """An address that no other uEntity of this bench has."""
        self._entities += 1
        return UUri(authority, _FIRST_ENTITY + self._entities, 1, 0)

    def attach(self, network: str, authority: str) -> LocalTransport:
        """An open attachment to the in-process network of this name."""
        transport = LocalTransport(self.network(network), authority)
        transport.open()
        self._around.callback(transport.close)
        return transport

    def entity(self, network: str, authority: str, *, usubscription: str = "") -> Entity:
        """A uEntity on the in-process network of this name."""
        return Entity(self.attach(network, authority), self.next_address(authority), usubscription)

    def zenoh_entity(self, locator: str, authority: str, *, usubscription: str = "") -> Entity:
        """A uEntity with a Zenoh session of its own, connected to `locator`. Needs `ustreamer[zenoh]`."""
        transport = _zenoh_client(locator, authority)
        self._around.callback(transport.close)
        transport.open()
        wait_until(lambda: transport.statistics()["links"], f"a Zenoh node at {locator}")
        return Entity(transport, self.next_address(authority), usubscription)

    def someip_ecu(
        self, streamer_port: int, methods: EcuMethods | None = None, port: int = 0
    ) -> SimulatedEcu:
        """A started ECU on 127.0.0.1 that sends its events to `streamer_port` and answers `methods`."""
        ecu = SimulatedEcu(("127.0.0.1", streamer_port), ("127.0.0.1", port), methods)
        return self._around.enter_context(ecu)

    # --- the end ------------------------------------------------------------------------------------------------------

    def finish(self, drain_s: float = 5.0) -> None:
        """Stop everything, check that each streamer has accounted for every message, and that no thread is left."""
        for streamer in self.streamers:
            streamer.stop(drain_s)
        self._around.close()
        for streamer in self.streamers:
            assert_accounted(streamer.ledger())
        wait_until(
            lambda: threading.active_count() <= self._threads_before, f"the end of {threading.enumerate()}"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        else:
            for streamer in self.streamers:
                streamer.stop(0)
            self._around.close()


def _with_installed(
    plugin_classes: Mapping[str, type[Any]] | None, kinds: Mapping[str, TransportKind] | None
) -> tuple[dict[str, type[Any]], dict[str, TransportKind]]:
    """The installed plugins and these, and the kinds of transport of all. These replace installed ones."""
    classes = {name: plugins.plugin_class(entry) for name, entry in plugins.installed_plugins().items()}
    own = plugin_classes or {}
    classes = {name: cls for name, cls in classes.items() if cls not in own.values()} | dict(own)
    return classes, plugins.transport_kinds(plugins.class_plugin_manager(classes)) | dict(kinds or {})


def _zenoh_client(locator: str, authority: str) -> "ZenohTransport":
    from ustreamer.transports.zenoh.config import ZenohEndpoint
    from ustreamer.transports.zenoh.transport import ZenohTransport

    config = ZenohEndpoint(transport="zenoh", authorities=(authority,), mode="client", connect=(locator,))
    return ZenohTransport(config, EndpointContext(authority, authority, SYSTEM_CLOCK))


class _Subscribed:
    """A plugin with configured subscriptions, so that no uSubscription is needed."""

    class Config(msgspec.Struct, frozen=True):
        topics: tuple[str, ...]
        subscriber: str

    def __init__(self, config: Config, context: PluginContext) -> None:
        subscriber = UUri.parse(config.subscriber)
        found = [Subscription(UUri.parse(topic), subscriber) for topic in config.topics]
        self._directory = StaticDirectory(found)

    @hookimpl
    def ustreamer_subscription_directory(self) -> StaticDirectory:
        return self._directory


def streamer_with(
    bench: StreamerBench, endpoint: EndpointTransport, topics: Sequence[UUri]
) -> tuple[str, Mapping[str, type[Any]], Mapping[str, TransportKind]]:
    """Arguments of `make_streamer`: `endpoint` for ALPHA, the in-process network `inside` for BETA, its own authority.

    Each topic has a subscriber at the other side.
    """
    inside, outside = UUri(BETA, _FIRST_ENTITY, 1, 0), UUri(ALPHA, _FIRST_ENTITY, 1, 0)
    sections = [
        f'authority = "{BETA}"\nstate_dir = "state"',
        f'[endpoints.network]\ntransport = "under-test"\nauthorities = ["{ALPHA}"]',
        f'[endpoints.inside]\ntransport = "local"\nauthorities = ["{BETA}"]',
        f'network = "{bench.network("inside").name}"',
    ]
    plugin_classes = {}
    for name, subscriber in (("inside_subscriber", inside), ("outside_subscriber", outside)):
        # One class per section: the host makes one plugin of each.
        plugin_classes[name] = type(name, (_Subscribed,), {})
        names = ", ".join(
            f'"{topic}"' for topic in topics if topic.authority_name != subscriber.authority_name
        )
        sections.append(f'[plugins.{name}]\ntopics = [{names}]\nsubscriber = "{subscriber}"')
    kind = TransportKind(EndpointConfig, lambda config, context: endpoint)
    return "\n".join(sections), plugin_classes, {"under-test": kind}


def endpoint_context(authority: str) -> EndpointContext:
    """What the host gives an endpoint at a network of which `authority` is the streamer's own."""
    return EndpointContext("link", authority, SYSTEM_CLOCK)


def free_ports(protocol: str, count: int) -> list[int]:
    """`count` different ports of 127.0.0.1 that are free now; `protocol` is "tcp" or "udp"."""
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    with ExitStack() as held:  # all at once: no two are equal
        sockets = [held.enter_context(socket.socket(socket.AF_INET, kind)) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
