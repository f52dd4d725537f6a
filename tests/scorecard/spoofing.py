# SPDX-License-Identifier: Apache-2.0
"""R16: messages with the source of another network, at each ingress of a running streamer. None is forwarded."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import SomeipNode, ZenohEntity, eventually
from tests.e2e.rigs.streamer import statistics
from tests.e2e.rigs.vehicle import CLIMATE, OFFERED, SPEED, Vehicle, running_vehicle
from tests.e2e.rigs.wire import Attributes, Uri

FORGED: Final = b"forged"
TOPIC: Final = Uri("chassis", SPEED, 1, 0x8001)
METHOD: Final = Uri("chassis", CLIMATE, 1, 1)
CHUNK: Final = 100
"""Datagrams that are sent before the streamer has read them: their receive buffer holds more."""
AUTHORITIES: Final = {"own": "hpc.vin1", "ecu": "chassis", "unknown": "nowhere"}


def _message(kind: int, source: Uri) -> Attributes:
    match kind:
        case wire.PUBLISH:
            return Attributes(wire.new_id(), kind, source.at(0x8001), priority=wire.CS1)
        case wire.NOTIFICATION:
            sink = Uri("hpc.vin1", 0x10A0, 1)
            return Attributes(wire.new_id(), kind, source.at(0x8001), sink, priority=wire.CS1)
        case wire.REQUEST:
            return Attributes(wire.new_id(), kind, source, METHOD, priority=wire.CS4, ttl=10_000)
        case _:
            sink, reqid = Uri("hpc.vin1", 0x10A0, 1), wire.new_id()
            return Attributes(wire.new_id(), kind, source.at(1), sink, wire.CS4, 10_000, reqid=reqid)


def _forged(kind: int, how: str) -> tuple[Attributes, str]:
    """A message and its Zenoh key. The sender is at the network of the authority cloud."""
    if how in AUTHORITIES:
        made = _message(kind, Uri(AUTHORITIES[how], SPEED, 1))
        return made, made.key
    if how == "empty":  # the key names our own authority
        made = _message(kind, Uri("hpc.vin1", SPEED, 1))
        return made._replace(source=made.source._replace(authority="")), made.key
    made = _message(kind, Uri("cloud", SPEED, 1))  # a true key, and attributes of the ECU
    return made._replace(source=made.source._replace(authority="chassis")), made.key


ZENOH_KINDS: Final = [
    (kind, how)
    for kind in (wire.PUBLISH, wire.NOTIFICATION, wire.REQUEST, wire.RESPONSE)
    for how in (*AUTHORITIES, "empty", "key")
]


def _refused(directory: Path) -> int:
    """All refusals that the endpoints count."""
    endpoints = statistics(directory / "state")["endpoints"].values()
    return sum(
        count
        for endpoint in endpoints
        for name, count in endpoint.items()
        if name.startswith("refused_") or name == "no_listener"
    )


def _datagrams(vehicle: Vehicle, impostor: SomeipNode) -> list[Callable[[], None]]:
    port = vehicle.ports.someip
    event, offered = wire.event(SPEED, 0x8001, FORGED), wire.event(OFFERED, 0x8001, FORGED)
    answer = wire.someip(CLIMATE, 1, wire.SOMEIP_RESPONSE, FORGED, client=1)
    return [
        lambda: impostor.send_to_port(event, port),
        lambda: vehicle.ecu.send_to_port(offered, port),
        lambda: vehicle.ecu.send_to_port(answer, port),
        lambda: impostor.send_to_port(answer, port),
    ]


def test_no_message_with_a_foreign_source_is_forwarded(tmp_path: Path, trials: int) -> None:
    """`trials` per kind."""
    with (
        running_vehicle(tmp_path) as vehicle,
        ZenohEntity(vehicle.ports.backbone, "hpc.vin1", 0x10A0) as app,
        ZenohEntity(vehicle.ports.cloud, "cloud") as fleet,
        SomeipNode(host="127.0.0.2") as impostor,
    ):
        app.subscribe(TOPIC)
        before, sent, calls = _refused(tmp_path), 0, set()
        for kind, how in ZENOH_KINDS:
            for _ in range(trials):
                made, key = _forged(kind, how)
                fleet.put_raw(key, made.attachment, FORGED)
                if kind == wire.REQUEST and how != "key":
                    calls.add(made.id)
            sent += trials
        eventually(lambda: _refused(tmp_path) - before, sent)
        for send in _datagrams(vehicle, impostor):
            for _ in range(0, trials, CHUNK):
                for _ in range(CHUNK):
                    send()
                sent += CHUNK
                eventually(lambda: _refused(tmp_path) - before, sent)
        # The control: true sources get through, behind everything that was forged.
        vehicle.send_event(TOPIC, b"true")
        assert [each.payload for each in app.wait_events(TOPIC)] == [b"true"]
        assert fleet.call(METHOD, b"true").payload == b"true"
        uncounted = sent - (_refused(tmp_path) - before)
        denied = fleet.inbox.wait_count(
            lambda s: s.attributes is not None and s.attributes.reqid in calls, len(calls)
        )
        codes = {each.head.reqid: each.head.commstatus for each in denied}
        forwarded = len(app.inbox.items(lambda each: each.payload == FORGED))
        for node in (vehicle.ecu, vehicle.receiver):
            forwarded += len(node.inbox.items(lambda frame: FORGED in frame.raw))
    print(f"spoofed={sent} kinds={len(ZENOH_KINDS) + 4} forwarded={forwarded}")
    print(
        f"uncounted={uncounted} rpc_denied_percent={_percent_denied(codes)} answered_twice={len(denied) - len(codes)}"
    )


def _percent_denied(codes: dict[wire.Id | None, int | None]) -> float:
    return 100 * sum(code == wire.PERMISSION_DENIED for code in codes.values()) / len(codes)
