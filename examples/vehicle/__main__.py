# SPDX-License-Identifier: Apache-2.0
"""Runs the vehicle until a dashboard has seen everything that README.md describes, and prints what it saw."""

import struct
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from threading import Lock
from typing import Final

from examples.rig import Example, Figures, arguments_of, figures, numbered, show, wait
from ustreamer.host.runtime import process
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.transports.local.transport import LocalNetwork, LocalTransport
from ustreamer.uprotocol import UMessage, UPayloadFormat, UStatusError, UuidSource, UUri
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.rpc import RpcClient
from ustreamer.uprotocol.umessage import publish, response
from ustreamer.uprotocol.uuri import ANY

BRAKES, STEERING, BODY, CAMERA, BATTERY = 0x1001, 0x1002, 0x2001, 0x3001, 0x4001
NAMES: Final = {
    BRAKES: "brakes, E2E P04",
    STEERING: "steering, E2E P01",
    BODY: "body, a field",
    CAMERA: "camera, segments",
    BATTERY: "battery, TCP",
}
EVENT, METHOD = 0x8001, 0x0001
SUBSCRIBE: Final = UUri("hpc.vin1", 0, 3, 1)
PICTURE: Final = bytes(range(250)) * 20
_CALL_MS: Final = 10_000


class Ecus:
    """The applications of the ECUs: they publish events and answer calls."""

    def __init__(self) -> None:
        self._ids = UuidSource(SYSTEM_CLOCK.wall_ms)
        self._transport = LocalTransport(LocalNetwork.named("ecus"), "ecus")
        self._count = 0

    def open(self) -> None:
        self._transport.open()
        for service in (BODY, BATTERY):
            self._transport.register_listener(ANY, UUri("ecus", service, 1, METHOD), self._on_request)

    def close(self) -> None:
        self._transport.close()

    def publish_cycle(self) -> None:
        """One event of each cyclic service. The light is a field: it is published once."""
        self._count += 1
        payloads = {
            BRAKES: struct.pack(">f", self._count / 10),
            STEERING: struct.pack(">h", self._count % 90),
            CAMERA: PICTURE,
            BATTERY: struct.pack(">H", 380 + self._count % 20),
        }
        for service, payload in payloads.items():
            self._publish(service, numbered(self._count) + payload)

    def switch_light(self, state: int) -> None:
        self._publish(BODY, bytes((state,)))

    def _publish(self, service: int, payload: bytes) -> None:
        self._transport.send(publish(self._ids.next(), UUri("ecus", service, 1, EVENT), payload))

    def _on_request(self, message: UMessage) -> None:
        self._transport.send(response(self._ids.next(), message, message.payload[::-1]))


class Dashboard:
    """A uProtocol application at the gateway: it subscribes topics and calls methods."""

    def __init__(self, ue_id: int) -> None:
        self._address = UUri("hpc.vin1", ue_id, 1, 0)
        self._transport = LocalTransport(LocalNetwork.named("applications"), "hpc.vin1")
        self._ids = UuidSource(SYSTEM_CLOCK.wall_ms)
        self._lock = Lock()
        self.received: dict[int, list[bytes]] = {}
        self._rpc: RpcClient

    def open(self) -> None:
        self._transport.open()
        self._rpc = RpcClient(self._transport, self._address, self._ids)

    def close(self) -> None:
        self._transport.close()

    def subscribe(self, service: int) -> None:
        topic = UUri("vehicle", service, 1, EVENT)
        self._transport.register_listener(topic, None, self._on_event)
        request = pb.SubscriptionRequest(topic=topic.to_pb()).SerializeToString()
        self._rpc.call(SUBSCRIBE, request, UPayloadFormat.PROTOBUF, ttl=_CALL_MS)

    def call(self, service: int, payload: bytes) -> bytes:
        """The answer of an ECU. Raises UStatusError."""
        return self._rpc.call(UUri("vehicle", service, 1, METHOD), payload, ttl=_CALL_MS).payload

    def _on_event(self, message: UMessage) -> None:
        with self._lock:
            self.received.setdefault(message.attributes.source.ue_id, []).append(message.payload)

    def count(self, service: int) -> int:
        with self._lock:
            return len(self.received.get(service, ()))

    def figures(self, service: int) -> Figures:
        """Of a cyclic service, from the first event that arrived to the last one."""
        numbers = [int.from_bytes(payload[:4]) for payload in self.received.get(service, ())]
        return figures(range(min(numbers, default=0), max(numbers, default=-1) + 1), numbers)


def run(wanted: int, within_s: float, ports: Mapping[int, int]) -> list[str]:
    """Run until `wanted` events of each cyclic ECU have arrived. Returns what is missing; prints the rest."""
    with Example(__file__, ports) as example, ExitStack() as stack:
        streamers = [process.load(example.file(name)).streamer() for name in ("ecus.toml", "gateway.toml")]
        for streamer in streamers:
            streamer.start()
            stack.callback(streamer.stop, drain_s=0)
        ecus, dashboard, late = Ecus(), Dashboard(0x10A1), Dashboard(0x10A2)
        for each in (ecus, dashboard, late):
            each.open()
            stack.callback(each.close)
        ecus.switch_light(1)
        for service in NAMES:
            dashboard.subscribe(service)
        _publish_until_received(ecus, dashboard, wanted, within_s)
        late.subscribe(BODY)  # the light does not change any more
        wait(lambda: late.count(BODY) > 0, within_s)
        missing = _report(dashboard, late, wanted)
        gateway = streamers[-1].endpoints()["vehicle"]
        print(f"E2E checks at the gateway: {gateway['e2e_ok']} valid, {gateway['e2e_error']} invalid")
        return missing


def _publish_until_received(ecus: Ecus, dashboard: Dashboard, wanted: int, within_s: float) -> None:
    def is_complete() -> bool:
        ecus.publish_cycle()
        return all(dashboard.count(each) >= (1 if each == BODY else wanted) for each in NAMES)

    wait(is_complete, within_s)


def _report(dashboard: Dashboard, late: Dashboard, wanted: int) -> list[str]:
    found = {service: dashboard.figures(service) for service in NAMES if service != BODY}
    show({NAMES[service]: row for service, row in found.items()})
    missing = [
        f"{NAMES[each]}: {row.received} events" for each, row in found.items() if row.received < wanted
    ]
    missing += [] if dashboard.count(BODY) else [f"{NAMES[BODY]}: no event"]
    missing += [f"{NAMES[each]}: {row.lost} events were lost" for each, row in found.items() if row.lost]
    for service in (BODY, BATTERY):
        try:
            answer = dashboard.call(service, b"\1\2")
        except UStatusError as error:
            answer = str(error).encode()
        print(f"{NAMES[service]:20} answers a call with {answer!r}")
        if answer != b"\2\1":
            missing.append(f"{NAMES[service]}: the answer to a call")
    print(f"a late subscriber has the light: {late.received.get(BODY)}")
    if late.received.get(BODY, [])[:1] != [b"\1"]:
        missing.append("the value of the field for a late subscriber")
    if PICTURE not in (payload[4:] for payload in dashboard.received.get(CAMERA, [])):
        missing.append("a whole picture")
    return missing


def main() -> int:
    parser = arguments_of("vehicle", __doc__, events=20)
    parser.add_argument("--seconds", type=float, default=60.0, help="longest time to wait (60)")
    arguments = parser.parse_args()
    missing = run(arguments.events, arguments.seconds, arguments.ports)
    for each in missing:
        print(f"missing: {each}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
