# SPDX-License-Identifier: Apache-2.0
"""Messages of a Zenoh node that are malformed, oversized, repeated, or that lie about their time."""

from collections.abc import Callable
from typing import Final

import msgspec

from ustreamer.host.attack.attack import Attack, Need
from ustreamer.host.attack.clients.zenoh_node import (
    ZenohNode,
    key_of,
    publication,
    request_attributes,
    uri_chunks,
)
from ustreamer.host.attack.scene import SUBSCRIBE, Scene
from ustreamer.transports.zenoh.decoder import VERSION_BYTE
from ustreamer.transports.zenoh.keys import NO_SINK
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import encode

FAMILY: Final = "messages"
_RATE: Final = 1_000
_VARIANT: Final = 0b10 << 62


def _each(act: Callable[[Scene, ZenohNode, int], object], rate: float = _RATE) -> Callable[[Scene], str]:
    """An attack that acts at a rate; others must still be served."""

    def run(scene: Scene) -> str:
        node = scene.outsider
        for number in scene.paced(rate):
            act(scene, node, number)
        return scene.service_denied()

    return run


def _own_topic(node: ZenohNode, number: int = 0) -> UUri:
    return node.address.with_resource(0x8000 + number % 0x7000)


def no_attachment(scene: Scene, node: ZenohNode, number: int) -> None:
    node.put(key_of(publication(_own_topic(node))), None, b"x")


def random_attachment(scene: Scene, node: ZenohNode, number: int) -> None:
    node.put(key_of(publication(_own_topic(node))), VERSION_BYTE + scene.rng.randbytes(number % 200))


def mutated_attachment(scene: Scene, node: ZenohNode, number: int) -> None:
    attributes = publication(_own_topic(node), ttl=1_000, token="t" * 20)
    raw = bytearray(VERSION_BYTE + encode(node.ids.next(), attributes))
    raw[scene.rng.randrange(len(raw))] ^= 1 << scene.rng.randrange(8)
    node.put(key_of(attributes), bytes(raw))


def huge_attachment(scene: Scene, node: ZenohNode, number: int) -> None:
    node.put(key_of(publication(_own_topic(node))), VERSION_BYTE + bytes(200_000))


def long_token(scene: Scene, node: ZenohNode, number: int) -> None:
    """Nearly as long as an attachment may be, and different each time."""
    node.send(publication(_own_topic(node), token=f"{number:x}" * 2_500))


def long_key(scene: Scene, node: ZenohNode, number: int) -> None:
    source = UUri("a" * 10_000, 1, 1, 0x8001)
    node.put(
        f"up/{uri_chunks(source)}/{NO_SINK}", VERSION_BYTE + encode(node.ids.next(), publication(source))
    )


def huge_payload(scene: Scene, node: ZenohNode, number: int) -> None:
    node.send(publication(_own_topic(node)), bytes(8_000_000))


def other_layout(scene: Scene, node: ZenohNode, number: int) -> None:
    node.put(f"up/old/layout/{number % 7}/" + "/".join("x" * (number % 9 + 1)), VERSION_BYTE)


def wildcard_key(scene: Scene, node: ZenohNode, number: int) -> None:
    """A put on a pattern reaches the subscribers of all keys that it matches."""
    key = (f"up/*/*/*/*/*/{NO_SINK}", "up/**", "**", f"up/{uri_chunks(scene.topic)}/**")[number % 4]
    node.put(key, VERSION_BYTE + encode(node.ids.next(), publication(scene.topic)), scene.forged)


def delete_samples(scene: Scene, node: ZenohNode, number: int) -> None:
    node.session.delete(key_of(publication(scene.topic if number % 2 else _own_topic(node))))


def zenoh_queries(scene: Scene, node: ZenohNode, number: int) -> None:
    node.session.get("**" if number % 2 else "@/**", lambda _: None, timeout=0.2)


def invalid_attributes(scene: Scene, node: ZenohNode, number: int) -> None:
    """A request without a ttl, a priority of another type, a status of a publication."""
    broken = publication(_own_topic(node))
    keys = ({"commstatus": 5}, {"priority": 0}, {"ttl": 0xFFFF_FFFF}, {"traceparent": "00-" + "f" * 5_000})
    node.send(msgspec.structs.replace(broken, **keys[number % 4]))


def replay(scene: Scene) -> str:
    """One message, again and again with one id."""
    node, id = scene.outsider, scene.outsider.ids.next()
    attributes = publication(_own_topic(node))
    for _ in scene.paced(2_000):
        node.send(attributes, b"replayed", id=id)
    return scene.service_denied()


def replayed_requests(scene: Scene) -> str:
    """One Subscribe with one id."""
    node, id = scene.outsider, scene.outsider.ids.next()
    payload = pb.SubscriptionRequest(topic=scene.topic.with_resource(0xF000).to_pb()).SerializeToString()
    attributes = request_attributes(node.address, scene.target.usubscription_address.with_resource(SUBSCRIBE))
    for _ in scene.paced(1_000):
        node.send(attributes, payload, id=id)
    return scene.service_denied()


def clock_lies(scene: Scene, node: ZenohNode, number: int) -> None:
    """Ids of the year 10889, of 1970, of tomorrow; with a ttl, and for uSubscription as well."""
    now_ms = node.ids.next().msb >> 16
    time_ms = (0xFFFF_FFFF_FFFF, 0, now_ms + 86_400_000, now_ms - 86_400_000)[number % 4]
    id = UUID(time_ms << 16 | 0x7000 | number & 0xFFF, _VARIANT | scene.rng.getrandbits(62))
    node.send(publication(_own_topic(node), ttl=(1, 0x7FFF_FFFF)[number % 2]), b"late", id=id)


def other_uuid_versions(scene: Scene, node: ZenohNode, number: int) -> None:
    attributes: UAttributes = publication(_own_topic(node))
    node.send(attributes, id=UUID(scene.rng.getrandbits(64), scene.rng.getrandbits(64)))


_ZENOH: Final = (Need.ZENOH,)
ATTACKS: Final = (
    Attack("no-attachment", FAMILY, "put samples without attributes", _ZENOH, _each(no_attachment)),
    Attack("random-attachment", FAMILY, "put random bytes as attributes", _ZENOH, _each(random_attachment)),
    Attack("mutated-attachment", FAMILY, "flip bits of valid attributes", _ZENOH, _each(mutated_attachment)),
    Attack("huge-attachment", FAMILY, "put attachments of 200 kB", _ZENOH, _each(huge_attachment, 100)),
    Attack("long-token", FAMILY, "fill caches with tokens of 10 kB", _ZENOH, _each(long_token, 500)),
    Attack("long-key", FAMILY, "put keys of 10 kB", _ZENOH, _each(long_key, 300)),
    Attack("huge-payload", FAMILY, "put payloads of 8 MB", _ZENOH, _each(huge_payload, 4)),
    Attack("other-layout", FAMILY, "put keys of another layout", _ZENOH, _each(other_layout)),
    Attack(
        "wildcard-key", FAMILY, "put on patterns to reach all subscribers", (Need.OUTER,), _each(wildcard_key)
    ),
    Attack("delete-samples", FAMILY, "delete keys instead of putting them", _ZENOH, _each(delete_samples)),
    Attack("zenoh-queries", FAMILY, "query all keys of Zenoh", _ZENOH, _each(zenoh_queries, 100)),
    Attack(
        "invalid-attributes",
        FAMILY,
        "send attributes that contradict their type",
        _ZENOH,
        _each(invalid_attributes),
    ),
    Attack("replay", FAMILY, "repeat one publication with one id", _ZENOH, replay),
    Attack("replayed-requests", FAMILY, "repeat one Subscribe with one id", _ZENOH, replayed_requests),
    Attack("clock-lies", FAMILY, "send ids from the far future and the past", _ZENOH, _each(clock_lies)),
    Attack(
        "other-uuids", FAMILY, "send ids that are no UUIDs of version 7", _ZENOH, _each(other_uuid_versions)
    ),
)
