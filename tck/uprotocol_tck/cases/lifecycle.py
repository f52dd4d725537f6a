# SPDX-License-Identifier: Apache-2.0
"""CreateTopic and DeprecateTopic, of the text of 2023."""

from uprotocol_tck.case import Findings, Need, case, check, check_equal
from uprotocol_tck.uprotocol import ANY_AUTHORITY, ANY_ENTITY, ANY_RESOURCE, Code, Uri
from uprotocol_tck.usubscription import State
from uprotocol_tck.world import World

LIFECYCLE = (Need.LIFECYCLE,)


@case("LIF-1", versions=(3,), needs=LIFECYCLE)
def a_created_topic_can_be_subscribed(world: World) -> None:
    """CreateTopic makes a topic ACTIVE, also a DEPRECATED one; an ACTIVE topic can be subscribed."""
    topic = world.new_topic()
    producer, app = world.app(topic.at(0)), world.app()
    check_equal(producer.create_code(topic), Code.OK, "the outcome of CreateTopic")
    check_equal(app.subscribe(topic), State.SUBSCRIBED, "the response to Subscribe")
    check_equal(producer.deprecate_code(topic), Code.OK, "the outcome of DeprecateTopic")
    check_equal(producer.create_code(topic), Code.OK, "the outcome of CreateTopic after DeprecateTopic")
    check_equal(world.app().subscribe(topic), State.SUBSCRIBED, "the response to Subscribe after it")


@case("LIF-2", versions=(3,), needs=LIFECYCLE)
def a_deprecated_topic_cannot_be_subscribed(world: World) -> None:
    """A Subscribe to a DEPRECATED topic is refused with FAILED_PRECONDITION."""
    topic = world.new_topic()
    producer, app = world.app(topic.at(0)), world.app()
    producer.create_code(topic)
    producer.deprecate_code(topic)
    check_equal(app.subscribe_code(topic), Code.FAILED_PRECONDITION, "the outcome of Subscribe")
    check_equal(app.state_of(topic), State.UNSUBSCRIBED, "the listed state")


@case("LIF-6", versions=(3,), needs=LIFECYCLE)
def a_deprecation_leaves_existing_subscriptions_unchanged(world: World) -> None:
    """DeprecateTopic does not change existing subscriptions, and notifies of nothing."""
    topic = world.new_topic()
    producer, app = world.app(topic.at(0)), world.app()
    producer.create_code(topic)
    app.subscribe(topic)
    app.wait_change(topic, State.SUBSCRIBED)
    check_equal(producer.deprecate_code(topic), Code.OK, "the outcome of DeprecateTopic")
    check_equal(app.state_of(topic), State.SUBSCRIBED, "the listed state")
    world.quiet()
    check_equal(len(app.changes(topic)), 1, "the number of notifications")


@case("LIF-4", versions=(3,), needs=LIFECYCLE)
def only_a_valid_topic_can_be_created(world: World) -> None:
    """CreateTopic and DeprecateTopic accept valid topic addresses only."""
    topic = world.new_topic()
    producer = world.app(topic.at(0))
    findings = Findings()
    for what, invalid in {
        "no topic": Uri("", 0, 0),
        "a wildcard authority": topic._replace(authority=ANY_AUTHORITY),
        "a wildcard entity": topic._replace(ue_id=ANY_ENTITY),
        "a wildcard resource": topic._replace(resource=ANY_RESOURCE),
    }.items():
        for name, code_of in (
            ("CreateTopic", producer.create_code),
            ("DeprecateTopic", producer.deprecate_code),
        ):
            with findings.of(f"{name} of {what}"):
                check(code_of(invalid) is not Code.OK, "it is accepted")
    findings.judge()


@case("LIF-5", versions=(3,), needs=LIFECYCLE)
def only_its_producer_creates_and_deprecates_a_topic(world: World) -> None:
    """Only the entity of a topic, in its major version, may call CreateTopic and DeprecateTopic for it."""
    topic = world.new_topic()
    producer, foreign, app = world.app(topic.at(0)), world.app(), world.app()
    newer = world.app(topic.at(0)._replace(version=2))
    producer.create_code(topic)
    for other in (foreign, newer):
        check(other.create_code(topic) is not Code.OK, f"CreateTopic by {other.address} is accepted")
        check(other.deprecate_code(topic) is not Code.OK, f"DeprecateTopic by {other.address} is accepted")
    check_equal(app.subscribe_code(topic), Code.OK, "the outcome of Subscribe")


@case("LIF-5", "req~ustatus-data-model-proto~1", versions=(3,), needs=LIFECYCLE)
def an_entity_that_is_not_the_producer_has_no_permission(world: World) -> None:
    """CreateTopic and DeprecateTopic of a valid topic by any other entity are refused with PERMISSION_DENIED."""
    created, other, new = world.new_topic(), world.new_topic(), world.new_topic()
    world.app(created.at(0)).create_code(created)
    findings = Findings()
    callers = {"another entity": other.at(0), "another major version": created.at(0)._replace(version=2)}
    for what, caller in callers.items():
        app = world.app(caller)
        # A topic that exists cannot be created again, which is another error: so CreateTopic is of a new one.
        with findings.of(f"CreateTopic by {what}"):
            unknown = new if caller == other.at(0) else created.at(0x8002)
            check_equal(app.create_code(unknown), Code.PERMISSION_DENIED, "the outcome")
        with findings.of(f"DeprecateTopic by {what}"):
            check_equal(app.deprecate_code(created), Code.PERMISSION_DENIED, "the outcome")
    findings.judge()


@case("LIF-5", versions=(3,), needs=LIFECYCLE)
def a_topic_of_another_device_is_not_created_here(world: World) -> None:
    """A topic of the same entity, but of another authority, is not that of the caller: CreateTopic is refused."""
    topic = world.new_topic()
    producer = world.app(topic.at(0))
    foreign = topic._replace(authority="tck.nowhere")
    check(producer.create_code(foreign) is not Code.OK, "CreateTopic is accepted")
    check(producer.deprecate_code(foreign) is not Code.OK, "DeprecateTopic is accepted")
