# SPDX-License-Identifier: Apache-2.0
"""A whole streamer between in-process networks, with the real plugins. Every test ends with the ledger law."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from tests.transports.zenoh.nets import endpoint, free_locator
from ustreamer.core.chain import Delivery, Tap, Transmit
from ustreamer.core.dispatcher import Dispatcher
from ustreamer.core.ledger import LedgerSnapshot, Verdict
from ustreamer.core.links import Link
from ustreamer.core.subscriptions import Change, Subscription, SubscriptionWatch
from ustreamer.hookspecs import (
    EndpointConfig,
    EndpointContext,
    EndpointTransport,
    PluginContext,
    Service,
    Settings,
    TransportKind,
    hookimpl,
)
from ustreamer.host import config as configuration
from ustreamer.host import plugins
from ustreamer.host.clock import SYSTEM_CLOCK
from ustreamer.host.config import serves
from ustreamer.host.dead_letter_store import read
from ustreamer.host.streamer import Streamer
from ustreamer.transports.local.transport import LocalNetwork, LocalTransport
from ustreamer.uprotocol.pb import uattributes as pb_uattributes
from ustreamer.uprotocol.pb import ustreamer_v1 as pb_ustreamer
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.rpc import RpcClient
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPayloadFormat
from ustreamer.uprotocol.umessage import (
    UMessage,
    error_response,
    notification,
    publish,
    request,
    response,
)
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.utransport import Listener, UTransport
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import ANY, UUri
from ustreamer.uprotocol.wire import decode, decode_status

DEADLINE_S = 10.0
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


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Give other threads the time to make it so."""
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end, f"waited {DEADLINE_S} s for {what}"
        time.sleep(0.001)


# -------------------------------------------------------------------------------------------- a transport to be had


NOTES: list[str] = []
"""What was done to the transports and plugins of this file, in order."""


@pytest.fixture(autouse=True)
def no_notes() -> None:
    NOTES.clear()


class FakeEndpoint(EndpointConfig, frozen=True, kw_only=True):
    """`fails_to_open` with UNAVAILABLE; `receivers` are subscribers that the configuration fixes, for TOPIC."""

    fails_to_open: bool = False
    receivers: tuple[str, ...] = ()


class Fake(EndpointTransport):
    """A link to somewhere: it fails with `fault` as long as there is one, and holds senders while its gate is closed."""

    def __init__(self, config: FakeEndpoint, context: EndpointContext) -> None:
        self.config, self.name = config, context.name
        self.fault: UCode | None = None
        self.attempts = 0
        self.sent: list[tuple[UUri | None, UMessage]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.listeners: list[tuple[UUri, UUri | None, Listener]] = []
        self.is_open = False
        self.link_turned: list[Callable[[bool], None]] = []

    def arrive(self, message: UMessage) -> None:
        """Have a message come in; each listener is called once."""
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

    def transmitter(self, subscriber: UUri | None) -> Transmit:
        return lambda message: self._transmit(subscriber, message)

    def watch_link(self, changed: Callable[[bool], None]) -> None:
        assert not self.is_open
        self.link_turned.append(changed)

    def turn_link(self, *, up: bool) -> None:
        [changed] = self.link_turned
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

    def close(self) -> None:
        self.is_open = False
        NOTES.append(f"close {self.name}")

    def statistics(self) -> Mapping[str, int]:
        return {"sent": len(self.sent), "refused_length": 3}


class FakeSessions(Fake):
    unicast: ClassVar[bool] = True


class NoConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True): ...


class Fakes:
    """The plugin that brings the transports above."""

    Config = NoConfig

    def __init__(self, config: NoConfig, context: PluginContext) -> None: ...

    @staticmethod
    @hookimpl
    def ustreamer_transports() -> Mapping[str, TransportKind]:
        return {
            "fake": TransportKind(FakeEndpoint, Fake, has_usubscription=False),
            "sessions": TransportKind(FakeEndpoint, FakeSessions),
        }


# ------------------------------------------------------------------------------------------------------------ the bench


class App:
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

    def ask_usubscription(self, method: int, asked: Any) -> UMessage:
        return self.rpc.call(
            USUBSCRIPTION.with_resource(method), asked.SerializeToString(), UPayloadFormat.PROTOBUF
        )

    def subscribe(self, topic: UUri = TOPIC, *, period_ms: int | None = None) -> None:
        self.listen(topic)
        attributes = pb.SubscribeAttributes(sample_period_ms=period_ms)
        answer = self.ask_usubscription(
            SUBSCRIBE, pb.SubscriptionRequest(topic=topic.to_pb(), attributes=attributes)
        )
        status = pb.SubscriptionResponse.FromString(answer.payload).status
        assert status.state == pb.SubscriptionStatus.SUBSCRIBED

    def unsubscribe(self, topic: UUri = TOPIC) -> None:
        self.ask_usubscription(UNSUBSCRIBE, pb.UnsubscribeRequest(topic=topic.to_pb()))

    def serve(self, method: UUri, answer: Callable[[UMessage], UMessage]) -> None:
        self.transport.register_listener(ANY, method, lambda asked: self.transport.send(answer(asked)))

    def wait_received(self, n: int) -> list[bytes]:
        eventually(lambda: len(self.received) >= n, f"{n} messages at {self.address}, got {self.received}")
        return [message.payload for message in self.received]


class Bench:
    """Makes streamers and the applications around them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._networks: dict[str, LocalNetwork] = {}
        self._streamers: list[Streamer] = []
        self._apps = 0

    def network(self, name: str) -> LocalNetwork:
        return self._networks.setdefault(name, LocalNetwork.named(f"{self._directory.name}/{name}"))

    def app(self, network: str, authority: str = OWN) -> App:
        self._apps += 1
        return App(self.network(network), authority, 0x10A0 + self._apps)

    def local(self, name: str, *authorities: str) -> str:
        """The section of an endpoint on an in-process network of the same name."""
        keys = {"transport": "local", "network": self.network(name).name}
        return section(name, **keys, authorities=authorities)

    def streamer(
        self, *sections: str, extra: Mapping[str, type[Any]] | None = None, state: str | None = None
    ) -> Streamer:
        """A streamer that is not started, with the transports of this file; `extra` are more plugins.

        It has a state of its own, but for those that are given the name of one.
        """
        classes = {name: plugins.plugin_class(entry) for name, entry in plugins.installed().items()}
        classes |= {"fakes": Fakes, **(extra or {})}
        kinds = plugins.transport_kinds(plugins.without_configuration(classes))
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
        """Stop all, and hold them to the law."""
        for streamer in self._streamers:
            for transport in streamer.transports.values():
                if isinstance(transport, Fake):
                    transport.gate.set()
            streamer.stop(0)
            books = streamer.ledger()
            assert books.unaccounted == 0, books


def section(endpoint: str, **keys: object) -> str:
    """`[endpoints.<endpoint>]` as TOML: numbers, strings and arrays are written as in JSON."""
    return "\n".join([f"[endpoints.{endpoint}]", *(f"{key} = {json.dumps(v)}" for key, v in keys.items())])


def fake(name: str, *authorities: str, transport: str = "fake", **keys: object) -> str:
    return section(name, transport=transport, authorities=authorities, **keys)


def link(streamer: Streamer, name: str) -> Fake:
    transport = streamer.transports[name]
    assert isinstance(transport, Fake)
    return transport


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    before = threading.active_count()
    bench = Bench(tmp_path)
    yield bench
    bench.finish()
    eventually(lambda: threading.active_count() <= before, f"the end of {threading.enumerate()}")


WITH_USUBSCRIPTION = "[plugins.usubscription]\nmap_size_mb = 1"
# One per version; core.usubscription publishes each change on them, and nobody here subscribes them.
CHANGE_TOPICS = 2
QUICK_RETRY = "[egress.default]\nretry = { first_ms = 1, max_ms = 1 }"


# ---------------------------------------------------------------------------------------------- publish and subscribe


def test_a_publication_reaches_who_subscribed_it_over_the_wire_until_it_unsubscribes(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), bench.local("outside", "cloud"), WITH_USUBSCRIPTION)
    sensor, fleet = bench.app("inside"), bench.app("outside", "cloud")
    sensor.publish(b"before")
    fleet.subscribe()
    sensor.publish(b"during")
    assert fleet.wait_received(1) == [b"during"]
    fleet.unsubscribe()
    sensor.publish(b"after")
    eventually(
        lambda: streamer.ledger().no_subscriber == 2 + 2 * CHANGE_TOPICS, "both changes to be published"
    )
    # The publication, and two requests with their answers and updates.
    eventually(lambda: streamer.ledger().delivered == 7, "everything to be delivered")
    assert streamer.ledger().unaccounted == 0
    assert [message.payload for message in fleet.received] == [b"during"]


def test_a_publication_arrives_as_it_was_sent(bench: Bench) -> None:
    bench.started(bench.local("inside", OWN), bench.local("outside", "cloud"), WITH_USUBSCRIPTION)
    sensor, fleet = bench.app("inside"), bench.app("outside", "cloud")
    fleet.subscribe()
    message = publish(new_id(), TOPIC, b"\x00\xff", UPayloadFormat.SOMEIP, ttl=5_000)
    sensor.transport.send(message)
    fleet.wait_received(1)
    assert fleet.received == [message]


def test_who_subscribed_on_the_publishers_own_network_gets_it_once_and_not_through_the_streamer(
    bench: Bench,
) -> None:
    streamer = bench.started(bench.local("inside", OWN), bench.local("outside", "cloud"), WITH_USUBSCRIPTION)
    sensor, dashboard = bench.app("inside"), bench.app("inside")
    dashboard.subscribe()
    sensor.publish(b"x")
    assert [message.payload for message in dashboard.received] == [b"x"]
    eventually(lambda: streamer.ledger().no_subscriber == 1 + CHANGE_TOPICS, "the change to be published")
    assert streamer.targets() == []


def test_everybody_who_subscribed_gets_it_and_a_network_gets_it_once(bench: Bench) -> None:
    streamer = bench.started(
        bench.local("inside", OWN),
        bench.local("outside", "cloud"),
        bench.local("chassis", "chassis"),
        WITH_USUBSCRIPTION,
    )
    sensor = bench.app("inside")
    apps = [bench.app("outside", "cloud"), bench.app("outside", "cloud"), bench.app("chassis", "chassis")]
    for app in apps:
        app.subscribe()
    for n in range(20):
        sensor.publish(b"%d" % n)
    for app in apps:
        assert app.wait_received(20) == [b"%d" % n for n in range(20)]
    eventually(lambda: streamer.ledger().queued == 0, "quiet")
    assert sorted((row.endpoint, row.topic, row.ingress, row.delivered) for row in streamer.targets()) == [
        ("chassis", TOPIC, "inside", 20),
        ("outside", TOPIC, "inside", 20),
    ]


def test_a_limit_that_was_asked_for_holds_and_what_it_holds_back_is_counted(bench: Bench) -> None:
    streamer = bench.started(
        bench.local("inside", OWN),
        bench.local("outside", "cloud"),
        bench.local("chassis", "chassis"),
        WITH_USUBSCRIPTION,
        "[plugins.throttle]",
    )
    sensor, slow, fast = bench.app("inside"), bench.app("outside", "cloud"), bench.app("chassis", "chassis")
    slow.subscribe(period_ms=3_600_000)
    fast.subscribe()
    for n in range(10):
        sensor.publish(b"%d" % n)
    assert len(fast.wait_received(10)) == 10
    assert slow.wait_received(1) == [b"0"]
    assert streamer.ledger().throttled == 9
    assert sorted(
        (row.endpoint, row.period_ns, row.received, row.throttled) for row in streamer.targets()
    ) == [
        ("chassis", 0, 10, 0),
        ("outside", 3_600 * 10**9, 10, 9),
    ]


def test_subscriptions_are_there_again_after_a_restart(bench: Bench, tmp_path: Path) -> None:
    sections = [bench.local("inside", OWN), bench.local("outside", "cloud"), WITH_USUBSCRIPTION]
    first = bench.started(*sections)
    sensor, fleet = bench.app("inside"), bench.app("outside", "cloud")
    fleet.subscribe()
    assert first.stop() == 0
    (tmp_path / "state0").rename(tmp_path / "state1")
    bench.started(*sections)
    sensor.publish(b"again")
    assert fleet.wait_received(1) == [b"again"]


def test_without_any_plugin_nobody_has_subscribed_and_messages_to_somebody_pass(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), bench.local("outside", "cloud"))
    sensor, fleet = bench.app("inside"), bench.app("outside", "cloud")
    fleet.listen()
    fleet.listen(ANY, fleet.address)
    sensor.publish(b"to nobody")
    sensor.transport.send(notification(new_id(), TOPIC, fleet.address, b"to you"))
    assert fleet.wait_received(1) == [b"to you"]
    books = streamer.ledger()
    assert (books.received, books.no_subscriber, books.delivered) == (2, 1, 1)


def test_subscribers_that_the_configuration_fixes_are_targets_of_their_own_behind_a_unicast_endpoint(
    bench: Bench,
) -> None:
    receivers = ["//dash/1/1/0", "//dash/2/1/0"]
    streamer = bench.started(
        bench.local("inside", OWN),
        fake("sessions", "dash", transport="sessions", receivers=receivers),
        fake("domain", "ecu", receivers=["//ecu/1/1/0", "//ecu/2/1/0"]),
    )
    bench.app("inside").publish(b"x")
    sessions, domain = link(streamer, "sessions"), link(streamer, "domain")
    eventually(lambda: len(sessions.sent) == 2 and len(domain.sent) == 1, "three sends")
    assert [subscriber for subscriber, _ in sessions.sent] == [UUri.parse(each) for each in receivers]
    assert [subscriber for subscriber, _ in domain.sent] == [None]
    assert streamer.ledger().received == 3


def test_a_subscriber_stops_and_starts_a_topic_for_itself(bench: Bench) -> None:
    streamer = bench.started(
        bench.local("inside", OWN),
        bench.local("outside", "cloud"),
        bench.local("chassis", "chassis"),
        WITH_USUBSCRIPTION,
    )
    sensor, fleet, ecu = bench.app("inside"), bench.app("outside", "cloud"), bench.app("chassis", "chassis")
    for app in (fleet, ecu):
        app.subscribe()
    for method, payload in ((None, b"1"), (2, b"2"), (1, b"3")):
        if method is not None:
            asked = pb_ustreamer.StopDispatchingRequest(topic=TOPIC.to_pb())
            fleet.rpc.call(UUri(OWN, 4, 1, method), asked.SerializeToString(), UPayloadFormat.PROTOBUF)
        sensor.publish(payload)
    assert (ecu.wait_received(3), fleet.wait_received(2)) == ([b"1", b"2", b"3"], [b"1", b"3"])
    assert streamer.statistics().unaccounted == 0


def test_a_streamer_tells_its_routes_and_statistics_over_uprotocol(bench: Bench) -> None:
    bench.started(bench.local("inside", OWN), bench.local("outside", "cloud"), WITH_USUBSCRIPTION)
    sensor, fleet = bench.app("inside"), bench.app("outside", "cloud")
    fleet.subscribe()
    sensor.publish(b"1")
    fleet.wait_received(1)
    routes = pb_ustreamer.FetchRoutesResponse.FromString(fleet.rpc.call(UUri(OWN, 4, 1, 3)).payload)
    assert [(e.name, list(e.authorities)) for e in routes.endpoints] == [
        ("inside", [OWN]),
        ("outside", ["cloud"]),
    ]
    [route] = routes.routes
    assert (UUri.from_pb(route.topic), route.ingress) == (TOPIC, "inside")
    assert [target.endpoint for target in route.targets] == ["outside"]
    counted = pb_ustreamer.FetchStatisticsResponse.FromString(sensor.rpc.call(UUri(OWN, 4, 1, 4)).payload)
    assert counted.total.received >= counted.total.delivered > 0
    assert [endpoint.endpoint for endpoint in counted.endpoints] == ["self", "inside", "outside"]
    assert [(target.received, target.delivered) for target in counted.targets] == [(1, 1)]


# ------------------------------------------------------------------------------------------------ to somebody by name


def test_a_call_and_its_answer_go_from_network_to_network(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), bench.local("outside", "cloud"))
    climate, fleet = bench.app("inside"), bench.app("outside", "cloud")
    climate.serve(METHOD, lambda asked: response(new_id(), asked, asked.payload + b" done"))
    assert fleet.rpc.call(METHOD, b"21.5").payload == b"21.5 done"
    books = streamer.ledger()
    assert (books.received, books.delivered) == (2, 2)


def test_a_call_that_fails_at_its_callee_comes_back_with_the_callees_words(bench: Bench) -> None:
    bench.started(bench.local("inside", OWN), bench.local("outside", "cloud"))
    climate, fleet = bench.app("inside"), bench.app("outside", "cloud")
    status = UStatus(UCode.OUT_OF_RANGE, "80 degrees")
    climate.serve(METHOD, lambda asked: error_response(new_id(), asked, status))
    with pytest.raises(UStatusError) as refused:
        fleet.rpc.call(METHOD)
    assert refused.value.status == status


@pytest.mark.parametrize(("network", "authority"), [("inside", OWN), ("outside", "cloud")])
def test_a_hosted_service_answers_every_network_also_what_it_cannot_do(
    bench: Bench, network: str, authority: str
) -> None:
    streamer = bench.started(bench.local("inside", OWN), bench.local("outside", "cloud"), WITH_USUBSCRIPTION)
    app = bench.app(network, authority)
    with pytest.raises(UStatusError) as refused:
        app.rpc.call(USUBSCRIPTION.with_resource(0x77))
    assert refused.value.code is UCode.UNIMPLEMENTED
    with pytest.raises(UStatusError) as refused:
        app.rpc.call(UUri(OWN, 0, 9, 1))
    assert refused.value.code is UCode.UNIMPLEMENTED
    books = streamer.ledger()
    assert (books.received, books.delivered) == (4, 4)


def test_a_hosted_service_is_reached_where_nobody_lives_at_the_streamers_own_authority(
    bench: Bench,
) -> None:
    bench.started(bench.local("backbone", "car"), bench.local("outside", "cloud"), WITH_USUBSCRIPTION)
    topic = UUri(OWN, 4, 1, 0x8000)
    bench.app("outside", "cloud").subscribe(topic)
    bench.app("backbone", "car").subscribe(topic)


def test_the_uSubscription_answers_at_the_authorities_that_have_none_of_their_own(bench: Bench) -> None:  # noqa: N802 - the standard's name
    bench.started(bench.local("inside", OWN), fake("chassis", "chassis"), WITH_USUBSCRIPTION)
    answer = bench.app("inside").rpc.call(
        UUri("chassis", 0, 3, SUBSCRIBE),
        pb.SubscriptionRequest(topic=UUri("chassis", 1, 1, 0x8001).to_pb()).SerializeToString(),
        UPayloadFormat.PROTOBUF,
    )
    assert answer.attributes.source.authority_name == "chassis"


def test_everyone_not_named_lives_behind_the_endpoint_with_the_star(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("world", "*"))
    call = request(new_id(), UUri(OWN, 1, 1, 0), UUri("mars", 2, 1, 3), ttl=1_000)
    bench.app("inside").transport.send(call)
    eventually(lambda: bool(link(streamer, "world").sent), "the call")
    assert link(streamer, "world").sent == [(None, call)]


HERE_AND_THERE = {"a": [OWN, "car"], "b": ["cloud"]}
WITH_STAR = {"a": [OWN], "b": ["*"], "c": ["cloud"]}
HEARD: list[tuple[str, dict[str, list[str]], str, UMessageType, UUri, int]] = [
    ("to elsewhere", HERE_AND_THERE, "a", UMessageType.NOTIFICATION, UUri("cloud", 1, 1, 0), 1),
    ("to elsewhere", HERE_AND_THERE, "a", UMessageType.RESPONSE, UUri("cloud", 1, 1, 0), 1),
    ("to elsewhere", HERE_AND_THERE, "a", UMessageType.REQUEST, UUri("cloud", 1, 1, 1), 1),
    ("to elsewhere", HERE_AND_THERE, "b", UMessageType.NOTIFICATION, UUri("car", 1, 1, 0), 1),
    ("to elsewhere", HERE_AND_THERE, "b", UMessageType.REQUEST, UUri(OWN, 1, 1, 1), 1),
    ("among themselves", HERE_AND_THERE, "a", UMessageType.NOTIFICATION, UUri("car", 1, 1, 0), 0),
    ("among themselves", HERE_AND_THERE, "a", UMessageType.RESPONSE, UUri(OWN, 1, 1, 0), 0),
    ("among themselves", HERE_AND_THERE, "b", UMessageType.RESPONSE, UUri("cloud", 1, 1, 0), 0),
    ("to a hosted service", HERE_AND_THERE, "a", UMessageType.NOTIFICATION, UUri(OWN, 7, 1, 0), 1),
    ("to a hosted service", HERE_AND_THERE, "a", UMessageType.REQUEST, UUri(OWN, 7, 3, 1), 1),
    ("to a hosted service", HERE_AND_THERE, "b", UMessageType.RESPONSE, UUri(OWN, 7, 9, 0), 1),
    ("to one where nobody else lives", HERE_AND_THERE, "b", UMessageType.RESPONSE, UUri("mars", 7, 1, 0), 1),
    ("to one where nobody else lives", HERE_AND_THERE, "a", UMessageType.REQUEST, UUri("mars", 7, 1, 1), 1),
    ("to nobody, who must be told", HERE_AND_THERE, "b", UMessageType.REQUEST, UUri("venus", 1, 1, 1), 1),
    ("to one who is named beside the star", WITH_STAR, "a", UMessageType.RESPONSE, UUri("cloud", 1, 1, 0), 1),
    ("to wherever", WITH_STAR, "a", UMessageType.NOTIFICATION, UUri("venus", 1, 1, 0), 1),
    ("to wherever", WITH_STAR, "c", UMessageType.RESPONSE, UUri("venus", 1, 1, 0), 1),
    ("to wherever", WITH_STAR, "c", UMessageType.REQUEST, UUri("venus", 1, 1, 1), 1),
    ("from the star", WITH_STAR, "b", UMessageType.NOTIFICATION, UUri("cloud", 1, 1, 0), 1),
    ("from the star", WITH_STAR, "b", UMessageType.RESPONSE, UUri(OWN, 1, 1, 0), 1),
    ("from the star to a hosted service", WITH_STAR, "b", UMessageType.RESPONSE, UUri("mars", 7, 1, 0), 1),
    ("from star to star", WITH_STAR, "b", UMessageType.NOTIFICATION, UUri("venus", 1, 1, 0), 0),
]


class Hosted:
    """A service at two authorities, one of which nobody else has."""

    entities: ClassVar = [UUri(OWN, 7, 1, 0), UUri("mars", 7, 1, 0)]

    def start(self, bus: UTransport) -> None: ...

    def stop(self) -> None: ...


class Hosting:
    Config = NoConfig

    def __init__(self, config: NoConfig, context: PluginContext) -> None: ...

    @hookimpl
    def ustreamer_services(self) -> Sequence[Service]:
        return [Hosted()]


@pytest.mark.parametrize(
    ("authorities", "endpoint", "kind", "sink", "times"),
    [pytest.param(*row[1:], id=f"{row[0]}: {row[3].name} {row[2]} -> {row[4]}") for row in HEARD],
)
def test_an_endpoint_hears_once_what_is_for_elsewhere_and_not_what_they_say_among_themselves(
    bench: Bench,
    authorities: dict[str, list[str]],
    endpoint: str,
    kind: UMessageType,
    sink: UUri,
    times: int,
) -> None:
    streamer = bench.started(
        *(fake(name, *who) for name, who in authorities.items()), extra={"hosting": Hosting}
    )
    filters = link(streamer, endpoint).listeners
    lives_here = authorities[endpoint][0]
    source = UUri("earth" if lives_here == "*" else lives_here, 2, 1, 0)
    if kind is not UMessageType.REQUEST:
        source = source.with_resource(0x8000 if kind is UMessageType.NOTIFICATION else 3)
    heard = [
        pair for pair in filters if pair[0].matches(source) and pair[1] is not None and pair[1].matches(sink)
    ]
    assert len(heard) == times
    assert {listener for _, _, listener in filters} == {streamer.dispatcher.ingress(endpoint).dispatch}


def test_every_endpoint_hears_every_publication_once(bench: Bench) -> None:
    streamer = bench.started(*(fake(name, *who) for name, who in WITH_STAR.items()))
    for name in WITH_STAR:
        assert [pair[0] for pair in link(streamer, name).listeners if pair[1] is None] == [ANY]


# ----------------------------------------------------------------------------------------- what could not be delivered


def test_a_dead_letter_reaches_who_subscribed_the_topic_of_dead_letters(bench: Bench) -> None:
    streamer = bench.started(
        bench.local("inside", OWN),
        bench.local("outside", "cloud"),
        fake("chassis", "chassis"),
        WITH_USUBSCRIPTION,
    )
    link(streamer, "chassis").fault = UCode.INTERNAL
    workshop = bench.app("outside", "cloud")
    workshop.subscribe(DEAD_LETTERS)
    lost = notification(
        new_id(), TOPIC, UUri("chassis", 1, 1, 0), b"\x01\x02", UPayloadFormat.RAW, ttl=60_000
    )
    bench.app("inside").transport.send(lost)

    workshop.wait_received(1)
    [message] = workshop.received
    assert message.attributes.source == DEAD_LETTERS
    assert message.attributes.payload_format is UPayloadFormat.PROTOBUF
    letter = pb_ustreamer.DeadLetter.FromString(message.payload)
    assert decode(pb_uattributes.UAttributes.SerializeToString(letter.attributes)) == (
        lost.id,
        lost.attributes,
    )
    assert (letter.payload, letter.endpoint, letter.attempts) == (b"\x01\x02", "chassis", 1)
    assert (letter.status.code, letter.status.message) == (UCode.INTERNAL, "no way to chassis")
    assert letter.first_attempt.ToMilliseconds() == pytest.approx(time.time() * 1000, abs=60_000)
    eventually(lambda: streamer.ledger().queued == 0, "quiet")
    assert streamer.ledger().dead_lettered == 1


def test_dead_letters_that_nobody_subscribed_are_counted_and_make_no_further_ones(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"))
    link(streamer, "chassis").fault = UCode.INTERNAL
    sensor = bench.app("inside")
    for _ in range(3):
        sensor.transport.send(notification(new_id(), TOPIC, UUri("chassis", 1, 1, 0)))
    eventually(lambda: streamer.ledger().no_subscriber == 3, "the dead letters")
    assert streamer.ledger().dead_lettered == 3


def kept(streamer: Streamer, n: int) -> list[int]:
    """Wait until so many dead letters are on disk; their numbers."""
    eventually(lambda: streamer.dead_letters.statistics()["stored"] == n, f"{n} dead letters on disk")
    return streamer.dead_letters.store.numbers()


def test_a_dead_letter_is_kept_and_redriven_as_if_it_had_just_come_in(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"))
    chassis = link(streamer, "chassis")
    chassis.fault = UCode.INTERNAL
    sink = UUri("chassis", 1, 1, 0)
    lost = notification(new_id(), TOPIC, sink, b"\x01\x02", UPayloadFormat.RAW, ttl=60_000)
    bench.app("inside").transport.send(lost)
    [number] = kept(streamer, 1)
    chassis.fault = None
    redriven = streamer.redrive(number)
    eventually(lambda: bool(chassis.sent), "the message")
    [(_, sent)] = chassis.sent
    assert (sent.attributes, sent.payload) == (lost.attributes, lost.payload)
    assert sent.id.time_ms >= lost.id.time_ms
    assert (redriven.id, redriven.new_id) == (str(lost.id), str(sent.id)) != (str(sent.id), str(lost.id))
    assert (
        streamer.statistics().dead_letters["stored"] == 1
    )  # who redrives it removes it when that has worked


def test_what_is_redriven_in_vain_is_a_dead_letter_again(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"))
    link(streamer, "chassis").fault = UCode.INTERNAL
    bench.app("inside").transport.send(notification(new_id(), TOPIC, UUri("chassis", 1, 1, 0), b"x"))
    [first] = kept(streamer, 1)
    streamer.redrive(first)
    assert kept(streamer, 2) == [first, first + 1]


def test_what_cannot_be_redriven_says_why(bench: Bench) -> None:
    streamer = bench.started(
        bench.local("inside", OWN), fake("chassis", "chassis"), "[dead_letters]\npayload_bytes = 1"
    )
    link(streamer, "chassis").fault = UCode.INTERNAL
    bench.app("inside").transport.send(notification(new_id(), TOPIC, UUri("chassis", 1, 1, 0), b"large"))
    [number] = kept(streamer, 1)
    for asked, code, words in (
        (number, UCode.FAILED_PRECONDITION, "payload of 5 bytes was too large"),
        (number + 1, UCode.NOT_FOUND, "none of this number"),
    ):
        with pytest.raises(UStatusError, match=words) as refused:
            streamer.redrive(asked)
        assert refused.value.code is code


def test_throttled_and_unwanted_messages_and_dead_letters_about_dead_letters_are_not_kept(
    bench: Bench,
) -> None:
    streamer = bench.started(
        bench.local("inside", OWN),
        bench.local("outside", "cloud"),
        fake("chassis", "chassis", receivers=["//chassis/1/1/0"]),
        WITH_USUBSCRIPTION,
        "[plugins.throttle]",
    )
    link(streamer, "chassis").fault = UCode.INTERNAL
    sensor, workshop = bench.app("inside"), bench.app("outside", "cloud")
    workshop.subscribe(period_ms=3_600_000)
    workshop.subscribe(DEAD_LETTERS)
    for _ in range(5):
        sensor.publish(topic=UUri(OWN, 0x9999, 1, 0x8001))  # unwanted
        sensor.publish()  # throttled towards the workshop, and cannot be sent to the chassis
    assert len(kept(streamer, 5)) == 5
    eventually(lambda: streamer.ledger().throttled == 4, "throttling")
    reasons = {streamer.dead_letters.store.get(number).code for number in kept(streamer, 5)}
    assert reasons == {UCode.INTERNAL}


def test_what_there_is_no_time_to_publish_is_kept_all_the_same(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"))
    link(streamer, "chassis").fault = UCode.INTERNAL
    streamer.dispatcher.dead_letters._limit = 3
    streamer.dispatcher.schedule = lambda when_ns, action: None  # nobody comes and collects
    for _ in range(10):
        bench.app("inside").transport.send(notification(new_id(), TOPIC, UUri("chassis", 1, 1, 0)))
    assert len(kept(streamer, 10)) == 10
    assert streamer.statistics().dead_letters["unpublished"] == 7


def test_dead_letters_of_the_last_moment_are_on_disk_after_a_stop(bench: Bench, tmp_path: Path) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"))
    link(streamer, "chassis").fault = UCode.INTERNAL
    for _ in range(50):
        bench.app("inside").transport.send(notification(new_id(), TOPIC, UUri("chassis", 1, 1, 0)))
    streamer.stop()
    assert len(list(read(tmp_path / "state0" / "dead-letters"))) == 50


@pytest.mark.parametrize(
    ("fault", "limits", "ttl", "expected"),
    [
        pytest.param(UCode.UNIMPLEMENTED, "", 5_000, UCode.UNIMPLEMENTED, id="the link cannot carry it"),
        pytest.param(UCode.UNAVAILABLE, "", 40, UCode.DEADLINE_EXCEEDED, id="the link stays down"),
        pytest.param(
            UCode.UNAVAILABLE, "queue_bytes = 1", 5_000, UCode.RESOURCE_EXHAUSTED, id="the queue is full"
        ),
    ],
)
def test_who_calls_is_told_why_the_call_did_not_get_there(
    bench: Bench, fault: UCode, limits: str, ttl: int, expected: UCode
) -> None:
    streamer = bench.started(
        bench.local("inside", OWN), fake("chassis", "chassis"), QUICK_RETRY, f"[egress.chassis]\n{limits}"
    )
    link(streamer, "chassis").fault = fault
    app = bench.app("inside")
    app.listen(ANY, app.address)
    call = request(new_id(), app.address, UUri("chassis", 1, 1, 2), ttl=ttl)
    app.transport.send(call)
    app.wait_received(1)
    [answer] = app.received
    assert answer.attributes.type is UMessageType.RESPONSE
    assert (answer.attributes.source, answer.attributes.reqid) == (call.attributes.sink, call.id)
    assert answer.attributes.commstatus is expected
    assert decode_status(answer.payload).code is expected
    assert "chassis" in decode_status(answer.payload).message


def test_a_call_to_a_name_that_nobody_knows_is_answered_with_that(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"))
    chassis = link(streamer, "chassis")
    call = request(new_id(), UUri("chassis", 1, 1, 0), UUri("mars", 2, 1, 3), ttl=5_000)
    chassis.arrive(call)
    eventually(lambda: bool(chassis.sent), "the answer")
    [(_, answer)] = chassis.sent
    assert answer.attributes.reqid == call.id
    status = decode_status(answer.payload)
    assert (answer.attributes.commstatus, status.code) == (UCode.UNAVAILABLE, UCode.UNAVAILABLE)
    assert "'mars'" in status.message
    assert streamer.ledger().dead_lettered == 1


def test_a_link_that_comes_back_gets_what_waited_in_order(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"), QUICK_RETRY)
    chassis = link(streamer, "chassis")
    chassis.fault = UCode.UNAVAILABLE
    app = bench.app("inside")
    for n in range(50):
        app.transport.send(notification(new_id(), TOPIC, UUri("chassis", 1, 1, 0), b"%d" % n))
    eventually(lambda: chassis.attempts > 1, "a retry")
    assert streamer.ledger().queued == 50
    chassis.fault = None
    eventually(lambda: len(chassis.sent) == 50, "all")
    assert [message.payload for _, message in chassis.sent] == [b"%d" % n for n in range(50)]


class LinkWatch:
    """A plugin that notes what it is told of the links to two authorities."""

    Config = NoConfig
    seen: ClassVar[list[tuple[Link, Link]]]
    context: ClassVar[PluginContext]
    fails: ClassVar[bool]

    def __init__(self, config: NoConfig, context: PluginContext) -> None:
        cls = type(self)
        cls.seen, cls.context, cls.fails = [], context, False
        context.links.watch(self._look)

    def _look(self) -> None:
        self.seen.append((self.link("cloud"), self.link("chassis")))
        if self.fails:
            raise ValueError("a plugin's mistake")

    @classmethod
    def link(cls, authority: str) -> Link:
        return cls.context.links.of(authority)


# No pause is shorter than half of it, so nothing is tried a second time within the deadline of a test.
PATIENT_RETRY = "[egress.default]\nretry = { first_ms = 30_000, max_ms = 30_000 }"
NEWS = UUri("cloud", 0x10A0, 1, 0)


def test_what_was_sent_in_an_outage_arrives_as_soon_as_the_zenoh_link_is_back(bench: Bench) -> None:
    here, received = free_locator(), list[bytes]()
    backbone = section("backbone", transport="zenoh", authorities=["cloud"], listen=[here])
    streamer = bench.started(bench.local("inside", OWN), backbone, PATIENT_RETRY, extra={"watch": LinkWatch})
    assert LinkWatch.link("cloud") == Link(up=False, times_up=0)
    app = bench.app("inside")

    def peer() -> EndpointTransport:
        transport = endpoint("cloud", connect=(here,))
        transport.register_listener(ANY, NEWS, lambda message: received.append(message.payload))
        transport.open()
        return transport

    fleet = peer()
    try:
        eventually(lambda: LinkWatch.link("cloud") == Link(up=True, times_up=1), "the link")
        app.transport.send(notification(new_id(), TOPIC, NEWS, b"before"))
        eventually(lambda: received == [b"before"], "the first message")
        fleet.close()
        eventually(lambda: LinkWatch.link("cloud") == Link(up=False, times_up=1), "the outage")
        app.transport.send(notification(new_id(), TOPIC, NEWS, b"in the outage"))
        eventually(lambda: any(lane.retries for lane in streamer.lanes()), "the pause")
        fleet = peer()
        eventually(lambda: received == [b"before", b"in the outage"], "the message of the outage")
    finally:
        fleet.close()
    eventually(lambda: len(LinkWatch.seen) == 5, "the last outage")
    cloud = [cloud for cloud, _ in LinkWatch.seen]
    assert cloud == [(False, 0), (True, 1), (False, 1), (True, 2), (False, 2)]
    assert LinkWatch.link(OWN) == Link(up=True, times_up=0)  # a transport that cannot tell


def test_a_link_that_comes_up_serves_its_own_lane_and_authorities_and_no_others(bench: Bench) -> None:
    sections = (fake("chassis", "chassis"), fake("uplink", "cloud"))
    streamer = bench.started(bench.local("inside", OWN), *sections, PATIENT_RETRY, extra={"watch": LinkWatch})
    app, chassis, uplink = bench.app("inside"), link(streamer, "chassis"), link(streamer, "uplink")
    assert list(LinkWatch.context.authorities) == [OWN, "chassis", "cloud"]
    for each, sink in ((chassis, UUri("chassis", 1, 1, 0)), (uplink, NEWS)):
        each.fault = UCode.UNAVAILABLE
        app.transport.send(notification(new_id(), TOPIC, sink))
    eventually(lambda: sum(lane.retries for lane in streamer.lanes()) == 2, "both pauses")
    chassis.turn_link(up=False)
    chassis.fault = uplink.fault = None
    chassis.turn_link(up=True)
    eventually(lambda: len(chassis.sent) == 1, "the message behind the link that came up")
    assert (chassis.attempts, uplink.attempts) == (2, 1)
    assert LinkWatch.seen == [((True, 0), (False, 0)), ((True, 0), (True, 1))]


def test_a_plugin_that_fails_as_a_link_comes_up_does_not_keep_what_waits(bench: Bench) -> None:
    streamer = bench.started(
        bench.local("inside", OWN), fake("chassis", "chassis"), PATIENT_RETRY, extra={"watch": LinkWatch}
    )
    chassis = link(streamer, "chassis")
    chassis.fault = UCode.UNAVAILABLE
    bench.app("inside").transport.send(notification(new_id(), TOPIC, UUri("chassis", 1, 1, 0)))
    eventually(lambda: any(lane.retries for lane in streamer.lanes()), "the pause")
    chassis.fault = None
    LinkWatch.fails = True
    with pytest.raises(ValueError, match="a plugin's mistake"):  # the transport's, which logs it
        chassis.turn_link(up=True)
    eventually(lambda: len(chassis.sent) == 1, "the message")


def test_a_stalled_link_stops_nobody_else(bench: Bench) -> None:
    streamer = bench.started(
        bench.local("inside", OWN), bench.local("outside", "cloud"), fake("chassis", "chassis")
    )
    link(streamer, "chassis").gate.clear()
    app, fleet = bench.app("inside"), bench.app("outside", "cloud")
    fleet.listen(ANY, fleet.address)
    for n in range(10):
        app.transport.send(notification(new_id(), TOPIC, UUri("chassis", 1, 1, 0)))
        app.transport.send(notification(new_id(), TOPIC, fleet.address, b"%d" % n))
    assert len(fleet.wait_received(10)) == 10
    eventually(lambda: streamer.ledger().delivered == 10, "the books")
    assert streamer.ledger().queued == 10


def test_a_source_that_does_not_live_where_it_came_from_is_denied_and_counted(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), bench.local("outside", "cloud"))
    fleet = bench.app("outside", "cloud")
    fleet.transport.send(publish(new_id(), TOPIC))  # of hpc, which lives inside
    assert streamer.ledger().denied == 1
    assert streamer.endpoints()["outside"]["refused_spoofed"] == 1
    assert streamer.endpoints()["inside"]["refused_spoofed"] == 0


def test_an_invalid_message_is_refused_and_not_in_the_ledger(bench: Bench) -> None:
    streamer = bench.started(fake("chassis", "chassis"))
    link(streamer, "chassis").arrive(
        UMessage(new_id(), UAttributes(type=UMessageType.PUBLISH, source=UUri("chassis", 1, 1, 5)))
    )
    assert streamer.ledger().received == 0
    assert streamer.endpoints()["chassis"]["refused_invalid"] == 1


def test_the_counters_of_an_endpoint_are_those_of_its_transport_and_of_its_ingress(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"))
    ingress = dict.fromkeys(
        [
            "refused_invalid",
            "refused_spoofed",
            "refused_access",
            "refused_duplicate",
            "refused_neighbour",
            "filter_errors",
            "directory_errors",
            "tap_errors",
            "taps_off",
        ],
        0,
    )
    assert streamer.endpoints() == {
        "inside": {"received": 0, "sent": 0, "listener_errors": 0, **ingress},
        "chassis": {"sent": 0, "refused_length": 3, **ingress},
    }


def test_there_is_a_lane_for_every_endpoint_and_for_the_streamer_itself(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"))
    assert [lane.endpoint for lane in streamer.lanes()] == ["self", "inside", "chassis"]


# ------------------------------------------------------------------------------------------------------- start and stop


class Noting:
    """A plugin with a service, which notes what is done to it; the service may fail to start."""

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
    def ustreamer_services(self) -> Sequence[Service]:
        return [self]

    @hookimpl
    def ustreamer_started(self, dispatcher: Dispatcher) -> None:
        NOTES.append("started")

    @hookimpl
    def ustreamer_configured(self, settings: Settings) -> None:
        NOTES.append("configured")

    @hookimpl
    def ustreamer_stopping(self) -> None:
        NOTES.append("stopping")

    @hookimpl
    def ustreamer_stopped(self) -> None:
        NOTES.append("stopped")


class Damaged(Noting):
    fault = UStatusError(UCode.DATA_LOSS, "the store is damaged")


class FailsAtTheEnd(Noting):
    @hookimpl
    def ustreamer_started(self, dispatcher: Dispatcher) -> None:
        raise UStatusError(UCode.UNAVAILABLE, "admin socket in use")


def test_services_come_before_endpoints_and_go_after_the_last_message(bench: Bench) -> None:
    streamer = bench.streamer(fake("a", OWN), fake("b", "cloud"), extra={"noting": Noting})
    assert NOTES == []
    streamer.start()
    assert NOTES == ["configured", "service start", "open a", "open b", "started"]
    NOTES.clear()
    assert streamer.stop() == 0
    assert NOTES[:4] == ["stop_receiving a", "stop_receiving b", "stopping", "service stop"]
    assert NOTES[-3:] == ["close a", "close b", "stopped"]


def leftovers(streamer: Streamer) -> list[str]:
    """What should be closed and is not."""
    open_links = [
        name for name, each in streamer.transports.items() if isinstance(each, Fake) and each.is_open
    ]
    names = ("timers", "egress ", "usubscription")
    return open_links + [t.name for t in threading.enumerate() if t.name.startswith(names)]


@pytest.mark.parametrize(
    ("second", "plugin", "words"),
    [
        pytest.param(
            {"fails_to_open": True},
            Noting,
            "endpoint 'b': port 30500 is in use",
            id="an endpoint does not open",
        ),
        pytest.param({}, Damaged, "the store is damaged", id="a service does not start"),
        pytest.param({}, FailsAtTheEnd, "admin socket in use", id="a plugin fails when all is up"),
    ],
)
def test_a_start_that_fails_says_why_and_closes_what_was_opened(
    bench: Bench, second: dict[str, Any], plugin: type[Noting], words: str
) -> None:
    streamer = bench.streamer(
        fake("a", OWN), fake("b", "cloud", **second), WITH_USUBSCRIPTION, extra={"noting": plugin}
    )
    with pytest.raises(UStatusError, match=words):
        streamer.start()
    assert leftovers(streamer) == []
    assert "service stop" in NOTES
    assert {"close a", "close b"} <= set(NOTES)
    assert NOTES[-1] == "stopped"


def test_building_a_streamer_touches_nothing(bench: Bench, tmp_path: Path) -> None:
    before = threading.active_count()
    streamer = bench.streamer(bench.local("inside", OWN), WITH_USUBSCRIPTION, "[plugins.throttle]")
    assert threading.active_count() == before
    assert [path.name for path in tmp_path.iterdir()] == ["ustreamer.toml"]
    assert bench.network("inside").attached == ()
    assert streamer.ledger().received == 0


def test_stop_sends_what_was_accepted_takes_nothing_more_in_and_says_that_nothing_is_left(
    bench: Bench,
) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"), QUICK_RETRY)
    chassis, app = link(streamer, "chassis"), bench.app("inside")
    chassis.gate.clear()
    sink = UUri("chassis", 1, 1, 0)
    for n in range(5):
        app.transport.send(notification(new_id(), TOPIC, sink, b"%d" % n))
    left: list[int] = []
    stopping = threading.Thread(target=lambda: left.append(streamer.stop(DEADLINE_S)), daemon=True)
    stopping.start()
    eventually(lambda: "stop_receiving chassis" in NOTES, "the stop")
    app.transport.send(notification(new_id(), TOPIC, sink, b"too late"))
    chassis.gate.set()
    stopping.join(DEADLINE_S)
    assert left == [0]
    assert [message.payload for _, message in chassis.sent] == [b"0", b"1", b"2", b"3", b"4"]
    assert streamer.ledger().received == 5
    assert leftovers(streamer) == []


def test_stop_says_how_many_messages_it_could_not_send_in_time(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"), QUICK_RETRY)
    link(streamer, "chassis").fault = UCode.UNAVAILABLE
    for _ in range(3):
        bench.app("inside").transport.send(notification(new_id(), TOPIC, UUri("chassis", 1, 1, 0)))
    began = time.monotonic()
    assert streamer.stop(0.05) == 3
    assert 0.05 <= time.monotonic() - began < 2.0
    assert (streamer.ledger().queued, streamer.ledger().dead_lettered) == (0, 3)
    assert leftovers(streamer) == []


def test_stop_waits_for_what_a_filter_holds_back(bench: Bench) -> None:
    streamer = bench.started(
        bench.local("inside", OWN),
        bench.local("outside", "cloud"),
        WITH_USUBSCRIPTION,
        "[plugins.throttle]\nmode = 'latest'",
    )
    sensor, fleet = bench.app("inside"), bench.app("outside", "cloud")
    fleet.subscribe(period_ms=100)
    for payload in (b"first", b"displaced", b"newest"):
        sensor.publish(payload)
    fleet.wait_received(1)
    eventually(lambda: streamer.ledger().queued == 1, "quiet, but for what is held")
    assert streamer.stop(DEADLINE_S) == 0
    assert [message.payload for message in fleet.received] == [b"first", b"newest"]
    assert streamer.ledger().throttled == 1


class Slow(Noting):
    """A service that answers what it has accepted when it is told to stop, and not before."""

    def __init__(self, config: NoConfig, context: PluginContext) -> None:
        self._asked: list[UMessage] = []

    def start(self, bus: UTransport) -> None:
        self._bus = bus
        bus.register_listener(ANY, UUri(OWN, 7, 1, 1), self._asked.append)

    def stop(self) -> None:
        while self._asked:
            self._bus.send(response(new_id(), self._asked.pop(0), b"at last"))


def test_stop_lets_a_hosted_service_answer_what_it_has_accepted(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), extra={"slow": Slow})
    app = bench.app("inside")
    app.listen(ANY, app.address)
    for _ in range(3):
        app.transport.send(request(new_id(), app.address, UUri(OWN, 7, 1, 1), ttl=60_000))
    assert streamer.stop(DEADLINE_S) == 0
    assert [message.payload for message in app.received] == [b"at last"] * 3
    assert streamer.ledger().delivered == 6


class Shouting(Noting):
    """A service that sends to where nobody can be."""

    def start(self, bus: UTransport) -> None:
        self._bus = bus

    @hookimpl
    def ustreamer_started(self, dispatcher: Dispatcher) -> None:
        self._bus.send(notification(new_id(), UUri(OWN, 7, 1, 0x8000), UUri("mars", 2, 1, 0)))


def test_what_a_hosted_service_sends_to_a_name_that_nobody_knows_is_a_dead_letter(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), extra={"shouting": Shouting})
    assert streamer.ledger().dead_lettered == 1


def test_a_call_that_fails_while_the_streamer_stops_is_still_answered(bench: Bench) -> None:
    # Over and over: there is a moment between the end of a lane's last message and the answer that comes of it.
    for _ in range(20):
        streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"))
        chassis, app = link(streamer, "chassis"), bench.app("inside")
        chassis.fault = UCode.INTERNAL
        chassis.gate.clear()
        app.listen(ANY, app.address)
        app.transport.send(request(new_id(), app.address, UUri("chassis", 1, 1, 2), ttl=60_000))
        eventually(lambda chassis=chassis: chassis.attempts == 1, "the attempt")  # type: ignore[misc]
        stopping = threading.Thread(target=streamer.stop, daemon=True)
        stopping.start()
        eventually(lambda: "stop_receiving chassis" in NOTES, "the stop")
        chassis.gate.set()
        stopping.join(DEADLINE_S)
        assert [message.attributes.commstatus for message in app.received] == [UCode.INTERNAL]
        app.transport.close()
        NOTES.clear()


def test_a_streamer_can_be_stopped_twice_and_without_having_been_started(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"), WITH_USUBSCRIPTION)
    assert [streamer.stop(), streamer.stop(0)] == [0, 0]
    never = bench.streamer(bench.local("inside", OWN), fake("chassis", "chassis"), WITH_USUBSCRIPTION)
    assert never.stop() == 0
    assert leftovers(never) == []


# --------------------------------------------------------------------------------------------------------------- hooks


class Watching:
    """A tap on every endpoint."""

    Config = NoConfig
    seen: ClassVar[list[tuple[str, Verdict, str | None]]] = []

    def __init__(self, config: NoConfig, context: PluginContext) -> None:
        assert (context.authority, context.state_dir.name) == (OWN, "state0")
        self.seen.clear()

    @hookimpl
    def ustreamer_taps(self, endpoint: str) -> Tap:
        def tap(
            message: UMessage,
            delivery: Delivery | None,
            verdict: Verdict,
            reason: UStatus | None,
            attempts: int,
            arrived_ns: int,
            received_ns: int,
            first_attempt_ns: int,
            settled_ns: int,
        ) -> None:
            self.seen.append((endpoint, verdict, delivery.endpoint if delivery else None))

        return tap


def test_a_tap_sees_every_verdict_with_where_the_message_came_from_and_went(bench: Bench) -> None:
    streamer = bench.started(
        bench.local("inside", OWN), fake("chassis", "chassis"), extra={"watching": Watching}
    )
    app = bench.app("inside")
    app.publish()
    app.transport.send(notification(new_id(), TOPIC, UUri("chassis", 1, 1, 0)))
    eventually(lambda: len(Watching.seen) == 2, "the verdicts")
    link(streamer, "chassis").fault = UCode.INTERNAL
    app.transport.send(request(new_id(), app.address, UUri("chassis", 1, 1, 2), ttl=60_000))
    eventually(lambda: len(Watching.seen) == 5, "the verdicts on the call, its answer and its dead letter")
    assert sorted(Watching.seen, key=str) == sorted(
        [
            ("inside", Verdict.NO_SUBSCRIBER, None),
            ("inside", Verdict.DELIVERED, "chassis"),
            ("inside", Verdict.DEAD_LETTERED, "chassis"),
            ("self", Verdict.DELIVERED, "inside"),  # the error response
            ("self", Verdict.NO_SUBSCRIBER, None),  # the dead letter
        ],
        key=str,
    )


class Books:
    """A plugin that looks at the books, and at what it is told the streamer goes by and who subscribes."""

    Config = NoConfig
    made: ClassVar[list["Books"]] = []

    def __init__(self, config: NoConfig, context: PluginContext) -> None:
        self.ledger = context.ledger
        self.settings: list[Settings] = []
        self.subscriptions: list[tuple[Change, UUri, UUri, int]] = []
        self.final: LedgerSnapshot | None = None
        self.made.append(self)

    @hookimpl
    def ustreamer_configured(self, settings: Settings) -> None:
        self.settings.append(settings)

    @hookimpl
    def ustreamer_subscription_watch(self) -> SubscriptionWatch:
        def told(subscription: Subscription, change: Change, /) -> None:
            self.subscriptions.append(
                (change, subscription.topic, subscription.subscriber, subscription.period_ns)
            )

        return told

    @hookimpl
    def ustreamer_stopped(self) -> None:
        self.final = self.ledger()


def test_a_plugin_is_told_the_limits_of_every_endpoint_and_the_sections_of_all_plugins(bench: Bench) -> None:
    limits = "[egress.chassis]\nqueue_messages = 7"
    bench.started(
        bench.local("inside", OWN),
        fake("chassis", "chassis"),
        limits,
        WITH_USUBSCRIPTION,
        extra={"books": Books},
    )
    [settings] = Books.made[-1].settings
    assert {name: each.queue_messages for name, each in settings.egress.items()} == {
        "inside": 10_000,
        "chassis": 7,
        "self": 10_000,
    }
    assert settings.plugins.keys() == {"usubscription", "books"}
    assert settings.plugins["books"] == NoConfig()


def test_a_plugin_has_the_final_books_when_all_is_closed(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"), extra={"books": Books})
    bench.app("inside").transport.send(notification(new_id(), TOPIC, UUri("chassis", 1, 1, 0)))
    eventually(lambda: streamer.ledger().delivered == 1, "the delivery")
    assert Books.made[-1].ledger() == streamer.ledger()
    assert Books.made[-1].final is None
    streamer.stop()
    assert Books.made[-1].final == streamer.ledger()


def test_a_plugin_that_watches_is_told_of_every_subscription_from_whatever_directory(bench: Bench) -> None:
    receiver = UUri("chassis", 1, 1, 0)
    bench.started(
        bench.local("inside", OWN),
        fake("chassis", "chassis", receivers=[str(receiver)]),
        WITH_USUBSCRIPTION,
        extra={"books": Books},
    )
    app = bench.app("inside")
    app.subscribe(TOPIC)
    told = Books.made[-1].subscriptions
    eventually(lambda: len(told) == 2, "the subscription")
    assert told == [
        (Change.PRESENT, TOPIC, receiver, 0),
        (Change.SUBSCRIBED, TOPIC, app.address, 0),
    ]


class FailsToWatch(Books):
    @hookimpl
    def ustreamer_subscription_watch(self) -> SubscriptionWatch:
        def told(subscription: Subscription, change: Change, /) -> None:
            self.subscriptions.append((change, subscription.topic, subscription.subscriber, 0))
            raise ZeroDivisionError("watch")

        return told


def test_a_watch_that_raises_disturbs_nobody_and_is_logged_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.started(bench.local("inside", OWN), WITH_USUBSCRIPTION, extra={"books": FailsToWatch})
    app = bench.app("inside")
    app.subscribe(TOPIC)
    app.subscribe(TOPIC.with_resource(0x8009))
    eventually(lambda: len(Books.made[-1].subscriptions) == 2, "the subscriptions")
    assert [r.message for r in caplog.records if r.message == "plugin_failed"] == ["plugin_failed"]


def test_the_plugins_of_a_streamer_can_be_asked(bench: Bench) -> None:
    streamer = bench.streamer(fake("a", OWN), WITH_USUBSCRIPTION, extra={"noting": Noting})
    assert [name for name, _ in streamer.plugins.list_name_plugin()] == ["usubscription", "noting"]


# -------------------------------------------------------------------------------------------------------------- serves

SERVES: list[tuple[dict[str, tuple[str, list[str]]], tuple[str, ...]]] = [
    ({"a": ("sessions", [OWN])}, (OWN,)),
    ({"a": ("sessions", [OWN, "cloud"]), "b": ("fake", ["zulu", "alfa"])}, (OWN, "alfa", "zulu")),
    ({"a": ("fake", [OWN, "chassis"])}, (OWN, "chassis")),
    ({"a": ("fake", ["*", "chassis"])}, (OWN, "chassis")),
    ({"a": ("fake", ["b"]), "b": ("fake", ["a"]), "c": ("sessions", ["*"])}, (OWN, "a", "b")),
]


@pytest.mark.parametrize(("endpoints", "expected"), SERVES)
def test_a_streamer_serves_its_own_authority_and_those_that_have_no_usubscription(
    bench: Bench, tmp_path: Path, endpoints: dict[str, tuple[str, list[str]]], expected: tuple[str, ...]
) -> None:
    sections = [fake(name, *who, transport=kind) for name, (kind, who) in endpoints.items()]
    bench.streamer(*sections)
    kinds = plugins.transport_kinds(plugins.without_configuration({"fakes": Fakes}))
    config = configuration.load(tmp_path / "ustreamer.toml", kinds, {})
    assert serves(config, kinds) == expected
