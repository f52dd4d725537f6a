# SPDX-License-Identifier: Apache-2.0
"""Dispatching between two networks: the requirements on dispatchers."""

from contextlib import suppress
from typing import Final, NamedTuple

from uprotocol_tck.case import Need, case, check, check_equal
from uprotocol_tck.probe import Entity, Received, has_id
from uprotocol_tck.protobuf import Fields, MalformedProtobuf
from uprotocol_tck.uprotocol import RAW, Attributes, Code, Kind, Priority, Uri, Uuid, new_uuid
from uprotocol_tck.usubscription import State
from uprotocol_tck.world import EARLY_MS, Application, World

TO_FAR: Final = (Need.OTHER_NETWORK,)
TRACEPARENT: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
BURST: Final = 300
NOWHERE: Final = Uri("tck.nowhere", 0x1234, 1, 1)


class Route(NamedTuple):
    """A topic of the subject's device, and a listener of the other device that has subscribed it."""

    topic: Uri
    publisher: Application
    subscriber: Application
    """The uSubscription of the other device."""
    listener: Entity


def route_to_far(world: World, *, period_ms: int | None = None) -> Route:
    """Subscribe a new topic from the other device, as its uSubscription does."""
    route = Route(world.topic(), world.app(), world.far_usubscription(), world.far_app())
    route.listener.listen(route.topic)
    check_equal(
        route.subscriber.subscribe(route.topic, period_ms=period_ms),
        State.SUBSCRIBED,
        "the response to Subscribe",
    )
    return route


def ids(received: list[Received]) -> list[Uuid]:
    """The ids in the order of their first arrival: at-least-once delivery may repeat a message."""
    return list(dict.fromkeys(each.head.id for each in received))


# --- publications -----------------------------------------------------------------------------------------------------


@case("DSP-1", "DSP-9", subject="streamer", needs=TO_FAR)
def every_publication_is_forwarded_in_order(world: World) -> None:
    """Each publication reaches the subscribers on the other network at least once, in the order of its arrival."""
    route = route_to_far(world)
    sent = [route.publisher.publish(route.topic, b"%d" % number) for number in range(BURST)]
    route.listener.wait(has_id(sent[-1]), "the last publication")
    check_equal(
        len(ids(route.listener.events(route.topic))), BURST, "the number of publications that arrived"
    )
    check(ids(route.listener.events(route.topic)) == sent, "the publications arrived in another order")


@case("DSP-1", "req~usubscription-subscribe-remote~1", subject="streamer", needs=TO_FAR)
def a_publication_of_the_other_device_reaches_its_subscriber_here(world: World) -> None:
    """A publication of another device is forwarded to the network of its subscriber."""
    app, publisher, topic = world.app(), world.far_app(), world.other_topic()
    app.listen(topic)
    app.subscribe(topic)
    app.wait_state(topic, State.SUBSCRIBED)
    sent = [publisher.publish(topic, b"%d" % number) for number in range(20)]
    check_equal(ids(app.wait_events(topic, len(sent))), sent, "the ids of the publications")


@case("req~usubscription-unsubscribe~1", subject="streamer", needs=TO_FAR)
def after_unsubscribe_nothing_is_forwarded(world: World) -> None:
    """A topic without a subscriber on the other network is not forwarded there."""
    route, fence = route_to_far(world), route_to_far(world)
    route.publisher.publish(route.topic, b"before")
    route.listener.wait_events(route.topic)
    route.subscriber.unsubscribe(route.topic)
    route.publisher.publish(route.topic, b"after")
    fence.publisher.publish(fence.topic, b"fence")
    fence.listener.wait_events(fence.topic)
    world.quiet()
    payloads = [each.payload for each in route.listener.events(route.topic)]
    check_equal(payloads, [b"before"], "the payloads that arrived")


@case("req~usubscription-subscribe-expiration~1", "DSP-1", subject="streamer", needs=TO_FAR)
def after_its_expiration_a_subscription_forwards_nothing(world: World) -> None:
    """A topic is forwarded until the subscription of the other device has expired, and not after it."""
    route, fence = route_to_far(world), route_to_far(world)
    expire_ms = world.soon_ms()
    route.subscriber.subscribe(route.topic, expire_ms=expire_ms)
    route.publisher.publish(route.topic, b"before")
    route.listener.wait_events(route.topic)
    route.subscriber.wait_state(route.topic, State.UNSUBSCRIBED)
    check(world.now_ms() >= expire_ms - EARLY_MS, "the subscription ended before its expiration")
    route.publisher.publish(route.topic, b"after")
    fence.publisher.publish(fence.topic, b"fence")
    fence.listener.wait_events(fence.topic)
    world.quiet()
    payloads = [each.payload for each in route.listener.events(route.topic)]
    check_equal(payloads, [b"before"], "the payloads that arrived")


@case(
    "dsn~usubscription-subscribe-valid-topic-uuris~1",
    "dsn~uri-pattern-matching~2",
    subject="streamer",
    versions=(4,),
    needs=TO_FAR,
)
def a_topic_of_every_instance_is_forwarded(world: World) -> None:
    """A subscription of the topic of every instance of a service forwards that of each instance, and no other."""
    publisher, subscriber, listener, topic = (
        world.app(),
        world.far_usubscription(),
        world.far_app(),
        world.topic(),
    )
    every = topic._replace(ue_id=topic.ue_id | 0xFFFF_0000)
    listener.listen(every)
    check_equal(subscriber.subscribe(every), State.SUBSCRIBED, "the response to Subscribe")
    instances = [topic._replace(ue_id=number << 16 | topic.ue_id & 0xFFFF) for number in (0, 1, 0x7FFE)]
    others = [topic.at(0x8002), topic._replace(version=2)]
    for each in others:
        listener.listen(each)
    for each in (*others, *instances):
        publisher.publish(each, b"event")
    for each in instances:
        listener.wait_events(each)
    world.quiet()
    arrived = {each.head.source for each in listener.inbox.all()}
    check_equal(arrived, set(instances), "the topics that arrived")


@case(
    "req~utransport-send-preserve-data~1",
    "DSP-14",
    "dsn~up-attributes-publish-sink~2",
    subject="streamer",
    needs=TO_FAR,
)
def a_forwarded_publication_keeps_its_attributes(world: World) -> None:
    """A forwarded publication has the attributes that it was published with."""
    route = route_to_far(world)
    sent = Attributes(
        new_uuid(),
        Kind.PUBLISH,
        route.topic,
        priority=Priority.CS2,
        ttl=30_000,
        traceparent=TRACEPARENT,
        payload_format=RAW,
    )
    route.publisher.network.send(sent, b"event")
    (received,) = route.listener.wait_events(route.topic)
    sink = received.head.sink
    check(
        sink is None or (sink.authority and sink[1:] == (0xFFFF_FFFF, 0xFF, 0xFFFF)),
        f"the sink of a publication is {sink}, expected none or an authority with wildcards",
    )
    check_equal(received.head._replace(sink=None), sent, "the attributes")


@case("dsn~up-attributes-payload-format~1", subject="streamer", needs=TO_FAR)
def a_publication_without_a_payload_gets_no_payload_format(world: World) -> None:
    """A publication without a payload and without a payload format is forwarded without both."""
    route = route_to_far(world)
    route.publisher.publish(route.topic)
    (received,) = route.listener.wait_events(route.topic)
    check_equal((received.payload, received.head.payload_format), (b"", 0), "payload and payload format")


# --- notifications and calls ------------------------------------------------------------------------------------------


@case("req~utransport-send-preserve-data~1", "DSP-1", "DSP-15", subject="streamer", needs=TO_FAR)
def a_notification_is_forwarded_in_both_directions(world: World) -> None:
    """A Notification reaches its sink on the other network with all its attributes."""
    near, far = world.app(), world.far_app()
    for sender, receiver in ((near, far), (far, near)):
        sent = Attributes(
            new_uuid(),
            Kind.NOTIFICATION,
            sender.address.at(0x9000),
            receiver.address,
            priority=Priority.CS3,
            ttl=30_000,
            traceparent=TRACEPARENT,
            payload_format=RAW,
        )
        sender.network.send(sent, b"notified")
        (received,) = receiver.wait(
            has_id(sent.id),
            f"the Notification to {receiver.address}",
        )
        check_equal((received.head, received.payload), (sent, b"notified"), "attributes and payload")


@case(
    "req~utransport-send-preserve-data~1",
    "DSP-15",
    "dsn~up-attributes-request-token~1",
    "dsn~up-attributes-permission-level~1",
    subject="streamer",
    needs=TO_FAR,
)
def a_call_is_forwarded_in_both_directions(world: World) -> None:
    """A Request reaches its method, and the Response its caller, with all their attributes."""
    near, far = world.app(), world.far_app()
    for client, server in ((near, far), (far, near)):
        method = server.address.at(0x31)
        server.serve(method)
        sent = Attributes(
            new_uuid(),
            Kind.REQUEST,
            client.address,
            method,
            priority=Priority.CS5,
            ttl=20_000,
            permission_level=3,
            token="a.b.c",
            traceparent=TRACEPARENT,
            payload_format=RAW,
        )
        client.network.send(sent, b"?")
        (request,) = server.wait(
            has_id(sent.id),
            f"the Request of {method}",
        )
        check_equal((request.head, request.payload), (sent, b"?"), "attributes and payload of the Request")
        answer = server.respond(
            request, b"no", commstatus=Code.NOT_FOUND, traceparent=TRACEPARENT, payload_format=RAW
        )
        response = client.wait_response(sent.id, "the Response").head
        found = (response.id, response.code, response.source, response.sink, response.priority, response.ttl)
        expected = (answer, Code.NOT_FOUND, method, client.address, Priority.CS5, 20_000)
        check_equal(found, expected, "id, code, source, sink, priority and ttl of the Response")
        check_equal(
            (response.traceparent, response.payload_format), (TRACEPARENT, RAW), "its other attributes"
        )


@case(
    "DSP-17",
    "DSP-18",
    "dsn~up-attributes-response-correlation-id~1",
    "dsn~service-error-model-error-response~1",
    subject="streamer",
)
def a_request_that_cannot_be_dispatched_is_answered_with_an_error(world: World) -> None:
    """A Request that a dispatcher cannot dispatch gets a Response with an error, as its method would send it."""
    app = world.app()
    method = Uri("tck.nowhere", 0x1234, 1, 1)
    request = app.request(method, b"?", ttl=3_000, priority=Priority.CS5)
    head = app.wait_response(request, f"the response of {method}").head
    found = (head.kind, head.source, head.sink, head.priority)
    check_equal(found, (Kind.RESPONSE, method, app.address, Priority.CS5), "type, source, sink and priority")
    check(head.code is not Code.OK, "the commstatus is OK")
    world.quiet()
    check_equal(len(app.responses(request)), 1, "the number of responses")


@case("DSP-17", "DSP-19", "DSP-27", "dsn~up-attributes-ttl-timeout~1", subject="streamer", needs=TO_FAR)
def a_request_that_has_expired_is_answered_and_not_forwarded(world: World) -> None:
    """A Request whose ttl has passed is not forwarded; its caller gets DEADLINE_EXCEEDED."""
    app, server = world.app(), world.far_app()
    method = server.address.at(0x41)
    server.serve(method)
    request = app.request(method, b"late", id=new_uuid(age_ms=60_000), ttl=1_000)
    check_equal(app.wait_response(request, "the response").head.code, Code.DEADLINE_EXCEEDED, "the outcome")
    app.request(method, b"in time")
    server.wait(lambda each: each.payload == b"in time", "a Request in time")
    check_equal(
        server.inbox.all(lambda each: each.payload == b"late"), [], "the expired Request at its method"
    )


# --- expiry and invalid messages --------------------------------------------------------------------------------------


@case(
    "dsn~up-attributes-ttl-timeout~1",
    "dsn~up-attributes-ttl~1",
    "DSP-4",
    "DSP-27",
    subject="streamer",
    needs=TO_FAR,
)
def only_an_expired_publication_is_discarded(world: World) -> None:
    """A publication whose ttl has passed is not forwarded. Without a ttl, or with 0, it never expires."""
    route = route_to_far(world)
    old_ms = 60_000
    for payload, ttl in ((b"expired", 1_000), (b"ttl 0", 0), (b"no ttl", None), (b"long ttl", 10 * old_ms)):
        route.publisher.publish(route.topic, payload, id=new_uuid(old_ms), ttl=ttl)
    route.publisher.publish(route.topic, b"new", ttl=30_000)
    route.listener.wait(lambda each: each.payload == b"new", "the new publication")
    world.quiet()
    payloads = {each.payload for each in route.listener.events(route.topic)}
    check_equal(payloads, {b"ttl 0", b"no ttl", b"long ttl", b"new"}, "the payloads that arrived")


@case(
    "dsn~utransport-registerlistener-discard-invalid-messages~1",
    "dsn~up-attributes-publish-type~1",
    "dsn~up-attributes-notification-sink~1",
    "dsn~up-attributes-notification-type~1",
    "dsn~uuid-spec~1",
    subject="streamer",
    needs=TO_FAR,
)
def an_invalid_message_is_not_forwarded(world: World) -> None:
    """A message with attributes that are forbidden for its type is not forwarded."""
    route = route_to_far(world)
    publisher, listener = route.publisher, route.listener
    listener.serve(listener.address.at(0x8001))
    published = Attributes(new_uuid(), Kind.PUBLISH, route.topic, priority=Priority.CS1)
    notified = Attributes(
        new_uuid(), Kind.NOTIFICATION, publisher.address.at(0x8001), listener.address, priority=Priority.CS1
    )
    invalid = {
        "a Publish without a type": published._replace(kind=Kind.UNSPECIFIED),
        "a Publish with the id 0": published._replace(id=Uuid(0, 0)),
        "a Publish with a UUID of version 4": published._replace(
            id=published.id._replace(msb=published.id.msb & ~0xF000 | 4 << 12)
        ),
        "a Notification to a topic": notified._replace(sink=listener.address.at(0x8001)),
        "a Notification without a type": notified._replace(kind=Kind.UNSPECIFIED),
        "a Request of resource 0": notified._replace(kind=Kind.REQUEST, source=publisher.address, ttl=9_000),
    }
    for what, attributes in invalid.items():
        publisher.network.send(attributes, what.encode())
    publisher.network.put(published.key, b"\x01\xff" + published.encode(), b"a damaged attachment")
    publisher.network.put(published.key, None, b"no attachment")
    publisher.network.send(published, b"valid")
    publisher.notify(listener.address, b"valid")
    listener.wait(lambda each: each.payload == b"valid", "the valid messages", 2)
    world.quiet()
    payloads = sorted({each.payload.decode() for each in listener.inbox.all()} - {"valid"})
    check_equal(payloads, [], "invalid messages that arrived")


@case("req~utransport-send-prevent-address-spoofing~1", subject="streamer", needs=TO_FAR)
def a_publication_under_the_key_of_another_topic_is_not_accepted(world: World) -> None:
    """A message whose attributes have another source than its key is not forwarded."""
    route = route_to_far(world)
    foreign = route.topic._replace(ue_id=route.topic.ue_id ^ 1)
    claimed = Attributes(new_uuid(), Kind.PUBLISH, route.topic, priority=Priority.CS1)
    network = route.publisher.network
    network.put(claimed._replace(source=foreign).key, b"\x01" + claimed.encode(), b"claimed")
    network.put(claimed.key, b"\x01" + claimed._replace(source=foreign).encode(), b"hidden")
    route.publisher.publish(route.topic, b"true")
    route.listener.wait_events(route.topic)
    world.quiet()
    payloads = [each.payload for each in route.listener.inbox.all()]
    check_equal(payloads, [b"true"], "the payloads that arrived")


# --- dead letters -----------------------------------------------------------------------------------------------------


@case("DSP-5", "DSP-6", "DSP-8", subject="streamer", needs=[Need.DEAD_LETTERS])
def what_cannot_be_delivered_is_a_dead_letter(world: World) -> None:
    """A message that cannot be delivered is published on the dead letter topic, at least with its header."""
    sender = world.app()
    letter = dead_letter_of(world, sender)
    check_equal(letter.head.source, world.options.dead_letters, "the source of the dead letter")
    for what, uri in (("source", sender.address), ("sink", NOWHERE)):
        check(uri.encode() in letter.payload, f"the dead letter lacks the {what} of the message")


@case("DSP-7", subject="streamer", needs=[Need.DEAD_LETTERS])
def a_dead_letter_has_the_reason(world: World) -> None:
    """A dead letter has the reason as a code of UStatus: in a field, in its commstatus, or by its name."""
    letter = dead_letter_of(world, world.app())
    codes = [each for each in Code if each is not Code.OK]
    is_named = letter.head.commstatus in codes or any(each.name.encode() in letter.payload for each in codes)
    check(is_named or status_code_in(letter.payload) in codes, "the dead letter has no code of UStatus")


def dead_letter_of(world: World, sender: Application) -> Received:
    """The dead letter of a Request to a device that does not exist."""
    listener, topic = world.app(), world.options.dead_letters
    assert topic is not None
    listener.listen(topic)
    listener.subscribe(topic)
    sent = sender.request(NOWHERE, b"undeliverable")

    def is_about_it(each: Received) -> bool:
        return sent.encode() in each.payload or sent.encode() in each.attachment

    (letter,) = listener.wait(is_about_it, f"a dead letter with the id of the message on {topic}")
    return letter


def status_code_in(payload: bytes) -> int | None:
    """The code of the first UStatus among the fields of a protobuf message."""
    letter = Fields(payload)
    for number in letter:
        with suppress(MalformedProtobuf):
            code = letter.message(number).number(1)
            if code in list(Code):
                return code
    return None
