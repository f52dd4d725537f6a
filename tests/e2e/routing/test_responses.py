# SPDX-License-Identifier: Apache-2.0
"""Over real wires: each request receives one response, however it ends, and no other entity receives one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import SILENT, SomeipFrame, SomeipNode, ZenohEntity, ZenohSample
from tests.e2e.rigs.streamer import StreamerProcess
from tests.e2e.rigs.vehicle import CLIMATE, PROVIDER, Vehicle, free_ports, running_vehicle, write_config
from tests.e2e.rigs.wire import Attributes, Id, Uri
from tests.e2e.someip.test_calls_from_someip import send_call, wait_response

METHOD = Uri("chassis", CLIMATE, 1, SILENT)
USUBSCRIPTION = Uri("hpc.vin1", 0, 3)


def request_attributes(peer: ZenohEntity, sink: Uri, **changed: object) -> Attributes:
    attributes = Attributes(
        wire.new_id(),
        wire.REQUEST,
        peer.address,
        sink,
        priority=wire.CS4,
        ttl=5_000,
        payload_format=wire.PROTOBUF,
    )
    return attributes._replace(**changed)  # type: ignore[arg-type]


def expired_id() -> Id:
    made = wire.new_id()
    return made._replace(msb=made.msb - (60_000 << 16))


ENDS: dict[str, tuple[int, Uri, dict[str, Callable[[], object]]]] = {
    "no route": (wire.UNAVAILABLE, Uri("mars", 1, 1, 1), {}),
    "no such service": (wire.NOT_FOUND, Uri("chassis", 0x3FFF, 1, 1), {}),
    "no such method of ours": (wire.UNIMPLEMENTED, Uri("hpc.vin1", 4, 1, 0x7F), {}),
    "no such version of ours": (wire.UNIMPLEMENTED, Uri("hpc.vin1", 0, 0x77, 1), {}),
    "malformed": (wire.INVALID_ARGUMENT, METHOD, {"priority": lambda: wire.CS1}),
    "expired": (wire.DEADLINE_EXCEEDED, METHOD, {"id": expired_id}),
    "expired in the service": (wire.DEADLINE_EXCEEDED, METHOD, {"ttl": lambda: 200}),
    "spoofed": (wire.PERMISSION_DENIED, METHOD, {"source": lambda: Uri("cloud", 0x1234, 1)}),
}


@pytest.mark.parametrize(("code", "sink", "changes"), ENDS.values(), ids=ENDS)
def test_a_request_is_answered_once_by_the_method_it_called(
    vehicle: Vehicle, app: ZenohEntity, code: int, sink: Uri, changes: dict[str, Callable[[], object]]
) -> None:
    sent_request = request_attributes(app, sink, **{name: make() for name, make in changes.items()})
    app.send_message(sent_request, b"?")
    answer = app.wait_response(sent_request.id)
    head = answer.head
    assert (head.type, head.source, head.sink) == (wire.RESPONSE, sink, sent_request.source)
    assert (head.commstatus, answer.status.code) == (code, code)
    assert answer.status.message
    app.call(USUBSCRIPTION.at(wire.FETCH_SUBSCRIBERS), wire.topic_request(app.address.at(0x8000)))
    assert app.responses(sent_request.id) == [answer]


def test_only_requests_get_responses(vehicle: Vehicle, app: ZenohEntity) -> None:
    nowhere = Uri("mars", 1, 1)
    topic = app.address.at(0x8001)
    sent = [
        Attributes(wire.new_id(), wire.NOTIFICATION, topic, nowhere, priority=wire.CS1),
        Attributes(wire.new_id(), wire.NOTIFICATION, topic, Uri("chassis", CLIMATE, 1), priority=wire.CS1),
        Attributes(expired_id(), wire.NOTIFICATION, topic, Uri("cloud", 1, 1), priority=wire.CS1, ttl=10),
        Attributes(expired_id(), wire.PUBLISH, topic, priority=wire.CS1, ttl=10),
        Attributes(wire.new_id(), wire.PUBLISH, Uri("cloud", 1, 1, 0x8001), priority=wire.CS1),
        Attributes(
            wire.new_id(), wire.RESPONSE, app.address.at(1), nowhere, priority=wire.CS4, ttl=99, reqid=wire.new_id()
        ),
        Attributes(
            wire.new_id(), wire.RESPONSE, app.address.at(1), METHOD.at(0), priority=wire.CS4, ttl=99, reqid=wire.new_id()
        ),
    ]  # fmt: skip
    for each in sent:
        app.send_message(each)
    app.call(USUBSCRIPTION.at(wire.FETCH_SUBSCRIBERS), wire.topic_request(topic))
    ids = {each.id for each in sent}
    assert app.inbox.items(lambda each: each.attributes is not None and each.head.reqid in ids) == []


def test_a_pending_call_gets_a_response_before_the_stop(own_vehicle: Vehicle) -> None:
    with ZenohEntity(own_vehicle.ports.backbone, "hpc.vin1") as app:
        sent_request = app.send_request(METHOD, b"are you there", ttl=60_000)
        own_vehicle.ecu.inbox.wait_one(_carrying(b"are you there"))
        own_vehicle.process.stop()
        answer = app.wait_response(sent_request)
        assert (answer.head.source, answer.head.commstatus) == (METHOD, wire.UNAVAILABLE)
        assert "the streamer was stopped before 127.0.0.1" in answer.status.message
        assert app.responses(sent_request) == [answer]


def test_a_pending_someip_request_gets_not_ready_before_the_stop(tmp_path: Path) -> None:
    ports = free_ports()
    config = write_config(tmp_path, ports)
    patient = config.read_text(encoding="utf-8").replace("ttl_ms = 4_000", "ttl_ms = 60_000")
    config.write_text(patient, encoding="utf-8")  # the error that it would receive after 4 s is E_TIMEOUT
    with (
        SomeipNode(ports.ecu) as ecu,
        SomeipNode(ports.receiver) as receiver,
        StreamerProcess(config) as process,
        ZenohEntity(ports.backbone, PROVIDER.authority, PROVIDER.ue_id) as provider,
        SomeipNode() as client,
    ):
        session = send_call(client, Vehicle(ports, process, ecu, receiver), b"to the silent")
        provider.inbox.wait_one(_with_payload(b"to the silent"))
        process.stop()
        notified = wait_response(client, session).head
        assert (notified.message_type.value, notified.return_code.value) == (
            wire.SOMEIP_ERROR,
            wire.E_NOT_READY,
        )


def test_a_request_that_waits_for_a_network_that_is_away_is_answered_when_its_ttl_is_over(
    own_vehicle: Vehicle,
) -> None:
    with ZenohEntity(own_vehicle.ports.backbone, "hpc.vin1") as app:
        sent_request = app.send_request(Uri("cloud", 0x99, 1, 1), b"a request", ttl=300)
        answer = app.wait_response(sent_request)
        assert answer.head.commstatus == wire.DEADLINE_EXCEEDED
        assert "cloud" in answer.status.message


def test_a_request_that_waits_for_a_network_at_the_stop_is_answered_before_the_end(tmp_path: Path) -> None:
    with (
        running_vehicle(tmp_path, "--drain", "2") as vehicle,
        ZenohEntity(vehicle.ports.backbone, "hpc.vin1") as app,
    ):
        sent_request = app.send_request(Uri("cloud", 0x99, 1, 1), b"a request", ttl=60_000)
        vehicle.process.stderr.wait_one(lambda line: "egress.unavailable" in line)
        vehicle.process.send_sigterm()
        answer = app.wait_response(sent_request)
        assert (answer.head.source, answer.head.commstatus) == (Uri("cloud", 0x99, 1, 1), wire.UNAVAILABLE)
        assert answer.status.message == "the streamer was stopped before this could be sent"
        assert vehicle.process.wait_exit() == 75  # a message that could not be sent in time is reported
        assert vehicle.process.ledger["queued"] == 0
        assert app.responses(sent_request) == [answer]


def _carrying(payload: bytes) -> Callable[[SomeipFrame], bool]:
    return lambda frame: frame.message is not None and frame.message.payload == payload


def _with_payload(payload: bytes) -> Callable[[ZenohSample], bool]:
    return lambda sample: sample.payload == payload
