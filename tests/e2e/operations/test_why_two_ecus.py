# SPDX-License-Identifier: Apache-2.0
"""`ustreamer why` about one of two ECUs that have one fault each: it names the fault of this one only."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.operations.why_world import refuses
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import SILENT, SomeipNode, ecu_response
from tests.e2e.rigs.ports import udp_ports
from tests.e2e.rigs.sd_ecu import SD_GROUP, SdEcu
from tests.host.running_streamer import OUTSIDE, RunningStreamer
from tests.waiting import wait_until
from ustreamer.host.cli.main import main
from ustreamer.testing.messages import new_id
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.rpc import RpcClient
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

FRONT_HOST, REAR_HOST, SD_HOST = "127.0.0.1", "127.0.0.21", "127.0.0.22"
FRONT, REAR = 0x1234, 0x1235
CALLER: Final = UUri("cloud", 0x6001, 1, 0)
SUBSCRIBE: Final = UUri("hpc", 0, 3, 1)

_SECTIONS: Final = """\
[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "127.0.0.1"
port = {chassis}
sd = false

[[endpoints.chassis.services]]
service = 0x1234
major = 1
events = [{{ id = 0x8001 }}, {{ id = 0x8002 }}]
methods = [1, 4, 9]
remote = "{front}"

[[endpoints.chassis.services]]
service = 0x1235
major = 1
events = [{{ id = 0x8001 }}]
methods = [1, 4, 9]
remote = "{rear}"

[endpoints.body]
transport = "someip"
authorities = ["body"]
bind = "127.0.0.1"
port = {body}

[endpoints.body.sd]
multicast = "{group}"
port = {sd}
interface = "127.0.0.1"

[[endpoints.body.services]]
service = 0x5001
major = 1
events = [{{ id = 0x8001, eventgroup = 1 }}]

[[endpoints.body.services]]
service = 0x5002
major = 1
events = [{{ id = 0x8001, eventgroup = 1 }}]

[plugins.usubscription]
map_size_mb = 1
"""


class TwoEcus:
    """A streamer between an application network and the ECUs `front` and `rear`."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.chassis, self.body, self.sd_port = udp_ports(3)
        self.front = SomeipNode(host=FRONT_HOST, responder=ecu_response)
        self.rear = SomeipNode(host=REAR_HOST, responder=ecu_response)
        addresses = {"front": self.front.address, "rear": self.rear.address}
        sections = _SECTIONS.format(
            chassis=self.chassis,
            body=self.body,
            sd=self.sd_port,
            group=SD_GROUP,
            **{name: f"{host}:{port}" for name, (host, port) in addresses.items()},
        )
        self.running = RunningStreamer(directory, sections)

    def open(self) -> None:
        self.running.__enter__()
        app = self.running.app(OUTSIDE, "cloud")
        self.client = RpcClient(app, CALLER, UuidSource(lambda: new_id().time_ms))

    def close(self) -> None:
        self.client.close()
        self.running.__exit__(None, None, None)
        self.front.close()
        self.rear.close()

    def call(self, service: int, method: int, ttl: int = 5_000) -> None:
        self.client.call(UUri("chassis", service, 1, method), b"", UPayloadFormat.RAW, ttl=ttl)

    def subscribe(self, topic: UUri) -> None:
        wanted = pb.SubscriptionRequest(topic=topic.to_pb()).SerializeToString()
        self.client.call(SUBSCRIBE, wanted, UPayloadFormat.PROTOBUF, ttl=5_000)

    def count(self, counter: str, endpoint: str = "chassis") -> int:
        return self.running.streamer.endpoints()[endpoint].get(counter, 0)

    def why(self, subject: UUri) -> list[dict[str, Any]]:
        self._capsys.readouterr()
        main(["why", str(subject), str(self.running.path), "--json", "--sample", "0.05"])
        found: list[dict[str, Any]] = json.loads(self._capsys.readouterr().out)["findings"]
        return found


@pytest.fixture
def ecus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[TwoEcus]:
    pair = TwoEcus(tmp_path, capsys)
    pair.open()
    yield pair
    pair.close()


def causes(findings: list[dict[str, Any]]) -> list[str]:
    return [each["cause"] for each in findings]


def test_a_method_whose_ecu_answers_with_an_error_is_named_with_the_return_code(ecus: TwoEcus) -> None:
    before_ms = time.time_ns() // 1_000_000
    for _ in range(3):
        refuses(lambda: ecus.call(FRONT, 9))
    [found] = ecus.why(UUri("chassis", FRONT, 1, 9))
    assert found["cause"] == "error_response"
    for part in ("3 calls", "E_UNKNOWN_METHOD (0x03)", FRONT_HOST):
        assert part in found["text"]
    assert before_ms <= found["since_ms"] <= time.time_ns() // 1_000_000
    assert causes(ecus.why(UUri("chassis", REAR, 1, 9))) == ["healthy"]
    assert causes(ecus.why(UUri("chassis", FRONT, 1, 1))) == ["healthy"]


def test_a_call_without_an_answer_is_not_blamed_on_the_other_ecu(ecus: TwoEcus) -> None:
    refuses(lambda: ecus.call(FRONT, SILENT, ttl=200))
    wait_until(lambda: ecus.count("calls_expired") == 1)
    ecus.call(REAR, 1)
    assert causes(ecus.why(UUri("chassis", REAR, 1, 1))) == ["healthy"]
    [found] = ecus.why(UUri("chassis", FRONT, 1, SILENT))
    assert found["cause"] == "no_answer"
    assert "may be" not in found["text"]


def test_refused_events_are_named_for_their_own_topic_only(ecus: TwoEcus) -> None:
    front, rear = UUri("chassis", FRONT, 1, 0x8001), UUri("chassis", REAR, 1, 0x8001)
    silent = UUri("chassis", FRONT, 1, 0x8002)
    for topic in (front, rear, silent):
        ecus.subscribe(topic)
    version = wire.someip(FRONT, 0x8001, wire.SOMEIP_NOTIFICATION, b"12", interface_version=2)
    malformed = wire.someip(REAR, 0x8001, wire.SOMEIP_NOTIFICATION, b"12", protocol_version=7)
    for _ in range(5):
        ecus.front.send_to_port(version, ecus.chassis)
        ecus.rear.send_to_port(malformed, ecus.chassis)
    wait_until(lambda: ecus.count("refused_event_version") == 5)
    wait_until(lambda: ecus.count("refused_protocol_version") == 5)
    assert causes(ecus.why(front)) == ["wrong_major_version", "publisher_silent"]
    assert causes(ecus.why(rear)) == ["input_refused", "publisher_silent"]
    assert causes(ecus.why(silent)) == ["publisher_silent"]


def test_an_ecu_that_sends_no_ack_is_not_called_an_ecu_without_an_offer(ecus: TwoEcus) -> None:
    refused, missing = UUri("body", 0x5001, 1, 0x8001), UUri("body", 0x5002, 1, 0x8001)
    ecu = SdEcu(SD_HOST, ecus.sd_port)
    try:
        ecu.ignores_subscriptions = True
        ecu.offer(0x5001, 1)
        ecu.offer(0x5002, 1, major=7)
        for topic in (refused, missing):
            ecus.subscribe(topic)
        wait_until(lambda: ecus.count("sd_found", "body") == 1)
        wait_until(lambda: ecus.count("sd_unwanted_offers", "body") > 0)
        assert causes(ecus.why(refused))[0] == "eventgroup_pending"
        found = ecus.why(missing)[0]
        assert found["cause"] == "service_not_offered"
        assert "major version 7" in found["text"]
    finally:
        ecu.close()
