# SPDX-License-Identifier: Apache-2.0
"""A scripted vsomeip application and Zenoh applications: events, fields, calls, restarts, instances, 100 services.

    python -m tests.e2e.someip.vsomeip_peer_scenarios DIRECTORY PROGRAM served_by_vsomeip|used_by_vsomeip|many

runs in its own namespace, with vsomeip at the far end of a cable. The first part of a service id is its test: 0x11 and
0x22 are services of vsomeip, 0x33 and 0x34 those of the streamer.
"""

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Any, Final, Self

from tests.e2e.rigs import wire
from tests.e2e.rigs.cable import FAR_ADDRESS, NEAR_ADDRESS, Cable, run_system_command
from tests.e2e.rigs.entities import DEADLINE_S, USUBSCRIPTION, ZenohEntity, ZenohSample
from tests.e2e.rigs.ports import tcp_ports, udp_ports
from tests.e2e.rigs.sd_ecu import SD_GROUP
from tests.e2e.rigs.streamer import START_S, StreamerProcess
from tests.e2e.rigs.wire import Uri
from tests.e2e.someip.vsomeip_peer import VsomeipPeer, offered_service
from tests.e2e.someip.vsomeip_samples import Installation, installation

SD: Final = (SD_GROUP, 30_490)
ECU, OTHER, OURS, SECOND = 0x1111, 0x2222, 0x3333, 0x3433
EVENT_GROUP: Final = "239.7.7.7"
LONG: Final = 5_000
MANY: Final = 100
_AGAIN_S: Final = 0.1
_SD_LIMIT: Final = 1_400
_EVERY_PROTOCOL, _IPV4_WITHOUT_OPTIONS, _UDP, _IS_FRAGMENT = 0x0003, 0x45, 17, 0x3FFF

_HEAD: Final = """\
authority = "hpc.vin1"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1"]
listen = ["tcp/127.0.0.1:{zenoh}"]

[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "{near}"
port = {data}

[endpoints.chassis.sd]
multicast = "{group}"
port = {port}
interface = "{near}"

[plugins.usubscription]
"""

_OF_ECU: Final = f"""
[[endpoints.chassis.services]]
service = {ECU}
instance = 1
major = 1
methods = [1, {{ id = 2, protocol = "tcp" }}, {{ id = 3, tp = true }}]
events = [
    {{ id = 0x8001, eventgroup = 1 }},
    {{ id = 0x8002, eventgroup = 2 }},
    {{ id = 0x8003, eventgroup = 3, field = true }},
    {{ id = 0x8004, eventgroup = 4 }},
    {{ id = 0x8005, eventgroup = 4, protocol = "tcp" }},
    {{ id = 0x8006, eventgroup = 6 }},
]
""" + "".join(
    f"""
[[endpoints.chassis.services]]
service = {OTHER}
instance = {instance}
major = 1
methods = [1]
events = [{{ id = 0x8001, eventgroup = 1 }}]
"""
    for instance in (1, 2)
)

_OF_STREAMER: Final = f"""
[[endpoints.chassis.services]]
service = {OURS}
instance = 1
major = 1
methods = [1, {{ id = 2, protocol = "tcp" }}, {{ id = 3, tp = true }}]
events = [
    {{ id = 0x8001, eventgroup = 1 }},
    {{ id = 0x8002, eventgroup = 2, tp = true }},
    {{ id = 0x8003, eventgroup = 3, field = true }},
    {{ id = 0x8005, eventgroup = 5, protocol = "tcp" }},
    {{ id = 0x8006, eventgroup = 6 }},
]
eventgroups = [{{ id = 6, multicast = "{EVENT_GROUP}:31901", threshold = 1 }}]
offered = true
provider = "//hpc.vin1/8401/1/0"
""" + "".join(
    f"""
[[endpoints.chassis.services]]
service = {SECOND}
instance = {instance}
major = 1
methods = [1]
events = [{{ id = 0x8001, eventgroup = 1 }}]
offered = true
port = {31_100 + instance}
provider = "//hpc.vin1/{0x8500 + instance:x}/1/0"
"""
    for instance in (1, 2)
)


def _many(service: int, offered: str) -> str:
    tables = (
        f"\n[[endpoints.chassis.services]]\nservice = {service + n}\nmajor = 1\nmethods = [1]\n"
        + offered.format(n=0x9000 + n)
        for n in range(MANY)
    )
    return "".join(tables)


class SentDatagrams:
    """The size of the largest SD message that the streamer sends in a `with` block, and the number of IP fragments."""

    def __init__(self) -> None:
        self.largest_sd = self.fragments = 0
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_EVERY_PROTOCOL))
        self._socket.bind(("near", 0))
        self._socket.settimeout(_AGAIN_S)
        self._stopping = Event()
        self._reader = Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        ours = socket.inet_aton(NEAR_ADDRESS)
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                packet = self._socket.recv(65_535)
                if packet[0] == _IPV4_WITHOUT_OPTIONS and packet[12:16] == ours and packet[9] == _UDP:
                    flags, to, size = (int.from_bytes(packet[at : at + 2], "big") for at in (6, 22, 24))
                    self.fragments += flags & _IS_FRAGMENT != 0
                    self.largest_sd = max(self.largest_sd, size - 8 if to == SD[1] else 0)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._reader.join(DEADLINE_S)
        self._socket.close()


class VsomeipPeerScenarios:
    """Each scenario has its own streamer, vsomeip application and Zenoh application."""

    def __init__(self, directory: Path, found: Installation, program: Path, cable: Cable) -> None:
        self._directory, self._found, self._program, self._cable = directory, found, program, cable
        run_system_command(*cable.far_prefix, "ip", "route", "add", "224.0.0.0/4", "dev", "far")

    @contextmanager
    def _running(
        self, name: str, tables: str, services: Sequence[Mapping[str, Any]] = (), **discovery: str
    ) -> Iterator[tuple[StreamerProcess, Callable[[], VsomeipPeer], int]]:
        """A running streamer, the start of its peer, and the port of its Zenoh endpoint."""
        directory = self._directory / name
        directory.mkdir()
        [zenoh], [data] = tcp_ports(1), udp_ports(1)
        config = directory / "vsomeip.toml"
        head = _HEAD.format(zenoh=zenoh, near=NEAR_ADDRESS, data=data, group=SD[0], port=SD[1])
        config.write_text(head + tables, encoding="utf-8")

        def start() -> VsomeipPeer:
            return VsomeipPeer(
                self._found,
                self._program,
                directory,
                FAR_ADDRESS,
                SD,
                services,
                self._cable.far_prefix,
                **discovery,
            )

        with StreamerProcess(config) as streamer:
            yield streamer, start, zenoh

    # --- vsomeip is the ECU -------------------------------------------------------------------------------------------

    def served_by_vsomeip(self) -> None:
        """Events of every kind, calls of every kind, two instances, a StopOffer and a reboot."""
        services = [
            offered_service(ECU, 1, 31_001, tcp=True, multicast={6: EVENT_GROUP}, segmented=(3, 0x8002)),
            *(offered_service(OTHER, instance, 31_001 + instance) for instance in (1, 2)),
        ]
        with (
            self._running("served", _OF_ECU, services) as (streamer, start, zenoh),
            ZenohEntity(zenoh, "hpc.vin1") as app,
        ):
            topics = {_topic(ECU, 1, event): event for event in range(0x8001, 0x8007)}
            for topic in [*topics, *(_topic(OTHER, instance, 0x8001) for instance in (1, 2))]:
                app.call(USUBSCRIPTION.at(wire.SUBSCRIBE), wire.subscription_request(topic))
            with start() as peer:
                self._offer(peer)
                for group in (1, 2, 3, 4, 6):
                    peer.wait_line(f"subscribed {ECU:x} 1 {group:x}")
                for topic, event in topics.items():
                    size = LONG if event == 0x8002 else 8
                    _notify_until(peer, app, f"notify {ECU:x} 1 {event:x} {size}", topic, size)
                with ZenohEntity(zenoh, "hpc.vin1") as late:
                    late.subscribe(_topic(ECU, 1, 0x8003))
                    late.wait_events(_topic(ECU, 1, 0x8003))
                for method, size in ((1, 100), (2, LONG), (3, LONG)):
                    _call(app, _method(ECU, 1, method), size)
                for instance in (1, 2):
                    peer.wait_line(f"subscribed {OTHER:x} {instance} 1")
                    notify = f"notify {OTHER:x} {instance} 8001 {instance}"
                    _notify_until(peer, app, notify, _topic(OTHER, instance, 0x8001), instance)
                    _call(app, _method(OTHER, instance, 1), 100)
                    peer.wait_line(f"request {OTHER:x} {instance} 1 64")

                peer.send(f"stop {ECU:x} 1")
                streamer.stderr.wait_one(lambda line: "someip.lost" in line and f"{ECU:#06x}" in line)
                peer.send(f"offer {ECU:x} 1")
                _notify_until(peer, app, f"notify {ECU:x} 1 8001 9", _topic(ECU, 1, 0x8001), 9)
                peer.kill()
            with start() as peer:
                self._offer(peer)
                _notify_until(peer, app, f"notify {ECU:x} 1 8001 10", _topic(ECU, 1, 0x8001), 10)
                _notify_until(peer, app, f"notify {ECU:x} 1 8005 11", _topic(ECU, 1, 0x8005), 11)
                _call(app, _method(ECU, 1, 2), 100)

    def _offer(self, peer: VsomeipPeer) -> None:
        kinds = {2: "event udp", 3: "field udp", 5: "event tcp"}
        for event in range(1, 7):
            group = 4 if event == 5 else event
            peer.send(f"event {ECU:x} 1 {0x8000 | event:x} {group:x} {kinds.get(event, 'event udp')}")
        peer.send(*(f"event {OTHER:x} {instance} 8001 1 event udp" for instance in (1, 2)))
        peer.send(f"offer {ECU:x} 1", *(f"offer {OTHER:x} {instance}" for instance in (1, 2)))

    # --- vsomeip is the client ----------------------------------------------------------------------------------------

    def used_by_vsomeip(self) -> None:
        """An initial field value first, events of every kind, calls, two instances, and a client that was killed."""
        with (
            self._running("used", _OF_STREAMER, ttl="16777215") as (_, start, zenoh),
            ZenohEntity(zenoh, "hpc.vin1", 0x8401) as provider,
        ):
            ours = provider.address
            provider.publish(ours.at(0x8003), b"on")
            with start() as peer:
                self._subscribe(peer, zenoh, provider)
                for method, on, size in ((1, "udp", 100), (2, "tcp", LONG), (3, "udp", 1_000)):
                    peer.send(f"call {OURS:x} 1 {method:x} {on} {size}")
                    request = provider.inbox.wait_one(_is_request(ours.at(method)), DEADLINE_S)
                    assert len(request.payload) == size
                    provider.respond(request, bytes(LONG if method > 1 else size))
                    answered = LONG if method > 1 else size
                    peer.wait_line(f"response {OURS:x} 1 {method:x} {answered:x} 0")
                peer.kill()
            with start() as peer:
                self._subscribe(peer, zenoh, provider)
                peer.kill()
            _publish_until_unsubscribed(provider, ours.at(0x8001))

    def _subscribe(self, peer: VsomeipPeer, zenoh: int, provider: ZenohEntity) -> None:
        peer.send(f"find {OURS:x} 1", *(f"find {SECOND:x} {instance}" for instance in (1, 2)))
        peer.wait_line(f"available {OURS:x} 1")
        for event in (1, 2, 3, 5, 6):
            kind, on = "field" if event == 3 else "event", "tcp" if event == 5 else "udp"
            peer.send(f"subscribe {OURS:x} 1 {0x8000 | event:x} {event:x} {kind} {on}")
        peer.wait_line(f"event {OURS:x} 1 8003 2")  # the value from before the subscription
        for event in (1, 2, 5, 6):
            size = LONG if event == 2 else 8 + event
            line = f"event {OURS:x} 1 {0x8000 | event:x} {size:x}"
            _publish_until(provider, provider.address.at(0x8000 | event), size, peer, line)
        for instance in (1, 2):
            with ZenohEntity(zenoh, "hpc.vin1", 0x8500 + instance) as other:
                peer.wait_line(f"available {SECOND:x} {instance}")
                peer.send(f"subscribe {SECOND:x} {instance} 8001 1 event udp")
                line = f"event {SECOND:x} {instance} 8001 {instance}"
                _publish_until(other, other.address.at(0x8001), instance, peer, line)
                peer.send(f"call {SECOND:x} {instance} 1 udp {instance}")
                other.respond(other.inbox.wait_one(_is_request(other.address.at(1)), DEADLINE_S), b"ok")
                peer.wait_line(f"response {SECOND:x} {instance} 1 2 0")

    # --- many services ------------------------------------------------------------------------------------------------

    def many(self) -> None:
        """100 services of vsomeip are called, and 100 of the streamer are found."""
        theirs, ours = 0x5000, 0x6000
        tables = _many(theirs, "") + _many(ours, 'offered = true\nprovider = "//hpc.vin1/{n:x}/1/0"\n')
        services = [offered_service(theirs + n, 1, 31_200) for n in range(MANY)]
        with (
            self._running("many", tables, services) as (_, start, zenoh),
            ZenohEntity(zenoh, "hpc.vin1") as app,
            start() as peer,
        ):
            for n in range(MANY):
                peer.send(f"offer {theirs + n:x} 1", f"find {ours + n:x} 1")
            for n in range(MANY):
                peer.wait_line(f"available {ours + n:x} 1")
            for n in range(MANY):
                _call(app, _method(theirs + n, 1, 1), 10)


def _ue_id(service: int, instance: int) -> int:
    return service if instance == 1 else instance << 16 | service


def _topic(service: int, instance: int, event: int) -> Uri:
    return Uri("chassis", _ue_id(service, instance), 1, event)


_method = _topic


def _is_request(method: Uri) -> Callable[[ZenohSample], bool]:
    return lambda each: (
        each.attributes is not None
        and each.attributes.type == wire.REQUEST
        and each.attributes.sink == method
    )


def _call(app: ZenohEntity, method: Uri, size: int) -> None:
    payload = bytes(range(256)) * (size // 256) + bytes(range(size % 256))
    id = app.send_request(method, payload, ttl=round(START_S * 1_000))
    answer = app.wait_response(id, START_S)
    assert answer.head.commstatus in {None, wire.OK}, answer.status
    assert answer.payload == payload


def _notify_until(peer: VsomeipPeer, app: ZenohEntity, command: str, topic: Uri, size: int) -> None:
    """Notify until a Zenoh application has the event."""
    until = time.monotonic() + DEADLINE_S
    while not app.inbox.items(
        lambda each: each.is_event and each.head.source == topic and len(each.payload) == size
    ):
        assert time.monotonic() < until, f"{topic}: no event of {size} bytes"
        peer.send(command)
        time.sleep(_AGAIN_S)


def _publish_until(provider: ZenohEntity, topic: Uri, size: int, peer: VsomeipPeer, line: str) -> None:
    """Publish until vsomeip has the event."""
    until = time.monotonic() + DEADLINE_S
    while not peer.output.items(lambda each: each.endswith(f" {line}\n")):
        assert time.monotonic() < until, f"{topic}: no {line}"
        provider.publish(topic, bytes(size))
        time.sleep(_AGAIN_S)


def _publish_until_unsubscribed(provider: ZenohEntity, topic: Uri) -> None:
    """Publish until ICMP has ended the subscription of a client that was killed."""

    def subscribers() -> list[Uri]:
        asked = provider.call(USUBSCRIPTION.at(wire.FETCH_SUBSCRIBERS), wire.topic_request(topic))
        return wire.subscribers_in(asked.payload)

    assert subscribers()
    until = time.monotonic() + DEADLINE_S
    while found := subscribers():
        assert time.monotonic() < until, f"{topic}: still subscribed by {found}"
        provider.publish(topic, b"anyone?")
        time.sleep(_AGAIN_S)


def _main(directory: Path, program: Path, name: str) -> None:
    found = installation(os.environ)
    assert isinstance(found, Installation), found
    with Cable() as cable, SentDatagrams() as sent:
        scenarios = VsomeipPeerScenarios(directory, found, program, cable)
        getattr(scenarios, name)()
    least = 1_000 if name == "many" else 1
    assert least <= sent.largest_sd <= _SD_LIMIT, f"an SD message of {sent.largest_sd} bytes"
    assert sent.fragments == 0


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
