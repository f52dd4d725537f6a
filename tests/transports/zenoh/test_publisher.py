# SPDX-License-Identifier: Apache-2.0
"""Routes that open and close, and puts: with real sessions in this process."""

from collections import OrderedDict
from collections.abc import Callable
from threading import current_thread, main_thread
from time import monotonic_ns, thread_time_ns
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import zenoh

from tests.response_batches import batch_of_responses
from tests.transports.zenoh.publisher_bench import (
    NS_PER_MS,
    AsIterable,
    Bench,
    MakeBench,
    as_id_columns,
    as_received,
    as_received_with_sink,
    every_batch,
    every_iterable,
    numbered,
    received,
)
from tests.transports.zenoh.sessions import CLOCK
from tests.waiting import wait_until
from ustreamer.core.delivery.expiry import BATCH_SEND_MS
from ustreamer.testing.messages import ALPHA, METHOD, REMOTE_CLIENT, new_id
from ustreamer.transport_port import RouteUnavailable
from ustreamer.transports.zenoh import encoded_headers
from ustreamer.transports.zenoh.decoder import VERSION_BYTE, AttachmentColumns, SampleDecoder, decode_sample
from ustreamer.transports.zenoh.keys import message_key
from ustreamer.transports.zenoh.route_publishers import RoutePublishers
from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.uattributes import UAttributes, UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.wire import encode, encode_tail


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


def test_stalled_routes_are_searched_while_another_thread_adds_one(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tuple` calls a `__len__` in Python within its iteration, and other threads run there."""
    bench = make_bench()
    absent_from_ns(bench, numbered(0))

    def len_after_another_thread(publishers: RoutePublishers) -> int:
        if current_thread() is main_thread():
            publishers.add(publishers.declare(numbered(0, 1).attributes))
        return len(publishers._by_route)

    monkeypatch.setattr(RoutePublishers, "__len__", len_after_another_thread)
    assert bench.sender.stalled_ns() is None


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


@pytest.mark.parametrize("window_ms", [0, 15_000])
def test_a_list_of_more_topics_than_publishers_is_put_in_order(make_bench: MakeBench, window_ms: int) -> None:
    """The publisher of an earlier message of the list may be undeclared."""
    bench = make_bench(ms=window_ms)
    bench.sender._publishers.limit = 2
    subscriber = bench.listen()
    bench.put(*(numbered(n, n) for n in range(5)))
    assert bench.sender.put_batch([numbered(n, n % 5) for n in range(5, 20)]) == 15
    assert received(subscriber, 20) == list(range(20))
    assert len(bench.publishers) == (5 if window_ms else 2)


def test_a_publisher_counts_as_used_until_its_messages_are_remembered(make_bench: MakeBench) -> None:
    """Else it could be undeclared before a loss of them is known."""
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(*(numbered(n, n) for n in range(0, 4, 2)))
    assert bench.sender.put_batch([numbered(n, n) for n in range(4)]) == 4  # 1 and 3 have a new header
    assert received(subscriber, 6) == [0, 2, 0, 1, 2, 3]
    remembered = bench.sender._possible_losses._buffer.messages_of(set(bench.publishers))
    assert all(each.used_ns >= remembered[each][-1][0] for each in bench.publishers)


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

    monkeypatch.setattr(encoded_headers, "encode_tail", counting)
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
    monkeypatch.setattr(encoded_headers, "_MAX_HEADERS", 10)
    bench = make_bench()
    _subscriber = bench.listen()
    for n in range(30):
        bench.put(answered(n, ttl=60_000 + n))
        assert len(bench.sender._headers.of_responses) <= 10
    [publisher] = bench.publishers
    bench.sender._undeclare(publisher)
    assert not bench.sender._headers.of_responses


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
    assert bench.sender.put_batch(messages[-3:]) == 3
    sent = [first, *messages, *messages[-3:]]
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
    header = bench.sender._headers.of_responses[common]
    bench.sender._headers.plain[common] = header
    puts = RecordedPuts(bench, common, subscriber)
    bench.sender._headers.of_responses[common] = bench.sender._headers.plain.pop(common)
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
        for headers in (bench.sender._headers.plain, bench.sender._headers.of_responses):
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
    limit = encoded_headers._MAX_HEADERS

    def cached_ns(first: int) -> int:
        began_ns = thread_time_ns()
        for number in range(first, first + limit):
            encoded_headers._add(headers, number, header)  # type: ignore[arg-type]  # any key
        return thread_time_ns() - began_ns

    below_ns, above_ns = cached_ns(0), cached_ns(limit)
    assert len(headers) == len(header.publisher.headers) == limit
    assert above_ns < 8 * below_ns, "a plain dict takes about 20 times as long"
