# SPDX-License-Identifier: Apache-2.0
"""Events between sessions and a complete streamer, and the configuration section.

Every test ends with the ledger law.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from ustreamer_wamp.plugin import WampPlugin, WampSection

from tests.waiting import DEADLINE_S, wait_until
from ustreamer.core.base.decoder import Decoder
from ustreamer.hooks import PluginContext, hookimpl
from ustreamer.host.config.config import ConfigError
from ustreamer.host.runtime import process
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.rpc import RpcClient
from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.car import MINE, RPM, RPM_TOPIC, SECTION, SPEED, SPEED_TOPIC, Car, subscribed
else:
    from plugins.wamp.tests.car import MINE, RPM, RPM_TOPIC, SECTION, SPEED, SPEED_TOPIC, Car, subscribed


# --- displayed values ---------------------------------------------------------------------------------------


class Reader:
    """A plugin that can read the payloads of one topic."""

    class Config(msgspec.Struct, frozen=True):
        pass

    def __init__(self, config: Config, context: PluginContext) -> None:
        """It needs nothing."""

    @hookimpl
    def ustreamer_decoders(self, topic: UUri) -> Decoder | None:
        return (lambda payload: {"speed": int.from_bytes(payload, "big")}) if topic == SPEED else None


@pytest.mark.parametrize(
    ("form", "payload", "shown"),
    [
        (UPayloadFormat.RAW, b"\x01", b"\x01"),
        (UPayloadFormat.TEXT, "ä".encode(), "ä"),
        (UPayloadFormat.TEXT, b"\xff", b"\xff"),
        (UPayloadFormat.JSON, b'{"a":[1,2.5]}', {"a": [1, 2.5]}),
        (UPayloadFormat.JSON, b"{broken", b"{broken"),
        (UPayloadFormat.PROTOBUF, b"\x08\x01", b"\x08\x01"),
    ],
)
def test_a_payload_is_shown_as_its_format_has_it(
    car: Car, form: UPayloadFormat, payload: bytes, shown: object
) -> None:
    peer = car.peer("cbor").join()
    subscribed(peer, RPM_TOPIC)
    car.publish(RPM, payload, form)
    assert peer.receive()[4] == [shown]


def test_a_plugin_can_make_payloads_readable(
    make_car: Callable[..., Car], monkeypatch: pytest.MonkeyPatch
) -> None:
    car = make_car()
    car.streamer.plugins.register(Reader(Reader.Config(), None))  # type: ignore[arg-type]  # it looks at neither
    peer = car.peer().join()
    subscribed(peer, SPEED_TOPIC)
    car.publish(SPEED, b"\x01\x00")
    assert peer.receive()[4] == [{"speed": 256}]


def test_two_topics_with_one_message_id_are_two_events(make_car: Callable[..., Car]) -> None:
    car = make_car()
    peer = car.peer().join()
    for name in (SPEED_TOPIC, RPM_TOPIC):
        subscribed(peer, name)
    blocked, may_go_on = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        may_go_on.wait(DEADLINE_S)

    car.local.router.server.run_on_loop(block)
    assert blocked.wait(DEADLINE_S)
    id = car.ids.next()
    for topic, payload in ((SPEED, b"speed"), (RPM, b"rpm")):
        car.inside.send(publish(id, topic, payload))
    may_go_on.set()
    assert [peer.receive()[4] for _ in range(2)] == [[b"speed"], [b"rpm"]]


@pytest.mark.parametrize("serializer", ["json", "msgpack", "cbor"])
@pytest.mark.parametrize("value", [None, b"\x81\xa1x\xc4\x01\xff", b""])
def test_a_lone_event_has_the_results_of_a_batch(car: Car, serializer: str, value: bytes | None) -> None:
    peer = car.peer(serializer).join()
    subscribed(peer, SPEED_TOPIC)
    subscribed(peer, "up.car.", {"match": "prefix"})
    bridge, realm, run = car.local.bridge, car.local.router.realm, car.local.router.server.run_on_loop
    known, unknown = next(iter(bridge.rates)), UUri("wamp.hpc", 0x99_8001, 1, 0)
    message = publish(car.ids.next(), SPEED, b"\0\xff", UPayloadFormat.RAW)

    def results(deliver: Callable[[UUri], bool]) -> object:
        """The events without the id of their publication, the retained arguments, and the counters."""
        bridge._counts.clear()
        assert deliver(known)
        assert deliver(unknown)
        wait_until(lambda: bridge._counts["events_no_subscriber"] == 1)
        events = [peer.receive() for _ in range(2)]
        (retained,) = realm.retained.matching(SPEED_TOPIC, "exact")
        assert {each[2] for each in events} == {retained.id}
        return [(each[:2], each[3:]) for each in events], retained.args, bridge._counts["not_decoded"]

    alone = results(lambda entity: run(bridge.deliver_lone_event, realm, entity, message, value))
    assert alone == results(lambda entity: run(bridge.deliver_events, realm, [(entity, message, value)]))


def test_a_late_subscriber_receives_the_last_value(car: Car) -> None:
    first, second = car.peer().join(), car.peer().join()
    subscribed(first, SPEED_TOPIC)
    car.publish(SPEED, b"now")
    first.receive()
    subscribed(second, SPEED_TOPIC, {"get_retained": True})
    event = second.receive()
    assert (event[3], event[4]) == ({"retained": True}, [b"now"])
    for peer in (first, second):
        peer.socket.close()
    wait_until(lambda: len(car.local.router.realm.retained) == 0)


# --- publications of clients --------------------------------------------------------------------------------


def test_a_client_publishes_into_the_vehicle_where_it_may(car: Car) -> None:
    received_messages: list[UMessage] = []
    car.inside.register_listener(UUri("wamp.hpc", 0x4711, 1, 0x8000), None, received_messages.append)
    rpc = RpcClient(car.inside, UUri("car", 0x78, 1, 0), car.ids)
    topic = pb.SubscriptionRequest(topic=UUri("wamp.hpc", 0x4711, 1, 0x8000).to_pb())
    rpc.call(UUri("hpc", 0, 3, 1), topic.SerializeToString(), UPayloadFormat.PROTOBUF)
    listener = car.peer().join()
    subscribed(listener, MINE)
    driver = car.peer("cbor").join_publisher("driver")
    assert driver.request(16, 1, {"acknowledge": True}, MINE, [b"\x01"], {"ttl": 5000})[0] == 17
    assert driver.request(16, 2, {"acknowledge": True}, MINE, [{"a": 1}])[0] == 17
    wait_until(lambda: len(received_messages) == 2)
    assert [(each.payload, each.attributes.payload_format.name) for each in received_messages] == [
        (b"\x01", "RAW"),
        (b'{"a":1}', "JSON"),
    ]
    assert {each.attributes.type for each in received_messages} == {UMessageType.PUBLISH}
    assert received_messages[0].attributes.ttl == 5000
    assert [listener.receive()[4] for _ in range(2)] == [[b"\x01"], [{"a": 1}]], (
        "and other sessions receive it once"
    )


@pytest.mark.parametrize(
    ("topic", "args", "reason"),
    [
        # another authority's topic, whatever the configuration allows
        (SPEED_TOPIC, [1], "wamp.error.not_authorized"),
        ("up.car.no.topic", [1], "wamp.error.invalid_uri"),
        ("up.cloud.10ab.0.3.80cd", [1], "wamp.error.not_authorized"),
        (MINE, [1, 2], "wamp.error.invalid_argument"),
        ("org.elsewhere", [1], "wamp.error.not_authorized"),
    ],
)
def test_a_forbidden_publication_reaches_no_subscriber(
    car: Car, topic: str, args: list[Any], reason: str
) -> None:
    listener = car.peer().join()
    listener.send(32, 1, {"match": "prefix"}, "")
    driver = car.peer().join_publisher("driver")
    received = car.streamer.dispatcher.ingress("wamp").ledger.received
    answer = driver.request(16, 1, {"acknowledge": True}, topic, args)
    assert (answer[0], answer[4]) == (8, reason)
    assert car.streamer.dispatcher.ingress("wamp").ledger.received == received


def test_a_client_without_an_authority_cannot_publish(car: Car) -> None:
    answer = car.peer().join().request(16, 1, {"acknowledge": True}, MINE, [1])
    assert (answer[0], answer[4]) == (8, "wamp.error.not_authorized")


# --- the configuration --------------------------------------------------------------------------------------


def test_the_section_is_all_there_is_to_write(car: Car) -> None:
    assert car.streamer.transports["wamp"].unicast
    config = process.load(car.path).config
    assert config.endpoints["wamp"].authorities == ("wamp.hpc",)
    assert [each.name for each in car.streamer.routes().endpoints] == ["inside", "outside", "wamp"]
    section = config.plugins["wamp"]
    assert isinstance(section, WampSection)
    assert WampPlugin.Config is WampSection


@pytest.mark.parametrize(
    ("more", "section", "problem"),
    [
        (
            '[endpoints.wamp]\ntransport = "local"\nnetwork = "x"\nauthorities = ["y"]',
            SECTION,
            "brings an endpoint 'wamp'",
        ),
        ("", SECTION + '\nauthority = "car"', "'car' lives behind endpoint 'inside'"),
        ("", SECTION + '\nauthority = "No!"', "is not an authority"),
        ("", SECTION.replace("ws://127.0.0.1:0/ws", "http://x"), "is none of ws://"),
        ("[egress.wamp]\nqueue_message = 1", SECTION, "queue_messages"),
    ],
)
def test_contradictory_settings_are_reported(tmp_path: Path, more: str, section: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem.replace("(", r"\(")):
        Car(tmp_path, more, section=section)


def test_the_endpoint_queue_has_limits_of_its_own(make_car: Callable[..., Car]) -> None:
    car = make_car("[egress.wamp]\nqueue_messages = 7")
    assert process.load(car.path).config.limits("wamp").queue_messages == 7


def test_every_counter_exists_from_the_start(car: Car) -> None:
    counters = car.streamer.endpoints()["wamp"]
    assert counters["sessions_now"] == 0
    subscribed(car.peer().join(), SPEED_TOPIC)
    names = ("sessions", "sessions_now", "subscriptions_now")
    wait_until(lambda: [car.streamer.endpoints()["wamp"][each] for each in names] == [1, 1, 1])
