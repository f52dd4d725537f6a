# SPDX-License-Identifier: Apache-2.0
"""More of everything from one Zenoh network: messages, topics, open calls, dead letters, tokens, and readers that stop."""

from threading import Event
from typing import Any, Final

import msgspec

from ustreamer.core.peers.election import Announcement, AnnouncementRole
from ustreamer.host.attack.attack import Attack, Need
from ustreamer.host.attack.clients.zenoh_node import notification_attributes, publication
from ustreamer.host.attack.scene import SUBSCRIBE, Scene
from ustreamer.host.storage.stored_messages import read_stored_messages
from ustreamer.transports.zenoh.tokens.token_keys import announcement_key
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

FAMILY: Final = "floods"
_RATE: Final = 2_000
_TOKENS: Final = 500


def publications(scene: Scene) -> str:
    node = scene.outsider
    attributes = publication(node.address.with_resource(0x8001))
    for _ in scene.paced(_RATE):
        node.send(attributes, bytes(64))
    return scene.service_denied()


def topics(scene: Scene) -> str:
    """Each message on a topic of its own."""
    node, offset = scene.outsider, scene.rng.randrange(1 << 20)
    for number in scene.paced(1_000):
        at = offset + number
        node.send(publication(UUri(node.address.authority_name, at % 0xF000, 1, 0x8000 + at % 0x7000)), b"x")
    return scene.service_denied()


def open_calls(scene: Scene) -> str:
    """Calls of a method whose ECU does not respond, with the longest ttl; then an honest call of it."""
    service = next(each for each in scene.someip.ecu_services if each.methods and each.remote)
    first = service.methods[0]
    ue_id = service.service | (service.instance << 16 if service.instance != 1 else 0)
    method = UUri(scene.someip.authority, ue_id, service.major, first if isinstance(first, int) else first.id)
    for _ in scene.paced(5 * _RATE):
        scene.outsider.request(method, b"open", ttl=600_000)
    try:
        scene.bystander.call(method, b"honest", ttl=300)
    except UStatusError as error:
        if error.code is UCode.RESOURCE_EXHAUSTED:
            return f"an honest call is refused: {error.message}"
    return scene.service_denied()


def unknown_methods(scene: Scene) -> str:
    for number in scene.paced(_RATE):
        scene.outsider.request(scene.target.usubscription_address.with_resource(100 + number % 1_000))
    return scene.service_denied()


def dead_letters(scene: Scene) -> str:
    """Notifications to a uEntity that the SOME/IP network does not have. The dead letter of an honest message must stay."""
    honest = notification_attributes(
        scene.bystander.address.with_resource(0x8001), UUri(scene.someip.authority, 0x7777, 1, 0)
    )
    id = scene.ids.next()
    scene.bystander.transport.send(UMessage(id, honest, b"honest"))
    attributes = notification_attributes(
        scene.outsider.address.with_resource(0x8001), UUri(scene.someip.authority, 0x7778, 1, 0)
    )
    for _ in scene.paced(_RATE):
        scene.outsider.send(attributes, bytes(200))
    deadline, pause = 40, Event()
    while deadline and id not in {
        each.id for each in read_stored_messages(scene.target.state_dir).dead_letters
    }:
        pause.wait(0.05)
        deadline -= 1
    return "" if deadline else "the dead letter of an honest message was displaced"


def forged_streamers(scene: Scene) -> str:
    """Tokens of a streamer that claims to carry everything, and those of many others."""
    node = scene.new_node()
    subjects = dict.fromkeys(
        ("*", scene.target.authority, *scene.target.home.authorities, scene.topic.authority_name)
    )
    announcements = [
        Announcement(f"{number:016x}", "cloud", f"a{number}.example", role, subject)
        for number in range(1, 9)
        for role in (AnnouncementRole.LOCAL, AnnouncementRole.CARRIES)
        for subject in subjects
    ]
    announcements += [
        msgspec.structs.replace(each, role=AnnouncementRole.IDENTITY, subject=each.authority)
        for each in announcements[:: 2 * len(subjects)]
    ]
    tokens = [node.session.liveliness().declare_token(announcement_key(each)) for each in announcements]
    scene.hold()
    effect = scene.service_denied()
    del tokens  # they are valid while they are referenced
    node.close()
    return effect


def malformed_tokens(scene: Scene) -> str:
    node, tokens = scene.new_node(), []
    for number in scene.paced(_TOKENS):
        key = f"up-streamer/1/{number:016x}/x/{'a' * (1 + number % 500)}/here/%2A"
        tokens.append(node.session.liveliness().declare_token(key))
    effect = scene.service_denied()
    node.close()
    return effect


def slow_reader(scene: Scene) -> str:
    """A subscriber of the vehicle topic that stops reading: it must delay no other one."""
    node, released = scene.new_node(), Event()

    def block(_: Any) -> None:
        released.wait(scene.seconds + 5)

    subscriber = node.subscribe_slowly(f"up/{scene.topic.authority_name}/**", block)
    payload = pb.SubscriptionRequest(topic=scene.topic.to_pb()).SerializeToString()
    node.request(scene.target.usubscription_address.with_resource(SUBSCRIBE), payload)
    scene.hold()
    effect = scene.service_denied()
    node.request(
        scene.target.usubscription_address.with_resource(2),
        pb.UnsubscribeRequest(topic=scene.topic.to_pb()).SerializeToString(),
    )
    released.set()
    subscriber.undeclare()
    node.close()
    return effect


def sessions(scene: Scene) -> str:
    """Zenoh sessions that come and go."""
    for _ in scene.paced(8):
        scene.new_node().close()
    return scene.service_denied()


ATTACKS: Final = (
    Attack(
        "publication-flood",
        FAMILY,
        "publish 2 000 messages a second without a subscriber",
        (Need.ZENOH,),
        publications,
    ),
    Attack("topic-flood", FAMILY, "publish each message on another topic", (Need.ZENOH,), topics),
    Attack(
        "open-call-flood", FAMILY, "leave calls to an ECU open", (Need.OUTER, Need.ECU_METHOD), open_calls
    ),
    Attack("unknown-method-flood", FAMILY, "call methods that do not exist", (Need.ZENOH,), unknown_methods),
    Attack(
        "dead-letter-flood",
        FAMILY,
        "displace the dead letters of others",
        (Need.OUTER, Need.SOMEIP),
        dead_letters,
    ),
    Attack(
        "forged-streamers",
        FAMILY,
        "claim to be streamers that carry everything",
        (Need.OUTER,),
        forged_streamers,
    ),
    Attack("token-flood", FAMILY, "declare malformed tokens", (Need.ZENOH,), malformed_tokens),
    Attack(
        "slow-zenoh-reader",
        FAMILY,
        "subscribe the vehicle topic and stop reading",
        (Need.OUTER, Need.USUBSCRIPTION),
        slow_reader,
    ),
    Attack("zenoh-sessions", FAMILY, "open and close Zenoh sessions", (Need.ZENOH,), sessions),
)
