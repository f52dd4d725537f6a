# SPDX-License-Identifier: Apache-2.0
"""Publishers of subscribed topics are declared before their first message: with real sessions in this process."""

from threading import Lock

import pytest
import zenoh

from tests.transports.zenoh.publisher_bench import MakeBench, numbered, received
from tests.waiting import wait_until
from ustreamer.testing.messages import ALPHA, REMOTE_CLIENT, TOPIC, new_id
from ustreamer.transports.zenoh.early_declarations import EarlyDeclarations
from ustreamer.transports.zenoh.keys import message_key
from ustreamer.transports.zenoh.route_publishers import RoutePublisher
from ustreamer.uprotocol.uattributes import UAttributes, UPriority
from ustreamer.uprotocol.umessage import UMessage, notification, publish
from ustreamer.uprotocol.uuri import UUri

# --- topics that are declared before their first message --------------------------------------------------------------


def topic_of(number: int) -> UUri:
    return numbered(0, number).attributes.source


def test_a_prepared_topic_is_open_for_its_first_message(make_bench: MakeBench) -> None:
    bench = make_bench()
    _subscriber = bench.listen()
    bench.sender.prepare_topic(topic_of(0))
    wait_until(lambda: any(each.open for each in bench.publishers), "the publisher")
    prepared = bench.publishers
    for priority in (UPriority.UNSPECIFIED, UPriority.CS1):
        assert bench.is_accepted(numbered(0, priority=priority))
    assert bench.publishers == prepared
    bench.put(numbered(0, priority=UPriority.CS5))
    assert len(bench.publishers) == 2


@pytest.mark.parametrize("sink", [None, REMOTE_CLIENT])
def test_another_priority_has_the_key_of_the_first_one_and_outlives_it(
    make_bench: MakeBench, sink: UUri | None
) -> None:
    bench = make_bench(ms=0)  # nothing is retransmitted: a publisher is undeclared at once
    subscriber = bench.listen()

    def message(number: int, priority: UPriority) -> UMessage:
        body = b"%d" % number
        if sink is None:
            return publish(new_id(), TOPIC, body, priority=priority)
        return notification(new_id(), TOPIC, sink, body, priority=priority)

    bench.put(message(0, UPriority.CS1), message(1, UPriority.CS5))
    first, second = bench.publishers
    expected = message_key(TOPIC, sink, ALPHA)
    assert [str(each.zenoh.key_expr) for each in (first, second)] == [expected, expected]
    bench.sender._publishers.limit = 2
    bench.put(numbered(2, 7))  # the first one is undeclared
    assert first not in bench.publishers
    bench.put(message(3, UPriority.CS5), message(4, UPriority.CS1))
    assert sorted(received(subscriber, 5)) == [0, 1, 2, 3, 4], "higher priorities overtake"


def test_topics_are_prepared_after_the_last_of_a_series_and_one_at_a_time(make_bench: MakeBench) -> None:
    bench = make_bench()
    with bench.held_monitor() as tick:
        for number in range(3):
            bench.sender.prepare_topic(topic_of(number))
            tick()
            assert not bench.publishers
        for _ in range(3):
            tick()
            assert len(bench.publishers) == 1  # the next one waits for the other tasks of the monitor
    wait_until(lambda: len(bench.publishers) == 3, "the others")


def test_prepared_topics_take_half_of_the_publishers(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.sender._publishers.limit = 4
    with bench.held_monitor():
        for number in range(9):
            bench.sender.prepare_topic(topic_of(number))
        assert len(bench.sender._early_declarations) == 4
    wait_until(lambda: not bench.sender._early_declarations, "the topics")
    bench.wait_monitor()
    assert [each.route[0] for each in bench.publishers] == [topic_of(0), topic_of(1)]


def test_no_more_topics_wait_than_there_can_be_publishers(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.sender._publishers.limit = 3
    declarations = EarlyDeclarations(bench.sender._publishers, bench.links, Lock())
    for number in range(5):
        declarations.add_topic(topic_of(number))
    assert len(declarations) == 3


def test_a_put_that_waits_does_not_stop_the_monitor(make_bench: MakeBench) -> None:
    bench = make_bench()
    with bench.sender._lock:
        bench.sender.prepare_topic(topic_of(0))
        wait_until(lambda: not bench.sender._early_declarations, "the topic")
        bench.wait_monitor()
        assert not bench.publishers
    subscriber = bench.listen()
    bench.put(numbered(0))
    assert received(subscriber, 1) == [0]


def test_a_message_may_declare_its_topic_at_the_same_time(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(
        numbered(9, 1)
    )  # the subscriber is known: the monitor, which opens routes later, puts a message below
    assert received(subscriber, 1) == [9]
    [other] = bench.publishers
    declare, declared = bench.sender._publishers.declare, list[RoutePublisher]()

    def declare_both(attributes: UAttributes, key: zenoh.KeyExpr | str | None = None) -> RoutePublisher:
        declared.append(declare(attributes, key))
        mine = declared[-1]
        if len(declared) == 1:
            bench.put(numbered(0))
        return mine

    monkeypatch.setattr(bench.sender._publishers, "declare", declare_both)
    bench.sender.prepare_topic(topic_of(0))
    assert received(subscriber, 1) == [0]
    bench.wait_monitor()
    assert bench.publishers == [other, *declared[1:]]
    with pytest.raises(zenoh.ZError):
        declared[0].zenoh.put(b"")  # undeclared
    bench.put(numbered(1))
    assert received(subscriber, 1) == [1]


def test_a_closed_session_is_left_to_the_first_message(make_bench: MakeBench) -> None:
    bench = make_bench()
    with bench.held_monitor() as tick:
        bench.session.close()  # type: ignore[no-untyped-call]
        bench.sender.prepare_topic(topic_of(0))
        tick()
        tick()
        assert not bench.sender._early_declarations
    assert not bench.publishers


# --- listeners of broadcast topics ------------------------------------------------------------------------------------


@pytest.mark.parametrize("prepared", [False, True])
def test_a_sender_knows_whether_there_is_a_listener(make_bench: MakeBench, prepared: bool) -> None:
    bench = make_bench()
    message = numbered(0, priority=UPriority.CS2)
    if prepared:
        bench.sender.prepare_topic(topic_of(0))
        wait_until(lambda: bool(bench.publishers), "the publisher")
    else:
        assert bench.sender.has_listener(message.attributes), "unknown before the first message"
        assert not bench.is_accepted(message)
    assert not bench.sender.has_listener(message.attributes)
    subscriber = bench.listen()
    wait_until(lambda: bench.sender.has_listener(message.attributes), "the listener")
    wait_until(lambda: bench.is_accepted(message), "the open route")
    assert received(subscriber, 1) == [0]
    bench.unsubscribe(subscriber)
    wait_until(lambda: not bench.sender.has_listener(message.attributes), "the end of the listener")
    assert not bench.is_accepted(numbered(1, priority=UPriority.CS2))


def test_a_new_listener_counts_before_its_route_is_open(make_bench: MakeBench) -> None:
    """Else a busy machine drops what is published just after a listener was declared."""
    bench, message = make_bench(), numbered(0)
    assert not bench.is_accepted(message)
    assert not bench.sender.has_listener(message.attributes)
    with bench.held_monitor():
        subscriber = bench.listen()
        wait_until(lambda: bench.sender.has_listener(message.attributes), "the listener")
        assert not bench.is_accepted(message), "the monitor thread opens the route"
        (publisher,) = bench.publishers
        wait_until(lambda: publisher.matches, "the report of the listener")
        with bench.sender._lock:  # a put may hold it
            assert bench.sender.has_listener(message.attributes)
        publisher.matches = False  # as before the report
        assert bench.sender.has_listener(message.attributes)
        with bench.sender._lock:
            assert not bench.sender.has_listener(message.attributes)
    wait_until(lambda: bench.is_accepted(message), "the open route")
    assert received(subscriber, 1) == [0]
