# SPDX-License-Identifier: Apache-2.0
"""Puts that may be lost are put again, kept or reported: with real sessions in this process."""

from collections.abc import Hashable
from threading import Lock
from time import monotonic_ns
from typing import Any

import pytest
import zenoh

from tests.transports.zenoh.publisher_bench import NS_PER_MS, Bench, MakeBench, numbered, received
from tests.transports.zenoh.sessions import CLOCK
from tests.waiting import wait_until
from ustreamer.testing.messages import ALPHA, METHOD, REMOTE_CLIENT, new_id
from ustreamer.transport_port import EndpointContext, RouteUnavailable
from ustreamer.transports.zenoh import route_publishers
from ustreamer.transports.zenoh.connected_node import DETECTION_NS
from ustreamer.transports.zenoh.decoder import HEAD, ID_TAG, VERSION_AND_TAGS
from ustreamer.transports.zenoh.link_monitor import UnconfirmedSpan
from ustreamer.transports.zenoh.possible_losses import PossibleLosses
from ustreamer.transports.zenoh.receipts.no_receipts import NEVER_NS
from ustreamer.transports.zenoh.retransmit import (
    OVERHEAD_BYTES,
    AnsweredRequests,
    Origin,
    RetransmitConfig,
    join_oldest,
)
from ustreamer.transports.zenoh.route_publishers import RoutePublishers
from ustreamer.uprotocol.uattributes import UPriority
from ustreamer.uprotocol.umessage import request
from ustreamer.uprotocol.ustatus import UStatusError


def test_possibly_lost_messages_are_put_again_in_order_before_newer_ones(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(*(numbered(n) for n in range(3)))
    assert received(subscriber, 3) == [0, 1, 2]
    bench.unsubscribe(subscriber)
    assert not bench.is_accepted(numbered(9))
    subscriber = bench.listen()
    bench.put(numbered(3))
    assert received(subscriber, 4) == [0, 1, 2, 3]
    assert (bench.sender.sent, bench.sender.retransmitted, bench.sender.not_retransmitted) == (4, 3, 0)


def test_a_retransmitted_message_keeps_its_id_and_can_be_lost_again(make_bench: MakeBench) -> None:
    bench = make_bench()
    attachments = set()
    subscriber = bench.listen()
    bench.put(numbered(0))
    for _ in range(3):
        attachment = subscriber.recv().attachment
        assert attachment is not None
        attachments.add(attachment.to_bytes())
        for each in bench.publishers:
            each.lost_ns = 0
        bench.unsubscribe(subscriber)
        subscriber = bench.listen()
    assert len(attachments) == 1


def test_the_counter_of_sent_messages_never_decreases(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(numbered(0))
    sent: list[int] = []
    append = bench.sender._append

    def noting(*put: Any, **named: Any) -> None:
        append(*put, **named)
        sent.append(bench.sender.sent)

    bench.sender._append = noting
    bench.unsubscribe(subscriber)
    subscriber = bench.listen()
    assert received(subscriber, 1) == [0]
    wait_until(lambda: bench.sender.retransmitted == 1, "the retransmission")
    assert (sent, bench.sender.sent) == ([1], 1)


def test_what_is_lost_again_is_put_again_in_order_although_the_first_puts_are_evicted(
    make_bench: MakeBench,
) -> None:
    """The memory has the first puts of the last two messages, and then all second puts."""
    bench = make_bench(bytes=6 * (OVERHEAD_BYTES + 1))
    subscriber = bench.listen()
    bench.put(*(numbered(n) for n in range(4)))
    for _ in range(2):
        assert received(subscriber, 4) == [0, 1, 2, 3]
        for each in bench.publishers:
            each.lost_ns = 0
        bench.unsubscribe(subscriber)
        subscriber = bench.listen()
    assert received(subscriber, 4) == [0, 1, 2, 3]


def test_only_puts_since_the_loss_are_put_again(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(numbered(0))
    bench.lost_since_ns = monotonic_ns()
    bench.put(numbered(1))
    bench.unsubscribe(subscriber)
    assert received(bench.listen(), 1) == [1]
    wait_until(lambda: bench.sender.retransmitted == 1, "the replay")


def test_a_known_start_of_a_loss_overrides_the_window(make_bench: MakeBench) -> None:
    """The loss can be detected long after the last put."""
    bench = make_bench(ms=1)
    subscriber = bench.listen()
    bench.put(numbered(0))
    assert received(subscriber, 1) == [0]  # before, it may wait for the listener to be known
    put = monotonic_ns()
    wait_until(lambda: monotonic_ns() > put + 2_000_000, "a longer time than the window")
    bench.lost_since_ns = 1
    bench.unsubscribe(subscriber)
    assert received(bench.listen(), 1) == [0]


def test_without_a_known_loss_the_window_applies(make_bench: MakeBench) -> None:
    bench = make_bench(ms=1)
    subscriber = bench.listen()
    bench.put(numbered(0))
    assert received(subscriber, 1) == [0]  # before, it may wait for the listener to be known
    put = monotonic_ns()
    wait_until(lambda: monotonic_ns() > put + 2_000_000, "a longer time than the window")
    bench.unsubscribe(subscriber)
    subscriber = bench.listen()
    bench.put(numbered(1))
    assert received(subscriber, 1) == [1]
    assert bench.sender.retransmitted == 0


def test_an_expired_message_is_not_put_again(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    short = numbered(0, ttl=100)
    bench.put(short, numbered(1))
    bench.unsubscribe(subscriber)
    wait_until(lambda: CLOCK.wall_ms() > short.id.time_ms + 100, "its end")
    assert received(bench.listen(), 1) == [1]
    wait_until(lambda: bench.sender.not_retransmitted == 1, "the count")


def test_an_answered_request_is_not_put_again(make_bench: MakeBench) -> None:
    """An event is never treated as answered, for any reqid of a response."""
    bench = make_bench()
    subscriber = bench.listen()
    sent_request, event = (
        [request(new_id(), REMOTE_CLIENT, METHOD, b"%d" % n, ttl=60_000) for n in range(3)],
        numbered(3),
    )
    bench.put(*sent_request, event)
    assert received(subscriber, 4) == [0, 1, 2, 3]
    bench.answered.add_reqids([sent_request[0].id, event.id])
    bench.unsubscribe(subscriber)
    bench.answered.add_reqids([sent_request[2].id])  # while no subscriber was connected
    subscriber = bench.listen()
    assert sorted(received(subscriber, 2)) == [1, 3]
    last = request(new_id(), REMOTE_CLIENT, METHOD, b"4", ttl=60_000)
    bench.put(last)
    assert received(subscriber, 1) == [4]
    assert (bench.sender.retransmitted, bench.sender.not_retransmitted) == (2, 0)


@pytest.mark.parametrize("years", [26, -26])
def test_a_clock_step_does_not_change_which_messages_are_put_again(make_bench: MakeBench, years: int) -> None:
    """An ECU boots in 2000, and its clock steps to today."""
    bench = make_bench()
    subscriber = bench.listen()
    short = numbered(0, ttl=100)
    bench.put(short, numbered(1, ttl=60_000))
    put = monotonic_ns()
    bench.unsubscribe(subscriber)
    bench.clock_step_ms = years * 365 * 86_400_000
    wait_until(lambda: monotonic_ns() > put + 100_000_000, "its end")
    assert received(bench.listen(), 1) == [1]
    wait_until(lambda: bench.sender.not_retransmitted == 1, "the count")


@pytest.mark.parametrize(
    ("bounds", "again"),
    [
        ({"ms": 0}, []),
        ({"bytes": 3 * 201}, [2, 3, 4]),
        ({"bytes": 1}, [4]),
    ],
)
def test_the_retransmit_buffer_is_bounded_and_drops_the_oldest(
    make_bench: MakeBench, bounds: dict[str, int], again: list[int]
) -> None:
    bench = make_bench(**bounds)
    subscriber = bench.listen()
    bench.put(*(numbered(n) for n in range(5)))
    bench.unsubscribe(subscriber)
    subscriber = bench.listen()
    bench.put(numbered(5))
    assert received(subscriber, len(again) + 1) == [*again, 5]


def test_the_bounds_apply_to_all_routes_together(make_bench: MakeBench) -> None:
    bench = make_bench(bytes=3 * 201)
    subscriber = bench.listen()
    bench.put(*(numbered(n, n % 2) for n in range(5)))
    assert bench.remembered_count == 3
    bench.unsubscribe(subscriber)
    bench.wait_all_lost()
    assert sorted(received(bench.listen(), 3)) == [2, 3, 4]


def test_messages_older_than_the_window_are_removed(make_bench: MakeBench) -> None:
    bench = make_bench(ms=1)
    subscriber = bench.listen()
    bench.put(numbered(0))
    first = monotonic_ns()
    wait_until(lambda: monotonic_ns() > first + 1_000_000, "its age")
    bench.put(numbered(1))
    assert bench.remembered_count == 1
    assert received(subscriber, 2) == [0, 1]


def test_a_message_that_zenoh_does_not_take_again_is_counted_and_the_route_opens(
    make_bench: MakeBench,
) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    first = numbered(0)
    bench.put(first)
    bench.unsubscribe(subscriber)

    def refuse(*_: object, **__: object) -> None:
        raise zenoh.ZError("refused")

    bench.replace_put(first.attributes, refuse)
    bench.opened.clear()
    _subscriber = bench.listen()
    wait_until(lambda: bool(bench.opened), "the route")
    assert (bench.sender.retransmitted, bench.sender.not_retransmitted) == (0, 1)


def count_when_first_is_back(bench: Bench) -> int:
    """The number of puts that were not put again when the first topic had a listener again."""
    first = bench.listen("up/**/8000/**")
    bench.put(numbered(9))
    assert received(first, 1) == [9]
    return bench.sender.not_retransmitted


def test_evicted_puts_are_counted_when_their_own_publisher_finds_a_subscriber(make_bench: MakeBench) -> None:
    bench = make_bench(bytes=3 * 201)
    first, second = bench.listen("up/**/8000/**"), bench.listen("up/**/8001/**")
    bench.put(*(numbered(n) for n in range(5)), *(numbered(n, 1) for n in range(5, 8)))
    bench.unsubscribe(first)
    between_ns = monotonic_ns()
    bench.links.lost_since_ns = lambda at_ns: between_ns if at_ns > between_ns else 1  # type: ignore[assignment]
    second.undeclare()  # type: ignore[no-untyped-call]
    bench.wait_all_lost()
    second = bench.listen("up/**/8001/**")
    bench.put(numbered(8, 1))
    assert received(second, 1) == [8]
    assert bench.sender.not_retransmitted == 0
    assert count_when_first_is_back(bench) == 5


def test_older_evictions_wait_for_the_publisher_that_was_lost_first(make_bench: MakeBench) -> None:
    bench = make_bench(bytes=3 * 201)
    first, _second = bench.listen("up/**/8000/**"), bench.listen("up/**/8001/**")
    bench.put(*(numbered(n) for n in range(5)), *(numbered(n, 1) for n in range(5, 8)))
    bench.unsubscribe(first)
    losses = bench.sender._possible_losses
    assert sum(number for _, number in losses._evicted) == 5
    for number in range(600):  # of later losses
        losses._evicted.append((monotonic_ns() + number * 50 * NS_PER_MS, 1))
        join_oldest(losses._evicted)
    assert count_when_first_is_back(bench) == 605


def test_evictions_are_not_counted_for_a_subscriber_that_left(make_bench: MakeBench) -> None:
    bench = make_bench(bytes=3 * 201)
    bench.links.lost_since_ns = lambda noticed_ns: noticed_ns  # type: ignore[method-assign]
    first, second = bench.listen("up/**/8000/**"), bench.listen("up/**/8001/**")
    bench.put(numbered(0))
    bench.unsubscribe(first)
    bench.put(*(numbered(n, 1) for n in range(1, 9)))
    bench.wait_arrived()
    second.undeclare()  # type: ignore[no-untyped-call]
    bench.wait_all_lost()
    assert find_all_again(bench) == (0, 0)


def test_evictions_are_counted_if_their_publisher_is_undeclared(make_bench: MakeBench) -> None:
    bench = make_bench(bytes=3 * 201)
    first, _second = bench.listen("up/**/8000/**"), bench.listen("up/**/8001/**")
    bench.put(*(numbered(n) for n in range(5)), *(numbered(n, 1) for n in range(5, 10)))
    bench.unsubscribe(first)
    assert [each.to_retransmit for each in bench.publishers if each.lost_ns] == [[]]
    bench.sender._publishers.limit = 1
    wait_until(lambda: len(bench.publishers) == 1, "the end of the publisher")
    assert bench.sender.not_retransmitted >= 5


def test_a_loss_matches_the_end_of_its_link_although_the_monitor_had_to_wait(make_bench: MakeBench) -> None:
    bench = make_bench()
    _subscriber = bench.listen()
    bench.put(numbered(0))
    bench.wait_arrived()
    [publisher] = bench.publishers
    wait_until(lambda: all(each.link for each in bench.links._nodes.values()), "the link")
    losses = bench.sender._possible_losses
    with bench.sender._lock:  # as a put does that waits
        bench.links.run_on_monitor(lambda: losses.on_subscriber_found(publisher))
        wait_until(lambda: bench.links.is_idle, "the task")
        bench.visitor.close()  # type: ignore[no-untyped-call]
        wait_until(lambda: bool(losses._losses), "the loss")
        lost = monotonic_ns()
        wait_until(lambda: monotonic_ns() > lost + 1_300 * NS_PER_MS, "a longer time than an outage has")
    wait_until(lambda: bool(publisher.lost_ns), "the collection")
    wait_until(lambda: bool(bench.links._losses), "the end of the link")
    assert bench.links._nearest_loss(publisher.lost_ns) is not None


def test_an_open_route_keeps_the_time_of_its_opening(make_bench: MakeBench) -> None:
    """A receiver whose token comes late gives receipts for puts since then."""
    bench = make_bench()
    _subscriber = bench.listen()
    bench.put(numbered(0))
    [publisher] = bench.publishers
    opened_ns = publisher.opened_ns
    bench.sender._possible_losses.on_subscriber_found(publisher)
    assert publisher.opened_ns == opened_ns


# --- what waits for lost subscribers ----------------------------------------------------------------------------------


def test_what_has_arrived_waits_for_no_subscriber_once_the_time_of_the_loss_is_known(
    make_bench: MakeBench,
) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(numbered(0))
    bench.lost_since_ns = monotonic_ns()
    bench.put(numbered(1))
    bench.unsubscribe(subscriber)
    [publisher] = bench.publishers
    with bench.held_monitor() as tick:
        assert len(publisher.to_retransmit) == 2
        bench.frozen_ns = monotonic_ns() + DETECTION_NS
        tick()
        assert [int(message.payload) for _, message in publisher.to_retransmit] == [1]


def test_the_bytes_that_wait_for_lost_subscribers_are_bounded(make_bench: MakeBench) -> None:
    bench = make_bench(bytes=10 * 210, durable=False)
    for topic in range(5):
        subscriber = bench.listen(f"up/**/{0x8000 + topic:X}/**")
        bench.put(*(numbered(10 * topic + n, topic) for n in range(10)))
        bench.wait_arrived()
        subscriber.undeclare()  # type: ignore[no-untyped-call]
        bench.wait_all_lost()
    with bench.held_monitor() as tick:
        bench.frozen_ns = monotonic_ns() + DETECTION_NS
        tick()
    waiting = [len(each.to_retransmit) for each in bench.publishers]
    assert waiting == [0, 0, 0, 10, 10]
    assert bench.sender.not_retransmitted == 30
    assert sorted(received(bench.listen(), 20)) == list(range(30, 50))


def lose_three_topics(bench: Bench) -> list[int]:
    """Ten puts on each of three topics, whose listeners leave one after the other; returns the times after that."""
    left_ns: list[int] = []
    for topic in range(3):
        subscriber = bench.listen(f"up/**/{0x8000 + topic:X}/**")
        bench.put(*(numbered(10 * topic + n, topic) for n in range(10)))
        bench.wait_arrived()
        subscriber.undeclare()  # type: ignore[no-untyped-call]
        bench.wait_all_lost()
        left_ns.append(monotonic_ns())
    return left_ns


def find_all_again(bench: Bench) -> tuple[int, int]:
    """How many were put again, and how many were not, after a listener of all topics came."""
    _subscriber = bench.listen()
    wait_until(lambda: all(each.open for each in bench.publishers), "the routes")
    return bench.sender.retransmitted, bench.sender.not_retransmitted


def test_the_bytes_are_bounded_when_the_time_of_the_loss_is_known(make_bench: MakeBench) -> None:
    """The monitor may learn up to 1 s later that a node has ended."""
    bench = make_bench(bytes=10 * 210, durable=False)
    bench.links.lost_since_ns = lambda noticed_ns: noticed_ns  # type: ignore[method-assign]
    lose_three_topics(bench)
    bench.links.lost_since_ns = lambda noticed_ns: 1  # type: ignore[method-assign]
    assert find_all_again(bench) == (30, 0)


def test_what_has_arrived_takes_no_room_from_what_is_lost(make_bench: MakeBench) -> None:
    bench = make_bench(bytes=10 * 210, durable=False)
    [first_ns, _, _] = lose_three_topics(bench)
    bench.links.lost_since_ns = lambda at_ns: 1 if at_ns < first_ns else at_ns  # type: ignore[assignment]
    with bench.held_monitor() as tick:
        bench.frozen_ns = monotonic_ns() + DETECTION_NS
        tick()
        assert [len(each.to_retransmit) for each in bench.publishers] == [10, 0, 0]
    assert find_all_again(bench) == (10, 0)


def test_evicted_puts_of_an_undeclared_publisher_are_counted(make_bench: MakeBench) -> None:
    bench = make_bench(bytes=3 * 201)
    bench.sender._publishers.limit = 1
    subscriber = bench.listen()
    for topic in range(3):
        bench.put(*(numbered(5 * topic + n, topic) for n in range(5)))
    bench.unsubscribe(subscriber)
    bench.wait_all_lost()
    assert sum(find_all_again(bench)) == 15


# --- more publishers than the limit -----------------------------------------------------------------------------------


def test_messages_of_more_publishers_than_the_limit_are_put_again(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.sender._publishers.limit = 2
    subscriber = bench.listen()
    bench.put(*(numbered(n, n) for n in range(5)))
    bench.unsubscribe(subscriber)
    bench.wait_all_lost()
    assert sorted(received(bench.listen(), 5)) == [0, 1, 2, 3, 4]
    assert bench.sender.not_retransmitted == 0


def test_publishers_above_the_limit_are_undeclared_when_their_messages_have_arrived(
    make_bench: MakeBench,
) -> None:
    bench = make_bench()
    bench.sender._publishers.limit = 2
    subscriber = bench.listen()
    bench.put(*(numbered(n, n) for n in range(4)))
    assert received(subscriber, 4) == [0, 1, 2, 3]
    with bench.held_monitor() as tick:
        tick()
        assert len(bench.publishers) == 4
        bench.links.confirmed_ns = monotonic_ns()
        bench.sender._possible_losses.on_tick()
        bench.put(numbered(4, 4))  # undeclares two, declares one
        assert [each.route[0].resource_id - 0x8000 for each in bench.publishers] == [2, 3, 4]
        tick()
        assert [each.route[0].resource_id - 0x8000 for each in bench.publishers] == [3, 4]


def test_a_new_topic_is_unavailable_while_the_messages_of_all_publishers_may_be_lost(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route_publishers, "MAX_EXTRA", 1)
    bench = make_bench()
    bench.sender._publishers.limit = 1
    subscriber = bench.listen()
    bench.put(numbered(0), numbered(1, 1))
    with bench.held_monitor() as tick:
        with pytest.raises(
            RouteUnavailable, match="messages of all 2 Zenoh publishers may not have"
        ) as refused:
            bench.sender.put_message(numbered(2, 2))
        assert refused.value.route == (numbered(2, 2).attributes.source, None, UPriority.CS1)
        assert refused.value.absent_from_ns is None
        bench.put(numbered(3), numbered(4, 1))  # the others go on
        bench.links.confirmed_ns = monotonic_ns()
        tick()
        bench.put(numbered(5, 2))
    assert received(subscriber, 5) == [0, 1, 3, 4, 5]


def test_the_age_of_the_retransmit_buffer_ends_the_wait(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only TCP links show what has arrived."""
    monkeypatch.setattr(route_publishers, "MAX_EXTRA", 0)
    bench = make_bench(ms=1_000)
    bench.sender._publishers.limit = 2
    subscriber = bench.listen()
    bench.put(numbered(0))
    bench.frozen_ns = monotonic_ns() + 500 * NS_PER_MS
    bench.put(numbered(1, 1))  # the newest message is always remembered
    bench.frozen_ns += 400 * NS_PER_MS
    with pytest.raises(RouteUnavailable, match="may not have arrived"):
        bench.sender.put_message(numbered(2, 2))
    bench.frozen_ns += 200 * NS_PER_MS
    bench.put(numbered(2, 2))
    assert received(subscriber, 3) == [0, 1, 2]


def test_what_is_remembered_keeps_its_publisher_without_further_puts(make_bench: MakeBench) -> None:
    """Zenoh may report a loss later than the window, and age evicts nothing until the next put."""
    bench = make_bench(ms=1_000)
    bench.sender._publishers.limit = 1
    subscriber = bench.listen()
    bench.put(numbered(0), numbered(1, 1))
    assert received(subscriber, 2) == [0, 1]
    bench.frozen_ns = monotonic_ns() + 2_000 * NS_PER_MS
    with bench.held_monitor() as tick:
        tick()
    assert len(bench.publishers) == 2


def test_a_publisher_of_a_subscriber_that_left_gives_way_and_counts_its_messages(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route_publishers, "MAX_EXTRA", 0)
    bench = make_bench(ms=1_000)
    bench.sender._publishers.limit = 1
    subscriber = bench.listen()
    bench.put(numbered(0))
    bench.unsubscribe(subscriber)
    bench.links._update_state = lambda: False  # type: ignore[method-assign]  # the monitor sets `up` every 50 ms
    bench.links.up = False
    with pytest.raises(UStatusError, match="no Zenoh node is connected"):
        bench.sender.put_message(numbered(1, 1))
    bench.links.up = True
    with pytest.raises(RouteUnavailable, match="may not have arrived"):  # it may come back
        bench.sender.put_message(numbered(1, 1))
    assert bench.sender.not_retransmitted == 0
    bench.frozen_ns = monotonic_ns() + 1_500 * NS_PER_MS
    assert not bench.is_accepted(numbered(1, 1))
    assert bench.sender.not_retransmitted == 1
    assert [each.route[0].resource_id for each in bench.publishers] == [0x8001]


# --- at a stop --------------------------------------------------------------------------------------------------------


def test_puts_since_a_node_may_have_stopped_reading_are_unconfirmed_but_no_answered_request(
    make_bench: MakeBench,
) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(numbered(0))
    call, answered = (request(new_id(), REMOTE_CLIENT, METHOD, b"%d" % n, ttl=60_000) for n in (1, 2))
    begin_ns = monotonic_ns()
    bench.put(call, answered, numbered(3), numbered(4, 1))
    end_ns = monotonic_ns()
    bench.put(numbered(5))
    assert len(received(subscriber, 6)) == 6
    bench.answered.add_reqids([answered.id])
    bench.links.unconfirmed_spans = lambda: [UnconfirmedSpan(begin_ns, end_ns, 1 << 62)]  # type: ignore[method-assign]
    messages, forgotten, _ = bench.sender.unconfirmed()
    assert ([int(each.payload) for each in messages], forgotten) == ([1, 3, 4], 0)
    bench.links.unconfirmed_spans = list  # type: ignore[method-assign]
    assert bench.sender.unconfirmed() == ([], 0, [])


def test_puts_that_wait_for_a_lost_subscriber_are_unconfirmed_once_each(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(numbered(0))
    bench.lost_since_ns = monotonic_ns()
    bench.put(numbered(1), numbered(2))
    assert received(subscriber, 3) == [0, 1, 2]
    bench.unsubscribe(subscriber)
    bench.links.unconfirmed_spans = lambda: [UnconfirmedSpan(0, 1 << 62, 1 << 62)]  # type: ignore[method-assign]
    assert [int(each.payload) for each in bench.sender.unconfirmed().messages] == [0, 1, 2]
    bench.links.unconfirmed_spans = list  # type: ignore[method-assign]
    assert [int(each.payload) for each in bench.sender.unconfirmed().messages] == [1, 2]


def test_evicted_puts_that_may_be_lost_are_counted(make_bench: MakeBench) -> None:
    bench = make_bench(bytes=3 * 201)
    subscriber = bench.listen()
    bench.put(*(numbered(n) for n in range(5)))
    bench.unsubscribe(subscriber)
    messages, forgotten, _ = bench.sender.unconfirmed()
    assert ([int(each.payload) for each in messages], forgotten) == ([2, 3, 4], 2)
    subscriber = bench.listen()
    bench.put(numbered(5))
    assert received(subscriber, 4) == [2, 3, 4, 5]
    assert bench.sender.not_retransmitted == 2


def test_evictions_of_a_frozen_node_are_counted_at_a_stop(make_bench: MakeBench) -> None:
    """The loss of another subscriber has moved them out of the buffer."""
    bench = make_bench(bytes=3 * 201)
    _first, second = bench.listen("up/**/8000/**"), bench.listen("up/**/8001/**")
    bench.links.lost_since_ns = lambda noticed_ns: noticed_ns  # type: ignore[method-assign]
    bench.put(numbered(99, 1))
    frozen_ns = monotonic_ns()
    bench.put(*(numbered(n) for n in range(10)))
    bench.unsubscribe(second)
    bench.links.unconfirmed_spans = lambda: [UnconfirmedSpan(frozen_ns, 1 << 62, 1 << 62)]  # type: ignore[method-assign]
    messages, forgotten, _ = bench.sender.unconfirmed()
    assert len(messages) + forgotten >= 10


# --- puts that a kill of the process would lose -----------------------------------------------------------------------


def test_puts_to_a_suspect_node_are_kept_until_they_have_arrived(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    call = request(new_id(), REMOTE_CLIENT, METHOD, b"7", ttl=60_000)  # never kept: a second call can do harm
    bench.put(numbered(0), numbered(1, 1), call)
    assert len(received(subscriber, 3)) == 3
    with bench.held_monitor() as tick:
        tick()
        assert bench.kept.numbers == []
        bench.links.any_suspect = True
        tick()
        assert bench.kept.numbers == [0, 1]
        bench.put(numbered(2))
        tick()
        assert sorted(bench.kept.numbers) == [0, 1, 2]
        bench.links.any_suspect = False
        tick()
        assert sorted(bench.kept.numbers) == [0, 1, 2]
        bench.links.confirmed_ns = monotonic_ns()
        tick()
        assert bench.kept.numbers == []
        bench.links.any_suspect = True
        tick()
        assert bench.kept.numbers == []  # confirmed


def test_puts_to_a_suspect_node_are_unstored_until_the_store_has_them(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    losses = bench.sender._possible_losses
    bench.put(numbered(0))  # the monitor opens the route
    with bench.held_monitor() as tick:
        bench.links.any_suspect = bench.kept.is_busy = True
        before_ns = monotonic_ns()
        bench.put(numbered(1))
        assert received(subscriber, 2) == [0, 1]
        tick()
        assert losses.unstored_since_ns < before_ns
        bench.kept.is_busy = False
        tick()
        stored_ns = losses.unstored_since_ns
        assert before_ns < stored_ns < monotonic_ns()
        tick()
        assert losses.unstored_since_ns > stored_ns  # without further puts too
        with losses._put_lock:  # a put is in progress
            stored_ns = monotonic_ns()
            tick()
        assert losses.unstored_since_ns < stored_ns
        bench.links.any_suspect = False
        assert losses.unstored_since_ns == NEVER_NS


def test_a_busy_store_gets_the_same_puts_again(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(numbered(0))
    assert received(subscriber, 1) == [0]
    with bench.held_monitor() as tick:
        bench.links.any_suspect = bench.kept.is_busy = True
        tick()
        assert bench.kept.numbers == []
        bench.kept.is_busy = False
        tick()
        assert bench.kept.numbers == [0]
        bench.links.any_suspect, bench.links.confirmed_ns, bench.kept.is_busy = False, monotonic_ns(), True
        tick()
        assert bench.kept.numbers == [0]
        bench.kept.is_busy = False
        tick()
        assert bench.kept.numbers == []


def test_possibly_lost_puts_are_kept_until_they_were_put_again_and_have_arrived(
    make_bench: MakeBench,
) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(numbered(0))
    bench.lost_since_ns = monotonic_ns()
    bench.put(numbered(1), numbered(2))
    assert received(subscriber, 3) == [0, 1, 2]
    bench.unsubscribe(subscriber)
    wait_until(lambda: bench.kept.numbers == [1, 2], "the kept puts")
    subscriber = bench.listen()
    bench.put(numbered(3))
    assert received(subscriber, 3) == [1, 2, 3]
    assert bench.kept.numbers == [1, 2]
    bench.links._confirmed_ns = lambda now_ns: now_ns  # type: ignore[method-assign]
    wait_until(lambda: bench.kept.numbers == [], "the release")


# --- without a sender -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_time", [True, False])
def test_what_is_too_late_to_be_put_again_is_counted(make_bench: MakeBench, *, in_time: bool) -> None:
    bench = make_bench()
    context, put_lock, opened = EndpointContext("backbone", ALPHA, CLOCK), Lock(), list[Hashable]()
    publishers = RoutePublishers(bench.session, context, limit=1)
    losses = PossibleLosses(
        context,
        bench.links,
        publishers,
        put_lock,
        lambda put_ns, message: in_time,
        opened.append,
        RetransmitConfig(),
        AnsweredRequests(0),
    )
    message = numbered(0)
    publisher = publishers.declare(message.attributes)
    publishers.add(publisher)
    head = HEAD.pack(VERSION_AND_TAGS, message.id.msb, ID_TAG, message.id.lsb)
    losses.append((Origin(publisher, message.attributes),), CLOCK.monotonic_ns(), (head,), (message.payload,))
    subscriber = bench.listen()  # found by another process: the route opens on the thread of the monitor
    wait_until(lambda: bool(opened), "the route")
    bench.wait_arrived()
    opened.clear()
    subscriber.undeclare()  # type: ignore[no-untyped-call]
    wait_until(lambda: not publisher.open, "the loss")
    subscriber = bench.listen()
    wait_until(lambda: bool(opened), "the route again")
    assert (losses.retransmitted, losses.not_retransmitted) == ((1, 0) if in_time else (0, 1))
