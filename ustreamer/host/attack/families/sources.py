# SPDX-License-Identifier: Apache-2.0
"""Messages with a foreign source: an ECU, the streamer, an authority of no network."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from ustreamer.host.attack.attack import Attack, Need
from ustreamer.host.attack.clients.someip_host import HOSTS, NOTIFICATION, RESPONSE, frame, send, udp
from ustreamer.host.attack.clients.zenoh_node import (
    key_of,
    notification_attributes,
    publication,
    response_attributes,
)
from ustreamer.host.attack.scene import SUBSCRIBE, Scene
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import decode

FAMILY: Final = "forged sources"
_NOWHERE: Final = "nowhere.example"
_RATE: Final = 500


def publish_as_ecu(scene: Scene) -> str:
    """The probe counts what reaches its subscriber."""
    for _ in scene.paced(_RATE):
        scene.outsider.send(publication(scene.topic), scene.forged)
    return ""


def publish_as_streamer(scene: Scene) -> str:
    topic = scene.target.own_service.with_resource(0x8000)
    return _if_arrived(scene, topic, lambda: scene.outsider.send(publication(topic), scene.forged))


def publish_without_authority(scene: Scene) -> str:
    """The key names the ECU. The attributes have no authority, so it would come from the key."""
    attributes = publication(msgspec.structs.replace(scene.topic, authority_name=""))
    for _ in scene.paced(_RATE):
        scene.outsider.send(attributes, scene.forged, key=key_of(publication(scene.topic)))
    return ""


def publish_on_own_key(scene: Scene) -> str:
    """A true key, and the attributes of the ECU."""
    own = scene.outsider.address.with_resource(0x8001)
    for _ in scene.paced(_RATE):
        scene.outsider.send(publication(scene.topic), scene.forged, key=key_of(publication(own)))
    return ""


def notify_as_usubscription(scene: Scene) -> str:
    """An Update that would end the subscription of its receiver."""
    source = scene.target.usubscription_address.with_resource(0x8000)
    attributes = notification_attributes(source, scene.bystander.address)
    seen: list[object] = []
    scene.bystander.transport.register_listener(source, scene.bystander.address, seen.append)
    for _ in scene.paced(_RATE):
        scene.outsider.send(attributes, scene.forged)
    scene.bystander.transport.unregister_listener(source, scene.bystander.address, seen.append)
    return f"{len(seen)} forged Updates reached a subscriber" if seen else ""


def respond_as_ecu(scene: Scene) -> str:
    """Responses without a call, with ids of this moment."""
    method = scene.topic.with_resource(1)
    seen: list[object] = []
    scene.bystander.transport.register_listener(method, scene.bystander.address, seen.append)
    for _ in scene.paced(_RATE):
        scene.outsider.send(
            response_attributes(method, scene.bystander.address, scene.ids.next()), scene.forged
        )
    scene.bystander.transport.unregister_listener(method, scene.bystander.address, seen.append)
    return f"{len(seen)} forged Responses reached a caller" if seen else ""


def subscribe_from_nowhere(scene: Scene) -> str:
    """An authority that the configuration does not name; the attacker also receives its responses."""
    source = UUri(_NOWHERE, 0xBAD, 1, 0)
    request = pb.SubscriptionRequest(topic=scene.topic.to_pb()).SerializeToString()
    method = scene.target.usubscription_address.with_resource(SUBSCRIBE)
    answered: list[Any] = []
    subscriber = scene.outsider.subscribe_slowly(f"up/*/*/*/*/*/{_NOWHERE}/**", answered.append)
    try:
        for _ in scene.paced(_RATE):
            scene.outsider.request(method, request, source=source)
        scene.wait(lambda: bool(answered))
    finally:
        subscriber.undeclare()
    return f"an undeclared authority got {len(answered)} messages" if _has_success(answered) else ""


def _has_success(samples: list[Any]) -> bool:
    """Whether a sample is a Response without an error."""
    for each in samples:
        attachment = each.attachment
        if attachment is not None:
            _, attributes = decode(attachment.to_bytes()[1:])
            if attributes.commstatus in {None, UCode.OK}:
                return True
    return False


def _if_arrived(scene: Scene, topic: UUri, act: Callable[[], object]) -> str:
    seen: list[object] = []
    scene.bystander.transport.register_listener(topic, None, seen.append)
    for _ in scene.paced(_RATE):
        act()
    scene.bystander.transport.unregister_listener(topic, None, seen.append)
    return f"{len(seen)} forged messages reached an application" if seen else ""


# --- SOME/IP ----------------------------------------------------------------------------------------------------------


def event_from_another_host(scene: Scene) -> str:
    event = scene.target.event
    if event is None:
        return ""
    with udp(HOSTS[0]) as attacker:
        for number in scene.paced(_RATE):
            datagram = frame(
                event.service, event.event, NOTIFICATION, scene.forged, session=number + 1, major=event.major
            )
            send(attacker, datagram, event.streamer)
    return ""


def event_of_offered_service(scene: Scene) -> str:
    """The streamer's own event, from a host of the network."""
    service = next(each for each in scene.someip.offered if each.events)
    topic = UUri.parse(service.provider or "").with_resource(service.events[0].id)
    with udp(HOSTS[0]) as attacker:
        datagram = frame(
            service.service, service.events[0].id, NOTIFICATION, scene.forged, major=service.major
        )
        return _if_arrived(scene, topic, lambda: send(attacker, datagram, scene.someip.address))


def response_from_another_host(scene: Scene) -> str:
    """Responses with every request id, to be the answer to an open call."""
    method = next(iter(_ecu_methods(scene)), (0x7777, 1, 1))
    with udp(HOSTS[0]) as attacker:
        for number in scene.paced(4 * _RATE):
            datagram = frame(
                method[0],
                method[1],
                RESPONSE,
                scene.forged,
                client=1,
                session=number % 0xFFFF + 1,
                major=method[2],
            )
            send(attacker, datagram, scene.someip.address)
    return ""


def _ecu_methods(scene: Scene) -> list[tuple[int, int, int]]:
    return [
        (each.service, method if isinstance(method, int) else method.id, each.major)
        for each in scene.someip.ecu_services
        for method in each.methods
    ]


ATTACKS: Final = (
    Attack(
        "publish-as-ecu",
        FAMILY,
        "publish the topic of an ECU from another network",
        (Need.OUTER,),
        publish_as_ecu,
    ),
    Attack(
        "publish-as-streamer",
        FAMILY,
        "publish with the streamer's own address",
        (Need.OUTER,),
        publish_as_streamer,
    ),
    Attack(
        "publish-no-authority",
        FAMILY,
        "publish without an authority on the key of an ECU",
        (Need.OUTER,),
        publish_without_authority,
    ),
    Attack(
        "publish-other-key",
        FAMILY,
        "hide the source of an ECU behind a true key",
        (Need.OUTER,),
        publish_on_own_key,
    ),
    Attack(
        "notify-as-usubscription",
        FAMILY,
        "send an Update as if from uSubscription",
        (Need.OUTER,),
        notify_as_usubscription,
    ),
    Attack("respond-as-ecu", FAMILY, "send Responses as if from an ECU", (Need.OUTER,), respond_as_ecu),
    Attack(
        "undeclared-authority",
        FAMILY,
        "subscribe as an authority that no network has",
        (Need.OUTER, Need.USUBSCRIPTION),
        subscribe_from_nowhere,
    ),
    Attack(
        "event-other-host",
        FAMILY,
        "send the event of an ECU from another host",
        (Need.SOMEIP,),
        event_from_another_host,
    ),
    Attack(
        "event-offered",
        FAMILY,
        "send an event of a service that the streamer offers",
        (Need.OFFERED,),
        event_of_offered_service,
    ),
    Attack(
        "response-other-host",
        FAMILY,
        "answer calls of the streamer from another host",
        (Need.SOMEIP,),
        response_from_another_host,
    ),
)
