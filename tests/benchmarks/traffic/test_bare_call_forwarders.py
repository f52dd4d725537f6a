# SPDX-License-Identifier: Apache-2.0
"""The bare forwarder of calls correlates responses: in any order they reach their calls."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import zenoh

from benchmarks.harness.child_process import module_command
from benchmarks.harness.testbed import BenchRig, Ports
from benchmarks.traffic import bare_call_forwarders, sockets, wire
from tests.waiting import wait_until
from ustreamer.transports.someip.protocol.codec import MessageType, SomeIpMessage, decode, encode
from ustreamer.transports.zenoh.decoder import decode_sample
from ustreamer.uprotocol.umessage import UMessage

WITHIN_S = 10.0


@pytest.fixture
def ports() -> Ports:
    return Ports.free()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[BenchRig]:
    with BenchRig(tmp_path, 64) as made:
        yield made


@pytest.fixture
def ecu(ports: Ports) -> Iterator[socket.socket]:
    with sockets.udp_socket(ports.ecu, ports.someip) as made:
        made.settimeout(WITHIN_S)
        yield made


def read(sample: zenoh.Sample) -> UMessage:
    assert sample.attachment is not None
    message = decode_sample(str(sample.key_expr), sample.attachment.to_bytes(), sample.payload.to_bytes())
    assert isinstance(message, UMessage), message
    message.check()
    return message


def test_concurrent_calls_to_an_ecu(rig: BenchRig, ports: Ports, ecu: socket.socket) -> None:
    rig.start_process(
        "bare",
        module_command(
            "traffic.bare_call_forwarders", "bare-to-someip", ports.zenoh, ports.someip, ports.ecu
        ),
    )
    method, caller = bare_call_forwarders.METHOD, wire.SUBSCRIBER
    with sockets.zenoh_client(ports.zenoh) as session:
        answers = session.declare_subscriber(wire.unicast_key(method, caller))
        calls = sockets.blocking_publisher(session, wire.unicast_key(caller, method))
        wait_until(lambda: calls.matching_status.matching, "a subscriber")  # type: ignore[attr-defined]
        heads = [wire.attachment_head(1_700_000_000_000, number) for number in range(3)]
        for number, head in enumerate(heads):
            calls.put(b"%d" % number, attachment=head + wire.request_tail(caller, method, 1_000))
        requests = [decode(ecu.recv(2_048))[0] for _ in heads]
        assert len({each.request_id for each in requests}) == 3
        for each in reversed(requests):
            ecu.send(encode(_answer(each, b"to " + each.payload)))
        responses = [read(answers.recv()) for _ in heads]
    assert len({each.id for each in responses}) == 3
    assert [each.payload for each in responses] == [b"to 2", b"to 1", b"to 0"]
    reqids = [each.attributes.reqid for each in responses]
    assert [each and each.lsb & 0xFF for each in reqids] == [2, 1, 0]


def test_concurrent_calls_to_an_application(rig: BenchRig, ports: Ports) -> None:
    rig.start_process(
        "bare", module_command("traffic.bare_call_forwarders", "bare-to-zenoh", ports.zenoh, ports.someip)
    )
    offered, client = bare_call_forwarders.OFFERED, bare_call_forwarders.CLIENT
    with (
        sockets.zenoh_client(ports.zenoh) as session,
        sockets.udp_socket(0, ports.someip) as one,
        sockets.udp_socket(0, ports.someip) as other,
    ):
        requests = session.declare_subscriber(wire.unicast_key(client, offered))
        answers = sockets.blocking_publisher(session, wire.unicast_key(offered, client))
        wait_until(lambda: answers.matching_status.matching, "a subscriber")  # type: ignore[attr-defined]
        for each in (one, other):
            each.settimeout(WITHIN_S)
            for number in (1, 2):
                each.send(encode(SomeIpMessage(wire.OFFERED, 1, 0x77, number, 1, 0, 0, b"go")))
        received: list[zenoh.Sample] = []
        while len(received) < 4:
            sample = requests.recv()
            read(sample)
            received.append(sample)
        for number, sample in enumerate(reversed(received)):
            assert sample.attachment is not None
            head = wire.attachment_head(1_700_000_000_000, number)
            tail = wire.response_tail(offered, client, 1_000) + wire.reqid(sample.attachment.to_bytes())
            answers.put(sample.payload, attachment=head + tail)
        for each in (one, other):
            responses = [decode(each.recv(2_048))[0] for _ in range(2)]
            assert sorted((answer.client, answer.session) for answer in responses) == [(0x77, 1), (0x77, 2)]
            assert {answer.message_type for answer in responses} == {MessageType.RESPONSE}


def _answer(request: SomeIpMessage, payload: bytes) -> SomeIpMessage:
    fields = (request.service, request.method, request.client, request.session, request.interface_version)
    return SomeIpMessage(*fields, MessageType.RESPONSE, 0, payload)
