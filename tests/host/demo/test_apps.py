# SPDX-License-Identifier: Apache-2.0
"""The demo's applications on an in-process network instead of a Zenoh session."""

import struct
import time
from collections.abc import Callable, Iterator, Mapping

import pytest

from tests.waiting import wait_until
from ustreamer.host.demo.apps import ClimateControl, DemoApp
from ustreamer.transports.local.transport import LocalNetwork, LocalTransport
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, error_response, publish, response
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, UUri

DEADLINE_S = 30.0
ADDRESS = UUri("hpc", 0x10A1, 1, 0)
USUBSCRIPTION = UUri("hpc", 0, 3, 0)
TOPIC = UUri("chassis", 0x1234, 1, 0x8001)
METHOD = UUri("chassis", 0x3001, 1, 1)
IDS = UuidSource(lambda: time.time_ns() // 1_000_000)

Answer = Callable[[UMessage], UMessage]


class Linked(LocalTransport):
    """Reports a number of connected nodes, like a Zenoh session."""

    links = 1

    def statistics(self) -> Mapping[str, int]:
        return {**super().statistics(), "links": self.links}


class Network:
    """The network of an application: a uSubscription and a climate method, implemented by the test."""

    def __init__(self) -> None:
        self.network = LocalNetwork()
        self.transport = LocalTransport(self.network, "hpc")
        self.transport.open()
        self.asked: list[UMessage] = []
        self.answers: dict[UUri, Answer] = {
            USUBSCRIPTION.with_resource(1): lambda asked: response(IDS.next(), asked),
            METHOD: lambda asked: response(IDS.next(), asked, asked.payload),
        }
        for method in self.answers:
            self.transport.register_listener(ANY, method, self._answer)

    def _answer(self, asked: UMessage) -> None:
        self.asked.append(asked)
        assert asked.attributes.sink is not None
        self.transport.send(self.answers[asked.attributes.sink](asked))

    def publish(self, topic: UUri = TOPIC) -> None:
        self.transport.send(publish(IDS.next(), topic, b"x"))


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def app(network: Network) -> Iterator[DemoApp]:
    app = DemoApp("dashboard", ADDRESS, "tcp/127.0.0.1:7447", USUBSCRIPTION)
    app.transport = Linked(network.network, "hpc")  # type: ignore[assignment]  # a session that needs no network
    app.start()
    yield app
    app.close()


# ------------------------------------------------------------------------------------------------------ subscribing


def subscription(network: Network) -> pb.SubscriptionRequest:
    [asked] = network.asked
    assert asked.attributes.source == ADDRESS
    assert asked.attributes.sink == USUBSCRIPTION.with_resource(1)
    assert asked.attributes.payload_format is UPayloadFormat.PROTOBUF
    return pb.SubscriptionRequest.FromString(asked.payload)


def test_a_subscription_without_a_limit_contains_only_the_topic(app: DemoApp, network: Network) -> None:
    app.subscribe(TOPIC)
    request = subscription(network)
    assert UUri.from_pb(request.topic) == TOPIC
    assert not request.HasField("attributes")
    assert app.requested == {TOPIC: None}


@pytest.mark.parametrize("hz", [0.5, 10.0, 77.0, 100.0])
def test_a_limit_is_field_3_of_the_attributes_as_a_double_in_hz(
    app: DemoApp, network: Network, hz: float
) -> None:
    app.subscribe(TOPIC, hz)
    attributes = subscription(network).attributes.SerializeToString()
    assert attributes == b"\x19" + struct.pack("<d", hz)  # field 3, wire type 1
    assert app.requested == {TOPIC: hz}


@pytest.mark.parametrize("hz", [0.0, -1.0, float("nan"), float("inf")])
def test_an_invalid_frequency_is_refused_before_any_request(
    app: DemoApp, network: Network, hz: float
) -> None:
    with pytest.raises(UStatusError) as refused:
        app.subscribe(TOPIC, hz)
    assert refused.value.code is UCode.INVALID_ARGUMENT
    assert network.asked == []
    assert app.requested == {}


def test_a_refused_subscription_is_an_error_and_not_noted(app: DemoApp, network: Network) -> None:
    status = UStatus(UCode.PERMISSION_DENIED, "not you")
    network.answers[USUBSCRIPTION.with_resource(1)] = lambda asked: error_response(IDS.next(), asked, status)
    with pytest.raises(UStatusError) as refused:
        app.subscribe(TOPIC)
    assert refused.value.status == status
    assert app.requested == {}


# ---------------------------------------------------------------------------------------------------------- counting


def test_an_app_counts_its_messages_per_topic(app: DemoApp, network: Network) -> None:
    other = UUri("chassis", 0x2001, 1, 0x8001)
    app.subscribe(TOPIC)
    app.subscribe(other)
    for topic in (TOPIC, TOPIC, other, UUri("chassis", 0x9999, 1, 0x8001)):
        network.publish(topic)
    assert [app.rate(topic).events for topic in (TOPIC, other)] == [2, 1]
    assert app.rate(UUri("chassis", 0x9999, 1, 0x8001)).events == 0
    assert app.rate(TOPIC).hz > 0
    before = app.rate(TOPIC)
    app.reset_rates()
    assert (app.rate(TOPIC).events, before.events) == (0, 2)


def test_an_app_without_peers_fails_with_its_name(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ustreamer.host.demo.apps._CONNECT_NS", 20_000_000)
    app = DemoApp("fleet", ADDRESS, "tcp/127.0.0.1:7447", USUBSCRIPTION)
    lonely = Linked(network.network, "hpc")
    lonely.links = 0
    app.transport = lonely  # type: ignore[assignment]  # as above
    with pytest.raises(UStatusError, match="'fleet'") as refused:
        app.start()
    assert refused.value.code is UCode.UNAVAILABLE
    app.close()


# ----------------------------------------------------------------------------------------------------------- calling


def run_until(climate: ClimateControl, enough: Callable[[], bool]) -> None:
    climate.start()
    wait_until(enough)
    climate.stop()


def test_the_climate_control_calls_repeatedly_and_counts_correct_responses(
    app: DemoApp, network: Network
) -> None:
    climate = ClimateControl(app, METHOD)
    run_until(climate, lambda: climate.answered >= 2)
    assert climate.sent == climate.answered == len(network.asked)
    assert [asked.payload for asked in network.asked[:2]] == [struct.pack(">H", 200), struct.pack(">H", 201)]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(
            lambda asked: error_response(IDS.next(), asked, UStatus(UCode.UNIMPLEMENTED)), id="an error"
        ),
        pytest.param(lambda asked: response(IDS.next(), asked, b"??"), id="another temperature"),
    ],
)
def test_a_wrong_response_shows_as_a_difference_of_counters(
    app: DemoApp, network: Network, answer: Answer
) -> None:
    network.answers[METHOD] = answer
    climate = ClimateControl(app, METHOD)
    run_until(climate, lambda: climate.sent >= 2)
    assert climate.sent >= 2
    assert climate.answered == 0


def test_a_climate_control_that_never_ran_can_be_stopped(app: DemoApp) -> None:
    climate = ClimateControl(app, METHOD)
    climate.stop()
    assert climate.sent == 0
