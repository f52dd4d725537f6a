# SPDX-License-Identifier: Apache-2.0
"""Routes that open and close, puts and retransmissions: with real sessions in this process."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import Event
from time import monotonic_ns, thread_time_ns
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import zenoh

from tests.response_batches import batch_of_responses
from tests.transports.zenoh.sessions import CLOCK, free_locator, plain_session
from tests.waiting import wait_until
from ustreamer.core.base.clock import Clock
from ustreamer.core.delivery.expiry import BATCH_SEND_MS
from ustreamer.testing.messages import ALPHA, METHOD, REMOTE_CLIENT, TOPIC, new_id
from ustreamer.transport_port import EndpointContext, RouteUnavailable
from ustreamer.transports.zenoh import publisher
from ustreamer.transports.zenoh.decoder import VERSION_BYTE, AttachmentColumns, SampleDecoder, decode_sample
from ustreamer.transports.zenoh.keys import message_key
from ustreamer.transports.zenoh.link_monitor import LinkMonitor, UnconfirmedSpan
from ustreamer.transports.zenoh.publisher import ZenohSender
from ustreamer.transports.zenoh.retransmit import AnsweredRequests, RetransmitConfig
from ustreamer.uprotocol.batch import IdColumns, MessageBatch
from ustreamer.uprotocol.uattributes import UAttributes, UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage, notification, publish, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri, any_at
from ustreamer.uprotocol.wire import encode, encode_tail

LONG_AGO = 0
NS_PER_MS = 1_000_000

AsIterable = Callable[[list[UMessage]], Iterable[UMessage]]


def as_id_columns(messages: list[UMessage]) -> MessageBatch:
    """A batch with id columns, like one of messages created here."""
    batch = MessageBatch.from_messages(messages)
    assert batch is not None
    assert type(batch.ids) is IdColumns
    return batch


def as_received(messages: list[UMessage], **changes: object) -> MessageBatch:
    """A batch received over Zenoh; `changes` are attributes on the wire that our puts must not contain."""
    attributes = messages[0].attributes
    stated = msgspec.structs.replace(attributes, **changes)
    attachments = [VERSION_BYTE + encode(each.id, stated) for each in messages]
    key, decoder = message_key(attributes.source, attributes.sink, ALPHA), SampleDecoder()
    decoder.decode(key, attachments[0], b"")
    batch = decoder.decode_batch(key, attachments, [each.payload for each in messages])
    assert batch is not None
    assert batch.attributes == attributes
    assert type(batch.ids) is AttachmentColumns
    return batch


def as_received_with_sink(messages: list[UMessage]) -> MessageBatch:
    """A batch of publications with the sink that some streamers add."""
    return as_received(messages, sink=any_at(REMOTE_CLIENT.authority_name))


BATCHES: dict[str, Callable[[list[UMessage]], MessageBatch]] = {
    "id columns": as_id_columns,
    "equal attachments": as_received,
    "attachments with another tail": as_received_with_sink,
}
ITERABLES: dict[str, AsIterable] = {"list": list, "iterator": iter, **BATCHES}
every_iterable = pytest.mark.parametrize("together", ITERABLES.values(), ids=ITERABLES)
every_batch = pytest.mark.parametrize("batch_of", BATCHES.values(), ids=BATCHES)


class KeptMessages:
    """A `SentStore` in memory."""

    def __init__(self) -> None:
        self.is_busy = False
        self._routes: dict[Hashable, dict[UUID, UMessage]] = {}

    def keep(self, route: Hashable, messages: Sequence[UMessage]) -> bool:
        if not self.is_busy:
            self._routes.setdefault(route, {}).update((each.id, each) for each in messages)
        return not self.is_busy

    def release(self, route: Hashable, ids: Collection[UUID] | None = None) -> bool:
        if not self.is_busy:
            del self._routes[route]
        return not self.is_busy

    @property
    def numbers(self) -> list[int]:
        return [int(each.payload) for kept in self._routes.values() for each in kept.values()]


class Bench:
    """A sender on a real session with one connected client, `visitor`; tests set the clock and the start of a loss."""

    def __init__(self, stack: ExitStack, replay: RetransmitConfig) -> None:
        self._stack = stack
        self.clock_step_ms = 0
        self.frozen_ns: int | None = None
        clock = Clock(self._monotonic_ns, lambda: CLOCK.wall_ms() + self.clock_step_ms)
        context = EndpointContext("backbone", ALPHA, clock)
        self.here = free_locator()
        self.session = session = stack.enter_context(plain_session(listen=[self.here]))
        self.links = LinkMonitor(EndpointContext("backbone", ALPHA, CLOCK))
        self.opened: list[Hashable] = []
        self.answered = AnsweredRequests(10)
        self.kept = KeptMessages()
        self.sender = ZenohSender(
            session,
            self.links,
            context,
            replay,
            self.answered,
            self.opened.append,
            sent_store=self.kept,
        )
        stack.callback(self.links.close)
        self.links.start(session)
        self.lost_since_ns = LONG_AGO
        self.links._confirmed_ns = lambda now_ns: LONG_AGO  # type: ignore[method-assign]
        self.links.lost_since_ns = lambda noticed_ns: self.lost_since_ns  # type: ignore[method-assign]
        self.visitor = stack.enter_context(plain_session("client", connect=[self.here]))
        wait_until(lambda: self.links.up, "the link")
        # A monitor that a busy machine stalls for 0.3 s can find the visitor suspect, and then puts outlive their bounds.
        for node in self.links._nodes.values():
            node.is_suspect = lambda now_ns: False  # type: ignore[method-assign]
        self._marks_seen = 0
        self._mark_subscriber = self.visitor.declare_subscriber("seen", self._on_mark)
        self._marks = session.declare_publisher("seen", priority=zenoh.Priority.BACKGROUND)
        wait_until(lambda: bool(self._marks.matching_status.matching), "a subscriber of marks")  # type: ignore[attr-defined]

    def _monotonic_ns(self) -> int:
        return CLOCK.monotonic_ns() if self.frozen_ns is None else self.frozen_ns

    def freeze(self) -> None:
        """Stop the sender's clock, and let only the test change `links.up`.

        A batch with a ttl ends after BATCH_SEND_MS, which a busy machine exceeds. The monitor sets `up` every 50 ms.
        """
        self.frozen_ns = CLOCK.monotonic_ns()
        self.links._update_state = lambda: False  # type: ignore[method-assign]

    def _on_mark(self, sample: zenoh.Sample) -> None:
        self._marks_seen += 1

    def wait_arrived(self) -> None:
        """Wait until the visitor has received all puts: a mark of the lowest priority arrives last."""
        seen = self._marks_seen
        self._marks.put(b"")
        wait_until(lambda: self._marks_seen > seen, "the mark")

    @contextmanager
    def held_monitor(self) -> Iterator[Callable[[], None]]:
        """Within a `with` block the monitor thread runs no task. Yields a function that makes one tick."""
        started, go_on = Event(), Event()

        def hold() -> None:
            started.set()
            go_on.wait(30)

        self.links.run_on_monitor(hold)
        try:
            assert started.wait(30)
            yield self.sender._on_monitor_tick
        finally:
            go_on.set()

    def wait_monitor(self) -> None:
        """Wait until the monitor thread has run its tasks."""
        done = Event()
        self.links.run_on_monitor(done.set)
        assert done.wait(30)

    def listen(self) -> "zenoh.Subscriber[zenoh.Handler[zenoh.Sample]]":
        return self.visitor.declare_subscriber("up/**")

    def put(self, *messages: UMessage) -> None:
        for message in messages:
            wait_until(lambda: self.is_accepted(message), "a listener")  # noqa: B023  called at once

    def is_accepted(self, message: UMessage) -> bool:
        try:
            self.sender.put_message(message)
        except RouteUnavailable:
            return False
        return True

    def unsubscribe(self, subscriber: "zenoh.Subscriber[zenoh.Handler[zenoh.Sample]]") -> None:
        """Undeclare a subscriber that has received all puts, and wait until the sender detects the loss."""
        self.wait_arrived()
        subscriber.undeclare()  # type: ignore[no-untyped-call]
        wait_until(lambda: any(each.lost_ns for each in self._publishers_after_tick()), "the loss")

    # The only access to the routes and the retransmit buffer of the sender.

    @property
    def publishers(self) -> list[publisher._RoutePublisher]:
        return list(self.sender._publishers.values())

    @property
    def remembered_count(self) -> int:
        return len(self.sender._retransmit_buffer)

    @property
    def remembered(self) -> list[tuple[int, UMessage]]:
        """The time of the put and the message, for each remembered message of the only route."""
        [only] = self.publishers
        return self.sender._retransmit_buffer.messages_of({only}).get(only, [])

    def wait_all_lost(self) -> None:
        wait_until(lambda: all(each.lost_ns for each in self._publishers_after_tick()), "the losses")

    def _publishers_after_tick(self) -> list[publisher._RoutePublisher]:
        if self.frozen_ns is not None:  # the ticks of the monitor follow this clock
            self.sender._on_monitor_tick()
        return self.publishers

    def replace_put(self, attributes: UAttributes, put: Callable[..., None]) -> publisher._RoutePublisher:
        """Let the open route of `attributes` call `put` instead of Zenoh. Returns the route."""
        header = self.sender._headers[attributes]
        self.sender._headers[attributes] = msgspec.structs.replace(header, put=put)
        return header.publisher


MakeBench = Callable[..., Bench]


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    with ExitStack() as stack:
        yield lambda **bounds: Bench(stack, RetransmitConfig(**bounds))


def numbered(n: int, topic: int = 0, **keywords: object) -> UMessage:
    return publish(new_id(), TOPIC.with_resource(0x8000 + topic), b"%d" % n, **keywords)  # type: ignore[arg-type]


def received(subscriber: "zenoh.Subscriber[zenoh.Handler[zenoh.Sample]]", count: int) -> list[int]:
    return [int(subscriber.recv().payload.to_bytes()) for _ in range(count)]


def test_a_route_without_subscriber_is_refused_and_its_opening_is_reported(make_bench: MakeBench) -> None:
    bench = make_bench()
    with pytest.raises(RouteUnavailable, match="no subscriber for") as refused:
        bench.sender.put_message(numbered(0))
    assert bench.opened == []
    subscriber = bench.listen()
    wait_until(lambda: bool(bench.opened), "the opening")
    assert bench.opened == [refused.value.route]
    bench.sender.put_message(numbered(1))
    assert received(subscriber, 1) == [1]


def test_messages_of_one_topic_and_class_share_a_route(make_bench: MakeBench) -> None:
    bench = make_bench()
    routes = []
    for message in (numbered(0), numbered(1, ttl=5000), numbered(2, priority=UPriority.CS5), numbered(3, 1)):
        with pytest.raises(RouteUnavailable) as refused:
            bench.sender.put_message(message)
        routes.append(refused.value.route)
    assert routes[0] == routes[1]
    assert len(set(routes)) == 3


def absent_from_ns(bench: Bench, message: UMessage) -> int | None:
    with pytest.raises(RouteUnavailable) as refused:
        bench.sender.put_message(message)
    return refused.value.absent_from_ns


def test_a_subscriber_is_expected_for_a_while_after_a_declaration_and_after_a_loss(
    make_bench: MakeBench,
) -> None:
    bench = make_bench()
    bench.links.settled_ns = 0
    bench.frozen_ns = 1_000 * NS_PER_MS
    assert absent_from_ns(bench, numbered(0)) == 1_500 * NS_PER_MS
    bench.frozen_ns = 9_000 * NS_PER_MS
    assert absent_from_ns(bench, numbered(0)) == 1_500 * NS_PER_MS
    subscriber = bench.listen()
    bench.put(numbered(0))
    assert received(subscriber, 1) == [0]
    bench.unsubscribe(subscriber)
    assert absent_from_ns(bench, numbered(1)) == 10_500 * NS_PER_MS


def test_a_subscriber_is_expected_until_the_links_have_settled(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.links.settled_ns = 1 << 61
    assert absent_from_ns(bench, numbered(0)) == 1 << 61


def test_a_subscriber_that_matches_is_never_absent(make_bench: MakeBench) -> None:
    """Its route opens a moment later, on the thread of the monitor."""
    bench = make_bench()
    with bench.held_monitor():
        absent_from_ns(bench, numbered(0))
        _subscriber = bench.listen()
        wait_until(lambda: absent_from_ns(bench, numbered(0)) is None, "the match")


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
    put = monotonic_ns()
    wait_until(lambda: monotonic_ns() > put + 2_000_000, "a longer time than the window")
    bench.lost_since_ns = 1
    bench.unsubscribe(subscriber)
    assert received(bench.listen(), 1) == [0]


def test_without_a_known_loss_the_window_applies(make_bench: MakeBench) -> None:
    bench = make_bench(ms=1)
    subscriber = bench.listen()
    bench.put(numbered(0))
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


def test_an_evicted_publisher_counts_its_unsent_retransmissions(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.sender._max_publishers = 1
    subscriber = bench.listen()
    bench.put(numbered(0))
    bench.unsubscribe(subscriber)
    assert not bench.is_accepted(numbered(1, 1))
    assert bench.sender.not_retransmitted == 1


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
    messages, forgotten = bench.sender.unconfirmed()
    assert ([int(each.payload) for each in messages], forgotten) == ([1, 3, 4], 0)
    bench.links.unconfirmed_spans = list  # type: ignore[method-assign]
    assert bench.sender.unconfirmed() == ([], 0)


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
    messages, forgotten = bench.sender.unconfirmed()
    assert ([int(each.payload) for each in messages], forgotten) == ([2, 3, 4], 2)
    subscriber = bench.listen()
    bench.put(numbered(5))
    assert received(subscriber, 4) == [2, 3, 4, 5]
    assert bench.sender.not_retransmitted == 2


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
        bench.links.has_suspect = True
        tick()
        assert bench.kept.numbers == [0, 1]
        bench.put(numbered(2))
        tick()
        assert sorted(bench.kept.numbers) == [0, 1, 2]
        bench.links.has_suspect = False
        tick()
        assert sorted(bench.kept.numbers) == [0, 1, 2]
        bench.links.confirmed_ns = monotonic_ns()
        tick()
        assert bench.kept.numbers == []
        bench.links.has_suspect = True
        tick()
        assert bench.kept.numbers == []  # confirmed


def test_a_busy_store_gets_the_same_puts_again(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(numbered(0))
    assert received(subscriber, 1) == [0]
    with bench.held_monitor() as tick:
        bench.links.has_suspect = bench.kept.is_busy = True
        tick()
        assert bench.kept.numbers == []
        bench.kept.is_busy = False
        tick()
        assert bench.kept.numbers == [0]
        bench.links.has_suspect, bench.links.confirmed_ns, bench.kept.is_busy = False, monotonic_ns(), True
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
    bench = make_bench()
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
    bench.sender._max_publishers = 2
    bench.put(numbered(2, 7))  # evicts the first one
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
    bench.sender._max_publishers = 4
    with bench.held_monitor():
        for number in range(9):
            bench.sender.prepare_topic(topic_of(number))
        assert len(bench.sender._unprepared) == 4
    wait_until(lambda: not bench.sender._unprepared, "the topics")
    bench.wait_monitor()
    assert [each.route[0] for each in bench.publishers] == [topic_of(0), topic_of(1)]


def test_a_put_that_waits_does_not_stop_the_monitor(make_bench: MakeBench) -> None:
    bench = make_bench()
    with bench.sender._lock:
        bench.sender.prepare_topic(topic_of(0))
        wait_until(lambda: not bench.sender._unprepared, "the topic")
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
    declare, declared = bench.sender._declare_publisher, list[publisher._RoutePublisher]()

    def declare_both(
        attributes: UAttributes, route: publisher.ZenohRoute, *key: zenoh.KeyExpr
    ) -> publisher._RoutePublisher:
        declared.append(declare(attributes, route, *key))
        mine = declared[-1]
        if len(declared) == 1:
            bench.put(numbered(0))
        return mine

    monkeypatch.setattr(bench.sender, "_declare_publisher", declare_both)
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
        assert not bench.sender._unprepared
    assert not bench.publishers


def test_a_list_is_put_in_order_and_stored(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(numbered(0), numbered(1, 1))
    shared = [numbered(0, topic).attributes for topic in range(2)]
    many = [UMessage(new_id(), shared[n // 5 % 2], b"%d" % n) for n in range(2, 40)]  # five of each in a row
    assert bench.sender.put_batch(many) == 38
    assert received(subscriber, 40) == list(range(40))
    assert (bench.sender.sent, bench.remembered_count) == (40, 40)
    bench.unsubscribe(subscriber)
    bench.wait_all_lost()
    again = received(bench.listen(), 40)
    first = [0, *(n for n in range(2, 40) if n // 5 % 2 == 0)]
    assert [n for n in again if n in first] == first
    second = [1, *(n for n in range(2, 40) if n // 5 % 2)]
    assert [n for n in again if n in second] == second


def answered(n: int, **changes: object) -> UMessage:
    sent_request = request(new_id(), REMOTE_CLIENT, METHOD, ttl=60_000)
    answer = response(new_id(), sent_request, b"%d" % n)
    return UMessage(answer.id, msgspec.structs.replace(answer.attributes, **changes), answer.payload)


def read(subscriber: "zenoh.Subscriber[zenoh.Handler[zenoh.Sample]]", count: int) -> list[UMessage]:
    """The messages that a subscriber receives, decoded by the readable path."""
    found = []
    for _ in range(count):
        sample = subscriber.recv()
        assert sample.attachment is not None
        found.append(
            decode_sample(str(sample.key_expr), sample.attachment.to_bytes(), sample.payload.to_bytes())
        )
    return [each for each in found if isinstance(each, UMessage)]


def test_responses_are_put_identically_one_by_one_in_batches_and_again(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[UAttributes] = []

    def counting(attributes: UAttributes) -> bytes:
        encoded.append(attributes)
        return encode_tail(attributes)

    monkeypatch.setattr(publisher, "encode_tail", counting)
    bench = make_bench()
    subscriber = bench.listen()
    kinds: list[dict[str, object]] = [
        {},
        {"commstatus": UCode.INTERNAL, "payload_format": UPayloadFormat.PROTOBUF},
        {"token": "of its own"},
    ]
    first = [answered(n, **kind) for n, kind in enumerate(kinds)]
    bench.put(*first)
    many = [answered(n, **kinds[n // 4 % 2]) for n in range(3, 40)]
    assert bench.sender.put_batch(many) == 37
    many.append(answered(40, **kinds[2]))  # its header is never cached
    assert bench.sender.put_batch(many[-1:]) == 1
    for n in range(41, 44):
        many.append(answered(n))
        bench.put(many[-1])
    sent = [*first, *many]
    assert read(subscriber, len(sent)) == sent
    # Three kinds; the one with a token is encoded at every try, the others once.
    assert [each.token for each in encoded].count(None) == 2
    bench.unsubscribe(subscriber)
    assert read(bench.listen(), len(sent)) == sent


def test_a_response_with_an_invalid_reqid_is_always_refused(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(answered(0))
    assert read(subscriber, 1)
    for reqid in (None, UUID(1, 1)):
        wrong = answered(1, reqid=reqid)
        assert bench.sender.put_batch([wrong]) == 0
        with pytest.raises(UStatusError, match="expected reqid"):
            bench.sender.put_message(wrong)


def test_the_response_headers_are_bounded_and_dropped_with_their_publisher(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "_MAX_HEADERS", 10)
    bench = make_bench()
    _subscriber = bench.listen()
    for n in range(30):
        bench.put(answered(n, ttl=60_000 + n))
        assert len(bench.sender._response_headers) <= 10
    bench.sender._evict_publisher()
    assert not bench.sender._response_headers


def test_a_list_ends_at_the_first_message_that_cannot_be_put(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.visitor.declare_subscriber(f"up/{ALPHA}/*/*/*/8000/**")
    bench.put(numbered(0))
    assert not bench.is_accepted(numbered(9, 1))  # no subscriber for this one
    assert bench.sender.put_batch([numbered(1), numbered(2), numbered(9, 1), numbered(3)]) == 2
    assert bench.sender.put_batch([numbered(9, 2), numbered(3)]) == 0  # no subscriber: left to `put_message`
    assert bench.sender.put_batch([]) == 0
    assert received(subscriber, 3) == [0, 1, 2]
    assert bench.sender.sent == 3


@every_iterable
def test_a_batch_ends_when_the_link_goes_down(make_bench: MakeBench, together: AsIterable) -> None:
    bench = make_bench()
    _subscriber = bench.listen()
    bench.put(numbered(0))
    attributes = numbered(0).attributes
    bench.freeze()
    puts: list[bytes] = []

    def put(payload: bytes, *, attachment: bytes) -> None:
        puts.append(payload)
        bench.links.up = len(puts) < 3

    bench.replace_put(attributes, put)
    similar = [UMessage(new_id(), attributes, b"%d" % n) for n in range(1, 9)]
    assert bench.sender.put_batch(together(similar)) == 3
    assert (puts, bench.sender.sent) == ([b"1", b"2", b"3"], 4)
    assert [each.payload for _, each in bench.remembered] == [b"0", b"1", b"2", b"3"]
    assert bench.sender.put_batch(together(similar)) == 0
    assert (puts, bench.sender.sent) == ([b"1", b"2", b"3"], 4)


@every_iterable
def test_equal_messages_are_put_and_stored_like_single_ones(
    make_bench: MakeBench, together: AsIterable
) -> None:
    """An iterator yields each message after the previous put, so it has no columns."""
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(numbered(0, ttl=60_000))
    attributes = numbered(0, ttl=60_000).attributes
    many = [UMessage(new_id(), attributes, b"x" * n) for n in range(70)]
    bench.freeze()
    assert bench.sender.put_batch(together(many)) == 70
    assert read(subscriber, 71)[1:] == many
    assert [message for _, message in bench.remembered][1:] == many
    times_ns = [put_ns for put_ns, _ in bench.remembered]
    assert times_ns == sorted(times_ns)
    assert bench.sender.sent == 71


@every_iterable
def test_a_batch_ends_at_a_put_that_zenoh_refuses(make_bench: MakeBench, together: AsIterable) -> None:
    bench = make_bench()
    _subscriber = bench.listen()
    bench.put(numbered(0))
    attributes = numbered(0).attributes
    puts: list[bytes] = []

    def put(payload: bytes, *, attachment: bytes) -> None:
        if len(puts) == 2:
            raise zenoh.ZError("no")
        puts.append(payload)

    bench.replace_put(attributes, put)
    similar = [UMessage(new_id(), attributes, b"%d" % n) for n in range(1, 9)]
    assert bench.sender.put_batch(together(similar)) == 2
    assert (puts, bench.sender.sent, bench.remembered_count) == ([b"1", b"2"], 3, 3)


# --- batches ----------------------------------------------------------------------------------------------------------


class RecordedPuts:
    """Replaces Zenoh's put of an open route: records puts, refuses after `max_puts`, ends the link after `last`."""

    def __init__(self, bench: Bench, attributes: UAttributes, listener: object) -> None:
        self.listener = listener  # referenced, else the route closes
        self.puts: list[tuple[bytes, bytes]] = []
        self.max_puts: int | None = None
        self.last = self.at_ns = 0
        self.links = bench.links
        bench.replace_put(attributes, self).put = self

    def __call__(self, payload: bytes, *, attachment: bytes) -> None:
        if len(self.puts) == self.max_puts:
            raise zenoh.ZError("no")
        self.puts.append((payload, attachment))
        self.at_ns = monotonic_ns()
        self.links.up = len(self.puts) != self.last


def open_route(bench: Bench) -> tuple[UAttributes, RecordedPuts]:
    """An open route whose puts are recorded and not sent."""
    subscriber = bench.listen()
    first = numbered(0)
    bench.put(first)
    return first.attributes, RecordedPuts(bench, first.attributes, subscriber)


COUNTS = [1, 8, 127, 128, 129]


def similar(attributes: UAttributes, count: int) -> list[UMessage]:
    return [UMessage(new_id(), attributes, b"%d" % n * (n % 3)) for n in range(count)]


def assert_put_as_one_by_one(
    bench: Bench, puts: RecordedPuts, batch: MessageBatch, messages: list[UMessage]
) -> None:
    """A batch, the list of its messages, single messages and slices cause the same puts and memories."""
    bench.freeze()
    puts.puts.clear()
    before, count, sent = [message for _, message in bench.remembered], len(messages), bench.sender.sent
    assert bench.sender.put_batch(batch) == count
    assert bench.sender.put_batch(messages) == count
    for message in messages:
        bench.sender.put_message(message)
    expected = [(each.payload, VERSION_BYTE + encode(each.id, each.attributes)) for each in messages]
    assert puts.puts == expected * 3
    assert [message for _, message in bench.remembered] == [*before, *messages * 3]
    assert bench.sender.sent == sent + 3 * count
    # Slices, too.
    assert bench.sender.put_batch(batch[count // 2 :]) == count - count // 2
    assert bench.sender.put_batch(batch[count:]) == 0
    assert puts.puts == [*expected * 3, *expected[count // 2 :]]
    assert [message for _, message in bench.remembered] == [*before, *messages * 3, *messages[count // 2 :]]


@every_batch
def test_a_batch_is_put_and_stored_like_single_messages(
    make_bench: MakeBench, batch_of: Callable[[list[UMessage]], MessageBatch]
) -> None:
    bench = make_bench()
    attributes, puts = open_route(bench)
    for count in COUNTS:
        messages = similar(attributes, count)
        assert_put_as_one_by_one(bench, puts, batch_of(messages), messages)


@every_iterable
def test_a_batch_is_stored_with_the_time_of_its_last_put(make_bench: MakeBench, together: AsIterable) -> None:
    """A link lost during the puts has lost some of them."""
    bench = make_bench()
    attributes, puts = open_route(bench)
    assert bench.sender.put_batch(together(similar(attributes, 20))) == 20
    last_ns, now_ns = puts.at_ns, monotonic_ns()
    times_ns = {put_ns for put_ns, _ in bench.remembered[1:]}
    assert len(times_ns) == 1
    assert last_ns <= min(times_ns) <= now_ns


def test_received_payloads_and_equal_attachments_are_put_without_copy(make_bench: MakeBench) -> None:
    bench = make_bench()
    attributes, puts = open_route(bench)
    batch = as_received(similar(attributes, 20))
    assert type(batch.ids) is AttachmentColumns
    bench.sender.put_batch(batch)
    for arrived, (payload, attachment) in zip(
        zip(batch.payloads, batch.ids.items, strict=True), puts.puts, strict=True
    ):
        assert (payload, attachment) == arrived
        assert payload is arrived[0]
        assert attachment is arrived[1]


def test_foreign_attributes_of_received_attachments_are_not_put(make_bench: MakeBench) -> None:
    bench = make_bench()
    attributes, puts = open_route(bench)
    batch = as_received_with_sink(similar(attributes, 20))
    assert type(batch.ids) is AttachmentColumns
    bench.sender.put_batch(batch)
    assert [payload for payload, _ in puts.puts] == batch.payloads
    assert {attachment[21:] for _, attachment in puts.puts} == {encode_tail(attributes)}
    assert batch.ids.tail != encode_tail(attributes)


@every_batch
@pytest.mark.parametrize("how", ["refused", "link down"])
def test_a_batch_ends_at_the_first_failed_put(
    make_bench: MakeBench, batch_of: Callable[[list[UMessage]], MessageBatch], how: str
) -> None:
    bench = make_bench()
    attributes, puts = open_route(bench)
    for taken in TAKEN:
        messages = similar(attributes, 20)
        assert_ends_after(bench, puts, batch_of(messages), messages, how, taken)


TAKEN = [0, 1, 7, 19, 20]


def assert_ends_after(
    bench: Bench, puts: RecordedPuts, batch: MessageBatch, messages: list[UMessage], how: str, taken: int
) -> None:
    """Only the successful puts are counted and stored, whether all or none."""
    bench.freeze()
    before, sent = [message for _, message in bench.remembered], bench.sender.sent
    puts.puts.clear()
    if how == "refused":
        puts.max_puts = taken
    else:
        puts.last = taken
        bench.links.up = taken > 0
    assert bench.sender.put_batch(batch) == taken
    assert [payload for payload, _ in puts.puts] == [each.payload for each in messages[:taken]]
    assert bench.sender.sent == sent + taken
    assert [message for _, message in bench.remembered] == before + messages[:taken]
    assert bench.links.up is (how == "refused")


@every_batch
def test_a_batch_that_cannot_be_sent_is_left_to_put_message(
    make_bench: MakeBench, batch_of: Callable[[list[UMessage]], MessageBatch]
) -> None:
    bench = make_bench()
    messages = similar(numbered(0).attributes, 20)
    assert bench.sender.put_batch(batch_of(messages)) == 0  # never put before
    assert not bench.is_accepted(numbered(0))
    assert bench.sender.put_batch(batch_of(messages)) == 0  # no subscriber
    assert (bench.sender.sent, bench.remembered_count) == (0, 0)
    with pytest.raises(RouteUnavailable):
        bench.sender.put_message(messages[0])


@every_batch
def test_a_batch_is_counted_without_a_retransmit_buffer(
    make_bench: MakeBench, batch_of: Callable[[list[UMessage]], MessageBatch]
) -> None:
    bench = make_bench(ms=0)
    attributes, puts = open_route(bench)
    assert bench.sender.put_batch(batch_of(similar(attributes, 20))) == 20
    assert (len(puts.puts), bench.sender.sent, bench.remembered_count) == (20, 21, 0)


@every_batch
def test_a_possibly_lost_batch_is_put_again(
    make_bench: MakeBench, batch_of: Callable[[list[UMessage]], MessageBatch]
) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    first = numbered(0)
    bench.put(first)
    messages = similar(first.attributes, 200)
    assert bench.sender.put_batch(batch_of(messages)) == 200
    assert bench.sender.put_batch(messages[:3]) == 3
    sent = [first, *messages, *messages[:3]]
    assert read(subscriber, len(sent)) == sent
    bench.unsubscribe(subscriber)
    assert bench.sender.put_batch(batch_of(messages)) == 0
    assert read(bench.listen(), 201) == sent[:201]  # each once, however often it was put
    wait_until(lambda: bench.sender.retransmitted == 201, "the count")


# --- batches of responses ---------------------------------------------------------------------------------------------


def responses_as_columns(messages: list[UMessage]) -> MessageBatch:
    batch = batch_of_responses(messages)
    assert batch is not None
    return batch


def responses_as_received(messages: list[UMessage]) -> MessageBatch:
    """A batch of responses received over Zenoh."""
    attachments = [VERSION_BYTE + encode(each.id, each.attributes) for each in messages]
    attributes, decoder = messages[0].attributes, SampleDecoder()
    key = message_key(attributes.source, attributes.sink, ALPHA)
    decoder.decode(key, attachments[0], b"")
    batch = decoder.decode_batch(key, attachments, [each.payload for each in messages])
    assert batch is not None
    assert batch.reqids is not None
    return batch


RESPONSE_BATCHES = {"id columns": responses_as_columns, "attachments": responses_as_received}
every_response_batch = pytest.mark.parametrize("batch_of", RESPONSE_BATCHES.values(), ids=RESPONSE_BATCHES)
KINDS_OF_RESPONSES: dict[str, dict[str, object]] = {
    "with ttl": {},
    "without ttl": {"ttl": None},
    "failed": {"commstatus": UCode.INTERNAL, "payload_format": UPayloadFormat.PROTOBUF},
    "reqid last": {"payload_format": UPayloadFormat.UNSPECIFIED},
}


def open_response_route(bench: Bench, **changes: object) -> RecordedPuts:
    """As `open_route`, for responses with these attributes."""
    subscriber = bench.listen()
    first = answered(0, **changes)
    bench.put(first)
    common = msgspec.structs.replace(first.attributes, reqid=None)
    header = bench.sender._response_headers[common]
    bench.sender._headers[common] = header
    puts = RecordedPuts(bench, common, subscriber)
    bench.sender._response_headers[common] = bench.sender._headers.pop(common)
    return puts


@every_response_batch
@pytest.mark.parametrize("changes", KINDS_OF_RESPONSES.values(), ids=KINDS_OF_RESPONSES)
def test_a_response_batch_is_put_and_stored_like_single_messages(
    make_bench: MakeBench,
    batch_of: Callable[[list[UMessage]], MessageBatch],
    changes: dict[str, object],
) -> None:
    bench = make_bench()
    puts = open_response_route(bench, **changes)
    for count in COUNTS:
        messages = [answered(n, **changes) for n in range(count)]
        assert_put_as_one_by_one(bench, puts, batch_of(messages), messages)


@every_response_batch
def test_unknown_responses_are_left_to_put_message(
    make_bench: MakeBench, batch_of: Callable[[list[UMessage]], MessageBatch]
) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    messages = [answered(n) for n in range(9)]
    assert bench.sender.put_batch(batch_of(messages)) == 0
    bench.put(answered(9, ttl=1_000))
    assert bench.sender.put_batch(batch_of(messages)) == 0
    assert (bench.sender.sent, bench.remembered_count) == (1, 1)
    bench.put(messages[0])
    assert bench.sender.put_batch(batch_of(messages[1:])) == 8
    assert read(subscriber, 10)[1:] == messages


@every_response_batch
@pytest.mark.parametrize("how", ["refused", "link down"])
def test_a_response_batch_ends_at_the_first_failed_put(
    make_bench: MakeBench, batch_of: Callable[[list[UMessage]], MessageBatch], how: str
) -> None:
    bench = make_bench()
    puts = open_response_route(bench)
    for taken in TAKEN:
        messages = [answered(n) for n in range(20)]
        assert_ends_after(bench, puts, batch_of(messages), messages, how, taken)


@every_response_batch
def test_a_possibly_lost_response_batch_is_put_again(
    make_bench: MakeBench, batch_of: Callable[[list[UMessage]], MessageBatch]
) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    messages = [answered(n) for n in range(200)]
    bench.put(messages[0])
    bench.freeze()
    assert bench.sender.put_batch(batch_of(messages[1:])) == 199
    assert read(subscriber, 200) == messages
    bench.unsubscribe(subscriber)
    assert bench.sender.put_batch(batch_of(messages)) == 0
    assert read(bench.listen(), 200) == messages


# --- slow batches -----------------------------------------------------------------------------------------------------

SEND_NS = BATCH_SEND_MS * 1_000_000


class SlowPut:
    """A put that waits: the sender's clock advances at each put."""

    def __init__(self, bench: Bench, puts: RecordedPuts, each_ns: int) -> None:
        self.now_ns = CLOCK.monotonic_ns()
        self.each_ns = each_ns
        self._puts = puts
        bench.sender._monotonic_ns = lambda: self.now_ns
        for headers in (bench.sender._headers, bench.sender._response_headers):
            for attributes, header in headers.items():
                headers[attributes] = msgspec.structs.replace(header, put=self)

    def __call__(self, payload: bytes, *, attachment: bytes) -> None:
        self.now_ns += self.each_ns
        self._puts(payload, attachment=attachment)


@pytest.mark.parametrize("kind", ["events", "responses"])
@pytest.mark.parametrize(
    ("ttl", "each_ns", "taken"),
    [
        (60_000, SEND_NS // 4, 5),
        (60_000, SEND_NS // 19, 20),
        (60_000, SEND_NS, 2),
        (60_000, SEND_NS + 1, 1),
        (60_000, 0, 20),
        (0, 2 * SEND_NS, 20),
        (None, 2 * SEND_NS, 20),
    ],
)
def test_a_batch_with_ttl_ends_when_its_puts_take_too_long(
    make_bench: MakeBench, kind: str, ttl: int | None, each_ns: int, taken: int
) -> None:
    """The ttl is checked once per batch, which is valid for BATCH_SEND_MS; the rest is checked again."""
    bench = make_bench()
    if kind == "responses":
        puts = open_response_route(bench, ttl=ttl)
        messages = [answered(n, ttl=ttl) for n in range(20)]
        batch = responses_as_columns(messages)
    else:
        subscriber = bench.listen()
        first = numbered(0, ttl=ttl)
        bench.put(first)
        puts = RecordedPuts(bench, first.attributes, subscriber)
        messages = similar(first.attributes, 20)
        batch = as_id_columns(messages)
    before = [message for _, message in bench.remembered]
    SlowPut(bench, puts, each_ns)
    assert bench.sender.put_batch(batch) == taken
    assert [payload for payload, _ in puts.puts] == [each.payload for each in messages[:taken]]
    assert bench.sender.sent == 1 + taken
    assert [message for _, message in bench.remembered] == before + messages[:taken]


class _LockThatWaits:
    """A lock that another sender holds for some time."""

    def __init__(self, waits: SlowPut, ns: int) -> None:
        self._waits, self._ns = waits, ns

    def __enter__(self) -> None:
        self._waits.now_ns += self._ns

    def __exit__(self, *_: object) -> None:
        pass

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return False  # the monitor does not wait for it


@pytest.mark.parametrize(
    ("ttl", "ns", "taken"), [(60_000, SEND_NS, 20), (60_000, SEND_NS + 1, 0), (None, 2 * SEND_NS, 20)]
)
def test_waiting_for_another_sender_counts_against_the_send_time(
    make_bench: MakeBench, ttl: int | None, ns: int, taken: int
) -> None:
    bench = make_bench()
    puts = open_response_route(bench, ttl=ttl)
    waits = SlowPut(bench, puts, 0)
    bench.sender._lock = _LockThatWaits(waits, ns)  # type: ignore[assignment]
    assert bench.sender.put_batch(responses_as_columns([answered(n, ttl=ttl) for n in range(20)])) == taken
    assert len(puts.puts) == taken


def test_a_header_above_the_limit_costs_as_much_as_one_below() -> None:
    header: Any = SimpleNamespace(publisher=SimpleNamespace(headers={}))
    headers: OrderedDict[Any, Any] = OrderedDict()
    limit = publisher._MAX_HEADERS

    def cached_ns(first: int) -> int:
        began_ns = thread_time_ns()
        for number in range(first, first + limit):
            publisher._cache_header(headers, number, header)  # type: ignore[arg-type]  # any key
        return thread_time_ns() - began_ns

    below_ns, above_ns = cached_ns(0), cached_ns(limit)
    assert len(headers) == len(header.publisher.headers) == limit
    assert above_ns < 8 * below_ns, "a plain dict takes about 20 times as long"
