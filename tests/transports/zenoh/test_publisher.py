# SPDX-License-Identifier: Apache-2.0
"""Routes that open and close, and what is put again: against real sessions in this process."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import ExitStack
from time import monotonic_ns

import msgspec
import pytest
import zenoh

from tests.response_batches import batch_of_responses
from tests.transports.contract import ALPHA, METHOD, REMOTE_CLIENT, TOPIC, new_id, wait_until
from tests.transports.zenoh.sessions import CLOCK, free_locator, plain_session
from ustreamer.core.base.clock import Clock
from ustreamer.core.delivery.expiry import BATCH_SEND_MS
from ustreamer.transport_port import EndpointContext, RouteUnavailable
from ustreamer.transports.zenoh import publisher
from ustreamer.transports.zenoh.decoder import VERSION_BYTE, AttachmentColumns, SampleDecoder, decode_sample
from ustreamer.transports.zenoh.keys import message_key
from ustreamer.transports.zenoh.link_monitor import LinkMonitor
from ustreamer.transports.zenoh.publisher import ZenohSender
from ustreamer.transports.zenoh.retransmit import AnsweredRequests, RetransmitConfig
from ustreamer.uprotocol.batch import IdColumns, MessageBatch
from ustreamer.uprotocol.uattributes import UAttributes, UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage, publish, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import any_at
from ustreamer.uprotocol.wire import encode, encode_tail

LONG_AGO = 0

AsIterable = Callable[[list[UMessage]], Iterable[UMessage]]


def as_id_columns(messages: list[UMessage]) -> MessageBatch:
    """A run whose ids are halves, as those of messages that were made here."""
    run = MessageBatch.from_messages(messages)
    assert run is not None
    assert type(run.ids) is IdColumns
    return run


def as_received(messages: list[UMessage], **changes: object) -> MessageBatch:
    """A run that came in over Zenoh; `changes`: said on the wire besides, and not to be said by us."""
    attributes = messages[0].attributes
    stated = msgspec.structs.replace(attributes, **changes)
    attachments = [VERSION_BYTE + encode(each.id, stated) for each in messages]
    key, reader = message_key(attributes.source, attributes.sink, ALPHA), SampleDecoder()
    reader.decode(key, attachments[0], b"")
    run = reader.decode_batch(key, attachments, [each.payload for each in messages])
    assert run is not None
    assert run.attributes == attributes
    assert type(run.ids) is AttachmentColumns
    return run


def as_received_with_sink(messages: list[UMessage]) -> MessageBatch:
    """With a sink on publications, as some streamers put it, which is not ours to say."""
    return as_received(messages, sink=any_at(REMOTE_CLIENT.authority_name))


RUNS: dict[str, Callable[[list[UMessage]], MessageBatch]] = {
    "halves": as_id_columns,
    "attachments as ours": as_received,
    "attachments of another tail": as_received_with_sink,
}
ITERABLES: dict[str, AsIterable] = {"a list": list, "one after the other": iter, **RUNS}
every_way = pytest.mark.parametrize("together", ITERABLES.values(), ids=ITERABLES)
every_run = pytest.mark.parametrize("run_of", RUNS.values(), ids=RUNS)


class Bench:
    """A sender on a session that a client may be connected to, and what its losses are said to be."""

    def __init__(self, stack: ExitStack, replay: RetransmitConfig) -> None:
        self._stack = stack
        self.clock_step_ms = 0
        clock = Clock(CLOCK.monotonic_ns, lambda: CLOCK.wall_ms() + self.clock_step_ms)
        context = EndpointContext("backbone", ALPHA, clock)
        self.here = free_locator()
        session = stack.enter_context(plain_session(listen=[self.here]))
        self.links = LinkMonitor(context)
        self.opened: list[Hashable] = []
        self.answered = AnsweredRequests(10)
        self.sender = ZenohSender(session, self.links, context, replay, self.answered, self.opened.append)
        stack.callback(self.links.close)
        self.links.start(session)
        self.lost_since_ns = LONG_AGO
        self.links.lost_since_ns = lambda noticed_ns: self.lost_since_ns  # type: ignore[method-assign]
        self.visitor = stack.enter_context(plain_session("client", connect=[self.here]))
        wait_until(lambda: self.links.up, "the link")
        self._marks_seen = 0
        self._mark_subscriber = self.visitor.declare_subscriber("seen", self._on_mark)
        self._marks = session.declare_publisher("seen", priority=zenoh.Priority.BACKGROUND)
        wait_until(lambda: bool(self._marks.matching_status.matching), "somebody to see marks")  # type: ignore[attr-defined]

    def _on_mark(self, sample: zenoh.Sample) -> None:
        self._marks_seen += 1

    def wait_arrived(self) -> None:
        """Wait until the visitor has all that was put: what is less urgent comes behind it."""
        seen = self._marks_seen
        self._marks.put(b"")
        wait_until(lambda: self._marks_seen > seen, "the mark")

    def listen(self) -> "zenoh.Subscriber[zenoh.Handler[zenoh.Sample]]":
        return self.visitor.declare_subscriber("up/**")

    def put(self, *messages: UMessage) -> None:
        for message in messages:
            wait_until(lambda: self.is_accepted(message), "somebody to listen")  # noqa: B023  called at once

    def is_accepted(self, message: UMessage) -> bool:
        try:
            self.sender.put_message(message)
        except RouteUnavailable:
            return False
        return True

    def unsubscribe(self, subscriber: "zenoh.Subscriber[zenoh.Handler[zenoh.Sample]]") -> None:
        """Have a subscriber leave, which has had all that was put, and wait until the sender knows."""
        self.wait_arrived()
        subscriber.undeclare()  # type: ignore[no-untyped-call]
        wait_until(lambda: any(each.lost_ns for each in self.sender._publishers.values()), "the loss")


MakeBench = Callable[..., Bench]


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    with ExitStack() as stack:
        yield lambda **bounds: Bench(stack, RetransmitConfig(**bounds))


def numbered(n: int, topic: int = 0, **keywords: object) -> UMessage:
    return publish(new_id(), TOPIC.with_resource(0x8000 + topic), b"%d" % n, **keywords)  # type: ignore[arg-type]


def received(subscriber: "zenoh.Subscriber[zenoh.Handler[zenoh.Sample]]", count: int) -> list[int]:
    return [int(subscriber.recv().payload.to_bytes()) for _ in range(count)]


def test_a_route_that_nobody_listens_to_is_refused_and_told_when_it_opens(make_bench: MakeBench) -> None:
    bench = make_bench()
    with pytest.raises(RouteUnavailable, match="nobody listens to") as refused:
        bench.sender.put_message(numbered(0))
    assert bench.opened == []
    subscriber = bench.listen()
    wait_until(lambda: bool(bench.opened), "the opening")
    assert bench.opened == [refused.value.route]
    bench.sender.put_message(numbered(1))
    assert received(subscriber, 1) == [1]


def test_messages_of_one_topic_and_class_share_a_route_whatever_else_they_say(make_bench: MakeBench) -> None:
    bench = make_bench()
    routes = []
    for message in (numbered(0), numbered(1, ttl=5000), numbered(2, priority=UPriority.CS5), numbered(3, 1)):
        with pytest.raises(RouteUnavailable) as refused:
            bench.sender.put_message(message)
        routes.append(refused.value.route)
    assert routes[0] == routes[1]
    assert len(set(routes)) == 3


def test_what_may_have_been_lost_is_put_again_in_order_before_anything_newer(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(*(numbered(n) for n in range(3)))
    assert received(subscriber, 3) == [0, 1, 2]
    bench.unsubscribe(subscriber)
    assert not bench.is_accepted(numbered(9))
    subscriber = bench.listen()
    bench.put(numbered(3))
    assert received(subscriber, 4) == [0, 1, 2, 3]
    assert (bench.sender.sent, bench.sender.replayed, bench.sender.not_replayed) == (4, 3, 0)


def test_what_is_put_again_has_the_same_id_and_can_be_lost_again(make_bench: MakeBench) -> None:
    bench = make_bench()
    attachments = set()
    subscriber = bench.listen()
    bench.put(numbered(0))
    for _ in range(3):
        attachment = subscriber.recv().attachment
        assert attachment is not None
        attachments.add(attachment.to_bytes())
        for each in bench.sender._publishers.values():
            each.lost_ns = 0
        bench.unsubscribe(subscriber)
        subscriber = bench.listen()
    assert len(attachments) == 1


def test_only_what_was_put_since_the_loss_began_is_put_again(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(numbered(0))
    bench.lost_since_ns = monotonic_ns()
    bench.put(numbered(1))
    bench.unsubscribe(subscriber)
    assert received(bench.listen(), 1) == [1]
    wait_until(lambda: bench.sender.replayed == 1, "the replay")


def test_how_far_back_a_loss_goes_is_known_better_than_the_window_has_it(make_bench: MakeBench) -> None:
    """It may be noticed long after nothing was put any more."""
    bench = make_bench(ms=1)
    subscriber = bench.listen()
    bench.put(numbered(0))
    put = monotonic_ns()
    wait_until(lambda: monotonic_ns() > put + 2_000_000, "a longer time than the window")
    bench.lost_since_ns = 1
    bench.unsubscribe(subscriber)
    assert received(bench.listen(), 1) == [0]


def test_where_nothing_is_known_of_a_loss_the_window_holds(make_bench: MakeBench) -> None:
    bench = make_bench(ms=1)
    subscriber = bench.listen()
    bench.put(numbered(0))
    put = monotonic_ns()
    wait_until(lambda: monotonic_ns() > put + 2_000_000, "a longer time than the window")
    bench.unsubscribe(subscriber)
    subscriber = bench.listen()
    bench.put(numbered(1))
    assert received(subscriber, 1) == [1]
    assert bench.sender.replayed == 0


def test_what_is_over_is_not_put_again(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    short = numbered(0, ttl=100)
    bench.put(short, numbered(1))
    bench.unsubscribe(subscriber)
    wait_until(lambda: CLOCK.wall_ms() > short.id.time_ms + 100, "its end")
    assert received(bench.listen(), 1) == [1]
    wait_until(lambda: bench.sender.not_replayed == 1, "the count")


def test_a_request_that_was_answered_is_not_put_again(make_bench: MakeBench) -> None:
    """And nothing else is taken for one, whatever an answer says that it answers."""
    bench = make_bench()
    subscriber = bench.listen()
    asked, event = (
        [request(new_id(), REMOTE_CLIENT, METHOD, b"%d" % n, ttl=60_000) for n in range(3)],
        numbered(3),
    )
    bench.put(*asked, event)
    assert received(subscriber, 4) == [0, 1, 2, 3]
    bench.answered.add_reqids([asked[0].id, event.id])
    bench.unsubscribe(subscriber)
    bench.answered.add_reqids([asked[2].id])  # while nobody was there
    subscriber = bench.listen()
    assert sorted(received(subscriber, 2)) == [1, 3]
    last = request(new_id(), REMOTE_CLIENT, METHOD, b"4", ttl=60_000)
    bench.put(last)
    assert received(subscriber, 1) == [4]
    assert (bench.sender.replayed, bench.sender.not_replayed) == (2, 0)


@pytest.mark.parametrize("years", [26, -26])
def test_no_leap_of_the_clock_keeps_what_is_young_from_being_put_again_or_saves_what_is_over(
    make_bench: MakeBench, years: int
) -> None:
    """An ECU boots in 2000, and its clock leaps to today."""
    bench = make_bench()
    subscriber = bench.listen()
    short = numbered(0, ttl=100)
    bench.put(short, numbered(1, ttl=60_000))
    put = monotonic_ns()
    bench.unsubscribe(subscriber)
    bench.clock_step_ms = years * 365 * 86_400_000
    wait_until(lambda: monotonic_ns() > put + 100_000_000, "its end")
    assert received(bench.listen(), 1) == [1]
    wait_until(lambda: bench.sender.not_replayed == 1, "the count")


@pytest.mark.parametrize(
    ("bounds", "again"),
    [
        ({"ms": 0}, []),
        ({"messages": 2}, [3, 4]),
        ({"bytes": 3 * 201}, [2, 3, 4]),
        ({"bytes": 1}, [4]),
    ],
)
def test_what_is_remembered_is_bounded_and_the_oldest_goes(
    make_bench: MakeBench, bounds: dict[str, int], again: list[int]
) -> None:
    bench = make_bench(**bounds)
    subscriber = bench.listen()
    bench.put(*(numbered(n) for n in range(5)))
    bench.unsubscribe(subscriber)
    subscriber = bench.listen()
    bench.put(numbered(5))
    assert received(subscriber, len(again) + 1) == [*again, 5]


def test_the_bounds_are_those_of_all_routes_together(make_bench: MakeBench) -> None:
    bench = make_bench(messages=3)
    subscriber = bench.listen()
    bench.put(*(numbered(n, n % 2) for n in range(5)))
    assert len(bench.sender._retransmit_buffer) == 3
    bench.unsubscribe(subscriber)
    wait_until(lambda: all(each.lost_ns for each in bench.sender._publishers.values()), "both losses")
    assert sorted(received(bench.listen(), 3)) == [2, 3, 4]


def test_what_is_too_old_is_forgotten(make_bench: MakeBench) -> None:
    bench = make_bench(ms=1)
    subscriber = bench.listen()
    bench.put(numbered(0))
    first = monotonic_ns()
    wait_until(lambda: monotonic_ns() > first + 1_000_000, "its age")
    bench.put(numbered(1))
    assert len(bench.sender._retransmit_buffer) == 1
    assert received(subscriber, 2) == [0, 1]


def test_a_publisher_that_goes_before_its_messages_were_put_again_says_so(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.sender._max_publishers = 1
    subscriber = bench.listen()
    bench.put(numbered(0))
    bench.unsubscribe(subscriber)
    assert not bench.is_accepted(numbered(1, 1))
    assert bench.sender.not_replayed == 1


def test_many_are_put_in_their_order_and_remembered(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(numbered(0), numbered(1, 1))
    shared = [numbered(0, topic).attributes for topic in range(2)]
    many = [UMessage(new_id(), shared[n // 5 % 2], b"%d" % n) for n in range(2, 40)]  # five of each in a row
    assert bench.sender.put_batch(many) == 38
    assert received(subscriber, 40) == list(range(40))
    assert (bench.sender.sent, len(bench.sender._retransmit_buffer)) == (40, 40)
    bench.unsubscribe(subscriber)
    wait_until(lambda: all(each.lost_ns for each in bench.sender._publishers.values()), "both losses")
    again = received(bench.listen(), 40)
    first = [0, *(n for n in range(2, 40) if n // 5 % 2 == 0)]
    assert [n for n in again if n in first] == first
    second = [1, *(n for n in range(2, 40) if n // 5 % 2)]
    assert [n for n in again if n in second] == second


def answered(n: int, **changes: object) -> UMessage:
    asked = request(new_id(), REMOTE_CLIENT, METHOD, ttl=60_000)
    answer = response(new_id(), asked, b"%d" % n)
    return UMessage(answer.id, msgspec.structs.replace(answer.attributes, **changes), answer.payload)


def read(subscriber: "zenoh.Subscriber[zenoh.Handler[zenoh.Sample]]", count: int) -> list[UMessage]:
    """What a subscriber gets, as the readable way has it."""
    found = []
    for _ in range(count):
        sample = subscriber.recv()
        assert sample.attachment is not None
        found.append(
            decode_sample(str(sample.key_expr), sample.attachment.to_bytes(), sample.payload.to_bytes())
        )
    return [each for each in found if isinstance(each, UMessage)]


def test_answers_go_out_as_they_are_one_by_one_and_together_and_again(
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
    assert bench.sender.put_batch([answered(40, **kinds[2])]) == 0  # never put before, and never again
    for n in range(41, 44):
        many.append(answered(n))
        bench.put(many[-1])
    sent = [*first, *many]
    assert read(subscriber, len(sent)) == sent
    # Three kinds, the one with a token at every try: nothing else is written anew.
    assert [each.token for each in encoded].count(None) == 2
    bench.unsubscribe(subscriber)
    assert read(bench.listen(), len(sent)) == sent


def test_an_answer_to_what_is_no_id_is_refused_whatever_went_before(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(answered(0))
    assert read(subscriber, 1)
    for reqid in (None, UUID(1, 1)):
        wrong = answered(1, reqid=reqid)
        assert bench.sender.put_batch([wrong]) == 0
        with pytest.raises(UStatusError, match="expected reqid"):
            bench.sender.put_message(wrong)


def test_what_is_kept_of_answers_is_bounded_and_goes_with_its_publisher(
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


def test_many_end_at_the_first_that_cannot_be_put(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.visitor.declare_subscriber(f"up/{ALPHA}/*/*/*/8000/**")
    bench.put(numbered(0))
    assert not bench.is_accepted(numbered(9, 1))  # nobody listens to this one
    assert bench.sender.put_batch([numbered(1), numbered(2), numbered(9, 1), numbered(3)]) == 2
    assert bench.sender.put_batch([numbered(9, 2), numbered(3)]) == 0  # never put before: `put` sees to that
    assert bench.sender.put_batch([]) == 0
    assert received(subscriber, 3) == [0, 1, 2]
    assert bench.sender.sent == 3


@every_way
def test_many_end_with_their_link(make_bench: MakeBench, together: AsIterable) -> None:
    bench = make_bench()
    _subscriber = bench.listen()
    bench.put(numbered(0))
    [(attributes, header)] = bench.sender._headers.items()
    puts: list[bytes] = []

    def put(payload: bytes, *, attachment: bytes) -> None:
        puts.append(payload)
        bench.links.up = len(puts) < 3

    bench.sender._headers[attributes] = msgspec.structs.replace(header, put=put)
    alike = [UMessage(new_id(), attributes, b"%d" % n) for n in range(1, 9)]
    assert bench.sender.put_batch(together(alike)) == 3
    assert (puts, bench.sender.sent) == ([b"1", b"2", b"3"], 4)
    assert [each.payload for each in remembered(bench)] == [b"0", b"1", b"2", b"3"]
    assert bench.sender.put_batch(together(alike)) == 0
    assert (puts, bench.sender.sent) == ([b"1", b"2", b"3"], 4)


@every_way
def test_many_that_are_alike_go_out_and_are_remembered_as_one_by_one(
    make_bench: MakeBench, together: AsIterable
) -> None:
    """An iterator is asked for each message when the one before it was sent, and so knows nothing of what is alike."""
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(numbered(0, ttl=60_000))
    attributes = numbered(0, ttl=60_000).attributes
    many = [UMessage(new_id(), attributes, b"x" * n) for n in range(70)]
    assert bench.sender.put_batch(together(many)) == 70
    assert read(subscriber, 71)[1:] == many
    remembered = bench.sender._retransmit_buffer.messages_of(bench.sender._headers[attributes].publisher)
    assert [message for _, message in remembered][1:] == many
    times_ns = [put_ns for put_ns, _ in remembered]
    assert times_ns == sorted(times_ns)
    assert (bench.sender.sent, bench.sender._headers[attributes].publisher.last_used) == (71, 71)


@every_way
def test_many_end_at_what_zenoh_refuses(make_bench: MakeBench, together: AsIterable) -> None:
    bench = make_bench()
    _subscriber = bench.listen()
    bench.put(numbered(0))
    [(attributes, header)] = bench.sender._headers.items()
    puts: list[bytes] = []

    def put(payload: bytes, *, attachment: bytes) -> None:
        if len(puts) == 2:
            raise zenoh.ZError("no")
        puts.append(payload)

    bench.sender._headers[attributes] = msgspec.structs.replace(header, put=put)
    alike = [UMessage(new_id(), attributes, b"%d" % n) for n in range(1, 9)]
    assert bench.sender.put_batch(together(alike)) == 2
    assert (puts, bench.sender.sent, len(bench.sender._retransmit_buffer)) == ([b"1", b"2"], 3, 3)


# --- runs -----------------------------------------------------------------------------------------------------------


def remembered(bench: Bench) -> list[UMessage]:
    [publisher] = bench.sender._publishers.values()
    return [message for _, message in bench.sender._retransmit_buffer.messages_of(publisher)]


class RecordedPuts:
    """Stands for Zenoh's put at a route, which has been open: what it is given, until it has had enough."""

    def __init__(self, bench: Bench, attributes: UAttributes, listener: object) -> None:
        self.listener = listener  # kept, or the route closes
        self.puts: list[tuple[bytes, bytes]] = []
        self.max_puts: int | None = None
        self.last = self.at_ns = 0
        self.links = bench.links
        header = bench.sender._headers[attributes]
        bench.sender._headers[attributes] = msgspec.structs.replace(header, put=self)
        header.publisher.put = self

    def __call__(self, payload: bytes, *, attachment: bytes) -> None:
        if len(self.puts) == self.max_puts:
            raise zenoh.ZError("no")
        self.puts.append((payload, attachment))
        self.at_ns = monotonic_ns()
        self.links.up = len(self.puts) != self.last


def open_route(bench: Bench) -> tuple[UAttributes, RecordedPuts]:
    """A route that is open, at which nothing really goes out any more."""
    subscriber = bench.listen()
    first = numbered(0)
    bench.put(first)
    return first.attributes, RecordedPuts(bench, first.attributes, subscriber)


def alike(attributes: UAttributes, count: int) -> list[UMessage]:
    return [UMessage(new_id(), attributes, b"%d" % n * (n % 3)) for n in range(count)]


def assert_put_as_one_by_one(
    bench: Bench, puts: RecordedPuts, run: MessageBatch, messages: list[UMessage]
) -> None:
    """A run, its messages as a list and one by one, and other parts of it: the same puts, and the same is remembered."""
    before, count = remembered(bench), len(messages)
    assert bench.sender.put_batch(run) == count
    assert bench.sender.put_batch(messages) == count
    for message in messages:
        bench.sender.put_message(message)
    expected = [(each.payload, VERSION_BYTE + encode(each.id, each.attributes)) for each in messages]
    assert puts.puts == expected * 3
    assert remembered(bench) == [*before, *messages * 3]
    assert bench.sender.sent == 1 + 3 * count
    # Other parts of it, too.
    assert bench.sender.put_batch(run[count // 2 :]) == count - count // 2
    assert bench.sender.put_batch(run[count:]) == 0
    assert puts.puts == [*expected * 3, *expected[count // 2 :]]
    assert remembered(bench) == [*before, *messages * 3, *messages[count // 2 :]]


@every_run
@pytest.mark.parametrize("count", [1, 8, 127, 128, 129])
def test_a_run_is_put_and_remembered_as_a_list_and_as_one_by_one(
    make_bench: MakeBench, run_of: Callable[[list[UMessage]], MessageBatch], count: int
) -> None:
    bench = make_bench()
    attributes, puts = open_route(bench)
    messages = alike(attributes, count)
    assert_put_as_one_by_one(bench, puts, run_of(messages), messages)


@every_way
def test_many_are_remembered_as_put_when_the_last_one_was(
    make_bench: MakeBench, together: AsIterable
) -> None:
    """A link that was lost while they were put has lost some of them, whenever it was."""
    bench = make_bench()
    attributes, puts = open_route(bench)
    assert bench.sender.put_batch(together(alike(attributes, 20))) == 20
    last_ns, now_ns = puts.at_ns, monotonic_ns()
    [publisher] = bench.sender._publishers.values()
    times_ns = {put_ns for put_ns, _ in bench.sender._retransmit_buffer.messages_of(publisher)[1:]}
    assert len(times_ns) == 1
    assert last_ns <= min(times_ns) <= now_ns


def test_payloads_and_attachments_that_say_what_we_would_are_put_as_they_came(make_bench: MakeBench) -> None:
    bench = make_bench()
    attributes, puts = open_route(bench)
    run = as_received(alike(attributes, 20))
    assert type(run.ids) is AttachmentColumns
    bench.sender.put_batch(run)
    for came, (payload, attachment) in zip(
        zip(run.payloads, run.ids.items, strict=True), puts.puts, strict=True
    ):
        assert (payload, attachment) == came
        assert payload is came[0]
        assert attachment is came[1]


def test_what_is_attached_and_not_ours_to_say_is_not_put(make_bench: MakeBench) -> None:
    bench = make_bench()
    attributes, puts = open_route(bench)
    run = as_received_with_sink(alike(attributes, 20))
    assert type(run.ids) is AttachmentColumns
    bench.sender.put_batch(run)
    assert [payload for payload, _ in puts.puts] == run.payloads
    assert {attachment[21:] for _, attachment in puts.puts} == {encode_tail(attributes)}
    assert run.ids.tail != encode_tail(attributes)


@every_run
@pytest.mark.parametrize("how", ["refused", "link down"])
@pytest.mark.parametrize("taken", [0, 1, 7, 19, 20])
def test_a_run_ends_where_a_put_does(
    make_bench: MakeBench, run_of: Callable[[list[UMessage]], MessageBatch], how: str, taken: int
) -> None:
    """As many as were put are counted and remembered, also if that is none or all."""
    bench = make_bench()
    attributes, puts = open_route(bench)
    if how == "refused":
        puts.max_puts = taken
    else:
        puts.last = taken
        bench.links.up = taken > 0
    messages, before = alike(attributes, 20), remembered(bench)
    assert bench.sender.put_batch(run_of(messages)) == taken
    assert [payload for payload, _ in puts.puts] == [each.payload for each in messages[:taken]]
    assert bench.sender.sent == 1 + taken
    assert remembered(bench) == before + messages[:taken]
    assert bench.links.up is (how == "refused")


@every_run
def test_a_run_that_cannot_go_is_left_to_put(
    make_bench: MakeBench, run_of: Callable[[list[UMessage]], MessageBatch]
) -> None:
    bench = make_bench()
    messages = alike(numbered(0).attributes, 20)
    assert bench.sender.put_batch(run_of(messages)) == 0  # never put before
    assert not bench.is_accepted(numbered(0))
    assert bench.sender.put_batch(run_of(messages)) == 0  # nobody listens
    assert (bench.sender.sent, len(bench.sender._retransmit_buffer)) == (0, 0)
    with pytest.raises(RouteUnavailable):
        bench.sender.put_message(messages[0])


@every_run
def test_where_nothing_is_remembered_a_run_is_counted(
    make_bench: MakeBench, run_of: Callable[[list[UMessage]], MessageBatch]
) -> None:
    bench = make_bench(ms=0)
    attributes, puts = open_route(bench)
    assert bench.sender.put_batch(run_of(alike(attributes, 20))) == 20
    assert (len(puts.puts), bench.sender.sent, len(bench.sender._retransmit_buffer)) == (20, 21, 0)


@every_run
def test_a_run_that_may_have_been_lost_is_put_again(
    make_bench: MakeBench, run_of: Callable[[list[UMessage]], MessageBatch]
) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    first = numbered(0)
    bench.put(first)
    messages = alike(first.attributes, 200)
    assert bench.sender.put_batch(run_of(messages)) == 200
    assert bench.sender.put_batch(messages[:3]) == 3
    sent = [first, *messages, *messages[:3]]
    assert read(subscriber, len(sent)) == sent
    bench.unsubscribe(subscriber)
    assert bench.sender.put_batch(run_of(messages)) == 0
    assert read(bench.listen(), len(sent)) == sent
    wait_until(lambda: bench.sender.replayed == len(sent), "the count")


# --- runs of answers ------------------------------------------------------------------------------------------------


def responses_as_columns(messages: list[UMessage]) -> MessageBatch:
    run = batch_of_responses(messages)
    assert run is not None
    return run


def responses_as_received(messages: list[UMessage]) -> MessageBatch:
    """A run that came in over Zenoh."""
    attachments = [VERSION_BYTE + encode(each.id, each.attributes) for each in messages]
    attributes, reader = messages[0].attributes, SampleDecoder()
    key = message_key(attributes.source, attributes.sink, ALPHA)
    reader.decode(key, attachments[0], b"")
    run = reader.decode_batch(key, attachments, [each.payload for each in messages])
    assert run is not None
    assert run.reqids is not None
    return run


RUNS_OF_ANSWERS = {"halves": responses_as_columns, "attachments": responses_as_received}
every_run_of_answers = pytest.mark.parametrize("run_of", RUNS_OF_ANSWERS.values(), ids=RUNS_OF_ANSWERS)
KINDS_OF_ANSWERS: dict[str, dict[str, object]] = {
    "with ttl": {},
    "without ttl": {"ttl": None},
    "failed": {"commstatus": UCode.INTERNAL, "payload_format": UPayloadFormat.PROTOBUF},
    "reqid last": {"payload_format": UPayloadFormat.UNSPECIFIED},
}


def open_response_route(bench: Bench, **changes: object) -> RecordedPuts:
    """As `opened`, with an answer like those to come."""
    subscriber = bench.listen()
    first = answered(0, **changes)
    bench.put(first)
    common = msgspec.structs.replace(first.attributes, reqid=None)
    header = bench.sender._response_headers[common]
    # As `TopicAdvertisements` does with attributes of which no part is a reqid.
    bench.sender._headers[common] = header
    puts = RecordedPuts(bench, common, subscriber)
    bench.sender._response_headers[common] = bench.sender._headers.pop(common)
    return puts


@every_run_of_answers
@pytest.mark.parametrize("changes", KINDS_OF_ANSWERS.values(), ids=KINDS_OF_ANSWERS)
@pytest.mark.parametrize("count", [1, 8, 127, 128, 129])
def test_a_run_of_answers_is_put_and_remembered_as_a_list_and_as_one_by_one(
    make_bench: MakeBench,
    run_of: Callable[[list[UMessage]], MessageBatch],
    changes: dict[str, object],
    count: int,
) -> None:
    bench = make_bench()
    puts = open_response_route(bench, **changes)
    messages = [answered(n, **changes) for n in range(count)]
    assert_put_as_one_by_one(bench, puts, run_of(messages), messages)


@every_run_of_answers
def test_answers_that_were_never_put_before_are_left_to_put(
    make_bench: MakeBench, run_of: Callable[[list[UMessage]], MessageBatch]
) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    messages = [answered(n) for n in range(9)]
    assert bench.sender.put_batch(run_of(messages)) == 0
    bench.put(answered(9, ttl=1_000))
    assert bench.sender.put_batch(run_of(messages)) == 0
    assert (bench.sender.sent, len(bench.sender._retransmit_buffer)) == (1, 1)
    bench.put(messages[0])
    assert bench.sender.put_batch(run_of(messages[1:])) == 8
    assert read(subscriber, 10)[1:] == messages


@every_run_of_answers
@pytest.mark.parametrize("how", ["refused", "link down"])
@pytest.mark.parametrize("taken", [0, 1, 7, 19, 20])
def test_a_run_of_answers_ends_where_a_put_does(
    make_bench: MakeBench, run_of: Callable[[list[UMessage]], MessageBatch], how: str, taken: int
) -> None:
    bench = make_bench()
    puts = open_response_route(bench)
    if how == "refused":
        puts.max_puts = taken
    else:
        puts.last = taken
        bench.links.up = taken > 0
    messages, before = [answered(n) for n in range(20)], remembered(bench)
    assert bench.sender.put_batch(run_of(messages)) == taken
    assert [payload for payload, _ in puts.puts] == [each.payload for each in messages[:taken]]
    assert bench.sender.sent == 1 + taken
    assert remembered(bench) == before + messages[:taken]


@every_run_of_answers
def test_a_run_of_answers_that_may_have_been_lost_is_put_again(
    make_bench: MakeBench, run_of: Callable[[list[UMessage]], MessageBatch]
) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    messages = [answered(n) for n in range(200)]
    bench.put(messages[0])
    assert bench.sender.put_batch(run_of(messages[1:])) == 199
    assert read(subscriber, 200) == messages
    bench.unsubscribe(subscriber)
    assert bench.sender.put_batch(run_of(messages)) == 0
    assert read(bench.listen(), 200) == messages


# --- runs that take long --------------------------------------------------------------------------------------------

SOON_NS = BATCH_SEND_MS * 1_000_000


class SlowPut:
    """A put that waits: the clock of the sender goes on by so much at each."""

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


@pytest.mark.parametrize("kind", ["events", "answers"])
@pytest.mark.parametrize(
    ("ttl", "each_ns", "taken"),
    [
        (60_000, SOON_NS // 4, 5),
        (60_000, SOON_NS // 19, 20),
        (60_000, SOON_NS, 2),
        (60_000, SOON_NS + 1, 1),
        (60_000, 0, 20),
        (0, 2 * SOON_NS, 20),
        (None, 2 * SOON_NS, 20),
    ],
)
def test_a_run_with_a_ttl_ends_when_its_puts_have_taken_too_long(
    make_bench: MakeBench, kind: str, ttl: int | None, each_ns: int, taken: int
) -> None:
    """It was looked at once, and is good for so long; what is left is looked at again."""
    bench = make_bench()
    if kind == "answers":
        puts = open_response_route(bench, ttl=ttl)
        messages = [answered(n, ttl=ttl) for n in range(20)]
        run = responses_as_columns(messages)
    else:
        subscriber = bench.listen()
        first = numbered(0, ttl=ttl)
        bench.put(first)
        puts = RecordedPuts(bench, first.attributes, subscriber)
        messages = alike(first.attributes, 20)
        run = as_id_columns(messages)
    before = remembered(bench)
    SlowPut(bench, puts, each_ns)
    assert bench.sender.put_batch(run) == taken
    assert [payload for payload, _ in puts.puts] == [each.payload for each in messages[:taken]]
    assert bench.sender.sent == 1 + taken
    assert remembered(bench) == before + messages[:taken]


class _LockThatWaits:
    """Another sender has it for so long."""

    def __init__(self, waits: SlowPut, ns: int) -> None:
        self._waits, self._ns = waits, ns

    def __enter__(self) -> None:
        self._waits.now_ns += self._ns

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("ttl", "ns", "taken"), [(60_000, SOON_NS, 20), (60_000, SOON_NS + 1, 0), (None, 2 * SOON_NS, 20)]
)
def test_what_another_sender_takes_long_for_counts_too(
    make_bench: MakeBench, ttl: int | None, ns: int, taken: int
) -> None:
    bench = make_bench()
    puts = open_response_route(bench, ttl=ttl)
    waits = SlowPut(bench, puts, 0)
    bench.sender._lock = _LockThatWaits(waits, ns)  # type: ignore[assignment]
    assert bench.sender.put_batch(responses_as_columns([answered(n, ttl=ttl) for n in range(20)])) == taken
    assert len(puts.puts) == taken
