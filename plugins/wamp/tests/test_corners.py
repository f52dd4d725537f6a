# SPDX-License-Identifier: Apache-2.0
"""Corner cases that no other test covers: each property could be broken while all other tests pass."""

import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from ustreamer_wamp import transport
from ustreamer_wamp.config import WampConfig
from ustreamer_wamp.connections.connection import Connection
from ustreamer_wamp.connections.outbox import OutboxLimits
from ustreamer_wamp.connections.rawsocket import RawSocketConnection
from ustreamer_wamp.events import Publication
from ustreamer_wamp.realm import JoinedSession, NullBackend, SubscribeCallback
from ustreamer_wamp.router import WampRouter
from ustreamer_wamp.session import SessionState
from ustreamer_wamp.uri import Match
from ustreamer_wamp.vehicle.patterns import Pattern, PatternDirectory
from websockets.exceptions import WebSocketException

from tests.waiting import wait_until
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.car import SPEED, SPEED_TOPIC, Car, subscribed
    from tests.conftest import OPENED, RealmRig, TlsPeer
    from tests.connections.test_hostile_streams import Loop, Socket, connection_context
    from tests.connections.test_server import write_certificate
else:
    from plugins.wamp.tests.car import SPEED, SPEED_TOPIC, subscribed
    from plugins.wamp.tests.conftest import OPENED, TlsPeer
    from plugins.wamp.tests.connections.test_hostile_streams import Loop, Socket, connection_context
    from plugins.wamp.tests.connections.test_server import write_certificate

ENTITY = UUri("wamp.hpc", 0x1_8001, 1, 0)


def test_an_event_arrives_only_under_ids_that_the_session_subscribed(car: "Car") -> None:
    """Autobahn|JS takes an EVENT of an unknown id for a protocol violation, and closes the session."""
    exact, wide = car.peer().join(), car.peer().join()
    one = subscribed(exact, SPEED_TOPIC)
    other = subscribed(wide, "up.car.", {"match": "prefix"})

    def event() -> Any:
        car.publish(SPEED, b"x")
        return wide.receive_within(0.1)  # routing is updated with a pattern some ms later

    assert wait_until(event)[1] == other
    car.publish(SPEED, b"y")
    for peer, id in ((exact, one), (wide, other)):
        while (received_messages := peer.receive())[4] != [b"y"]:
            assert received_messages[1] == id
        assert received_messages[1] == id
        assert peer.request(34, 9, 4711)[0] == 8, "and that was all"


class SlowBackend(NullBackend):
    """A gate that responds when the test requests it."""

    def __init__(self) -> None:
        self.waiting: list[SubscribeCallback] = []

    def open_subscription(
        self, session: JoinedSession, topic: str, match: Match, period_ns: int, done: SubscribeCallback
    ) -> None:
        self.waiting.append(done)


def test_a_vehicle_response_after_the_end_of_a_session_adds_no_subscriber(
    make_rig: Callable[..., "RealmRig"], serializer: str
) -> None:
    gate = SlowBackend()
    rig = make_rig(gate=gate)
    client = rig.joined_client(serializer)
    client.send(32, 1, {}, "com.a")
    assert client.received() == []
    client.session.on_connection_lost()
    for done in gate.waiting:
        done(None)
    assert client.received() == []
    assert len(rig.realm.broker) == 0


def test_a_second_subscribe_sends_no_meta_event_of_a_new_subscriber(rig: "RealmRig", serializer: str) -> None:
    watcher, client = rig.joined_client(serializer), rig.joined_client(serializer)
    watcher.subscribe("wamp.subscription.on_subscribe")
    watcher.received()
    for _ in range(3):
        client.subscribe("com.a")
    assert len(watcher.received()) == 1


def test_ids_in_sequence_begin_again_after_the_last_one(
    make_rig: Callable[..., "RealmRig"], serializer: str
) -> None:
    client = make_rig(sequential_ids=True).joined_client(serializer)
    client.session._next_request = 2**53
    assert client.request(34, 2**53, 4711)[:3] == [8, 34, 2**53]
    assert client.request(34, 1, 4711)[:3] == [8, 34, 1]


def test_a_reply_does_not_overtake_queued_messages(rig: "RealmRig") -> None:
    client = rig.joined_client()
    id = client.subscribe("com.a")
    client.outbox.pause()
    rig.joined_client().send(16, 1, {}, "com.a", [1])
    client.outbox.resume()  # and before it is flushed:
    client.send(34, 2, id)
    assert [each[0] for each in client.received()] == [36, 35]


def test_of_several_patterns_of_one_session_the_fastest_counts() -> None:
    patterns = PatternDirectory(lambda: None)
    for order in ((5, 0), (0, 5)):
        for period_ns, topic in zip(order, ("up.car.", "up."), strict=True):
            patterns.add_pattern(Pattern(ENTITY, topic, "prefix"), period_ns)
        (found,) = patterns.subscribers(SPEED)
        assert found.period_ns == 0


def test_the_policy_close_ends_the_session_of_a_client_that_does_not_read(
    make_rig: Callable[..., "RealmRig"],
) -> None:
    rig, loop, counts, here = make_rig(), Loop(), Counter[str](), list[Connection]()
    outbox = OutboxLimits(events=2, policy="close")
    context = connection_context(rig, counts, outbox)
    connection = RawSocketConnection(context, cast("Any", loop), here.append, here.remove, private=True)
    sock = Socket()
    connection.connection_made(sock)
    connection.data_received(b"\x7f\xf1\x00\x00")
    for message in (b'[1,"realm1",{"roles":{"subscriber":{}}}]', b'[32,1,{},"com.a"]'):
        connection.data_received(len(message).to_bytes(4, "big") + message)
    loop.run_pending()
    connection.pause_writing()
    assert connection.session is not None
    for number in range(3):
        assert connection.session.state is SessionState.ESTABLISHED
        rig.realm.fan_out(Publication(number + 1, "com.a", [number], {}))
        loop.run_pending()
    assert connection.session.state is SessionState.CLOSED
    assert counts["sessions_too_slow"] == 1
    assert len(rig.realm.broker) == 0
    connection.resume_writing()
    loop.run_pending()
    assert b"wamp.close.killed" in sock.written
    assert sock.closed


@pytest.fixture
def start() -> Iterator[Callable[..., WampRouter]]:
    routers: list[WampRouter] = []

    def make(**section: Any) -> WampRouter:
        config = msgspec.convert(
            {"anonymous": True, **section}, WampConfig, dec_hook=lambda kind, value: kind(value)
        )
        routers.append(WampRouter(config, SYSTEM_CLOCK))
        routers[-1].server.open()
        return routers[-1]

    yield make
    OPENED.close()
    for each in routers:
        each.server.close()


def test_where_a_certificate_is_required_a_client_without_it_is_rejected(
    start: Callable[..., WampRouter], tmp_path: Path
) -> None:
    own, theirs = tmp_path / "own", tmp_path / "theirs"
    for each in (own, theirs):
        each.mkdir()
    server, client = write_certificate(own, "server"), write_certificate(theirs, "client")
    router = start(listen="wss://127.0.0.1:0/ws", tls={**server, "client_ca": client["certificate"]})
    context = ssl.create_default_context(cafile=server["certificate"])
    with pytest.raises((ssl.SSLError, OSError, EOFError, WebSocketException)):
        TlsPeer(router.server.urls[0], context)
    assert router.counts["sessions"] == 0
    context.load_cert_chain(client["certificate"], client["key"])
    TlsPeer(router.server.urls[0], context)
    assert router.counts["sessions"] == 1


def test_no_more_responses_wait_for_the_loop_than_the_bound(
    car: "Car", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MAX_INBOX", 0)
    monkeypatch.setattr(transport, "MAX_ADDRESSED", 0)
    car.wamp._inbox.append((ENTITY, car.publish(SPEED, b"x"), None))  # without waking the loop
    with pytest.raises(UStatusError, match="0 messages wait already"):
        car.wamp._enqueue(ENTITY, car.publish(SPEED, b"x"))


def test_closed_sessions_refuse_each_message(car: "Car") -> None:
    message = car.publish(SPEED, b"x")
    car.wamp.close()
    for _ in range(3):
        with pytest.raises(UStatusError, match="wamp: closed"):
            car.wamp._enqueue(ENTITY, message)
    assert car.wamp.statistics()["inbox_messages"] == 0


def test_publications_of_clients_are_refused_once_the_streamer_stops(car: "Car") -> None:
    received_messages: list[object] = []
    monitor = UUri("wamp.hpc", 0x4711, 1, 0x8000)
    driver = car.peer().join_publisher("driver")
    car.wamp.register_listener(monitor, None, received_messages.append)
    assert driver.request(16, 1, {"acknowledge": True}, "up.wamp_2ehpc.4711.0.1.8000", [1])[0] == 17
    wait_until(lambda: received_messages)  # from another process it comes after the answer
    car.wamp.stop_receiving()
    refusal = driver.request(16, 2, {"acknowledge": True}, "up.wamp_2ehpc.4711.0.1.8000", [2])
    assert refusal[4] == "up.error.unavailable"
    wait_until(lambda: car.wamp.statistics()["refused_stopping"] == 1)
    assert len(received_messages) == 1
