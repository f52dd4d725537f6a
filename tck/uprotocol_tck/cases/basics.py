# SPDX-License-Identifier: Apache-2.0
"""UUri, UUID, UAttributes and the error model, as the messages of the subject show them."""

from typing import Final

from uprotocol_tck.case import Findings, case, check, check_equal
from uprotocol_tck.probe import Received
from uprotocol_tck.uprotocol import Attributes, Code, Kind, Priority, Uri, new_uuid
from uprotocol_tck.usubscription import CHANGES, State
from uprotocol_tck.world import Application, World

CLOCK_TOLERANCE_MS: Final = 5_000


def _fetch(app: Application, **changed: object) -> Received:
    method = app.service.at(app.dialect.methods.fetch_subscriptions)
    return app.call(method, app.dialect.fetch(None, app.address), **changed)


@case("dsn~uri-authority-name-length~1")
def an_authority_has_at_most_128_characters(world: World) -> None:
    """An authority of 129 characters is refused with INVALID_ARGUMENT; one of 128 is valid."""
    app, topic = world.app(), world.topic()
    method = app.dialect.methods.unsubscribe
    too_long = app.dialect.topic_request(topic._replace(authority="a" * 129))
    check_equal(app.ask(method, too_long).head.code, Code.INVALID_ARGUMENT, "129 characters: the outcome")
    longest = app.dialect.topic_request(topic._replace(authority="a" * 128))
    check_equal(app.ask(method, longest).head.code, Code.OK, "128 characters: the outcome")


@case("dsn~uri-entity-id~1", "req~uri-data-model-proto~1")
def the_instance_of_a_service_is_part_of_its_id(world: World) -> None:
    """The upper half of ue_id is the instance: another instance of a service has other topics."""
    app, topic = world.app(), world.topic()
    other = topic._replace(ue_id=topic.ue_id ^ 0x8000_0000)
    app.subscribe(topic)
    check_equal(app.state_of(topic), State.SUBSCRIBED, "the state of the topic")
    check_equal(app.state_of(other), State.UNSUBSCRIBED, "the state of the topic of another instance")
    check_equal([each.topic for each in app.subscriptions(topic)], [topic], "the listed topic")


@case(
    "dsn~uuid-spec~1",
    "req~uuid-proto~1",
    "dsn~up-attributes-id~1",
)
def every_message_has_a_new_uuid_of_version_7(world: World) -> None:
    """The id of a message is a UUID of version 7 with its creation time, and no other message has it."""
    app, topic = world.app(), world.topic()
    app.subscribe(topic)
    app.wait_change(topic, State.SUBSCRIBED)
    for _ in range(10):
        _fetch(app)
    received = app.inbox.all()
    ids = [each.head.id for each in received]
    check(all(each.is_version_7 for each in ids), "an id that is no UUID of version 7")
    check_equal(len(set(ids)), len(ids), "the number of different ids")
    ages_ms = [each.wall_ms - each.head.id.time_ms for each in received]
    wrong = [age_ms for age_ms in ages_ms if abs(age_ms) > CLOCK_TOLERANCE_MS]
    check_equal(wrong, [], f"ages of ids in ms at their arrival, expected at most {CLOCK_TOLERANCE_MS}")


@case(
    "dsn~up-attributes-response-type~1",
    "dsn~up-attributes-response-source~1",
    "dsn~up-attributes-response-sink~1",
    "dsn~up-attributes-response-correlation-id~1",
    "req~uattributes-data-model-proto~1",
    "req~umessage-data-model-proto~1",
)
def a_response_belongs_to_its_request(world: World) -> None:
    """A Response comes from the method, goes to the caller, and has the id of the Request."""
    app = world.app()
    for _ in range(3):
        method = app.service.at(app.dialect.methods.fetch_subscriptions)
        request = app.request(method, app.dialect.fetch(None, app.address))
        head = app.wait_response(request, "the response").head
        found = (head.kind, head.source, head.sink, head.reqid)
        check_equal(found, (Kind.RESPONSE, method, app.address, request), "type, source, sink and reqid")
        check_equal(len(app.responses(request)), 1, "the number of responses")


@case("dsn~up-attributes-response-priority~1", "dsn~up-attributes-response-ttl~1")
def a_response_has_the_priority_and_the_ttl_of_its_request(world: World) -> None:
    """The priority and the ttl of a Response are those of its Request."""
    app = world.app()
    for priority, ttl in ((Priority.CS4, 9_000), (Priority.CS5, 7_001), (Priority.CS6, 60_000)):
        head = _fetch(app, priority=priority, ttl=ttl).head
        check_equal((Priority(head.priority), head.ttl), (priority, ttl), "priority and ttl")


@case("dsn~service-error-model-success-response~1")
def a_successful_response_has_the_message_of_the_operation(world: World) -> None:
    """A successful Response has the operation's message as payload, and the commstatus OK or none."""
    app, topic = world.app(), world.topic()
    response = app.ask(app.dialect.methods.subscribe, app.dialect.subscribe(topic, None, None))
    check_equal(response.head.code, Code.OK, "the commstatus")
    check_equal(
        app.dialect.read_subscribed(response.payload)[0], State.SUBSCRIBED, "the status in the payload"
    )


@case(
    "dsn~service-error-model-error-response~1",
    "req~ustatus-data-model-proto~1",
)
def an_error_response_has_the_code_and_a_status_that_agrees(world: World) -> None:
    """A Response about an error has its code as commstatus; a UStatus in the payload has the same code."""
    app = world.app()
    invalid = app.dialect.subscribe(world.topic()._replace(authority="*"), None, None)
    response = app.ask(app.dialect.methods.subscribe, invalid)
    check_equal(response.head.code, Code.INVALID_ARGUMENT, "the commstatus")
    if response.payload:
        check_equal(response.status.code, Code.INVALID_ARGUMENT, "the code in the UStatus")


@case("dsn~service-error-model-error-response~1", "req~ustatus-data-model-proto~1", versions=(3, 4))
def an_unknown_method_is_unimplemented(world: World) -> None:
    """A Request of a method that the service does not have is answered with UNIMPLEMENTED, by the table of UCode."""
    app = world.app()
    response = app.call(app.service.at(0x7E), b"")
    check_equal(response.head.code, Code.UNIMPLEMENTED, "the outcome")


# --- messages that are not valid ----------------------------------------------------------------------------


def _invalid(valid: Attributes) -> dict[str, Attributes]:
    """Requests that UAttributes forbid."""
    assert valid.sink is not None
    return {
        "without ttl": valid._replace(ttl=None),
        "with ttl 0": valid._replace(ttl=0),
        "of priority CS3": valid._replace(priority=Priority.CS3),
        "of no priority": valid._replace(priority=Priority.UNSPECIFIED),
        "from a topic": valid._replace(source=valid.source.at(0x8001)),
        "from a method": valid._replace(source=valid.source.at(1)),
        "with an id that is no UUID of version 7": valid._replace(
            id=valid.id._replace(msb=valid.id.msb & ~0xF000 | 4 << 12)
        ),
        "of the type Publish": valid._replace(kind=Kind.PUBLISH),
        "of the type Notification": valid._replace(kind=Kind.NOTIFICATION),
        "of the type Response": valid._replace(kind=Kind.RESPONSE, reqid=valid.id),
        "of no type": valid._replace(kind=Kind.UNSPECIFIED),
    }


@case(
    "dsn~utransport-registerlistener-discard-invalid-messages~1",
    "dsn~up-attributes-request-type~1",
    "dsn~up-attributes-request-source~1",
    "dsn~up-attributes-request-priority~1",
    "dsn~up-attributes-request-ttl~1",
    "dsn~uuid-spec~1",
)
def an_invalid_request_is_not_executed(world: World) -> None:
    """A Request with attributes that are forbidden is not executed."""
    app = world.app()
    method = app.service.at(app.dialect.methods.subscribe)
    valid = Attributes(
        new_uuid(), Kind.REQUEST, app.address, method, priority=Priority.CS4, ttl=10_000, payload_format=2
    )
    topics: dict[str, Uri] = {}
    for what, attributes in _invalid(valid).items():
        topics[what] = world.topic()
        fresh = new_uuid()
        id = attributes.id if attributes.id != valid.id else fresh
        app.network.send(attributes._replace(id=id), app.dialect.subscribe(topics[what], None, None))
    app.subscribe(world.topic())  # a valid one, so that those before it have arrived
    world.quiet()
    findings = Findings()
    for what, topic in topics.items():
        with findings.of(f"a Request {what}"):
            check_equal([each.subscriber for each in app.subscriptions(topic)], [], "subscribers")
    findings.judge()


@case("dsn~up-attributes-ttl-timeout~1")
def an_expired_request_is_not_executed(world: World) -> None:
    """A Request whose creation time and ttl have passed is not executed."""
    app, topic = world.app(), world.topic()
    method = app.service.at(app.dialect.methods.subscribe)
    app.request(method, app.dialect.subscribe(topic, None, None), id=new_uuid(age_ms=60_000), ttl=1_000)
    app.subscribe(topic.at(0x8002))
    world.quiet()
    check_equal(app.state_of(topic), State.UNSUBSCRIBED, "the listed state")


@case(
    "dsn~utransport-registerlistener-discard-invalid-messages~1",
    "dsn~up-transport-zenoh-attributes-mapping~1",
)
def what_is_no_message_is_discarded(world: World) -> None:
    """Samples without attributes, with damaged ones or of another major version are discarded."""
    app, topic = world.app(), world.topic()
    method = app.service.at(app.dialect.methods.subscribe)
    valid = Attributes(
        new_uuid(), Kind.REQUEST, app.address, method, priority=Priority.CS4, ttl=10_000, payload_format=2
    )
    encoded, payload = valid.encode(), app.dialect.subscribe(topic, None, None)
    for attachment in (
        None,
        b"",
        b"\x01",
        b"\x02" + encoded,
        encoded,
        b"\x01" + encoded[:-3],
        b"\x01\xff\xff",
    ):
        app.network.put(valid.key, attachment, payload)
    check_equal(app.subscribe(topic.at(0x8002)), State.SUBSCRIBED, "the response to a valid Subscribe")
    world.quiet()
    check_equal(app.state_of(topic), State.UNSUBSCRIBED, "the listed state of the topic in the samples")


@case("req~utransport-send-prevent-address-spoofing~1", subject="streamer")
def a_source_of_another_device_is_not_accepted(world: World) -> None:
    """A Request whose source is an entity of another device, sent from here, subscribes nothing for that entity."""
    app, topic = world.app(), world.topic()
    foreign = Uri("tck.nowhere", app.address.ue_id, 1)
    app.request(app.service.at(1), app.dialect.subscribe(topic, None, None), source=foreign)
    app.subscribe(topic.at(0x8002))
    world.quiet()
    check_equal([each.subscriber for each in app.subscriptions(topic)], [], "subscribers")


@case("dsn~up-attributes-notification-type~1", "dsn~up-attributes-traceparent~1")
def a_notification_of_a_change_has_valid_attributes(world: World) -> None:
    """A Notification has an id, a topic as source, resource 0 as sink, and no attributes of a Request or Response."""
    app, topic = world.app(), world.topic()
    app.subscribe(topic)
    (received, *_) = app.wait(app.is_change_of(topic), "a notification")
    head = received.head
    check_equal(head.source.resource, CHANGES, "the resource of the source")
    check_equal(head.sink, app.address, "the sink")
    check_equal(
        (head.reqid, head.commstatus, head.token, head.permission_level), (None,) * 4, "reqid to level"
    )
    check(head.traceparent in {None, ""} or len(head.traceparent.split("-")) == 4, "the traceparent")
