# SPDX-License-Identifier: Apache-2.0
"""up-l1/zenoh.adoc: keys, attachments, priorities and payloads of what the subject sends."""

import random
from typing import Final

from uprotocol_tck.case import Findings, Need, case, check, check_equal
from uprotocol_tck.cases.forwarding import TO_FAR, route_to_far
from uprotocol_tck.probe import ZENOH_PRIORITIES, Received
from uprotocol_tck.uprotocol import Kind, Priority, zenoh_key
from uprotocol_tck.usubscription import State
from uprotocol_tck.world import World

PAYLOAD_SIZES: Final = (0, 1, 255, 4_096, 100_000)


@case("dsn~up-transport-zenoh-protocol-version~1", "dsn~up-transport-zenoh-message-type-mapping~1")
def requests_and_responses_are_publications_of_zenoh(world: World) -> None:
    """A session of Zenoh 1 reaches the subject; a Request and its Response are published, without a query."""
    app = world.app()
    check_equal(app.subscriptions(subscriber=app.address), [], "the subscriptions of a new entity")


@case("dsn~up-transport-zenoh-key-expr~1")
def a_response_and_a_notification_have_the_key_of_source_and_sink(world: World) -> None:
    """The key has 11 segments: authority, type, instance, version and resource of the source, and of the sink."""
    app, topic = world.app(), world.topic()
    app.subscribe(topic)
    app.wait_change(topic, State.SUBSCRIBED)
    received = app.inbox.all()
    check_equal({each.head.kind for each in received}, {int(Kind.RESPONSE), int(Kind.NOTIFICATION)}, "types")
    for each in received:
        check_equal(each.key, zenoh_key(each.head.source, each.head.sink), "the key")
        check_equal(len(each.key.split("/")), 11, "the number of its segments")


@case("dsn~up-transport-zenoh-attributes-mapping~1")
def a_message_has_its_attributes_in_the_attachment(world: World) -> None:
    """The attachment is the byte 01, the major version of uProtocol, and then the UAttributes."""
    app, topic = world.app(), world.topic()
    app.subscribe(topic)
    app.wait_change(topic, State.SUBSCRIBED)
    for each in app.inbox.all():
        check_equal(each.attachment[:1], b"\x01", "the first byte of the attachment")
        check(each.attributes, f"the rest of the attachment {each.attachment.hex()} is no UAttributes")


@case("dsn~up-transport-zenoh-message-priority-mapping~1")
def a_response_has_the_priority_of_zenoh_for_its_class(world: World) -> None:
    """The priority class of a Response is mapped to a priority of Zenoh by the table."""
    app = world.app()
    method = app.service.at(app.dialect.methods.fetch_subscriptions)
    for priority in (Priority.CS4, Priority.CS5, Priority.CS6):
        received = app.call(method, app.dialect.fetch(None, app.address), priority=priority)
        check_equal(
            received.priority, ZENOH_PRIORITIES[priority], f"the priority of Zenoh for {priority.name}"
        )


# --- what a streamer forwards -----------------------------------------------------------------------------------------


@case("dsn~up-transport-zenoh-key-expr~1", subject="streamer", needs=TO_FAR)
def a_forwarded_publication_has_the_key_of_its_topic(world: World) -> None:
    """The key of a publication has its topic, and then five times {}."""
    route = route_to_far(world)
    route.publisher.publish(route.topic, b"event")
    (received,) = route.listener.wait_events(route.topic)
    check_equal(received.key, zenoh_key(route.topic), "the key")


@case("dsn~up-transport-zenoh-attributes-mapping~1", subject="streamer", needs=TO_FAR)
def a_forwarded_message_has_its_attributes_in_the_attachment(world: World) -> None:
    """The attachment is the byte 01, the major version of uProtocol, and then the UAttributes."""
    route = route_to_far(world)
    sent = route.publisher.publish(route.topic, b"event")
    (received,) = route.listener.wait_events(route.topic)
    check_equal((received.attachment[:1], received.head.id), (b"\x01", sent), "first byte, and the id")


@case(
    "dsn~up-transport-zenoh-message-priority-mapping~1",
    "dsn~up-attributes-priority~1",
    "req~utransport-send-qos-mapping~1",
    subject="streamer",
    needs=TO_FAR,
)
def a_forwarded_message_has_the_priority_of_zenoh_for_its_class(world: World) -> None:
    """Each priority class is mapped to a priority of Zenoh by the table; no class means CS1."""
    route = route_to_far(world)
    expected = {route.publisher.publish(route.topic, b"", priority=each): each for each in Priority}
    findings = Findings()
    for received in route.listener.wait_events(route.topic, len(expected)):
        priority = expected[received.head.id]
        with findings.of(priority.name):
            check_equal(received.priority, ZENOH_PRIORITIES[priority], "the priority of Zenoh")
            kept = {int(priority), int(Priority.CS1)} if priority is Priority.UNSPECIFIED else {int(priority)}
            check(
                received.head.priority in kept,
                f"the class is {received.head.priority}, expected one of {kept}",
            )
    findings.judge()


@case("dsn~up-transport-zenoh-payload-mapping~1", "DSP-13", subject="streamer", needs=TO_FAR)
def a_forwarded_payload_is_unaltered(world: World) -> None:
    """The payload of a message is not touched, whatever its bytes, its size and its format."""
    route = route_to_far(world)
    sent = {}
    for number, size in enumerate(PAYLOAD_SIZES):
        payload = random.randbytes(size)
        sent[route.publisher.publish(route.topic, payload, payload_format=number if size else 0)] = payload
    received = {each.head.id: each.payload for each in route.listener.wait_events(route.topic, len(sent))}
    lengths = {len(sent[id]): len(payload) for id, payload in received.items() if sent[id] != payload}
    check_equal(lengths, {}, "the payloads that have changed, by their size")


@case(
    "dsn~up-transport-zenoh-key-expr~1",
    "dsn~up-transport-zenoh-message-type-mapping~1",
    subject="streamer",
    needs=[Need.OTHER_NETWORK],
)
def forwarded_requests_and_responses_have_the_keys_of_source_and_sink(world: World) -> None:
    """A Request and a Response are published under a key with the addresses of both entities."""
    server, client = world.far_app(), world.app()
    method = server.address.at(0x21)
    server.serve(method)
    request = client.request(method, b"?")
    (received,) = server.wait(_is_request, "the forwarded Request")
    check_equal(received.key, zenoh_key(client.address, method), "the key of the Request")
    server.respond(received, b"!")
    response = client.wait_response(request, "the forwarded Response")
    check_equal(response.key, zenoh_key(method, client.address), "the key of the Response")


def _is_request(received: Received) -> bool:
    return received.attributes is not None and received.attributes.kind == Kind.REQUEST
