# SPDX-License-Identifier: Apache-2.0
"""Verified senders, with the shipped files: configs/secured.toml, its Zenoh files, and certificates of the recipe."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import zenoh

from tests.e2e.rigs import wire
from tests.e2e.rigs.certificates import CONFIGS, copy_zenoh_files, make_certificates
from tests.e2e.rigs.entities import USUBSCRIPTION, ZenohEntity, eventually
from tests.e2e.rigs.ports import tcp_ports
from tests.e2e.rigs.streamer import StreamerProcess, statistics
from tests.e2e.rigs.wire import Attributes, Uri
from ustreamer.host.cli.main import main
from ustreamer.host.importers.json5 import parse as parse_json5

FLEET, BACKEND, UNLISTED = 0x7001, 0x7002, 0x7003
RESET: Final = 9
CLIMATE: Final = Uri("hpc.vin1", 0x4001, 1).at(1)
RESTRICTED: Final = Uri("hpc.vin1", 0x10A0, 1).at(0x9000)
NAMES: Final = ("gateway", "fleet", "backend", "unlisted")


class Gateway(NamedTuple):
    """A running streamer with configs/secured.toml."""

    process: StreamerProcess
    backbone: int
    cloud: int
    tls: Path

    def node(self, name: str, ue_id: int, authority: str = "cloud") -> ZenohEntity:
        """A node of the cloud with the certificate `name`, which sends as the entity `ue_id`."""
        return ZenohEntity(
            self.cloud, authority, ue_id, host="localhost", certificate=self.tls / f"{name}.pem"
        )

    def counters(self) -> dict[str, int]:
        found: dict[str, int] = statistics(self.process.config.parent / "state")["endpoints"]["cloud"]
        return found


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    directory = tmp_path_factory.mktemp("secured")
    tls = make_certificates(directory / "tls", *NAMES)
    copy_zenoh_files(directory, tls)
    backbone, cloud = tcp_ports(2)
    text = (CONFIGS / "secured.toml").read_text(encoding="utf-8")
    text = text.replace("7447", str(backbone)).replace("7448", str(cloud))
    config = directory / "secured.toml"
    config.write_text(text.replace('"/var/lib/ustreamer"', '"state"'), encoding="utf-8")
    with StreamerProcess(config, "--audit", str(directory / "audit.jsonl")) as process:
        yield Gateway(process, backbone, cloud, tls)


def topic(number: int) -> Uri:
    return Uri("hpc.vin1", 0x10A0, 1).at(0x8000 + number)


def send_as(node: ZenohEntity, source: Uri, method: Uri, payload: bytes = b"") -> None:
    """Send a request from any source, and wait until the streamer has read it or Zenoh has dropped it."""
    node.send_message(
        Attributes(
            wire.new_id(),
            wire.REQUEST,
            source,
            method,
            priority=wire.CS4,
            ttl=5000,
            payload_format=wire.PROTOBUF,
        ),
        payload,
    )
    # Of the same link and priority, so it is read later.
    assert node.call(USUBSCRIPTION.at(wire.FETCH_SUBSCRIBERS), wire.topic_request(topic(0))).head.reqid


def subscribers(node: ZenohEntity, of: Uri) -> int:
    answer = node.call(USUBSCRIPTION.at(wire.FETCH_SUBSCRIBERS), wire.topic_request(of))
    return len(wire.fields(answer.payload))


def test_a_neighbour_cannot_unsubscribe_another_entity(gateway: Gateway) -> None:
    with gateway.node("backend", BACKEND) as backend, gateway.node("fleet", FLEET) as fleet:
        backend.subscribe(topic(1))
        send_as(fleet, backend.address, USUBSCRIPTION.at(wire.UNSUBSCRIBE), wire.topic_request(topic(1)))
        assert subscribers(fleet, topic(1)) == 1
        # The control: the same bytes from the right certificate end the subscription.
        send_as(backend, backend.address, USUBSCRIPTION.at(wire.UNSUBSCRIBE), wire.topic_request(topic(1)))
        assert subscribers(fleet, topic(1)) == 0


def test_only_a_certificate_that_may_reset_ends_the_subscriptions_of_others(gateway: Gateway) -> None:
    backend_service = Uri("cloud", 0, 3)
    with gateway.node("backend", BACKEND) as backend, gateway.node("fleet", FLEET) as fleet:
        fleet.subscribe(topic(2))
        send_as(fleet, backend_service, USUBSCRIPTION.at(RESET))
        assert subscribers(fleet, topic(2)) == 1
        send_as(backend, backend_service, USUBSCRIPTION.at(RESET))
        eventually(lambda: subscribers(fleet, topic(2)), 0)


def test_a_certificate_that_is_not_listed_can_neither_send_nor_receive(gateway: Gateway) -> None:
    seen = topic(3)
    with (
        gateway.node("unlisted", UNLISTED) as unlisted,
        gateway.node("fleet", FLEET) as fleet,
        ZenohEntity(gateway.backbone, "hpc.vin1", 0x10A0) as car,
    ):
        fleet.subscribe(seen)
        received = gateway.counters()["received"]
        unlisted.publish(Uri("cloud", UNLISTED, 1).at(0x8001))
        unlisted.publish(Uri("cloud", FLEET, 1).at(0x8001))
        car.publish(seen, b"for subscribers")
        fleet.wait_events(seen)
        assert unlisted.inbox.items() == []
        assert gateway.counters()["received"] == received


def test_the_rights_of_a_call_are_those_of_the_certificate(gateway: Gateway) -> None:
    with (
        gateway.node("backend", BACKEND) as backend,
        gateway.node("fleet", FLEET) as fleet,
        ZenohEntity(gateway.backbone, "hpc.vin1", 0x4001) as climate,
    ):
        denied = gateway.counters()["refused_access"]
        assert fleet.call(CLIMATE).head.commstatus == wire.PERMISSION_DENIED
        assert gateway.counters()["refused_access"] == denied + 1
        call = backend.send_request(CLIMATE, b"22 C")
        asked = climate.inbox.wait_one(lambda each: each.attributes is not None and each.head.id == call)
        climate.respond(asked, b"ok")
        assert backend.wait_response(call).payload == b"ok"


@pytest.mark.parametrize(("name", "ue_id", "granted"), [("fleet", FLEET, True), ("backend", BACKEND, False)])
def test_the_permission_level_is_that_of_the_certificate(
    gateway: Gateway, name: str, ue_id: int, granted: bool
) -> None:
    with gateway.node(name, ue_id) as node:
        answer = node.call(USUBSCRIPTION.at(wire.SUBSCRIBE), wire.subscription_request(RESTRICTED))
        assert (answer.head.commstatus == wire.PERMISSION_DENIED) is not granted


def test_the_audit_log_has_who_subscribed_was_denied_and_reset(gateway: Gateway) -> None:
    audited = topic(4)
    with gateway.node("backend", BACKEND) as backend, gateway.node("fleet", FLEET) as fleet:
        fleet.subscribe(audited)
        fleet.call(CLIMATE)
        send_as(backend, Uri("cloud", 0, 3), USUBSCRIPTION.at(RESET))
        eventually(lambda: subscribers(fleet, audited), 0)
    file = gateway.process.config.parent / "audit.jsonl"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    about = [each for each in lines if each.get("topic") == "up://hpc.vin1/10A0/1/8004"]
    assert [(each["event"], each["sender"]) for each in about] == [
        ("audit.subscribed", "fleet"),
        ("audit.unsubscribed", "fleet"),
    ]
    denied = [
        each for each in lines if each["event"] == "audit.denied" and each["sink"] == "up://hpc.vin1/4001/1/1"
    ]
    assert {each["sender"] for each in denied} == {"fleet"}
    assert any(each["event"] == "usubscription.reset_requested" for each in lines)


# --- a router in between ----------------------------------------------------------------------------------------------


def test_the_shipped_access_control_of_a_router_is_that_of_the_configuration(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = CONFIGS / "secured.toml"
    assert main(["config", "access-control", str(config), "cloud", "--gateway", "gateway"]) == 0
    shipped = parse_json5((CONFIGS / "zenoh/router-access.json5").read_text(encoding="utf-8"))
    assert json.loads(capsys.readouterr().out) == shipped


def test_a_router_with_the_shipped_access_control_drops_forged_sources(tmp_path: Path) -> None:
    tls = make_certificates(tmp_path / "tls", *NAMES)
    copy_zenoh_files(tmp_path, tls)
    (port,) = tcp_ports(1)
    settings = zenoh.Config.from_file(str(tmp_path / "zenoh/cloud.json5"))
    access = zenoh.Config.from_file(str(tmp_path / "zenoh/router-access.json5")).get_json("access_control")
    for path, value in (
        ("mode", '"router"'),
        ("listen/endpoints", f'["tls/127.0.0.1:{port}"]'),
        ("scouting/multicast/enabled", "false"),
        ("access_control", access),
    ):
        settings.insert_json5(path, value)
    router = zenoh.open(settings)
    nodes = [
        ZenohEntity(port, "cloud", ue_id, host="localhost", certificate=tls / f"{name}.pem")
        for name, ue_id in (("gateway", 1), ("fleet", FLEET), ("unlisted", UNLISTED))
    ]
    gateway, fleet, unlisted = nodes
    try:
        forged, own, last = (Uri("cloud", ue_id, 1).at(0x8001) for ue_id in (BACKEND, FLEET, FLEET))
        eventually(lambda: _reaches(fleet, own, gateway), True)
        unlisted.publish(own, b"forged")
        fleet.publish(forged, b"forged")
        fleet.publish(last, b"last")
        gateway.inbox.wait_one(lambda each: each.payload == b"last")
        assert gateway.inbox.items(lambda each: each.payload == b"forged") == []
        gateway.publish(Uri("hpc.vin1", 1, 1).at(0x8001), b"from the car")
        fleet.inbox.wait_one(lambda each: each.payload == b"from the car")
        assert unlisted.inbox.items() == []
    finally:
        for each in nodes:
            each.session.close()  # type: ignore[no-untyped-call]
        router.close()  # type: ignore[no-untyped-call]


def _reaches(sender: ZenohEntity, topic: Uri, receiver: ZenohEntity) -> bool:
    sender.publish(topic, b"hello")
    return bool(receiver.inbox.items())
