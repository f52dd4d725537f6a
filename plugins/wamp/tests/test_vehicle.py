# SPDX-License-Identifier: Apache-2.0
"""Sessions on a whole streamer: real sockets, the real uSubscription and throttle. Every test ends with the ledger law."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from ustreamer_wamp.plugin import WampPlugin, WampSection
from ustreamer_wamp.transport import WampTransport

from ustreamer.hookspecs import Decoder, PluginContext, hookimpl
from ustreamer.host import process
from ustreamer.host.clock import SYSTEM_CLOCK
from ustreamer.host.config import ConfigError
from ustreamer.host.streamer import Streamer
from ustreamer.transports.local.transport import LocalNetwork, LocalTransport
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.rpc import RpcClient
from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, UUri

if TYPE_CHECKING:
    from tests.conftest import OPENED, Peer
else:
    from plugins.wamp.tests.conftest import OPENED, Peer

SPEED = UUri("car", 0x2001, 1, 0x8001)
RPM = UUri("car", 0x2001, 1, 0x8002)
SPEED_TOPIC, RPM_TOPIC = "up.car.2001.0.1.8001", "up.car.2001.0.1.8002"
REMOTE_TOPIC = "up.cloud.10ab.0.3.80cd"
MINE = "up.wamp_2ehpc.4711.0.1.8000"
SECTION = """
[plugins.wamp]
listen = "ws://127.0.0.1:0/ws"
anonymous = true
users = [
    { authid = "driver", ticket = "t", publish = ["up.wamp_2ehpc.", "com.", "up.car."] },
]
"""
DEADLINE_S = 10.0


def until(condition: Callable[[], Any]) -> Any:
    """Wait for a condition, and give what it was."""
    end = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.002)
    return found


class Car:
    """A streamer with the authorities `hpc` and `car` on one local network, `cloud` on another, and sessions."""

    def __init__(self, directory: Path, *more: str, section: str = SECTION, plugins: str = "") -> None:
        self.path = directory / "car.toml"
        self.networks = [LocalNetwork.named(f"{directory.name}/{name}") for name in ("inside", "outside")]
        inside, outside = (each.name for each in self.networks)
        self.path.write_text(
            "\n".join(
                [
                    'authority = "hpc"\nstate_dir = "state"',
                    f'[endpoints.inside]\ntransport = "local"\nnetwork = "{inside}"\nauthorities = ["hpc", "car"]',
                    f'[endpoints.outside]\ntransport = "local"\nnetwork = "{outside}"\nauthorities = ["cloud"]',
                    *more,
                    plugins or "[plugins.usubscription]\n[plugins.throttle]\ntolerance = 0.1",
                    section,
                ]
            ),
            encoding="utf-8",
        )
        self.ids = UuidSource(SYSTEM_CLOCK.wall_ms)
        self.inside = LocalTransport(self.networks[0], "car")
        self.outside = LocalTransport(self.networks[1], "cloud")
        for each in (self.inside, self.outside):
            each.open()
        self.streamer: Streamer = process.load(self.path).streamer()
        self.streamer.start()

    @property
    def wamp(self) -> WampTransport:
        found = self.streamer.transports["wamp"]
        assert isinstance(found, WampTransport)
        return found

    def peer(self, serializer: str = "json") -> Peer:
        return Peer(self.wamp.router.server.urls[0], serializer)

    def subscriptions(self) -> list[tuple[UUri, UUri]]:
        """(topic, subscriber) of all that uSubscription knows."""
        rpc = RpcClient(self.inside, UUri("car", 0x77, 1, 0), self.ids)
        answer = rpc.call(UUri("hpc", 0, 3, 3), ttl=5000)
        rpc.close()
        found = pb.FetchSubscriptionsResponse.FromString(answer.payload).subscriptions
        return [(UUri.from_pb(each.topic), UUri.from_pb(each.subscriber.uri)) for each in found]

    def publish(
        self, topic: UUri, payload: bytes, form: UPayloadFormat = UPayloadFormat.RAW, **more: Any
    ) -> UMessage:
        message = publish(self.ids.next(), topic, payload, form, **more)
        self.inside.send(message)
        return message

    def stop(self) -> None:
        """Stop, and see that nothing is unaccounted for."""
        self.streamer.stop()
        ledger = self.streamer.ledger()
        assert ledger.unaccounted == 0
        for each in (self.inside, self.outside):
            each.close()


@pytest.fixture
def make_car(tmp_path: Path) -> Iterator[Callable[..., Car]]:
    cars: list[Car] = []

    def make(*more: str, **options: Any) -> Car:
        cars.append(Car(tmp_path, *more, **options))
        return cars[-1]

    yield make
    OPENED.close()  # first: a router that stops waits for the goodbyes of its clients
    for car in cars:
        car.stop()


@pytest.fixture
def car(make_car: Callable[..., Car]) -> Car:
    return make_car()


def subscribed(peer: Peer, topic: str, options: dict[str, Any] | None = None) -> int:
    answer = peer.answer(32, 1, options or {}, topic)
    assert answer[:2] == [33, 1], answer
    return int(answer[2])


# --- what is subscribed -------------------------------------------------------------------------------------------------


def test_a_session_is_a_subscriber_like_any_other(car: Car) -> None:
    peer = car.peer().join()
    id = subscribed(peer, SPEED_TOPIC)
    ((topic, subscriber),) = car.subscriptions()
    assert topic == SPEED
    assert (subscriber.authority_name, subscriber.ue_type, subscriber.resource_id) == ("wamp.hpc", 0x8001, 0)
    message = car.publish(SPEED, b"\x00\x2a", ttl=60_000)
    car.publish(RPM, b"nobody wants this")
    code, subscription, publication, details, args, kwargs = peer.hear()
    assert (code, subscription, details, args) == (36, id, {}, [b"\x00\x2a"])
    assert 1 <= publication <= 2**53
    assert kwargs == {
        "id": str(message.id),
        "source": "up://car/2001/1/8001",
        "type": "publish",
        "priority": "CS1",
        "format": "RAW",
        "ttl": 60_000,
    }
    assert peer.answer(34, 2, id) == [35, 2]
    until(lambda: car.subscriptions() == [])
    car.publish(SPEED, b"later")
    assert peer.answer(32, 3, {}, "com.other")[0] == 33, "nothing came in between"


def test_a_topic_of_another_device_is_asked_for_there(car: Car) -> None:
    asked: list[UMessage] = []
    car.outside.register_listener(ANY, UUri("cloud", 0, 3, 1), asked.append)
    peer = car.peer().join()
    assert peer.answer(32, 1, {}, REMOTE_TOPIC)[0] == 33
    (request,) = until(lambda: asked)
    assert UUri.from_pb(pb.SubscriptionRequest.FromString(request.payload).topic) == UUri(
        "cloud", 0x10AB, 3, 0x80CD
    )
    peer.socket.close()
    unsubscribed: list[UMessage] = []
    car.outside.register_listener(ANY, UUri("cloud", 0, 3, 2), unsubscribed.append)
    until(lambda: car.subscriptions() == [])


@pytest.mark.parametrize("how", ["close", "goodbye", "reset"])
def test_its_end_ends_its_subscriptions(car: Car, how: str) -> None:
    staying, leaving = car.peer().join(), car.peer("cbor").join()
    for peer in (staying, leaving):
        for topic in (SPEED_TOPIC, RPM_TOPIC):
            subscribed(peer, topic)
    assert len(car.subscriptions()) == 4
    if how == "goodbye":
        assert leaving.answer(6, {}, "wamp.close.normal")[0] == 6
    elif how == "close":
        leaving.socket.close()
    else:
        leaving.socket.socket.close()
    until(lambda: len(car.subscriptions()) == 2)
    car.publish(SPEED, b"x")
    assert staying.hear()[4] == [b"x"]
    assert len(car.wamp.vehicle.members) == 1


def test_sessions_of_a_process_that_was_killed_are_forgotten_at_the_next_start(
    make_car: Callable[..., Car], tmp_path: Path
) -> None:
    car = make_car()
    subscribed(car.peer().join(), SPEED_TOPIC)
    assert len(car.subscriptions()) == 1
    # As a kill does: the sessions end without a word to uSubscription.
    car.wamp._receiving = False
    car.wamp._registrations = ()
    car.stop()
    again = make_car()
    until(lambda: again.wamp.counts["ended_those_of_before"] == 1)
    until(lambda: again.subscriptions() == [])


def test_a_rate_is_that_of_one_session_alone(car: Car) -> None:
    fast, slow = car.peer().join(), car.peer("msgpack").join()
    subscribed(fast, SPEED_TOPIC)
    subscribed(slow, SPEED_TOPIC, {"max_frequency": 0.01})
    for number in range(50):
        car.publish(SPEED, bytes([number]))
    assert [fast.hear()[4] for _ in range(50)] == [[bytes([number])] for number in range(50)]
    assert slow.hear()[4] == [b"\x00"]
    assert slow.answer(32, 9, {}, SPEED_TOPIC)[0] == 33, "and with another SUBSCRIBE it has another rate"
    targets = until(lambda: [each for each in car.streamer.targets() if each.throttled])
    assert [(each.throttled, each.endpoint) for each in targets] == [(49, "wamp")]
    car.publish(SPEED, b"all")
    assert slow.hear()[4] == [b"all"]


def test_what_usubscription_refuses_is_an_error(make_car: Callable[..., Car]) -> None:
    car = make_car(plugins='[plugins.usubscription]\ntopic_lifecycle = "enforce"')
    peer = car.peer().join()
    answer = peer.answer(32, 1, {}, "up.hpc.2001.0.1.8001")
    assert (answer[0], answer[4]) == (8, "up.error.not_found")
    assert "2001" in answer[3]["message"]
    assert subscribed(peer, "com.not.of.the.vehicle")


def test_without_usubscription_topics_of_the_vehicle_cannot_be_had(make_car: Callable[..., Car]) -> None:
    car = make_car(plugins="[plugins.throttle]")
    answer = car.peer().join().answer(32, 1, {}, SPEED_TOPIC)
    assert (answer[0], answer[4].startswith("up.error.")) == (8, True)


def test_who_subscribes_and_leaves_before_the_answer_leaves_nothing(car: Car) -> None:
    for _ in range(20):
        peer = car.peer().join()
        for request in range(1, 20):
            peer.say(32, request, {}, f"up.car.{request:x}.0.1.8001")
        peer.socket.socket.close()
    until(lambda: not car.wamp.router.realm.members)
    until(lambda: len(car.wamp.vehicle.wishes) == 0)
    until(lambda: car.subscriptions() == [])


def test_more_wishes_than_calls_may_be_under_way_are_all_told(car: Car) -> None:
    peer = car.peer("msgpack").join()
    for request in range(1, 901):
        peer.say(32, request, {}, f"up.car.{request:x}.0.1.8001")
    answers = [peer.hear() for _ in range(900)]
    assert {each[0] for each in answers} == {33}
    assert len({each[2] for each in answers}) == 900
    assert len(car.subscriptions()) == 900


# --- patterns -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("match", "topic"),
    [("prefix", "up.car."), ("prefix", ""), ("wildcard", "up..2001...8001"), ("wildcard", "up.car....")],
)
def test_a_pattern_gets_what_comes_by(car: Car, match: str, topic: str) -> None:
    peer = car.peer().join()
    car.publish(SPEED, b"early")  # so that there is a plan, which has to be made again
    peer.say(32, 1, {"match": match}, topic)
    id = peer.hear()[2]

    def event() -> Any:
        car.publish(SPEED, b"x")
        heard = peer.hear_within(0.1)
        return heard if heard and heard[3].get("topic") == SPEED_TOPIC else None

    assert until(event)[1] == id
    assert len(car.wamp._patterns) == 1
    peer.socket.close()
    until(lambda: len(car.wamp._patterns) == 0)


def test_a_pattern_that_can_be_no_topic_concerns_the_vehicle_not(car: Car) -> None:
    peer = car.peer().join()
    for match, topic in (
        ("prefix", "com."),
        ("prefix", "upx"),
        ("wildcard", "up..1"),
        ("wildcard", "com....."),
    ):
        assert peer.answer(32, 1, {"match": match}, topic)[0] == 33
    assert len(car.wamp._patterns) == 0


# --- what is shown ------------------------------------------------------------------------------------------------------


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
    assert peer.hear()[4] == [shown]


def test_a_plugin_can_make_payloads_readable(
    make_car: Callable[..., Car], monkeypatch: pytest.MonkeyPatch
) -> None:
    car = make_car()
    car.streamer.plugins.register(Reader(Reader.Config(), None))  # type: ignore[arg-type]  # it looks at neither
    peer = car.peer().join()
    subscribed(peer, SPEED_TOPIC)
    car.publish(SPEED, b"\x01\x00")
    assert peer.hear()[4] == [{"speed": 256}]


def test_the_last_value_is_there_for_who_comes_later(car: Car) -> None:
    first, second = car.peer().join(), car.peer().join()
    subscribed(first, SPEED_TOPIC)
    car.publish(SPEED, b"now")
    first.hear()
    subscribed(second, SPEED_TOPIC, {"get_retained": True})
    event = second.hear()
    assert (event[3], event[4]) == ({"retained": True}, [b"now"])
    for peer in (first, second):
        peer.socket.close()
    until(lambda: len(car.wamp.router.realm.retained) == 0)


# --- what clients publish -----------------------------------------------------------------------------------------------


def test_a_client_publishes_into_the_vehicle_where_it_may(car: Car) -> None:
    heard: list[UMessage] = []
    car.inside.register_listener(UUri("wamp.hpc", 0x4711, 1, 0x8000), None, heard.append)
    rpc = RpcClient(car.inside, UUri("car", 0x78, 1, 0), car.ids)
    topic = pb.SubscriptionRequest(topic=UUri("wamp.hpc", 0x4711, 1, 0x8000).to_pb())
    rpc.call(UUri("hpc", 0, 3, 1), topic.SerializeToString(), UPayloadFormat.PROTOBUF)
    listener = car.peer().join()
    subscribed(listener, MINE)
    driver = car.peer("cbor").join_publisher("driver")
    assert driver.answer(16, 1, {"acknowledge": True}, MINE, [b"\x01"], {"ttl": 5000})[0] == 17
    assert driver.answer(16, 2, {"acknowledge": True}, MINE, [{"a": 1}])[0] == 17
    until(lambda: len(heard) == 2)
    assert [(each.payload, each.attributes.payload_format.name) for each in heard] == [
        (b"\x01", "RAW"),
        (b'{"a":1}', "JSON"),
    ]
    assert {each.attributes.type for each in heard} == {UMessageType.PUBLISH}
    assert heard[0].attributes.ttl == 5000
    assert [listener.hear()[4] for _ in range(2)] == [[b"\x01"], [{"a": 1}]], (
        "and other sessions hear it once"
    )


@pytest.mark.parametrize(
    ("topic", "args", "reason"),
    [
        (SPEED_TOPIC, [1], "wamp.error.not_authorized"),  # somebody else's, whatever the configuration allows
        ("up.car.no.topic", [1], "wamp.error.invalid_uri"),
        ("up.cloud.10ab.0.3.80cd", [1], "wamp.error.not_authorized"),
        (MINE, [1, 2], "wamp.error.invalid_argument"),
        ("org.elsewhere", [1], "wamp.error.not_authorized"),
    ],
)
def test_what_a_client_may_not_publish_goes_nowhere(
    car: Car, topic: str, args: list[Any], reason: str
) -> None:
    listener = car.peer().join()
    listener.say(32, 1, {"match": "prefix"}, "")
    driver = car.peer().join_publisher("driver")
    received = car.streamer.dispatcher.ingress("wamp").ledger.received
    answer = driver.answer(16, 1, {"acknowledge": True}, topic, args)
    assert (answer[0], answer[4]) == (8, reason)
    assert car.streamer.dispatcher.ingress("wamp").ledger.received == received


def test_somebody_without_a_name_publishes_nothing(car: Car) -> None:
    answer = car.peer().join().answer(16, 1, {"acknowledge": True}, MINE, [1])
    assert (answer[0], answer[4]) == (8, "wamp.error.not_authorized")


# --- the configuration --------------------------------------------------------------------------------------------------


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
def test_what_does_not_go_together_is_said(tmp_path: Path, more: str, section: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem.replace("(", r"\(")):
        Car(tmp_path, more, section=section)


def test_the_lane_has_limits_of_its_own(make_car: Callable[..., Car]) -> None:
    car = make_car("[egress.wamp]\nqueue_messages = 7")
    assert process.load(car.path).config.limits("wamp").queue_messages == 7


def test_what_is_counted_has_a_name_from_the_start(car: Car) -> None:
    counters = car.streamer.endpoints()["wamp"]
    assert counters["sessions_now"] == 0
    subscribed(car.peer().join(), SPEED_TOPIC)
    counters = car.streamer.endpoints()["wamp"]
    assert (counters["sessions"], counters["sessions_now"], counters["subscriptions_now"]) == (1, 1, 1)
