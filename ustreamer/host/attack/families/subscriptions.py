# SPDX-License-Identifier: Apache-2.0
"""Requests to uSubscription and to the streamer's own service from a network that they do not serve."""

from collections.abc import Callable
from typing import Final

from ustreamer.host.attack.attack import Attack, Need
from ustreamer.host.attack.scene import SUBSCRIBE, UNSUBSCRIBE, Scene
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuri import ANY_ENTITY, ANY_RESOURCE, ANY_VERSION, UUri

FAMILY: Final = "subscriptions"
FETCH_SUBSCRIPTIONS, CREATE_TOPIC, REGISTER, FETCH_SUBSCRIBERS, RESET = 3, 4, 6, 8, 9
STOP_DISPATCHING, FETCH_ROUTES, FETCH_STATISTICS = 2, 3, 4
_NEEDS: Final = (Need.OUTER, Need.USUBSCRIPTION)
_RATE: Final = 2_000
_ENTITIES: Final = 256
"""Callers of a flood. Each has a Zenoh publisher for its Responses, which stays."""
_MAX_TTL: Final = 0x7FFF_FFFF


def succeeded(response: UMessage | None) -> bool:
    return response is not None and response.attributes.commstatus in {None, UCode.OK}


def _method(scene: Scene, number: int) -> UUri:
    return scene.target.usubscription_address.with_resource(number)


def _subscription(topic: UUri) -> bytes:
    return pb.SubscriptionRequest(topic=topic.to_pb()).SerializeToString()


def _topic(scene: Scene, number: int) -> UUri:
    """One of many topics behind the network of the vehicle."""
    return UUri(scene.topic.authority_name, 0x100 + number // 0x7000, 1, 0x8000 + number % 0x7000)


def _entity(scene: Scene, number: int) -> UUri:
    """One of many uEntities of the attacker."""
    return UUri(scene.outsider.address.authority_name, 0x1000 + number, 1, 0)


# --- what belongs to others -------------------------------------------------------------------------------------------


def reset(scene: Scene) -> str:
    """As a uSubscription of the attacker's network, too."""
    own = scene.outsider.address
    for source in (own, UUri(own.authority_name, 0, 3, 0)):
        if succeeded(scene.outsider.call(_method(scene, RESET), source=source)):
            return "an outsider ended the subscriptions of all"
    return ""


def unsubscribe_others(scene: Scene) -> str:
    """The probe shows whether its subscription ends."""
    payload = pb.UnsubscribeRequest(topic=scene.topic.to_pb()).SerializeToString()
    for _ in scene.paced(200):
        scene.outsider.request(_method(scene, UNSUBSCRIBE), payload, source=scene.subscriber)
    return ""


def stop_dispatching_others(scene: Scene) -> str:
    payload = scene.topic.to_pb().SerializeToString()
    for _ in scene.paced(200):
        method = scene.target.own_service.with_resource(STOP_DISPATCHING)
        scene.outsider.request(method, payload, source=scene.subscriber)
    return ""


def permission_lie(scene: Scene) -> str:
    topic = UUri.parse(scene.target.permissions[0])
    wanted = UUri(
        topic.authority_name,
        0x1234 if topic.ue_id == ANY_ENTITY else topic.ue_id,
        1 if topic.ue_version_major == ANY_VERSION else topic.ue_version_major,
        0x8001 if topic.resource_id == ANY_RESOURCE else topic.resource_id,
    )
    for level in (None, 0, 5, 0xFFFF_FFFF):
        response = scene.outsider.call(
            _method(scene, SUBSCRIBE), _subscription(wanted), permission_level=level
        )
        if succeeded(response):
            return f"a caller with the permission level {level} in its request subscribed {wanted}"
    return ""


def fetch_routes(scene: Scene) -> str:
    response = scene.outsider.call(scene.target.own_service.with_resource(FETCH_ROUTES))
    return "an outsider read the routes of all networks" if succeeded(response) else ""


def fetch_statistics(scene: Scene) -> str:
    response = scene.outsider.call(scene.target.own_service.with_resource(FETCH_STATISTICS))
    return "an outsider read the statistics of all networks" if succeeded(response) else ""


def call_any_method(scene: Scene) -> str:
    """A method of an ECU that no rule names: it must be denied."""
    method = scene.topic.with_resource(0x7FF0)
    response = scene.outsider.call(method, wait_s=1.0, ttl=500)
    code = None if response is None else response.attributes.commstatus
    denied = code in {UCode.PERMISSION_DENIED, UCode.UNAUTHENTICATED}
    return "" if denied else f"an outsider's call of {method} was not denied"


def subscribe_everything(scene: Scene) -> str:
    everything = UUri("*", ANY_ENTITY, ANY_VERSION, ANY_RESOURCE)
    if succeeded(scene.outsider.call(_method(scene, SUBSCRIBE), _subscription(everything))):
        return "an outsider subscribed all topics of all networks at once"
    return ""


# --- floods -----------------------------------------------------------------------------------------------------------


def _flood(
    number_of_method: int, payload: Callable[[Scene, int], bytes], rate: int = _RATE
) -> Callable[[Scene], str]:
    """An attack that calls a method at a rate, each time as another uEntity. Others must still be served."""

    def run(scene: Scene) -> str:
        method, offset = _method(scene, number_of_method), scene.rng.randrange(1 << 20)
        for number in scene.paced(rate):
            scene.outsider.request(
                method, payload(scene, offset + number), source=_entity(scene, (offset + number) % _ENTITIES)
            )
        return scene.service_denied()

    return run


def query_burst(scene: Scene) -> str:
    """Bursts of 520 queries, four in a second."""
    query = pb.FetchSubscriptionsRequest(topic=scene.topic.to_pb()).SerializeToString()
    for number in scene.paced(4):
        method = FETCH_SUBSCRIPTIONS if number % 2 else FETCH_SUBSCRIBERS
        for _ in range(520):
            scene.outsider.request(_method(scene, method), query)
    return scene.service_denied()


def random_requests(scene: Scene, number: int) -> bytes:
    return scene.rng.randbytes(scene.rng.randrange(300))


def _registration(scene: Scene, number: int) -> bytes:
    return pb.NotificationsRequest(topic=_topic(scene, number % 0x7000).to_pb()).SerializeToString()


def _far_subscription(scene: Scene, number: int) -> bytes:
    """A topic behind another uSubscription, so that the streamer has to call."""
    return _subscription(UUri(scene.outsider.address.authority_name, 0x2000 + number % 0xD000, 1, 0x8001))


def expired_requests(scene: Scene) -> str:
    payload = _subscription(scene.topic)
    for _ in scene.paced(_RATE):
        scene.outsider.request(_method(scene, SUBSCRIBE), payload, ttl=1)
    return scene.service_denied()


def extreme_rates(scene: Scene) -> str:
    """max_frequency, field 3 of SubscribeAttributes as a double: no number, infinity, negative, tiny."""
    for number in scene.paced(50):
        request = pb.SubscriptionRequest(topic=scene.topic.to_pb())
        value = ("0000000000f87f", "000000000000f07f", "000000000000f0bf", "0100000000000000")[number % 4]
        request.attributes.MergeFromString(b"\x19" + bytes.fromhex(value.rjust(16, "0")))
        scene.outsider.request(_method(scene, SUBSCRIBE), request.SerializeToString())
    return scene.service_denied()


ATTACKS: Final = (
    Attack("reset", FAMILY, "end all subscriptions with a Reset", _NEEDS, reset),
    Attack(
        "unsubscribe-others",
        FAMILY,
        "end the subscription of another application",
        _NEEDS,
        unsubscribe_others,
    ),
    Attack(
        "stop-others", FAMILY, "stop the dispatch to another application", _NEEDS, stop_dispatching_others
    ),
    Attack(
        "permission-lie",
        FAMILY,
        "claim a higher permission level",
        (*_NEEDS, Need.PERMISSIONS),
        permission_lie,
    ),
    Attack("fetch-routes", FAMILY, "read the routes of all networks", (Need.OUTER,), fetch_routes),
    Attack(
        "fetch-statistics", FAMILY, "read the statistics of all networks", (Need.OUTER,), fetch_statistics
    ),
    Attack(
        "call-any-method",
        FAMILY,
        "call a method of an ECU that no rule allows",
        (Need.OUTER,),
        call_any_method,
    ),
    Attack(
        "subscribe-everything", FAMILY, "subscribe all topics with one pattern", _NEEDS, subscribe_everything
    ),
    Attack(
        "subscription-flood",
        FAMILY,
        "fill the places of subscriptions",
        _NEEDS,
        _flood(SUBSCRIBE, lambda scene, n: _subscription(_topic(scene, n % 0x7000)), 4_000),
    ),
    Attack(
        "registration-flood",
        FAMILY,
        "fill the places of registrations",
        _NEEDS,
        _flood(REGISTER, _registration),
    ),
    Attack(
        "remote-topic-flood",
        FAMILY,
        "make the streamer call another uSubscription for each topic",
        _NEEDS,
        _flood(SUBSCRIBE, _far_subscription, 500),
    ),
    Attack(
        "topic-creation-flood",
        FAMILY,
        "fill the places of topics",
        _NEEDS,
        _flood(
            CREATE_TOPIC,
            lambda scene, n: pb.CreateTopicRequest(
                topic=_topic(scene, n % 0x7000).to_pb()
            ).SerializeToString(),
        ),
    ),
    Attack("query-burst", FAMILY, "starve other networks with 520 queries at once", _NEEDS, query_burst),
    Attack(
        "random-requests",
        FAMILY,
        "confuse uSubscription with random bytes",
        _NEEDS,
        _flood(SUBSCRIBE, random_requests),
    ),
    Attack(
        "expired-requests", FAMILY, "fill the queue with requests that are too old", _NEEDS, expired_requests
    ),
    Attack("extreme-rates", FAMILY, "subscribe with rates that are no rates", _NEEDS, extreme_rates),
)
