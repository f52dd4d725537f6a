# SPDX-License-Identifier: Apache-2.0
"""The sent datagrams, dissected by tshark: a SOME/IP dissector without shared code."""

import subprocess
import time
from collections.abc import Callable, Iterator
from threading import Thread
from types import TracebackType
from typing import Final, NamedTuple, Self

import pytest

from tests.e2e.rigs import wire
from tests.e2e.rigs.capture import skip_without_tshark
from tests.e2e.rigs.entities import DEADLINE_S, ECHO, FAIL, Inbox, SomeipNode, ZenohEntity
from tests.e2e.rigs.vehicle import CLIMATE, OFFERED, PROVIDER, Vehicle, VehiclePorts
from tests.e2e.rigs.wire import Uri

CLIENT: Final = 0x0AB1

COLUMNS: Final = (
    "udp.srcport",
    "udp.dstport",
    "someip.serviceid",
    "someip.methodid",
    "someip.length",
    "someip.clientid",
    "someip.sessionid",
    "someip.protoversion",
    "someip.interfaceversion",
    "someip.messagetype",
    "someip.returncode",
    "someip.payload",
    "_ws.malformed",
    "_ws.expert.message",
)


class Packet(NamedTuple):
    """One datagram as dissected by tshark; a missing number is None, a missing text is empty."""

    source: int
    destination: int
    service: int | None
    method: int | None
    length: int | None
    client: int | None
    session: int | None
    protocol_version: int | None
    interface_version: int | None
    message_type: int | None
    return_code: int | None
    payload: bytes
    malformed: str
    expert_message: str

    @classmethod
    def parse_line(cls, line: str) -> Self:
        cells = line.rstrip("\n").split("\t")
        cells += [""] * (len(COLUMNS) - len(cells))
        source, destination, service, method, length, client, session, protocol, interface, kind, code = (
            int(cell, 0) if cell else None for cell in cells[:11]
        )
        assert source is not None
        assert destination is not None
        payload, malformed, complaint = bytes.fromhex(cells[11]), cells[12], cells[13]
        return cls(
            source,
            destination,
            service,
            method,
            length,
            client,
            session,
            protocol,
            interface,
            kind,
            code,
            payload,
            malformed,
            complaint,
        )


class Tshark:
    """Captures the traffic of one UDP port on loopback."""

    def __init__(self, ports: VehiclePorts) -> None:
        command = [
            *("tshark", "-i", "lo", "-n", "-l", "-Q", "-f", f"udp port {ports.someip}"),
            *("-o", f"someip.ports.udp:{ports.someip}", "-d", f"udp.port=={ports.someip},someip"),
            *("-T", "fields", *(part for column in COLUMNS for part in ("-e", column))),
        ]
        self.packets: Inbox[Packet] = Inbox("tshark")
        self.errors: Inbox[str] = Inbox("stderr of tshark")
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._readers = [Thread(target=each, daemon=True) for each in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self.packets.append(Packet.parse_line(line))

    def _read_errors(self) -> None:
        assert self._process.stderr
        for line in self._process.stderr:
            self.errors.append(line)

    def wait_capturing(self, probe: Callable[[], None]) -> None:
        """Wait until the traffic of `probe` is captured: tshark does not report its start."""
        until = time.monotonic() + DEADLINE_S
        while not self.packets.items():
            assert self._process.poll() is None, "".join(self.errors.items())
            assert time.monotonic() < until, f"sees nothing: {''.join(self.errors.items())}"
            probe()
            time.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(DEADLINE_S)
        for reader in self._readers:
            reader.join(DEADLINE_S)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe:
                pipe.close()


@pytest.fixture
def tshark(vehicle: Vehicle) -> Iterator[Tshark]:
    skip_without_tshark()
    with Tshark(vehicle.ports) as running:
        yield running


def test_an_independent_dissector_finds_every_frame_well_formed(
    vehicle: Vehicle, app: ZenohEntity, tshark: Tshark
) -> None:
    ports = vehicle.ports
    topic = vehicle.unused_topic()
    app.subscribe(topic)
    tshark.wait_capturing(lambda: vehicle.send_event(topic, b"a longer request"))

    with (
        SomeipNode() as client,
        ZenohEntity(ports.backbone, PROVIDER.authority, PROVIDER.ue_id) as provider,
    ):
        provider.publish(PROVIDER.at(0x8001), b"an event for tshark")
        app.call(Uri("chassis", CLIMATE, 1, ECHO), b"a call for tshark")
        app.call(Uri("chassis", CLIMATE, 1, FAIL), bytes((wire.E_NOT_READY,)))
        for method, payload in ((0x0001, b"a good question"), (0x0001, b"a bad one"), (0x0077, b"nonsense")):
            received_call = wire.someip(
                OFFERED, method, wire.SOMEIP_REQUEST, payload, client=CLIENT, session=len(payload)
            )
            client.send_to_port(received_call, ports.someip)
        good = provider.inbox.wait_one(lambda sample: sample.payload == b"a good question")
        provider.respond(good, b"a good answer")
        bad = provider.inbox.wait_one(lambda sample: sample.payload == b"a bad one")
        provider.respond(bad, commstatus=wire.UNAVAILABLE)
        client.inbox.wait_count(count=3)
        vehicle.send_event(topic, b"the last one")
        tshark.packets.wait_one(lambda packet: packet.payload == b"the last one")

        ours = [packet for packet in tshark.packets.items() if packet.source == ports.someip]
        assert [packet for packet in ours if packet.malformed or packet.expert_message] == []
        assert {packet.protocol_version for packet in ours} == {1}
        assert {packet.interface_version for packet in ours} == {1}
        assert all(packet.length == 8 + len(packet.payload) for packet in ours)

        def sent(payload: bytes, to: int) -> Packet:
            [packet] = [each for each in ours if (each.payload, each.destination) == (payload, to)]
            return packet

        event = sent(b"an event for tshark", ports.receiver)
        assert (event.service, event.method, event.client) == (OFFERED, 0x8001, 0)
        assert (event.message_type, event.return_code) == (wire.SOMEIP_NOTIFICATION, wire.E_OK)
        assert event.session
        call = sent(b"a call for tshark", ports.ecu)
        assert (call.service, call.method, call.client) == (CLIMATE, ECHO, app.address.ue_id)
        assert (call.message_type, call.return_code) == (wire.SOMEIP_REQUEST, wire.E_OK)
        assert call.session
        answer = sent(b"a good answer", client.address[1])
        assert (answer.service, answer.method) == (OFFERED, 0x0001)
        assert (answer.client, answer.session) == (CLIENT, len(b"a good question"))
        assert (answer.message_type, answer.return_code) == (wire.SOMEIP_RESPONSE, wire.E_OK)
        errors = {
            packet.session: (packet.message_type, packet.return_code)
            for packet in ours
            if packet.destination == client.address[1] and packet != answer
        }
        assert errors == {
            len(b"a bad one"): (wire.SOMEIP_ERROR, wire.E_NOT_READY),
            len(b"nonsense"): (wire.SOMEIP_ERROR, wire.E_UNKNOWN_METHOD),
        }
