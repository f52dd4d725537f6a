# SPDX-License-Identifier: Apache-2.0
"""The receiving thread of a subscription without a session: decoding, batches, listener calls."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from threading import Event, Thread
from typing import NamedTuple, cast

import pytest
import zenoh
from zenoh.handlers import FifoChannel

from tests.transports.zenoh.sessions import free_locator, plain_session
from tests.waiting import wait_until
from ustreamer.testing.messages import ALPHA, METHOD, OTHER_TOPIC, REMOTE_CLIENT, TOPIC, new_id, response_from
from ustreamer.transports.zenoh import subscriber
from ustreamer.transports.zenoh.decoder import VERSION_BYTE, SampleRefusalReason
from ustreamer.transports.zenoh.keys import message_key
from ustreamer.transports.zenoh.retransmit import AnsweredRequests
from ustreamer.transports.zenoh.subscriber import (
    CoveredFilters,
    ListenerEntry,
    ListenerFilters,
    ZenohSubscription,
)
from ustreamer.uprotocol.batch import MAX_BATCH, MIN_BATCH, MessageBatch
from ustreamer.uprotocol.umessage import UMessage, notification, publish, request
from ustreamer.uprotocol.uuri import ANY, UUri, any_at
from ustreamer.uprotocol.wire import encode

HERE = ListenerFilters(
    UUri(METHOD.authority_name, 0xFFFF_FFFF, 0xFF, 0), any_at(REMOTE_CLIENT.authority_name)
)
ALL = ListenerFilters(ANY, any_at(REMOTE_CLIENT.authority_name))


class RecordingListener:
    """Records batches and single messages."""

    def __init__(self) -> None:
        self.batches: list[list[UMessage]] = []
        self.singles: list[UMessage] = []

    def __call__(self, message: UMessage) -> None:
        self.singles.append(message)

    def on_batch(self, messages: Sequence[UMessage]) -> None:
        self.batches.append(list(messages))


def delivered(messages: list[UMessage], *given: ListenerFilters) -> RecordingListener:
    bulk = RecordingListener()
    reception = ZenohSubscription(ALL, "backbone", "alpha", 8, AnsweredRequests(0), Event())
    reception.set_listeners((ListenerEntry(bulk, CoveredFilters(given)),))
    reception._deliver(messages)
    return bulk


@pytest.fixture
def answers() -> list[UMessage]:
    return [response_from(METHOD, REMOTE_CLIENT) for _ in range(5)]


def test_a_listener_receives_no_message_twice_by_other_filters(answers: list[UMessage]) -> None:
    sent_request = [*answers, *(response_from(METHOD.with_resource(2), REMOTE_CLIENT) for _ in range(3))]
    mine = ListenerFilters(METHOD, ANY)
    assert delivered(sent_request, mine).batches == [sent_request[5:]]
    assert delivered(answers, mine).batches == []
    assert delivered(answers[:1], mine).singles == []
    assert delivered(sent_request[5:6], mine).singles == sent_request[5:6]


def test_a_listener_with_other_filters_also_receives_batches(answers: list[UMessage]) -> None:
    bulk = delivered(answers, HERE)
    assert (bulk.batches, bulk.singles) == ([answers], [])


def test_filters_are_evaluated_once_per_source_and_sink(
    monkeypatch: pytest.MonkeyPatch, answers: list[UMessage]
) -> None:
    monkeypatch.setattr(subscriber, "_MAX_CACHED_MATCHES", 4)
    given = CoveredFilters((ListenerFilters(METHOD, ANY), ListenerFilters(TOPIC, None)))
    for _ in range(2):
        assert all(given.is_covered(each) for each in answers)
        assert not given.is_covered(response_from(METHOD.with_resource(2), REMOTE_CLIENT))
        assert given.is_covered(publish(new_id(), TOPIC))
    assert len(given._cached) == 3
    for number in range(20):
        assert not given.is_covered(publish(new_id(), TOPIC.with_resource(0x9000 + number)))
        assert len(given._cached) <= 4


# --- batches of the channel ---------------------------------------------------------------------------------


class Sample(NamedTuple):
    """A stand-in for zenoh.Sample, which has no constructor."""

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


class UnattendedChannel(Channel):
    """A channel in which no thread may wait: `recv` wakes ten times a second."""

    def recv(self) -> Sample:
        raise AssertionError("waits in `recv` without a node")

    def try_recv(self) -> Sample | None:
        return super().recv()


class BatchRecorder:
    """Records the batches unchanged."""

    def __init__(self) -> None:
        self.batches: list[Sequence[UMessage]] = []

    def __call__(self, message: UMessage) -> None:
        self.batches.append([message])

    def on_batch(self, messages: Sequence[UMessage]) -> None:
        self.batches.append(messages)

    @property
    def messages(self) -> list[UMessage]:
        return [each for messages in self.batches for each in messages]


class SubscriptionRig:
    """A subscription of publications without a session, which has decoded one message of each topic."""

    def __init__(
        self,
        filters: ListenerFilters = ListenerFilters(ANY, None),  # noqa: B008  a tuple
        *given: ListenerFilters,
    ) -> None:
        self.answered = AnsweredRequests(500)
        self.connected = Event()
        self.connected.set()
        self.subscription = ZenohSubscription(filters, "backbone", ALPHA, 8, self.answered, self.connected)
        self.inbox = BatchRecorder()
        self.subscription.set_listeners((ListenerEntry(self.inbox, CoveredFilters(given)),))
        for like in LIKE:
            self.subscription._decoder.decode(key_of(like), attachment_of(like), b"")

    def run_samples(self, samples: Sequence[Sample], *, pauses: bool = False) -> None:
        """Run the receiving loop over the samples of a channel until it ends."""
        channel = cast("zenoh.Handler[zenoh.Sample]", Channel(samples, pauses=pauses))
        self.subscription._run(channel)

    @property
    def refused(self) -> dict[SampleRefusalReason, int]:
        return {reason: count for reason, count in self.subscription.refused.items() if count}


def published(count: int, topic: UUri = TOPIC, payload: Callable[[int], bytes] = b"%d".__mod__) -> list[UMessage]:  # fmt: skip
    like = publish(new_id(), topic)
    return [UMessage(new_id(), like.attributes, payload(number)) for number in range(count)]


LIKE = [publish(new_id(), TOPIC), publish(new_id(), OTHER_TOPIC)]
DELETE = zenoh.SampleKind.DELETE


def test_without_a_node_no_thread_waits_in_zenoh_and_what_comes_all_the_same_is_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscriber, "_AWAY_POLL_S", 0.001)
    receiving, messages = SubscriptionRig(), published(20)
    receiving.connected.clear()
    channel = UnattendedChannel(list(map(sample, messages)))
    receiving.subscription._run(cast("zenoh.Handler[zenoh.Sample]", channel))
    assert receiving.inbox.messages == messages


@pytest.mark.parametrize("pauses", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 127, 128, 129, 135, 136, 300])
def test_all_received_samples_are_delivered_wherever_the_channel_ends(count: int, pauses: bool) -> None:
    receiving, messages = SubscriptionRig(), published(count)
    receiving.run_samples(list(map(sample, messages)), pauses=pauses)
    assert receiving.inbox.messages == messages
    assert (receiving.subscription.received, receiving.refused) == (count, {})
    sizes = [MAX_BATCH] * (count // MAX_BATCH) + [count % MAX_BATCH] * bool(count % MAX_BATCH)
    assert list(map(len, receiving.inbox.batches)) == sizes
    assert [type(each) is MessageBatch for each in receiving.inbox.batches] == [
        size >= MIN_BATCH for size in sizes
    ]


@pytest.mark.parametrize(
    ("count", "delivered_first"), [(1, 1), (5, 5), (MAX_BATCH - 1, MAX_BATCH - 1), (MAX_BATCH, MAX_BATCH + 1)]
)
def test_an_action_runs_when_all_samples_of_the_channel_are_delivered(
    count: int, delivered_first: int
) -> None:
    """A batch of full size may have left samples in the channel. The next sample comes after the channel was empty."""
    receiving, messages, seen = SubscriptionRig(), published(count + 1), list[int]()
    receiving.subscription.call_when_read(lambda: seen.append(len(receiving.inbox.messages)))
    samples = deque(map(sample, messages))

    class Arriving(Channel):
        def try_recv(self) -> Sample | None:
            return None if len(self._left) == 1 else self.recv()

    receiving.subscription._run(cast("zenoh.Handler[zenoh.Sample]", Arriving(samples)))
    assert receiving.inbox.messages == messages
    assert seen == [delivered_first]


def test_an_action_that_comes_while_a_batch_is_delivered_runs_after_the_next_one() -> None:
    """The channel was empty before the action came, so samples may have arrived since."""
    receiving, messages, seen = SubscriptionRig(), published(3), list[int]()

    class Acting(BatchRecorder):
        def __call__(self, message: UMessage) -> None:
            super().__call__(message)
            if len(self.messages) == 1:
                receiving.subscription.call_when_read(lambda: seen.append(len(self.messages)))

    receiving.inbox = Acting()
    receiving.subscription.set_listeners((ListenerEntry(receiving.inbox, CoveredFilters()),))

    class OneByOne(Channel):
        def try_recv(self) -> Sample | None:
            return None

    receiving.subscription._run(cast("zenoh.Handler[zenoh.Sample]", OneByOne(list(map(sample, messages)))))
    assert receiving.inbox.messages == messages
    assert seen == [2]


def test_the_number_of_waiting_actions_is_bounded() -> None:
    receiving, [message] = SubscriptionRig(), published(1)
    calls: list[int] = []
    for number in range(1_000):
        receiving.subscription.call_when_read(lambda number=number: calls.append(number))  # type: ignore[misc]
    receiving.run_samples([sample(message)], pauses=True)
    assert calls == list(range(subscriber._MAX_ACTIONS))


def test_an_action_that_fails_ends_neither_the_thread_nor_the_other_actions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    receiving, messages, seen = SubscriptionRig(), published(MAX_BATCH + 1), list[str]()

    def fail() -> None:
        raise SystemExit("on purpose")

    class Pausing(Channel):
        def try_recv(self) -> Sample | None:
            return None if len(self._left) == MAX_BATCH else self.recv()

    for action in (fail, fail, lambda: seen.append("called")):
        receiving.subscription.call_when_read(action)
    with caplog.at_level(logging.ERROR, "ustreamer.zenoh"):
        samples = Pausing(list(map(sample, messages)))
        receiving.subscription._run(cast("zenoh.Handler[zenoh.Sample]", samples))
    assert (receiving.inbox.messages, seen) == (messages, ["called"])
    assert receiving.subscription.listener_errors == 2
    assert [each.message for each in caplog.records] == ["zenoh.listener_failed"]


def test_an_unknown_header_is_decoded_one_by_one_and_then_in_batches() -> None:
    receiving = SubscriptionRig()
    messages = published(2 * MAX_BATCH, TOPIC.with_resource(0x8077))
    receiving.run_samples(list(map(sample, messages)))
    assert [type(each) for each in receiving.inbox.batches] == [list, MessageBatch]
    assert receiving.inbox.messages == messages
    assert receiving.subscription.received == 2 * MAX_BATCH


@pytest.mark.parametrize("count", [3, 20])
@pytest.mark.parametrize("position", [0, 1, -1])
def test_a_delete_in_a_batch_is_refused_and_the_rest_delivered(count: int, position: int) -> None:
    receiving, messages = SubscriptionRig(), published(count)
    samples = list(map(sample, messages))
    samples[position] = samples[position]._replace(payload=zenoh.ZBytes(b""), kind=DELETE)
    del messages[position]
    receiving.run_samples(samples)
    assert receiving.inbox.messages == messages
    assert (receiving.subscription.received, receiving.refused) == (
        count - 1,
        {SampleRefusalReason.DELETE: 1},
    )


def test_only_deletes_deliver_nothing() -> None:
    receiving = SubscriptionRig()
    samples = [each._replace(payload=zenoh.ZBytes(b""), kind=DELETE) for each in map(sample, published(20))]
    receiving.run_samples(samples)
    assert receiving.inbox.batches == []
    assert (receiving.subscription.received, receiving.refused) == (0, {SampleRefusalReason.DELETE: 20})


def test_a_delete_alone_is_refused_and_an_empty_payload_alone_is_delivered() -> None:
    receiving, [message] = SubscriptionRig(), published(1)
    empty = sample(UMessage(message.id, message.attributes, b""))
    receiving.run_samples([empty._replace(kind=DELETE), empty], pauses=True)
    assert [(each.id, each.payload) for each in receiving.inbox.messages] == [(message.id, b"")]
    assert (receiving.subscription.received, receiving.refused) == (1, {SampleRefusalReason.DELETE: 1})


def test_an_invalid_delete_is_refused_as_invalid() -> None:
    receiving = SubscriptionRig()
    empty = zenoh.ZBytes(b"")
    first, *others = map(sample, published(20))
    receiving.run_samples([first._replace(attachment=None, payload=empty, kind=DELETE), *others])
    assert (receiving.subscription.received, receiving.refused) == (
        19,
        {SampleRefusalReason.NO_ATTACHMENT: 1},
    )


def test_messages_with_empty_payloads_are_delivered() -> None:
    receiving = SubscriptionRig()
    messages = published(20, payload=lambda number: b"x" * (number % 2))
    receiving.run_samples(list(map(sample, messages)))
    [batch] = receiving.inbox.batches
    assert type(batch) is MessageBatch
    assert list(batch) == messages


@pytest.mark.parametrize("count", [3, 20])
@pytest.mark.parametrize("position", [0, 1, -1])
@pytest.mark.parametrize(
    ("attachment", "reason"),
    [
        (None, SampleRefusalReason.NO_ATTACHMENT),
        (b"", SampleRefusalReason.SHORT),
        (b"\x02" + bytes(40), SampleRefusalReason.VERSION),
    ],
)
def test_an_invalid_sample_in_a_batch_is_refused_and_the_rest_delivered(
    count: int, position: int, attachment: bytes | None, reason: SampleRefusalReason
) -> None:
    receiving, messages = SubscriptionRig(), published(count)
    samples = list(map(sample, messages))
    put = None if attachment is None else zenoh.ZBytes(attachment)
    samples[position] = samples[position]._replace(attachment=put)
    del messages[position]
    receiving.run_samples(samples)
    assert receiving.inbox.messages == messages
    assert (receiving.subscription.received, receiving.refused) == (count - 1, {reason: 1})


@pytest.mark.parametrize("position", [0, 1, 9, -1])
def test_a_message_of_another_topic_keeps_its_position(position: int) -> None:
    receiving, messages = SubscriptionRig(), published(20)
    [messages[position]] = published(1, OTHER_TOPIC)
    receiving.run_samples(list(map(sample, messages)))
    assert list(map(len, receiving.inbox.batches)) == [20]
    assert receiving.inbox.messages == messages
    assert receiving.subscription.received == 20


@pytest.mark.parametrize("position", [0, 1, 9, -1])
def test_a_message_on_a_wrong_key_in_a_batch_is_refused(position: int) -> None:
    receiving, messages = SubscriptionRig(), published(20)
    samples = list(map(sample, messages))
    samples[position] = samples[position]._replace(key_expr=zenoh.KeyExpr(key_of(LIKE[1])))
    del messages[position]
    receiving.run_samples(samples)
    assert receiving.inbox.messages == messages
    assert (receiving.subscription.received, receiving.refused) == (19, {SampleRefusalReason.MISMATCH: 1})


@pytest.mark.parametrize("count", [1, 7, 8, 128])
def test_a_listener_for_every_sink_receives_no_publications(count: int) -> None:
    receiving = SubscriptionRig(ListenerFilters(ANY, ANY))
    receiving.run_samples(list(map(sample, published(count))))
    assert receiving.inbox.batches == []
    assert (receiving.subscription.received, receiving.refused) == (0, {})
    notified = [notification(new_id(), TOPIC, REMOTE_CLIENT, b"x") for _ in range(count)]
    receiving.run_samples(list(map(sample, [*published(count), *notified])))
    assert receiving.inbox.messages == notified
    assert (receiving.subscription.received, receiving.refused) == (count, {})


def test_a_batch_is_delivered_by_other_filters_entirely_or_not_at_all() -> None:
    batch = MessageBatch.from_messages(published(20))
    assert batch is not None
    assert CoveredFilters((ListenerFilters(OTHER_TOPIC, None),)).uncovered(batch) is batch
    assert len(CoveredFilters((ListenerFilters(TOPIC, None),)).uncovered(batch)) == 0
    mixed = [*batch, *published(1, OTHER_TOPIC)]
    assert CoveredFilters((ListenerFilters(TOPIC, None),)).uncovered(mixed) == mixed[20:]
    assert CoveredFilters((ListenerFilters(OTHER_TOPIC, None),)).uncovered(mixed) == mixed[:20]
    assert CoveredFilters((ListenerFilters(ANY, ANY),)).uncovered(mixed) == mixed


@pytest.mark.parametrize(
    "given", [ListenerFilters(TOPIC, None), ListenerFilters(TOPIC.with_resource(0x8099), None)]
)
@pytest.mark.parametrize("count", [2, 20])
def test_messages_delivered_by_other_filters_count_as_received(given: ListenerFilters, count: int) -> None:
    receiving, messages = SubscriptionRig(ListenerFilters(ANY, None), given), published(count)
    receiving.run_samples(list(map(sample, messages)))
    assert receiving.inbox.messages == ([] if given.source == TOPIC else messages)
    assert receiving.subscription.received == count
    assert len(receiving.inbox.batches) == (given.source != TOPIC)


def test_a_batch_reaches_single_message_listeners_and_each_of_several() -> None:
    receiving, messages = SubscriptionRig(), published(20)
    singly: list[UMessage] = []
    for calls in (
        [ListenerEntry(singly.append, CoveredFilters())],
        [
            ListenerEntry(singly.append, CoveredFilters()),
            ListenerEntry(receiving.inbox, CoveredFilters()),
        ],
        [
            ListenerEntry(singly.append, CoveredFilters((ListenerFilters(TOPIC, None),))),
            ListenerEntry(receiving.inbox, CoveredFilters()),
        ],
    ):
        receiving.subscription.set_listeners(tuple(calls))
        receiving.run_samples(list(map(sample, messages)))
    assert singly == messages * 2
    assert receiving.inbox.messages == messages * 2


class Failing(BatchRecorder):
    error: BaseException = RuntimeError("no")

    def on_batch(self, messages: Sequence[UMessage]) -> None:
        super().on_batch(messages)
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit("no")])
def test_a_failing_batch_listener_is_counted_and_logged_with_the_first_message(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    receiving, messages = SubscriptionRig(), published(2 * MAX_BATCH)
    failing = Failing()
    failing.error = error
    receiving.subscription.set_listeners((ListenerEntry(failing, CoveredFilters()),))
    with caplog.at_level(logging.ERROR, "ustreamer.zenoh"):
        receiving.run_samples(list(map(sample, messages)))
    assert receiving.subscription.listener_errors == 2
    assert failing.messages == messages
    assert [each.__dict__["message_id"] for each in caplog.records] == [str(messages[0].id)]


def test_a_thread_that_has_ended_does_not_wait() -> None:
    """So health finds it: it makes no progress."""
    ended = Thread(target=int)
    ended.start()
    ended.join()
    here = free_locator()
    with plain_session(listen=[here]) as session:
        subscription = SubscriptionRig().subscription
        subscription.start(session)
        running, subscription._thread = subscription._thread, ended
        progress = subscription.receiving_thread()
        assert progress is not None
        assert not progress.waiting
        subscription._thread = running
        subscription.stop()


def test_queued_samples_are_delivered_after_undeclare() -> None:
    """Real samples; the channel ends in the middle of a batch."""
    receiving, messages = SubscriptionRig(), published(MAX_BATCH + 20)
    key = key_of(LIKE[0])
    channel: FifoChannel[zenoh.Sample] = FifoChannel(1_000)
    seen: list[bytes] = []
    here = free_locator()
    with plain_session(listen=[here]) as there, plain_session(connect=[here]) as session:
        subscriber = session.declare_subscriber(key, channel)
        # A later sample arrives after all samples of the other subscriber.
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
        receiving.subscription._run(handler)
    assert [type(each) for each in receiving.inbox.batches] == [MessageBatch, list]
    assert receiving.inbox.messages == messages
    assert (receiving.subscription.received, receiving.refused) == (
        MAX_BATCH + 20,
        {SampleRefusalReason.DELETE: 1},
    )


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 7, 8, 127, 128, 300])
def test_known_responses_form_batches_with_reqids(count: int) -> None:
    receiving = SubscriptionRig(ListenerFilters(ANY, ANY))
    first, *messages = (response_from(METHOD, REMOTE_CLIENT) for _ in range(1 + count))
    receiving.run_samples([sample(first)])
    receiving.run_samples(list(map(sample, messages)))
    assert receiving.inbox.messages == [first, *messages]
    assert (receiving.subscription.received, receiving.refused) == (1 + count, {})
    for taken in receiving.inbox.batches[1:]:
        assert (type(taken) is MessageBatch) is (len(taken) >= MIN_BATCH)


@pytest.mark.parametrize("position", [0, 1, 9, -1])
def test_a_different_response_keeps_its_position(position: int) -> None:
    receiving = SubscriptionRig(ListenerFilters(ANY, ANY))
    first, *messages = (response_from(METHOD, REMOTE_CLIENT) for _ in range(21))
    messages[position] = response_from(METHOD.with_resource(2), REMOTE_CLIENT)
    receiving.run_samples([sample(first)])
    receiving.run_samples(list(map(sample, messages)))
    assert receiving.inbox.messages == [first, *messages]
    assert [type(each) is MessageBatch for each in receiving.inbox.batches] == [False, False]


@pytest.mark.parametrize("given", [METHOD, METHOD.with_resource(2)])
def test_a_response_batch_is_not_delivered_twice_by_other_filters(given: UUri) -> None:
    receiving = SubscriptionRig(ListenerFilters(ANY, ANY), ListenerFilters(given, ANY))
    first, *messages = (response_from(METHOD, REMOTE_CLIENT) for _ in range(21))
    receiving.run_samples([sample(first)])
    receiving.run_samples(list(map(sample, messages)))
    assert receiving.inbox.messages == ([] if given == METHOD else [first, *messages])
    assert receiving.subscription.received == 21


@pytest.mark.parametrize("count", [1, 7, 8, 128, 300])
def test_answered_requests_are_recorded_for_single_and_batch_responses(count: int) -> None:
    receiving = SubscriptionRig(ListenerFilters(ANY, ANY))
    first, *messages = (response_from(METHOD, REMOTE_CLIENT) for _ in range(1 + count))
    sent_request = request(new_id(), REMOTE_CLIENT, METHOD, ttl=1_000)
    receiving.run_samples([sample(first), sample(sent_request)])
    receiving.run_samples(list(map(sample, messages)))
    assert receiving.subscription.received == 2 + count
    reqids = [each.attributes.reqid for each in (first, *messages)]
    assert all(each is not None and each in receiving.answered for each in reqids)
    assert sent_request.id not in receiving.answered


def test_an_invalid_sample_answers_no_request() -> None:
    receiving = SubscriptionRig(ListenerFilters(ANY, ANY))
    elsewhere, deleted = (response_from(METHOD, REMOTE_CLIENT) for _ in range(2))
    key = key_of(response_from(METHOD.with_resource(2), REMOTE_CLIENT))
    receiving.run_samples(
        [
            sample(elsewhere)._replace(key_expr=zenoh.KeyExpr(key)),
            sample(deleted)._replace(kind=DELETE, payload=zenoh.ZBytes(b"")),
        ]
    )
    assert receiving.refused == {SampleRefusalReason.MISMATCH: 1, SampleRefusalReason.DELETE: 1}
    reqids = [each.attributes.reqid for each in (elsewhere, deleted)]
    assert all(each is not None and each not in receiving.answered for each in reqids)
