# SPDX-License-Identifier: Apache-2.0
"""What a receiving thread hands on, and to whom, without a session around it."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import pytest
import zenoh
from zenoh.handlers import FifoChannel

from tests.transports.contract import (
    ALPHA,
    METHOD,
    OTHER_TOPIC,
    REMOTE_CLIENT,
    TOPIC,
    new_id,
    response_from,
    wait_until,
)
from tests.transports.zenoh.nets import free_locator, plain_session
from ustreamer.transports.zenoh import subscriber
from ustreamer.transports.zenoh.decoder import VERSION_BYTE, Reason
from ustreamer.transports.zenoh.keys import message_key
from ustreamer.transports.zenoh.retransmit import Answered
from ustreamer.transports.zenoh.subscriber import Call, Filters, Given, Reception
from ustreamer.uprotocol.batch import MANY, Run
from ustreamer.uprotocol.struct_columns import FULL
from ustreamer.uprotocol.umessage import UMessage, notification, publish, request
from ustreamer.uprotocol.uuri import ANY, UUri, any_at
from ustreamer.uprotocol.wire import encode

HERE = Filters(UUri(METHOD.authority_name, 0xFFFF_FFFF, 0xFF, 0), any_at(REMOTE_CLIENT.authority_name))
ALL = Filters(ANY, any_at(REMOTE_CLIENT.authority_name))


class Bulk:
    """Remembers what came together, and what by itself."""

    def __init__(self) -> None:
        self.helpings: list[list[UMessage]] = []
        self.alone: list[UMessage] = []

    def __call__(self, message: UMessage) -> None:
        self.alone.append(message)

    def take_all(self, messages: Sequence[UMessage]) -> None:
        self.helpings.append(list(messages))


def delivered(messages: list[UMessage], *given: Filters) -> Bulk:
    bulk = Bulk()
    reception = Reception(ALL, "backbone", "alpha", 8, Answered(0))
    reception.use((Call(bulk, Given(given)),))
    reception._deliver_all(messages)
    return bulk


@pytest.fixture
def answers() -> list[UMessage]:
    return [response_from(METHOD, REMOTE_CLIENT) for _ in range(5)]


def test_what_a_listener_was_given_by_other_filters_it_is_not_given_again(answers: list[UMessage]) -> None:
    asked = [*answers, *(response_from(METHOD.with_resource(2), REMOTE_CLIENT) for _ in range(3))]
    mine = Filters(METHOD, ANY)
    assert delivered(asked, mine).helpings == [asked[5:]]
    assert delivered(answers, mine).helpings == []
    assert delivered(answers[:1], mine).alone == []
    assert delivered(asked[5:6], mine).alone == asked[5:6]


def test_whoever_has_other_filters_is_given_many_at_once_too(answers: list[UMessage]) -> None:
    bulk = delivered(answers, HERE)
    assert (bulk.helpings, bulk.alone) == ([answers], [])


def test_filters_are_asked_once_for_each_source_and_sink(
    monkeypatch: pytest.MonkeyPatch, answers: list[UMessage]
) -> None:
    monkeypatch.setattr(subscriber, "_KEPT", 4)
    given = Given((Filters(METHOD, ANY), Filters(TOPIC, None)))
    for _ in range(2):
        assert all(given.has(each) for each in answers)
        assert not given.has(response_from(METHOD.with_resource(2), REMOTE_CLIENT))
        assert given.has(publish(new_id(), TOPIC))
    assert len(given._known) == 3
    for number in range(20):
        assert not given.has(publish(new_id(), TOPIC.with_resource(0x9000 + number)))
        assert len(given._known) <= 4


# --- what was taken out of the channel together ---------------------------------------------------------------------


class Sample(NamedTuple):
    """What is asked of a zenoh.Sample, which cannot be made."""

    key_expr: zenoh.KeyExpr
    attachment: zenoh.ZBytes | None
    payload: zenoh.ZBytes
    kind: zenoh.SampleKind = zenoh.SampleKind.PUT


def key_of(message: UMessage) -> str:
    return message_key(message.attributes.source, message.attributes.sink, ALPHA)


def attachment_of(message: UMessage) -> bytes:
    return VERSION_BYTE + encode(message.id, message.attributes)


def sample(message: UMessage) -> Sample:
    return Sample(
        zenoh.KeyExpr(key_of(message)), zenoh.ZBytes(attachment_of(message)), zenoh.ZBytes(message.payload)
    )


class Channel:
    """A zenoh.Handler that has these samples, and ends after them; `pauses`: before it does, it is empty once."""

    def __init__(self, samples: Sequence[Sample], *, pauses: bool = False) -> None:
        self._left = deque(samples)
        self._pauses = pauses

    def recv(self) -> Sample:
        if not self._left:
            raise zenoh.ZError("closed")
        return self._left.popleft()

    def try_recv(self) -> Sample | None:
        if self._pauses and not self._left:
            self._pauses = False
            return None
        return self.recv()


class Helpings:
    """Remembers what came together, as it came."""

    def __init__(self) -> None:
        self.taken: list[Sequence[UMessage]] = []

    def __call__(self, message: UMessage) -> None:
        self.taken.append([message])

    def take_all(self, messages: Sequence[UMessage]) -> None:
        self.taken.append(messages)

    @property
    def messages(self) -> list[UMessage]:
        return [each for messages in self.taken for each in messages]


class Receiving:
    """A reception of publications without a session, which has seen one that is like those to come."""

    def __init__(self, filters: Filters = Filters(ANY, None), *given: Filters) -> None:  # noqa: B008  a tuple
        self.answered = Answered(500)
        self.reception = Reception(filters, "backbone", ALPHA, 8, self.answered)
        self.inbox = Helpings()
        self.reception.use((Call(self.inbox, Given(given)),))
        for like in LIKE:
            self.reception._reader.read(key_of(like), attachment_of(like), b"")

    def take(self, samples: Sequence[Sample], *, pauses: bool = False) -> None:
        """All that is in a channel, until it ends."""
        channel = cast("zenoh.Handler[zenoh.Sample]", Channel(samples, pauses=pauses))
        self.reception._run(channel)

    @property
    def refused(self) -> dict[Reason, int]:
        return {reason: count for reason, count in self.reception.refused.items() if count}


def published(count: int, topic: UUri = TOPIC, payload: Callable[[int], bytes] = b"%d".__mod__) -> list[UMessage]:  # fmt: skip
    like = publish(new_id(), topic)
    return [UMessage(new_id(), like.attributes, payload(number)) for number in range(count)]


LIKE = [publish(new_id(), TOPIC), publish(new_id(), OTHER_TOPIC)]
DELETE = zenoh.SampleKind.DELETE


@pytest.mark.parametrize("pauses", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 127, 128, 129, 135, 136, 300])
def test_all_that_was_taken_out_is_delivered_wherever_the_channel_ends(count: int, pauses: bool) -> None:
    receiving, messages = Receiving(), published(count)
    receiving.take(list(map(sample, messages)), pauses=pauses)
    assert receiving.inbox.messages == messages
    assert (receiving.reception.received, receiving.refused) == (count, {})
    sizes = [FULL] * (count // FULL) + [count % FULL] * bool(count % FULL)
    assert list(map(len, receiving.inbox.taken)) == sizes
    assert [type(each) is Run for each in receiving.inbox.taken] == [size >= MANY for size in sizes]


def test_what_is_seen_for_the_first_time_is_read_one_by_one_and_then_it_is_a_run() -> None:
    receiving = Receiving()
    messages = published(2 * FULL, TOPIC.with_resource(0x8077))
    receiving.take(list(map(sample, messages)))
    assert [type(each) for each in receiving.inbox.taken] == [list, Run]
    assert receiving.inbox.messages == messages
    assert receiving.reception.received == 2 * FULL


@pytest.mark.parametrize("count", [3, 20])
@pytest.mark.parametrize("position", [0, 1, -1])
def test_a_delete_among_many_is_refused_and_the_others_are_delivered(count: int, position: int) -> None:
    receiving, messages = Receiving(), published(count)
    samples = list(map(sample, messages))
    samples[position] = samples[position]._replace(payload=zenoh.ZBytes(b""), kind=DELETE)
    del messages[position]
    receiving.take(samples)
    assert receiving.inbox.messages == messages
    assert (receiving.reception.received, receiving.refused) == (count - 1, {Reason.DELETE: 1})


def test_nothing_but_deletes_is_nothing() -> None:
    receiving = Receiving()
    samples = [each._replace(payload=zenoh.ZBytes(b""), kind=DELETE) for each in map(sample, published(20))]
    receiving.take(samples)
    assert receiving.inbox.taken == []
    assert (receiving.reception.received, receiving.refused) == (0, {Reason.DELETE: 20})


def test_a_delete_that_is_no_message_anyway_is_refused_for_that() -> None:
    receiving = Receiving()
    empty = zenoh.ZBytes(b"")
    first, *others = map(sample, published(20))
    receiving.take([first._replace(attachment=None, payload=empty, kind=DELETE), *others])
    assert (receiving.reception.received, receiving.refused) == (19, {Reason.NO_ATTACHMENT: 1})


def test_empty_payloads_are_messages_as_others_are() -> None:
    receiving = Receiving()
    messages = published(20, payload=lambda number: b"x" * (number % 2))
    receiving.take(list(map(sample, messages)))
    [run] = receiving.inbox.taken
    assert type(run) is Run
    assert list(run) == messages


@pytest.mark.parametrize("count", [3, 20])
@pytest.mark.parametrize("position", [0, 1, -1])
@pytest.mark.parametrize(
    ("attachment", "reason"),
    [(None, Reason.NO_ATTACHMENT), (b"", Reason.SHORT), (b"\x02" + bytes(40), Reason.VERSION)],
)
def test_one_that_is_no_message_among_many_is_refused_and_the_others_are_delivered(
    count: int, position: int, attachment: bytes | None, reason: Reason
) -> None:
    receiving, messages = Receiving(), published(count)
    samples = list(map(sample, messages))
    put = None if attachment is None else zenoh.ZBytes(attachment)
    samples[position] = samples[position]._replace(attachment=put)
    del messages[position]
    receiving.take(samples)
    assert receiving.inbox.messages == messages
    assert (receiving.reception.received, receiving.refused) == (count - 1, {reason: 1})


@pytest.mark.parametrize("position", [0, 1, 9, -1])
def test_one_of_another_topic_among_many_stays_where_it_came(position: int) -> None:
    receiving, messages = Receiving(), published(20)
    [messages[position]] = published(1, OTHER_TOPIC)
    receiving.take(list(map(sample, messages)))
    assert list(map(len, receiving.inbox.taken)) == [20]
    assert receiving.inbox.messages == messages
    assert receiving.reception.received == 20


@pytest.mark.parametrize("position", [0, 1, 9, -1])
def test_one_on_another_key_than_it_says_is_refused_among_many(position: int) -> None:
    receiving, messages = Receiving(), published(20)
    samples = list(map(sample, messages))
    samples[position] = samples[position]._replace(key_expr=zenoh.KeyExpr(key_of(LIKE[1])))
    del messages[position]
    receiving.take(samples)
    assert receiving.inbox.messages == messages
    assert (receiving.reception.received, receiving.refused) == (19, {Reason.MISMATCH: 1})


@pytest.mark.parametrize("count", [1, 7, 8, 128])
def test_whoever_asks_for_every_sink_is_given_no_publications_however_many_come(count: int) -> None:
    receiving = Receiving(Filters(ANY, ANY))
    receiving.take(list(map(sample, published(count))))
    assert receiving.inbox.taken == []
    assert (receiving.reception.received, receiving.refused) == (0, {})
    told = [notification(new_id(), TOPIC, REMOTE_CLIENT, b"x") for _ in range(count)]
    receiving.take(list(map(sample, [*published(count), *told])))
    assert receiving.inbox.messages == told
    assert (receiving.reception.received, receiving.refused) == (count, {})


def test_of_a_run_all_or_none_has_been_given() -> None:
    run = Run.of(published(20))
    assert run is not None
    assert Given((Filters(OTHER_TOPIC, None),)).without(run) is run
    assert len(Given((Filters(TOPIC, None),)).without(run)) == 0
    mixed = [*run, *published(1, OTHER_TOPIC)]
    assert Given((Filters(TOPIC, None),)).without(mixed) == mixed[20:]
    assert Given((Filters(OTHER_TOPIC, None),)).without(mixed) == mixed[:20]
    assert Given((Filters(ANY, ANY),)).without(mixed) == mixed


@pytest.mark.parametrize("given", [Filters(TOPIC, None), Filters(TOPIC.with_resource(0x8099), None)])
@pytest.mark.parametrize("count", [2, 20])
def test_what_was_given_by_other_filters_counts_as_received_and_is_not_given_again(
    given: Filters, count: int
) -> None:
    receiving, messages = Receiving(Filters(ANY, None), given), published(count)
    receiving.take(list(map(sample, messages)))
    assert receiving.inbox.messages == ([] if given.source == TOPIC else messages)
    assert receiving.reception.received == count
    assert len(receiving.inbox.taken) == (given.source != TOPIC)


def test_a_run_reaches_those_who_take_one_by_one_and_every_one_of_several() -> None:
    receiving, messages = Receiving(), published(20)
    singly: list[UMessage] = []
    for calls in (
        [Call(singly.append, Given())],
        [Call(singly.append, Given()), Call(receiving.inbox, Given())],
        [Call(singly.append, Given((Filters(TOPIC, None),))), Call(receiving.inbox, Given())],
    ):
        receiving.reception.use(tuple(calls))
        receiving.take(list(map(sample, messages)))
    assert singly == messages * 2
    assert receiving.inbox.messages == messages * 2


class Failing(Helpings):
    def take_all(self, messages: Sequence[UMessage]) -> None:
        super().take_all(messages)
        raise RuntimeError("no")


def test_a_listener_that_fails_with_a_run_is_counted_and_named_by_its_first_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    receiving, messages = Receiving(), published(2 * FULL)
    failing = Failing()
    receiving.reception.use((Call(failing, Given()),))
    with caplog.at_level(logging.ERROR, "ustreamer.zenoh"):
        receiving.take(list(map(sample, messages)))
    assert receiving.reception.listener_errors == 2
    assert failing.messages == messages
    assert [each.__dict__["message_id"] for each in caplog.records] == [str(messages[0].id)]


def test_what_a_session_had_in_its_channel_is_delivered_after_it_was_undeclared() -> None:
    """Real samples, of which the channel ends in the middle of a helping."""
    receiving, messages = Receiving(), published(FULL + 20)
    key = key_of(LIKE[0])
    channel: FifoChannel[zenoh.Sample] = FifoChannel(1_000)
    seen: list[bytes] = []
    here = free_locator()
    with plain_session(listen=[here]) as there, plain_session(connect=[here]) as session:
        subscriber = session.declare_subscriber(key, channel)
        # Told of all that the other one has when it is told of something later.
        _last = session.declare_subscriber("last", lambda last: seen.append(last.payload.to_bytes()))
        block = zenoh.CongestionControl.BLOCK
        both = [there.declare_publisher(each, congestion_control=block) for each in (key, "last")]
        wait_until(lambda: all(each.matching_status.matching for each in both), "subscriptions")  # type: ignore[attr-defined]
        for message in messages:
            both[0].put(message.payload, attachment=attachment_of(message))
        both[0].delete(attachment=attachment_of(LIKE[0]))
        both[1].put(b"last")
        wait_until(lambda: bool(seen), "the last one")
        handler = subscriber.handler
        subscriber.undeclare()  # type: ignore[no-untyped-call]
        receiving.reception._run(handler)
    assert [type(each) for each in receiving.inbox.taken] == [Run, list]
    assert receiving.inbox.messages == messages
    assert (receiving.reception.received, receiving.refused) == (FULL + 20, {Reason.DELETE: 1})


# --- answers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 7, 8, 127, 128, 300])
def test_answers_are_runs_with_a_reqid_each_once_one_was_read(count: int) -> None:
    receiving = Receiving(Filters(ANY, ANY))
    first, *messages = (response_from(METHOD, REMOTE_CLIENT) for _ in range(1 + count))
    receiving.take([sample(first)])
    receiving.take(list(map(sample, messages)))
    assert receiving.inbox.messages == [first, *messages]
    assert (receiving.reception.received, receiving.refused) == (1 + count, {})
    for taken in receiving.inbox.taken[1:]:
        assert (type(taken) is Run) is (len(taken) >= MANY)


@pytest.mark.parametrize("position", [0, 1, 9, -1])
def test_one_answer_that_says_something_else_stays_where_it_came(position: int) -> None:
    receiving = Receiving(Filters(ANY, ANY))
    first, *messages = (response_from(METHOD, REMOTE_CLIENT) for _ in range(21))
    messages[position] = response_from(METHOD.with_resource(2), REMOTE_CLIENT)
    receiving.take([sample(first)])
    receiving.take(list(map(sample, messages)))
    assert receiving.inbox.messages == [first, *messages]
    assert [type(each) is Run for each in receiving.inbox.taken] == [False, False]


@pytest.mark.parametrize("given", [METHOD, METHOD.with_resource(2)])
def test_a_run_of_answers_that_was_given_by_other_filters_is_not_given_again(given: UUri) -> None:
    receiving = Receiving(Filters(ANY, ANY), Filters(given, ANY))
    first, *messages = (response_from(METHOD, REMOTE_CLIENT) for _ in range(21))
    receiving.take([sample(first)])
    receiving.take(list(map(sample, messages)))
    assert receiving.inbox.messages == ([] if given == METHOD else [first, *messages])
    assert receiving.reception.received == 21


@pytest.mark.parametrize("count", [1, 7, 8, 128, 300])
def test_what_has_an_answer_is_noted_however_the_answers_come(count: int) -> None:
    receiving = Receiving(Filters(ANY, ANY))
    first, *messages = (response_from(METHOD, REMOTE_CLIENT) for _ in range(1 + count))
    asked = request(new_id(), REMOTE_CLIENT, METHOD, ttl=1_000)
    receiving.take([sample(first), sample(asked)])
    receiving.take(list(map(sample, messages)))
    assert receiving.reception.received == 2 + count
    reqids = [each.attributes.reqid for each in (first, *messages)]
    assert all(each is not None and each in receiving.answered for each in reqids)
    assert asked.id not in receiving.answered


def test_what_is_no_message_answers_nothing() -> None:
    receiving = Receiving(Filters(ANY, ANY))
    elsewhere, deleted = (response_from(METHOD, REMOTE_CLIENT) for _ in range(2))
    key = key_of(response_from(METHOD.with_resource(2), REMOTE_CLIENT))
    receiving.take(
        [
            sample(elsewhere)._replace(key_expr=zenoh.KeyExpr(key)),
            sample(deleted)._replace(kind=DELETE, payload=zenoh.ZBytes(b"")),
        ]
    )
    assert receiving.refused == {Reason.MISMATCH: 1, Reason.DELETE: 1}
    reqids = [each.attributes.reqid for each in (elsewhere, deleted)]
    assert all(each is not None and each not in receiving.answered for each in reqids)
