# SPDX-License-Identifier: Apache-2.0
"""Datagrams of a host on the SOME/IP network that is no ECU of the configuration."""

import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from ustreamer.host.attack.attack import Attack, Need
from ustreamer.host.attack.clients.someip_host import (
    ERROR,
    HONEST,
    HOSTS,
    NOTIFICATION,
    REQUEST,
    RESPONSE,
    frame,
    segment,
    send,
    udp,
)
from ustreamer.host.attack.scene import Scene
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuri import ANY, UUri

FAMILY: Final = "SOME/IP datagrams"
_NEEDS: Final = (Need.SOMEIP,)
_MESSAGES: Final = 4_000


def _datagrams(make: Callable[[Scene, int], bytes], rate: float, hosts: int = 1) -> Callable[[Scene], str]:
    """An attack that sends datagrams at a rate, from several hosts in turn. Others must still be served."""

    def run(scene: Scene) -> str:
        with ExitStack() as stack:
            sockets = [stack.enter_context(udp(each)) for each in HOSTS[:hosts]]
            for number in scene.paced(rate):
                send(sockets[number % hosts], make(scene, number), scene.someip.address)
        return scene.service_denied()

    return run


def _known(scene: Scene) -> tuple[int, int, int]:
    """Service, event and major version of an event that the streamer expects."""
    event = scene.target.event
    return (0x1234, 0x8001, 1) if event is None else (event.service, event.event, event.major)


def malformed_messages(scene: Scene, number: int) -> bytes:
    """64 kB of messages of an unknown type."""
    return frame(0x7777, 1, 0x55) * _MESSAGES


def unknown_requests(scene: Scene, number: int) -> bytes:
    """64 kB of requests that would all be answered with an error."""
    return frame(0x7777, 1, REQUEST, client=9) * _MESSAGES


def foreign_events(scene: Scene, number: int) -> bytes:
    """64 kB of events that another host may send."""
    service, event, major = _known(scene)
    return frame(service, event, NOTIFICATION, major=major) * _MESSAGES


def random_bytes(scene: Scene, number: int) -> bytes:
    return scene.rng.randbytes(scene.rng.randrange(64))


def mutated_event(scene: Scene, number: int) -> bytes:
    service, event, major = _known(scene)
    raw = bytearray(frame(service, event, NOTIFICATION, b"payload", session=number % 0xFFFF + 1, major=major))
    raw[scene.rng.randrange(len(raw))] ^= 1 << scene.rng.randrange(8)
    return bytes(raw[: scene.rng.randrange(8, len(raw) + 1)])


def wrong_lengths(scene: Scene, number: int) -> bytes:
    service, event, _ = _known(scene)
    return frame(
        service, event, NOTIFICATION, b"x" * 8, length=(0, 7, 8, 17, 0x7FFF_FFFF, 0xFFFF_FFFF)[number % 6]
    )


def other_protocols(scene: Scene, number: int) -> bytes:
    service, _, _ = _known(scene)
    return frame(service, 1, REQUEST, b"x", protocol=number % 256, client=7)


def empty_datagrams(scene: Scene, number: int) -> bytes:
    return b""


def error_replies(scene: Scene, number: int) -> bytes:
    """Replies to replies must not be replied to."""
    return frame(0x7777, 1, (ERROR, RESPONSE)[number % 2], b"x", client=number & 0xFFFF)


def huge_event(scene: Scene, number: int) -> bytes:
    service, event, major = _known(scene)
    return frame(service, event, NOTIFICATION, bytes(60_000), major=major)


# --- segments ---------------------------------------------------------------------------------------------------------


def open_segments(scene: Scene, number: int) -> bytes:
    """First segments of messages that never end."""
    return _segment(scene, 0, 1_392, number)


def _segment(scene: Scene, offset: int, size: int, number: int) -> bytes:
    offered = next((each for each in scene.someip.offered if each.methods), None)
    if offered is None:
        service, event, _ = _known(scene)
        return segment(
            service, event, NOTIFICATION, offset, bytes(size), more=True, session=number % 0xFFFF + 1
        )
    return segment(offered.service, 1, REQUEST, offset, bytes(size), more=True, session=number % 0xFFFF + 1)


def scattered_segments(scene: Scene, number: int) -> bytes:
    """Overlaps, gaps and offsets near the end of the number range."""
    offset = scene.rng.choice([0, 16, 16, 32, 1_392, 0xFFFF_FFE0])
    return _segment(scene, offset, scene.rng.choice([16, 64, 1_392]), number // 8)


def fill_segments(scene: Scene, number: int) -> bytes:
    """Large messages, segment by segment, none of them complete."""
    return _segment(scene, number % 94 * 1_392, 1_392, number // 94)


# --- requests ---------------------------------------------------------------------------------------------------------


def open_requests(scene: Scene) -> str:
    """Requests of one host that the provider does not answer; then a request of another host."""
    service = next(each for each in scene.someip.offered if each.methods)
    first = service.methods[0]
    method = first if isinstance(first, int) else first.id
    provider = UUri.parse(service.provider or "").with_resource(method)
    transport, on_request = scene.bystander.transport, _Silent()
    transport.register_listener(ANY, provider, on_request)
    try:
        with udp(HOSTS[0]) as attacker, udp(HONEST) as honest:
            for number in scene.paced(4_000):
                client, session = 1 + number // 250 % 100, number % 250 + 1
                datagram = frame(
                    service.service,
                    method,
                    REQUEST,
                    b"x",
                    client=client,
                    session=session,
                    major=service.major,
                )
                send(attacker, datagram, scene.someip.address)
            answers = _honest_answers(scene, honest, service.service, method, service.major)
    finally:
        transport.unregister_listener(ANY, provider, on_request)
    return "a request of another host is refused" if answers else scene.service_denied()


class _Silent:
    """A provider that does not respond."""

    def __call__(self, message: UMessage) -> None:
        """The request stays open."""


def _honest_answers(scene: Scene, honest: socket.socket, service: int, method: int, major: int) -> list[int]:
    """The return codes that another host gets at once for a request; none if it was accepted and waits."""
    send(honest, frame(service, method, REQUEST, b"honest", client=0x77, major=major), scene.someip.address)
    honest.settimeout(0.2)
    try:
        return [honest.recv(65_535)[15]]
    except TimeoutError:
        return []


ATTACKS: Final = (
    Attack(
        "malformed-messages",
        FAMILY,
        "send datagrams of 4 000 malformed messages",
        _NEEDS,
        _datagrams(malformed_messages, 100),
    ),
    Attack(
        "unknown-requests",
        FAMILY,
        "send datagrams of 4 000 requests for no service",
        _NEEDS,
        _datagrams(unknown_requests, 100),
    ),
    Attack(
        "foreign-events",
        FAMILY,
        "send datagrams of 4 000 events of an ECU",
        _NEEDS,
        _datagrams(foreign_events, 100),
    ),
    Attack("random-datagrams", FAMILY, "send random bytes", _NEEDS, _datagrams(random_bytes, 3_000, 40)),
    Attack("mutated-events", FAMILY, "flip bits of valid events", _NEEDS, _datagrams(mutated_event, 3_000)),
    Attack(
        "wrong-lengths", FAMILY, "send lengths beyond the datagram", _NEEDS, _datagrams(wrong_lengths, 3_000)
    ),
    Attack(
        "other-protocols",
        FAMILY,
        "send other versions of the protocol",
        _NEEDS,
        _datagrams(other_protocols, 2_000),
    ),
    Attack(
        "empty-datagrams", FAMILY, "send datagrams without a byte", _NEEDS, _datagrams(empty_datagrams, 5_000)
    ),
    Attack(
        "error-replies", FAMILY, "start a loop of error replies", _NEEDS, _datagrams(error_replies, 2_000)
    ),
    Attack("huge-events", FAMILY, "send events of 60 kB", _NEEDS, _datagrams(huge_event, 200)),
    Attack("tp-open", FAMILY, "leave segmented messages open", _NEEDS, _datagrams(open_segments, 2_000, 200)),
    Attack(
        "tp-scattered",
        FAMILY,
        "send segments that overlap",
        _NEEDS,
        _datagrams(scattered_segments, 2_000, 40),
    ),
    Attack(
        "tp-memory",
        FAMILY,
        "fill the memory with unfinished large messages",
        _NEEDS,
        _datagrams(fill_segments, 4_000, 40),
    ),
    Attack("open-requests", FAMILY, "fill the table of open requests", (Need.OFFERED_METHOD,), open_requests),
)
