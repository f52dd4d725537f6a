# SPDX-License-Identifier: Apache-2.0
"""CreateTopic and DeprecateTopic, of the text of 2023."""

from uprotocol_tck.case import Findings, Need, case, check, check_equal
from uprotocol_tck.uprotocol import ANY_AUTHORITY, ANY_ENTITY, ANY_RESOURCE, Code, Uri
from uprotocol_tck.usubscription import State
from uprotocol_tck.world import Application, World

LIFECYCLE = (Need.LIFECYCLE,)


def _create(producer: Application, topic: Uri) -> Code:
    return producer.ask(
        producer.dialect.methods.create_topic, producer.dialect.topic_request(topic)
    ).head.code


def _deprecate(producer: Application, topic: Uri) -> Code:
    method = producer.dialect.methods.deprecate_topic
    return producer.ask(method, producer.dialect.topic_request(topic)).head.code


def _subscribe_code(app: Application, topic: Uri) -> Code:
    return app.ask(app.dialect.methods.subscribe, app.dialect.subscribe(topic, None, None)).head.code


@case("LIF-1", versions=(3,), needs=LIFECYCLE)
def a_created_topic_can_be_subscribed(world: World) -> None:
    """CreateTopic makes a topic ACTIVE, also a DEPRECATED one; an ACTIVE topic can be subscribed."""
    topic = world.topic()
    producer, app = world.app(topic.at(0)), world.app()
    check_equal(_create(producer, topic), Code.OK, "the outcome of CreateTopic")
    check_equal(app.subscribe(topic), State.SUBSCRIBED, "the response to Subscribe")
    check_equal(_deprecate(producer, topic), Code.OK, "the outcome of DeprecateTopic")
    check_equal(_create(producer, topic), Code.OK, "the outcome of CreateTopic after DeprecateTopic")
    check_equal(world.app().subscribe(topic), State.SUBSCRIBED, "the response to Subscribe after it")


@case("LIF-2", versions=(3,), needs=LIFECYCLE)
def a_deprecated_topic_cannot_be_subscribed(world: World) -> None:
    """A Subscribe to a DEPRECATED topic is refused with FAILED_PRECONDITION."""
    topic = world.topic()
    producer, app = world.app(topic.at(0)), world.app()
    _create(producer, topic)
    _deprecate(producer, topic)
    check_equal(_subscribe_code(app, topic), Code.FAILED_PRECONDITION, "the outcome of Subscribe")
    check_equal(app.state_of(topic), State.UNSUBSCRIBED, "the listed state")


@case("LIF-6", versions=(3,), needs=LIFECYCLE)
def a_deprecation_leaves_existing_subscriptions_unchanged(world: World) -> None:
    """DeprecateTopic does not change existing subscriptions, and notifies of nothing."""
    topic = world.topic()
    producer, app = world.app(topic.at(0)), world.app()
    _create(producer, topic)
    app.subscribe(topic)
    app.wait_change(topic, State.SUBSCRIBED)
    check_equal(_deprecate(producer, topic), Code.OK, "the outcome of DeprecateTopic")
    check_equal(app.state_of(topic), State.SUBSCRIBED, "the listed state")
    world.quiet()
    check_equal(len(app.changes(topic)), 1, "the number of notifications")


@case("LIF-4", versions=(3,), needs=LIFECYCLE)
def only_a_valid_topic_can_be_created(world: World) -> None:
    """CreateTopic and DeprecateTopic accept valid topic addresses only."""
    topic = world.topic()
    producer = world.app(topic.at(0))
    findings = Findings()
    for what, invalid in {
        "no topic": Uri("", 0, 0),
        "a wildcard authority": topic._replace(authority=ANY_AUTHORITY),
        "a wildcard entity": topic._replace(ue_id=ANY_ENTITY),
        "a wildcard resource": topic._replace(resource=ANY_RESOURCE),
    }.items():
        for name, operation in (("CreateTopic", _create), ("DeprecateTopic", _deprecate)):
            with findings.of(f"{name} of {what}"):
                check(operation(producer, invalid) is not Code.OK, "it is accepted")
    findings.judge()


@case("LIF-5", versions=(3,), needs=LIFECYCLE)
def only_its_producer_creates_and_deprecates_a_topic(world: World) -> None:
    """Only the entity of a topic, in its major version, may call CreateTopic and DeprecateTopic for it."""
    topic = world.topic()
    producer, foreign, app = world.app(topic.at(0)), world.app(), world.app()
    newer = world.app(topic.at(0)._replace(version=2))
    _create(producer, topic)
    for other in (foreign, newer):
        check(_create(other, topic) is not Code.OK, f"CreateTopic by {other.address} is accepted")
        check(_deprecate(other, topic) is not Code.OK, f"DeprecateTopic by {other.address} is accepted")
    check_equal(_subscribe_code(app, topic), Code.OK, "the outcome of Subscribe")
