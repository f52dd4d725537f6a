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
from ustreamer.host.runtime.streamer import Streamer
from ustreamer.testing.bench import StreamerBench
from ustreamer.testing.entity import Entity
from ustreamer.transport_port import (
    EndpointConfig,
    EndpointContext,
    EndpointTransport,
    TransportKind,
    Unconfirmed,
)
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.utransport import Listener, UTransport
from ustreamer.uprotocol.uuri import UUri

OWN = "hpc"
TOPIC = UUri(OWN, 0x1234, 1, 0x8001)
METHOD = UUri(OWN, 0x3001, 1, 1)
DEAD_LETTERS = UUri(OWN, 4, 1, 0x8000)
USUBSCRIPTION = UUri(OWN, 0, 3, 0)
SUBSCRIBE, UNSUBSCRIBE = 1, 2

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


class BenchApp(Entity):
    """A uEntity on an in-process network. The default topic is TOPIC."""

    def listen(self, source: UUri = TOPIC, sink: UUri | None = None) -> None:
        super().listen(source, sink)

    def publish(self, payload: bytes = b"", topic: UUri = TOPIC, ttl: int | None = None) -> None:  # type: ignore[override]
        super().publish(topic, payload, ttl)

    def subscribe(self, topic: UUri = TOPIC, *, period_ms: int | None = None) -> None:
        super().subscribe(topic, period_ms=period_ms)

    def unsubscribe(self, topic: UUri = TOPIC) -> None:
        super().unsubscribe(topic)


class Bench(StreamerBench):
    """Builds streamers and applications."""

    def app(self, network: str, authority: str = OWN) -> BenchApp:
        return BenchApp(self.attach(network, authority), self.next_address(authority), OWN)

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
        head = f'authority = "{OWN}"\nstate_dir = "{state or f"state{len(self.streamers)}"}"\n'
        toml = "\n".join([head, *sections, *(f"[plugins.{name}]" for name in extra or ())])
        return self.make_streamer(toml, {"fakes": FakeTransportsPlugin, **(extra or {})})

    def started(self, *sections: str, extra: Mapping[str, type[Any]] | None = None) -> Streamer:
        streamer = self.streamer(*sections, extra=extra)
        streamer.start()
        return streamer

    def finish(self, drain_s: float = 0) -> None:
        """Stop all streamers in parallel. Check their ledgers."""
        for streamer in self.streamers:
            for transport in streamer.transports.values():
                if isinstance(transport, FakeTransport):
                    transport.gate.set()
        super().finish(drain_s)


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
    bench = Bench(tmp_path)
    yield bench
    bench.finish()


WITH_USUBSCRIPTION = "[plugins.usubscription]\nmap_size_mb = 1"
# One per version; core.usubscription publishes each change on them, here on two networks without listeners.
CHANGE_PUBLICATIONS = 4
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
