# SPDX-License-Identifier: Apache-2.0
"""Payload classes of the published someip-py, in an environment of its own, through a streamer.

The ECU and the application are the same program text, which nothing in this repository imports: the library has no
licence. Both describe the payload by a class of someip-py, and this test by plugins/payloads.
"""

import json
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import pytest
from ustreamer_payloads.description import Description
from ustreamer_payloads.plugin import PayloadsConfig

from tests.e2e.clients.environments import CHASSIS, CLOUD, ECU, Command, Gateway, python_of, running_gateway
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ZenohEntity
from tests.e2e.rigs.wire import Uri

_PROGRAM: Final = """
import json, socket, struct, sys, threading
from someip_py.codec import (
    Bool, Float32, SomeIpDynamicSizeArray, SomeIpDynamicSizeString, SomeIpPayload, Uint8, Uint32
)

class WheelSpeed(SomeIpPayload):
    def __init__(self):
        self.counter = Uint32()
        self.speed = Float32()
        self.valid = Bool()
        self.temperatures = SomeIpDynamicSizeArray(Uint8)
        self.unit = SomeIpDynamicSizeString()

def serialized(values):
    made = WheelSpeed()
    made.counter.value = values["counter"]
    made.speed.value = values["speed"]
    made.valid.value = values["valid"]
    made.temperatures.data = [Uint8(each) for each in values["temperatures"]]
    made.unit.data = values["unit"]
    return made.serialize()

def deserialized(payload):
    made = WheelSpeed().deserialize(payload)
    return {
        "counter": made.counter.value,
        "speed": made.speed.value,
        "valid": made.valid.value,
        "temperatures": [each.value for each in made.temperatures.data],
        "unit": made.unit.data,
    }

def header(service, method, request, kind, payload):
    return struct.pack(">HHI4sBBBB", service, method, 8 + len(payload), request, 1, 1, kind, 0) + payload

def serve(udp):
    while True:
        datagram, caller = udp.recvfrom(1500)
        service, method = struct.unpack(">HH", datagram[:4])
        values = deserialized(datagram[16:])
        values["counter"] += 1
        udp.sendto(header(service, method, datagram[8:12], 0x80, serialized(values)), caller)

udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("127.0.0.1", int(sys.argv[1])))
threading.Thread(target=serve, args=[udp], daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:  # of the test: values to serialize, and to send as an event; or a payload to deserialize
    asked = json.loads(line)
    if isinstance(asked, str):
        print(json.dumps(deserialized(bytes.fromhex(asked))), flush=True)
    else:
        payload = serialized(asked)
        udp.sendto(header(0x1234, 0x8001, bytes([0, 0, 0, 1]), 0x02, payload), ("127.0.0.1", int(sys.argv[2])))
        print(json.dumps(payload.hex()), flush=True)
"""
_DESCRIPTION: Final = {
    "types": {
        "WheelSpeed": {
            "kind": "struct",
            "members": [
                {"name": "counter", "type": "u32"},
                {"name": "speed", "type": "f32"},
                {"name": "valid", "type": "bool"},
                {"name": "temperatures", "type": {"kind": "array", "of": "u8", "max": 16}},
                {"name": "unit", "type": "string"},
            ],
        },
    },
    "topics": [{"topic": "//chassis/1234/1/8001", "type": "WheelSpeed"}],
}
VALUES: Final = {"counter": 7, "speed": 21.5, "valid": True, "temperatures": [60, 61, 75], "unit": "km/h"}
TOPIC: Final = Uri("chassis", 0x1234, 1, 0x8001)
METHOD: Final = Uri("chassis", 0x1234, 1, 1)


class Classes:
    """The program: an ECU, and a reader of payloads."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def ask(self, question: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@contextmanager
def running_classes(gateway: Gateway) -> Iterator[Classes]:
    command: Command = [
        python_of("someip-py"),
        "-I",
        "-c",
        _PROGRAM,
        *(str(gateway.ports[each]) for each in (ECU, CHASSIS)),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield Classes(process)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    python_of("someip-py")
    with running_gateway(tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture(scope="module")
def classes(gateway: Gateway) -> Iterator[Classes]:
    with running_classes(gateway) as running:
        yield running


def _described() -> Description:
    """The same payload, for plugins/payloads."""
    return msgspec.convert(_DESCRIPTION, PayloadsConfig).descriptions()["WheelSpeed"]


@pytest.fixture
def app(gateway: Gateway) -> Iterator[ZenohEntity]:
    with ZenohEntity(gateway.ports[CLOUD], "cloud", 0x10A1) as running:
        yield running


def test_an_event_has_the_same_bytes_and_the_same_values(classes: Classes, app: ZenohEntity) -> None:
    app.subscribe(TOPIC)
    sent = bytes.fromhex(classes.ask(VALUES))
    (event,) = app.wait_events(TOPIC)
    assert event.payload == sent
    assert classes.ask(event.payload.hex()) == VALUES
    assert _described().decode(event.payload) == VALUES


def test_a_call_carries_such_a_payload_in_both_directions(classes: Classes, app: ZenohEntity) -> None:
    request = bytes.fromhex(classes.ask(VALUES))
    answer = app.call(METHOD, request)
    assert answer.head.commstatus in {None, wire.OK}
    assert classes.ask(answer.payload.hex()) == VALUES | {"counter": 8}
    assert answer.payload == struct.pack(">I", 8) + request[4:]
