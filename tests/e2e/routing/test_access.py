# SPDX-License-Identifier: Apache-2.0
"""Access rules: an endpoint with rules, between two Zenoh networks and a SOME/IP network."""

from collections.abc import Iterator

import pytest

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ECHO, SILENT, USUBSCRIPTION, SomeipNode, ZenohEntity, ecu_response
from tests.e2e.rigs.streamer import StreamerProcess
from tests.e2e.rigs.vehicle import CLIMATE, Vehicle, free_ports, write_config
from tests.e2e.rigs.wire import Attributes, Uri

SERVICE = Uri("chassis", CLIMATE, 1)
FLEET, OUTSIDER = 0x7001, 0x7002

RULES = """
[[endpoints.cloud.access]]                   # every entity may subscribe
allow = true
type = "request"
sink = "//hpc.vin1/0/FF/FFFF"
[[endpoints.cloud.access]]
allow = false
sink = "//chassis/3001/1/4"
[[endpoints.cloud.access]]
allow = true
source = "//cloud/7001/1/FFFF"
sink = "//*/FFFFFFFF/FF/FFFF"
[[endpoints.cloud.access]]
allow = true
type = "publish"
source = "//cloud/7001/1/8001"
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vehicle]:
    ports = free_ports()
    config = write_config(tmp_path_factory.mktemp("guarded"), ports)
    config.write_text(config.read_text(encoding="utf-8") + RULES, encoding="utf-8")
    with (
        SomeipNode(ports.ecu, responder=ecu_response) as ecu,
        SomeipNode(ports.receiver) as receiver,
    ):
        process = StreamerProcess(config).wait_ready()
        yield Vehicle(ports, process, ecu, receiver)
        # Not stopped: it still requests from the cloud, which has no uSubscription, the topics that a test
        # subscribed.
        process.kill()


@pytest.fixture
def fleet(guarded: Vehicle) -> Iterator[ZenohEntity]:
    """An application that the rules permit."""
    with ZenohEntity(guarded.ports.cloud, "cloud", FLEET) as peer:
        yield peer


@pytest.fixture
def outsider(guarded: Vehicle) -> Iterator[ZenohEntity]:
    with ZenohEntity(guarded.ports.cloud, "cloud", OUTSIDER) as peer:
        yield peer


@pytest.fixture
def car(guarded: Vehicle) -> Iterator[ZenohEntity]:
    with ZenohEntity(guarded.ports.backbone, "hpc.vin1") as peer:
        yield peer


def test_an_allowed_caller_gets_its_response(fleet: ZenohEntity) -> None:
    assert fleet.call(SERVICE.at(ECHO), b"22 C").payload == b"22 C"


@pytest.mark.parametrize("caller", ["outsider", "fleet"])
def test_a_denied_caller_gets_one_error_and_the_call_is_not_forwarded(
    guarded: Vehicle, caller: str, request: pytest.FixtureRequest
) -> None:
    peer: ZenohEntity = request.getfixturevalue(caller)
    method = SERVICE.at(ECHO if caller == "outsider" else SILENT)
    payload = f"forbidden to {caller}".encode()
    sent_request = peer.send_request(method, payload)
    answer = peer.wait_response(sent_request)
    assert (answer.head.source, answer.head.commstatus) == (method, wire.PERMISSION_DENIED)
    assert answer.status.code == wire.PERMISSION_DENIED
    assert "endpoints.cloud.access" in answer.status.message
    peer.subscribe(Uri("hpc.vin1", 0x1001, 1, 0x80FF))  # everything before has been decided
    assert peer.responses(sent_request) == [answer]
    assert (
        guarded.ecu.inbox.items(lambda frame: frame.message is not None and frame.message.payload == payload)
        == []
    )


def test_of_publications_and_notifications_only_those_that_are_allowed_pass_and_none_is_answered(
    fleet: ZenohEntity, outsider: ZenohEntity, car: ZenohEntity
) -> None:
    topics = [peer.address.at(resource) for peer in (outsider, fleet) for resource in (0x8001, 0x8002)]
    for topic in topics:
        # Their network has no uSubscription, so the subscription stays pending; the topic is forwarded from then on.
        car.call(USUBSCRIPTION.at(wire.SUBSCRIBE), wire.subscription_request(topic))
    for peer in (outsider, fleet):
        peer.publish(peer.address.at(0x8002), b"no")
        peer.send_message(notification(peer, car), b"yes" if peer is fleet else b"no")
        peer.publish(peer.address.at(0x8001), b"yes" if peer is fleet else b"no")
    assert car.inbox.wait_count(lambda each: each.payload == b"yes", 2)
    assert car.inbox.items(lambda each: each.payload == b"no") == []
    for peer in (outsider, fleet):
        errors = peer.inbox.items(
            lambda each: each.attributes is not None and each.head.commstatus is not None
        )
        # A call of another test may end now.
        assert [each for each in errors if each.head.source.at(0) != SERVICE.at(0)] == []


def notification(peer: ZenohEntity, to: ZenohEntity) -> Attributes:
    return Attributes(
        wire.new_id(), wire.NOTIFICATION, peer.address.at(0x8003), to.address, priority=wire.CS1
    )


def test_level_and_token_of_a_caller_travel_as_they_are(fleet: ZenohEntity, car: ZenohEntity) -> None:
    sent = Attributes(
        wire.new_id(),
        wire.REQUEST,
        fleet.address,
        car.address.at(1),
        priority=wire.CS4,
        ttl=5000,
        permission_level=3,
        token="opaque/" + "t" * 500,
        payload_format=wire.PROTOBUF,
    )
    fleet.send_message(sent, b"open")
    assert car.inbox.wait_one(lambda each: each.payload == b"open").head == sent


def test_denied_messages_are_in_the_ledger(tmp_path_factory: pytest.TempPathFactory) -> None:
    ports = free_ports()
    config = write_config(tmp_path_factory.mktemp("books"), ports)
    config.write_text(config.read_text(encoding="utf-8") + RULES, encoding="utf-8")
    with StreamerProcess(config) as process:
        with ZenohEntity(ports.cloud, "cloud", OUTSIDER) as outsider:
            for number in range(5):
                outsider.call(SERVICE.at(ECHO), b"%d" % number)
        process.stop()
        [stopped] = [line for line in process.log_records if line["event"] == "streamer.stopped"]
    assert stopped["endpoints"]["cloud"]["refused_access"] == 5
    assert stopped["endpoints"]["cloud"]["refused_spoofed"] == 0
    assert process.ledger["denied"] == 5
