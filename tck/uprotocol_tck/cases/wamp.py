# SPDX-License-Identifier: Apache-2.0
"""Subscribing at a WAMP broker."""

import random
from contextlib import AbstractContextManager
from typing import Final

from uprotocol_tck.case import Findings, Need, case, check, check_equal
from uprotocol_tck.wamp import (
    ABORT,
    ERROR,
    EVENT,
    SUBSCRIBE,
    SUBSCRIBED,
    UNSUBSCRIBE,
    UNSUBSCRIBED,
    WampClient,
    check_right,
    wamp_client,
)
from uprotocol_tck.world import World

WAMP: Final = (Need.WAMP,)
MAX_ID: Final = 2**53


def _topic(world: World) -> str:
    """A new topic that the user of the kit may publish and subscribe."""
    return f"{world.options.wamp_prefix}t{random.getrandbits(48):x}"


def _client(world: World) -> AbstractContextManager[WampClient]:
    options = world.options
    return wamp_client(options.wamp, options.wamp_realm, options.wamp_user, options.deadline_s)


@case("WSU-1", "WSU-2", "WSU-8", subject="streamer", needs=WAMP)
def a_subscriber_receives_the_events_of_its_topics(world: World) -> None:
    """A subscriber of several topics receives the events of each, and of no other topic."""
    with _client(world) as subscriber, _client(world) as publisher:
        topics = [_topic(world) for _ in range(3)]
        subscriptions = {subscriber.subscribe(each): number for number, each in enumerate(topics)}
        check_equal(len(subscriptions), len(topics), "the number of subscription ids of different topics")
        publisher.publish(_topic(world), "unknown")
        for number, topic in enumerate(topics):
            publisher.publish(topic, number)
        for _ in topics:
            event = subscriber.wait(EVENT)
            check_equal(event[4][0], subscriptions[event[1]], "the content of the event of a subscription")


@case("WSU-3", "WSU-16", subject="streamer", needs=WAMP)
def after_unsubscribed_no_event_comes(world: World) -> None:
    """A subscription lasts until UNSUBSCRIBE, and that of another session goes on; after UNSUBSCRIBED no event comes."""
    with _client(world) as subscriber, _client(world) as publisher, _client(world) as stays:
        topic, fence = _topic(world), _topic(world)
        subscription, other = subscriber.subscribe(topic), subscriber.subscribe(fence)
        stays.subscribe(topic)
        publisher.publish(topic, "before")
        check_equal(subscriber.wait(EVENT)[1], subscription, "the subscription of the event")
        request = subscriber.request(UNSUBSCRIBE, subscription)
        check_equal(
            subscriber.wait(UNSUBSCRIBED, ERROR), [UNSUBSCRIBED, request], "the answer to UNSUBSCRIBE"
        )
        publisher.publish(topic, "after")
        publisher.publish(fence, "fence")
        check_equal(subscriber.wait(EVENT)[1], other, "the subscription of the next event")
        events = [stays.wait(EVENT)[4][0] for _ in range(2)]
        check_equal(events, ["before", "after"], "the events of the other session")


@case("WSU-5", "WSU-9", "WSU-10", subject="streamer", needs=WAMP)
def subscribed_has_the_request_and_an_id(world: World) -> None:
    """SUBSCRIBED has the id of its request, and a subscription id that the broker chose."""
    with _client(world) as client:
        for _ in range(3):
            request = client.request(SUBSCRIBE, {}, _topic(world))
            answer = client.wait(SUBSCRIBED, ERROR)
            check_right(answer, "subscribe the topics of the kit")
            check_equal(answer[:2], [SUBSCRIBED, request], "the answer")
            check(len(answer) == 3 and isinstance(answer[2], int), f"no subscription id in {answer}")
            check(1 <= answer[2] <= MAX_ID, f"the subscription id is {answer[2]}, expected 1 to 2^53")


@case("WSU-4", "WSU-11", subject="streamer", needs=WAMP)
def a_second_subscribe_returns_the_existing_id(world: World) -> None:
    """A SUBSCRIBE of a topic that the subscriber has subscribed already is answered with the existing id."""
    with _client(world) as client, _client(world) as publisher:
        topic = _topic(world)
        first = client.subscribe(topic)
        check_equal(client.subscribe(topic), first, "the second subscription id")
        publisher.publish(topic, "once")
        publisher.publish(topic, "twice")
        check_equal([client.wait(EVENT)[4][0] for _ in range(2)], ["once", "twice"], "the events")


@case("WSU-6", subject="streamer", needs=WAMP)
def options_that_are_no_dictionary_are_refused(world: World) -> None:
    """Options MUST be a dictionary: a SUBSCRIBE with anything else is not answered with SUBSCRIBED."""
    findings = Findings()
    refused: tuple[object, ...] = ([], "exact", 1, None)
    for options in refused:
        with findings.of(f"options {options!r}"), _client(world) as client:
            client.request(SUBSCRIBE, options, _topic(world))
            answer = client.wait(SUBSCRIBED, ERROR, ABORT)
            check(answer[0] != SUBSCRIBED, f"the answer is {answer}")
    findings.judge()


@case("WSU-7", "WSU-12", "WSU-13", subject="streamer", needs=WAMP)
def a_topic_that_is_no_uri_is_refused(world: World) -> None:
    """A topic MUST be a URI: any other is answered with an ERROR, which has the request and a URI as reason."""
    findings = Findings()
    for topic in ("", "com.example.with blank", "com.example#fragment", "com..example"):
        with findings.of(f"the topic {topic!r}"), _client(world) as client:
            request = client.request(SUBSCRIBE, {}, topic)
            answer = client.wait(SUBSCRIBED, ERROR, ABORT)
            check(answer[0] != SUBSCRIBED, f"the answer is {answer}")
            if answer[0] == ERROR:
                _check_error(answer, SUBSCRIBE, request)
    findings.judge()


@case("WSU-8", "WSU-12", "WSU-13", subject="streamer", needs=[Need.WAMP, Need.WAMP_LIMITED])
def a_refused_subscribe_is_answered_with_an_error(world: World) -> None:
    """A SUBSCRIBE that the broker does not allow is answered with an ERROR: type, request, details and a URI."""
    with _client(world) as client:
        request = client.request(SUBSCRIBE, {}, world.options.wamp_denied)
        answer = client.wait(SUBSCRIBED, ERROR)
        _check_error(answer, SUBSCRIBE, request)
        check(client.subscribe(_topic(world)), "no subscription after the ERROR")


@case("WSU-14", "WSU-15", "WSU-17", subject="streamer", needs=WAMP)
def unsubscribing_an_unknown_subscription_is_an_error(world: World) -> None:
    """An UNSUBSCRIBE of an id that is no subscription of the session is answered with an ERROR."""
    with _client(world) as client, _client(world) as other:
        foreign = other.subscribe(_topic(world))
        own = client.subscribe(_topic(world))
        for id in (foreign, own + 1_000_000, own):
            request = client.request(UNSUBSCRIBE, id)
            answer = client.wait(UNSUBSCRIBED, ERROR)
            if id == own:
                check_equal(answer, [UNSUBSCRIBED, request], "the answer for its own subscription")
            else:
                _check_error(answer, UNSUBSCRIBE, request)
                check_equal(answer[4], "wamp.error.no_such_subscription", "the reason")


def _check_error(answer: list[object], of: int, request: int) -> None:
    check_equal(answer[:3], [ERROR, of, request], "ERROR, the type and the id of the request")
    check(len(answer) >= 5 and isinstance(answer[3], dict), f"no details in {answer}")
    check(isinstance(answer[4], str) and "." in answer[4], f"the reason is no URI: {answer[4]}")
