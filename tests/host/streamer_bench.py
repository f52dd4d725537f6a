# SPDX-License-Identifier: Apache-2.0
"""The rig of runtime tests: whole streamers between in-process networks, with the real plugins.

`Bench` builds streamers and applications; `FakeTransport` is a link with scripted failures. `finish` checks the
ledger law at the end of every test.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from tests.host.waiting import DEADLINE_S, eventually
from ustreamer.core.delivery.ports import SendOne
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.routing.subscriptions import Subscription
from ustreamer.hooks import HostedService, PluginContext, StreamerSettings, hookimpl
from ustreamer.host.config import config as configuration
from ustreamer.host.runtime import plugins
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.host.runtime.streamer import Streamer
from ustreamer.transport_port import (
    EndpointConfig,
    EndpointContext,
    EndpointTransport,
    TransportKind,
    Unconfirmed,
)
from ustreamer.transports.local.transport import LocalNetwork, LocalTransport
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.rpc import RpcClient
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import (
    UMessage,
    publish,
)
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.utransport import Listener, UTransport
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import ANY, UUri

OWN = "hpc"
TOPIC = UUri(OWN, 0x1234, 1, 0x8001)
METHOD = UUri(OWN, 0x3001, 1, 1)
DEAD_LETTERS = UUri(OWN, 4, 1, 0x8000)
USUBSCRIPTION = UUri(OWN, 0, 3, 0)
SUBSCRIBE, UNSUBSCRIBE = 1, 2

_ids, _ids_lock = UuidSource(SYSTEM_CLOCK.wall_ms), threading.Lock()


def new_id() -> UUID:
    with _ids_lock:
        return _ids.next()


# --- fake transports -------------------------------------------------------------------------------------------------


NOTES: list[str] = []
"""The calls of the transports and plugins of this file, in order."""


@pytest.fixture(autouse=True)
def no_notes() -> None:
    NOTES.clear()


class FakeEndpoint(EndpointConfig, frozen=True, kw_only=True):
    """`fails_to_open` with UNAVAILABLE; `receivers` are configured subscribers of TOPIC."""

    fails_to_open: bool = False
    receivers: tuple[str, ...] = ()


class FakeTransport(EndpointTransport):
    """A link that fails with `fault` while it is set, and blocks sends while its gate is closed."""

    def __init__(self, config: FakeEndpoint, context: EndpointContext) -> None:
        self.config, self.name = config, context.name
        self.fault: UCode | None = None
        self.attempts = 0
        self.sent: list[tuple[UUri | None, UMessage]] = []
        self.unconfirmed = Unconfirmed()
        self.gate = threading.Event()
        self.gate.set()
        self.listeners: list[tuple[UUri, UUri | None, Listener]] = []
        self.is_open = False
        self.link_watchers: list[Callable[[bool], None]] = []

    def receive_message(self, message: UMessage) -> None:
        """Receive a message; each listener is called once."""
        for listener in {listener for _, _, listener in self.listeners}:
            listener(message)

    def _transmit(self, subscriber: UUri | None, message: UMessage) -> None:
        self.attempts += 1
        assert self.gate.wait(DEADLINE_S)
        if self.fault is not None:
            raise UStatusError(self.fault, f"no way to {self.name}")
        self.sent.append((subscriber, message))

    def send(self, message: UMessage) -> None:
        self._transmit(None, message)

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        return lambda message: self._transmit(subscriber, message)

    def watch_link(self, changed: Callable[[bool], None]) -> None:
        assert not self.is_open
        self.link_watchers.append(changed)

    def set_link(self, *, up: bool) -> None:
        [changed] = self.link_watchers
        changed(up)

    def subscriptions(self) -> Sequence[Subscription]:
        return [Subscription(TOPIC, UUri.parse(receiver)) for receiver in self.config.receivers]

    def register_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        self.listeners.append((source_filter, sink_filter, listener))

    def unregister_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        self.listeners.remove((source_filter, sink_filter, listener))

    def open(self) -> None:
        if self.config.fails_to_open:
            raise UStatusError(UCode.UNAVAILABLE, f"endpoint {self.name!r}: port 30500 is in use")
        self.is_open = True
        NOTES.append(f"open {self.name}")

    def stop_receiving(self) -> None:
        NOTES.append(f"stop_receiving {self.name}")

    def finish(self) -> Unconfirmed:
        NOTES.append(f"finish {self.name}")
        found, self.unconfirmed = self.unconfirmed, Unconfirmed()
        return found

    def close(self) -> None:
        self.is_open = False
        NOTES.append(f"close {self.name}")

    def statistics(self) -> Mapping[str, int]:
        return {"sent": len(self.sent), "refused_length": 3}


class FakeUnicastTransport(FakeTransport):
    unicast: ClassVar[bool] = True


class NoConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True): ...


class FakeTransportsPlugin:
    """The plugin that provides the fake transports."""

    Config = NoConfig

    def __init__(self, config: NoConfig, context: PluginContext) -> None: ...

    @staticmethod
    @hookimpl
    def ustreamer_transports() -> Mapping[str, TransportKind]:
        return {
            "fake": TransportKind(FakeEndpoint, FakeTransport, has_usubscription=False),
            "sessions": TransportKind(FakeEndpoint, FakeUnicastTransport),
        }


# ------------------------------------------------------------------------------------------------------------ the bench


class BenchApp:
    """A uEntity on an in-process network."""

    def __init__(self, network: LocalNetwork, authority: str, entity: int) -> None:
        self.address = UUri(authority, entity, 1, 0)
        self.transport = LocalTransport(network, authority)
        self.transport.open()
        self.rpc = RpcClient(self.transport, self.address, UuidSource(SYSTEM_CLOCK.wall_ms))
        self.received: list[UMessage] = []

    def listen(self, source: UUri = TOPIC, sink: UUri | None = None) -> None:
        self.transport.register_listener(source, sink, self.received.append)

    def publish(self, payload: bytes = b"", topic: UUri = TOPIC, ttl: int | None = None) -> None:
        self.transport.send(publish(new_id(), topic, payload, ttl=ttl))

    def call_usubscription(self, method: int, sent_request: Any) -> UMessage:
        return self.rpc.call(
            USUBSCRIPTION.with_resource(method), sent_request.SerializeToString(), UPayloadFormat.PROTOBUF
        )

    def subscribe(self, topic: UUri = TOPIC, *, period_ms: int | None = None) -> None:
        self.listen(topic)
        attributes = pb.SubscribeAttributes(sample_period_ms=period_ms)
        answer = self.call_usubscription(
            SUBSCRIBE, pb.SubscriptionRequest(topic=topic.to_pb(), attributes=attributes)
        )
        status = pb.SubscriptionResponse.FromString(answer.payload).status
        assert status.state == pb.SubscriptionStatus.SUBSCRIBED

    def unsubscribe(self, topic: UUri = TOPIC) -> None:
        self.call_usubscription(UNSUBSCRIBE, pb.UnsubscribeRequest(topic=topic.to_pb()))

    def serve(self, method: UUri, answer: Callable[[UMessage], UMessage]) -> None:
        self.transport.register_listener(
            ANY, method, lambda sent_request: self.transport.send(answer(sent_request))
        )

    def wait_received(self, n: int) -> list[bytes]:
        eventually(lambda: len(self.received) >= n, f"{n} messages at {self.address}, got {self.received}")
        return [message.payload for message in self.received]


class Bench:
    """Builds streamers and applications."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._networks: dict[str, LocalNetwork] = {}
        self._streamers: list[Streamer] = []
        self._apps = 0

    def network(self, name: str) -> LocalNetwork:
        return self._networks.setdefault(name, LocalNetwork.named(f"{self._directory.name}/{name}"))

    def app(self, network: str, authority: str = OWN) -> BenchApp:
        self._apps += 1
        return BenchApp(self.network(network), authority, 0x10A0 + self._apps)

    def local(self, name: str, *authorities: str) -> str:
        """The section of an endpoint on an in-process network of the same name."""
        keys = {"transport": "local", "network": self.network(name).name}
        return section(name, **keys, authorities=authorities)

    def streamer(
        self, *sections: str, extra: Mapping[str, type[Any]] | None = None, state: str | None = None
    ) -> Streamer:
        """An unstarted streamer with the transports of this file; `extra` are more plugins.

        Streamers with the same `state` share a state directory.
        """
        classes = {name: plugins.plugin_class(entry) for name, entry in plugins.installed_plugins().items()}
        classes |= {"fakes": FakeTransportsPlugin, **(extra or {})}
        kinds = plugins.transport_kinds(plugins.class_plugin_manager(classes))
        head = f'authority = "{OWN}"\nstate_dir = "{state or f"state{len(self._streamers)}"}"\n'
        path = self._directory / "ustreamer.toml"
        path.write_text("\n".join([head, *sections, *(f"[plugins.{name}]" for name in extra or ())]))
        config = configuration.load(path, kinds, {name: cls.Config for name, cls in classes.items()})
        self._streamers.append(Streamer(config, kinds, {name: classes[name] for name in config.plugins}))
        return self._streamers[-1]

    def started(self, *sections: str, extra: Mapping[str, type[Any]] | None = None) -> Streamer:
        streamer = self.streamer(*sections, extra=extra)
        streamer.start()
        return streamer

    def finish(self) -> None:
        """Stop all streamers, and check their ledgers."""
        for streamer in self._streamers:
            for transport in streamer.transports.values():
                if isinstance(transport, FakeTransport):
                    transport.gate.set()
            streamer.stop(0)
            ledger = streamer.ledger()
            assert ledger.unaccounted == 0, ledger


def section(endpoint: str, **keys: object) -> str:
    """`[endpoints.<endpoint>]` as TOML: numbers, strings and arrays are written as in JSON."""
    return "\n".join([f"[endpoints.{endpoint}]", *(f"{key} = {json.dumps(v)}" for key, v in keys.items())])


def fake(name: str, *authorities: str, transport: str = "fake", **keys: object) -> str:
    return section(name, transport=transport, authorities=authorities, **keys)


def link(streamer: Streamer, name: str) -> FakeTransport:
    transport = streamer.transports[name]
    assert isinstance(transport, FakeTransport)
    return transport


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    before = threading.active_count()
    bench = Bench(tmp_path)
    yield bench
    bench.finish()
    eventually(lambda: threading.active_count() <= before, f"the end of {threading.enumerate()}")


WITH_USUBSCRIPTION = "[plugins.usubscription]\nmap_size_mb = 1"
# One per version; core.usubscription publishes each change on them, without subscribers here.
CHANGE_TOPICS = 2
QUICK_RETRY = "[egress.default]\nretry = { first_ms = 1, max_ms = 1 }"


def wait_persisted_letters(streamer: Streamer, n: int) -> list[int]:
    """Wait for `n` dead letters on disk; returns their numbers."""
    eventually(lambda: streamer.dead_letter_writer.statistics()["stored"] == n, f"{n} dead letters on disk")
    return streamer.dead_letter_writer.store.numbers()


class NotingPlugin:
    """A plugin with a service that notes its calls; the service may fail to start."""

    Config = NoConfig
    fault: ClassVar[UStatusError | None] = None

    def __init__(self, config: NoConfig, context: PluginContext) -> None: ...

    @property
    def entities(self) -> Sequence[UUri]:
        return [UUri(OWN, 7, 1, 0)]

    def start(self, bus: UTransport) -> None:
        NOTES.append("service start")
        if self.fault is not None:
            raise self.fault

    def stop(self) -> None:
        NOTES.append("service stop")

    @hookimpl
    def ustreamer_services(self) -> Sequence[HostedService]:
        return [self]

    @hookimpl
    def ustreamer_started(self, dispatcher: Dispatcher) -> None:
        NOTES.append("started")

    @hookimpl
    def ustreamer_configured(self, settings: StreamerSettings) -> None:
        NOTES.append("configured")

    @hookimpl
    def ustreamer_stopping(self) -> None:
        NOTES.append("stopping")

    @hookimpl
    def ustreamer_stopped(self) -> None:
        NOTES.append("stopped")


def leftovers(streamer: Streamer) -> list[str]:
    """Open links and running threads that should have ended."""
    open_links = [
        name for name, each in streamer.transports.items() if isinstance(each, FakeTransport) and each.is_open
    ]
    names = ("timers", "egress ", "usubscription")
    return open_links + [t.name for t in threading.enumerate() if t.name.startswith(names)]
