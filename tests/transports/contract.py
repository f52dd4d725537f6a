# SPDX-License-Identifier: Apache-2.0
"""The contract of every EndpointTransport: subclass `TransportContract` in a test module and implement `make_pair`.

    class TestMyTransport(TransportContract):
        @contextmanager
        def make_pair(self) -> Iterator[Pair]:
            yield Pair(MyTransport(...at ALPHA...), MyTransport(...at BETA...))

The suite opens `b` before `a`, closes both, and sends from `a` (authority ALPHA) to `b` (authority BETA). A protocol
that cannot carry everything overrides `messages` and `expected`.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, Final, NamedTuple

import msgspec
import pytest

from tests.waiting import wait_until
from ustreamer.transport_port import EndpointTransport
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage, notification, publish, request
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import ANY, ANY_ENTITY, UUri, any_at

ALPHA: Final = "alpha.vin1"
BETA: Final = "beta.vin1"

DEADLINE_S: Final = 30.0

TOPIC: Final = UUri(ALPHA, 0x1000A, 1, 0x8001)
OTHER_TOPIC: Final = UUri(ALPHA, 0x1000A, 1, 0x8002)
METHOD: Final = UUri(ALPHA, 0xB, 2, 0x0007)
CLIENT: Final = UUri(ALPHA, 0xC, 1, 0)
REMOTE_METHOD: Final = UUri(BETA, 0x2000D, 1, 0x0008)
REMOTE_CLIENT: Final = UUri(BETA, 0xE, 1, 0)
PROBE: Final = UUri(ALPHA, 0xFF, 1, 0xFFF0)

_ids: Final = UuidSource(lambda: time.time_ns() // 1_000_000)


def new_id() -> UUID:
    return _ids.next()


class Mailbox:
    """A listener that records its messages."""

    def __init__(self) -> None:
        self._messages: list[UMessage] = []
        self._changed = threading.Condition()

    def __call__(self, message: UMessage) -> None:
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()

    @property
    def messages(self) -> list[UMessage]:
        with self._changed:
            return list(self._messages)

    def wait(self, count: int, timeout_s: float = DEADLINE_S) -> list[UMessage]:
        """All messages, once there are `count` or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._messages) >= count, timeout_s)
            return list(self._messages)


class BatchMailbox(Mailbox):
    """A batch listener. The first call waits until `go`, so that a backlog builds up."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.largest = 0

    def __call__(self, message: UMessage) -> None:
        assert self.go.wait(DEADLINE_S)
        super().__call__(message)

    def on_batch(self, messages: Sequence[UMessage]) -> None:
        self.largest = max(self.largest, len(messages))
        for message in messages:
            self(message)


class Pair(NamedTuple):
    """Two transports of one network, not yet open: `a` for the entities of ALPHA, `b` for the entities of BETA."""

    a: EndpointTransport
    b: EndpointTransport


def response_from(source: UUri, sink: UUri) -> UMessage:
    attributes = UAttributes(
        type=UMessageType.RESPONSE,
        source=source,
        sink=sink,
        priority=UPriority.CS4,
        ttl=5000,
        reqid=new_id(),
        payload_format=UPayloadFormat.RAW,
    )
    return UMessage(new_id(), attributes, b"answer")


def four_messages() -> Sequence[UMessage]:
    """One message of each type from ALPHA to BETA, with every header field."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    sent_request = request(new_id(), CLIENT, REMOTE_METHOD, b"\x00\xff", UPayloadFormat.PROTOBUF, ttl=5000)
    notified = notification(
        new_id(), TOPIC, REMOTE_CLIENT, b"{}", UPayloadFormat.JSON, priority=UPriority.CS3
    )
    return (
        publish(
            new_id(), TOPIC, bytes(range(256)), UPayloadFormat.SOMEIP, priority=UPriority.CS6, ttl=10_000
        ),
        notified,
        msgspec.structs.replace(
            sent_request,
            attributes=msgspec.structs.replace(
                sent_request.attributes, permission_level=2, token="tok", traceparent=trace, commstatus=None
            ),
        ),
        response_from(METHOD, REMOTE_CLIENT),
    )


def by_id(messages: Iterable[UMessage]) -> list[UMessage]:
    return sorted(messages, key=lambda message: message.id)


class FilterCase(NamedTuple):
    source: UUri
    sink: UUri | None
    matches: frozenset[UMessageType]


_P, _N, _Q, _R = UMessageType.PUBLISH, UMessageType.NOTIFICATION, UMessageType.REQUEST, UMessageType.RESPONSE

# Which of `four_messages` a listener with these filters gets.
FILTERS: Final[Mapping[str, FilterCase]] = {
    "all publications": FilterCase(ANY, None, frozenset({_P})),
    "all publications of an authority": FilterCase(any_at(ALPHA), None, frozenset({_P})),
    "all publications of another authority": FilterCase(any_at(BETA), None, frozenset()),
    "one topic": FilterCase(TOPIC, None, frozenset({_P})),
    "another topic": FilterCase(OTHER_TOPIC, None, frozenset()),
    "a topic of any instance": FilterCase(UUri(ALPHA, 0xFFFF000A, 1, 0x8001), None, frozenset({_P})),
    "a topic of another instance": FilterCase(UUri(ALPHA, 0x2000A, 1, 0x8001), None, frozenset()),
    "a topic of any type": FilterCase(UUri(ALPHA, 0x1FFFF, 1, 0x8001), None, frozenset({_P})),
    "a topic of any version": FilterCase(UUri(ALPHA, 0x1000A, 0xFF, 0x8001), None, frozenset({_P})),
    "all that has a sink": FilterCase(ANY, ANY, frozenset({_N, _Q, _R})),
    "all messages to an authority": FilterCase(ANY, any_at(BETA), frozenset({_N, _Q, _R})),
    "all messages to another authority": FilterCase(ANY, any_at(ALPHA), frozenset()),
    "all messages to a client": FilterCase(ANY, REMOTE_CLIENT, frozenset({_N, _R})),
    "notifications of one topic": FilterCase(TOPIC, REMOTE_CLIENT, frozenset({_N})),
    "responses of one method": FilterCase(METHOD, REMOTE_CLIENT, frozenset({_R})),
    "requests to one method": FilterCase(ANY, REMOTE_METHOD, frozenset({_Q})),
    "requests to a service in any version": FilterCase(
        ANY, UUri(BETA, 0x2000D, 0xFF, 0xFFFF), frozenset({_Q})
    ),
}

BAD_FILTERS: Final[Mapping[str, tuple[UUri, UUri | None]]] = {
    "a method without a sink": (UUri(ALPHA, 1, 1, 5), None),
    "resource 0 without a sink": (UUri(ALPHA, 1, 1, 0), None),
    "resource 0 on both sides": (UUri(ALPHA, 1, 1, 0), UUri(BETA, 1, 1, 0)),
    "requests from a topic": (UUri(ALPHA, 1, 1, 0x8001), UUri(BETA, 1, 1, 5)),
}


def invalid_messages() -> Mapping[str, UMessage]:
    sent_request = request(new_id(), CLIENT, REMOTE_METHOD, ttl=5000)
    return {
        "a publication from a method": publish(new_id(), METHOD),
        "a publication from a wildcard": publish(new_id(), UUri(ALPHA, ANY_ENTITY, 1, 0x8001)),
        "a publication from any authority": publish(new_id(), UUri("*", 1, 1, 0x8001)),
        "a notification to a topic": notification(new_id(), TOPIC, UUri(BETA, 1, 1, 0x8001)),
        "a notification to a wildcard": notification(new_id(), TOPIC, UUri(BETA, ANY_ENTITY, 1, 0)),
        "a request without ttl": request(new_id(), CLIENT, REMOTE_METHOD, ttl=0),
        "a request of low priority": request(
            new_id(), CLIENT, REMOTE_METHOD, ttl=5000, priority=UPriority.CS3
        ),
        "a response without reqid": UMessage(
            new_id(), msgspec.structs.replace(response_from(METHOD, REMOTE_CLIENT).attributes, reqid=None)
        ),
        "an id that is no UUIDv7": UMessage(UUID(1, 2), sent_request.attributes),
        "no type": UMessage(new_id(), UAttributes(type=UMessageType.UNSPECIFIED, source=TOPIC)),
    }


def code_of(call: Callable[[], object]) -> UCode:
    """The code that `call` fails with; OK if it does not."""
    try:
        call()
    except UStatusError as error:
        return error.code
    return UCode.OK


class TransportContract(ABC):
    """The contract. Each test checks a guarantee of `EndpointTransport` or `UTransport`."""

    limit_of_listeners: ClassVar[int] = 5_000
    """More listeners than the transport accepts."""

    @abstractmethod
    def make_pair(self) -> AbstractContextManager[Pair]:
        """Two transports that can reach each other once `b` and then `a` are opened."""

    def messages(self) -> Sequence[UMessage]:
        """The messages from `a` to `b`: one of each type that the protocol supports."""
        return four_messages()

    def expected(self, sent: UMessage) -> UMessage:
        """The message that `b` receives for `sent`; overridden where the protocol drops part of a header."""
        return sent

    def wait_connected(self, pair: Pair) -> None:
        """Return when messages of `a` reach the listeners of `b` that are registered now."""
        arrived = Mailbox()
        pair.b.register_listener(PROBE, None, arrived)
        deadline = time.monotonic() + DEADLINE_S
        while not arrived.messages:
            assert time.monotonic() < deadline, f"no way from {pair.a} to {pair.b}"
            if code_of(lambda: pair.a.send(publish(new_id(), PROBE))) is not UCode.UNAVAILABLE:
                arrived.wait(1, 0.05)
        pair.b.unregister_listener(PROBE, None, arrived)

    @pytest.fixture
    def unopened(self) -> Iterator[Pair]:
        with self.make_pair() as pair:
            try:
                yield pair
            finally:
                pair.a.close()
                pair.b.close()

    @pytest.fixture
    def pair(self, unopened: Pair) -> Pair:
        unopened.b.open()
        unopened.a.open()
        return unopened

    # --- carrying -----------------------------------------------------------------------------------------------------

    def test_every_message_arrives_unchanged(self, pair: Pair) -> None:
        publications, addressed = Mailbox(), Mailbox()
        pair.b.register_listener(ANY, None, publications)
        pair.b.register_listener(ANY, any_at(BETA), addressed)
        self.wait_connected(pair)
        sent = self.messages()
        for message in sent:
            pair.a.send(message)
        published = [self.expected(m) for m in sent if m.attributes.type is _P]
        others = [self.expected(m) for m in sent if m.attributes.type is not _P]
        wait_until(
            lambda: {m.id for m in published} <= {m.id for m in publications.messages}, "the publications"
        )
        assert [m for m in publications.messages if m.attributes.source != PROBE] == published
        # A message of a higher class may overtake.
        assert by_id(addressed.wait(len(others))) == by_id(others)

    @pytest.mark.parametrize("size", [0, 1, 1_400, 70_000, 1_000_000])
    def test_a_payload_of_any_size_is_untouched(self, pair: Pair, size: int) -> None:
        inbox = Mailbox()
        pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)
        payload = bytes(i * 7 & 0xFF for i in range(size))
        pair.a.send(publish(new_id(), TOPIC, payload))
        assert [m.payload for m in inbox.wait(1)] == [payload]

    def test_messages_of_one_topic_keep_their_order(self, pair: Pair) -> None:
        inbox = Mailbox()
        pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)
        sent = [publish(new_id(), TOPIC, str(n).encode()) for n in range(500)]
        for message in sent:
            pair.a.send(message)
        assert [m.payload for m in inbox.wait(500)] == [m.payload for m in sent]

    def test_an_empty_authority_means_the_sender(self, pair: Pair) -> None:
        inbox = Mailbox()
        pair.b.register_listener(ANY, None, inbox)
        self.wait_connected(pair)
        local = publish(new_id(), UUri("", TOPIC.ue_id, TOPIC.ue_version_major, TOPIC.resource_id))
        pair.a.send(local)
        wait_until(lambda: any(m.id == local.id for m in inbox.messages), "the message")
        assert inbox.messages[-1].attributes.source == TOPIC

    def test_the_sink_that_a_streamer_adds_to_a_publication_is_not_transmitted(self, pair: Pair) -> None:
        inbox = Mailbox()
        pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)
        plain = publish(new_id(), TOPIC, b"x")
        sunk = msgspec.structs.replace(plain.attributes, sink=any_at(BETA))
        pair.a.send(msgspec.structs.replace(plain, attributes=sunk))
        assert inbox.wait(1) == [plain]

    def test_own_messages_are_not_returned(self, pair: Pair) -> None:
        own, other = Mailbox(), Mailbox()
        for transport, mailbox in ((pair.a, own), (pair.b, other)):
            transport.register_listener(ANY, None, mailbox)
            transport.register_listener(ANY, ANY, mailbox)
        self.wait_connected(pair)
        sent = self.messages()
        for message in sent:
            pair.a.send(message)
        answer = publish(new_id(), UUri(BETA, 1, 1, 0x8001))
        pair.b.send(answer)
        wait_until(
            lambda: {m.id for m in sent} <= {m.id for m in other.messages}, "what was sent, at the other end"
        )
        assert own.wait(1) == [answer]

    # --- listeners ----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("name", FILTERS)
    def test_a_listener_receives_exactly_the_messages_that_its_filters_match(
        self, pair: Pair, name: str
    ) -> None:
        case = FILTERS[name]
        inbox, all_published, all_addressed = Mailbox(), Mailbox(), Mailbox()
        pair.b.register_listener(case.source, case.sink, inbox)
        pair.b.register_listener(ANY, None, all_published)
        pair.b.register_listener(ANY, ANY, all_addressed)
        self.wait_connected(pair)
        # Twice: when the second round has arrived, the first has passed every listener.
        sent = [*self.messages(), *self.messages()]
        for message in sent:
            pair.a.send(message)
        wanted = [m for m in sent if m.attributes.type in case.matches]
        wait_until(
            lambda: (
                {m.id for m in sent} <= {m.id for m in (*all_published.messages, *all_addressed.messages)}
            ),
            "all messages",
        )

        def got() -> list[UMessage]:
            return [m for m in inbox.messages if m.attributes.source != PROBE]

        wait_until(lambda: len(got()) >= len(wanted), "what matches")  # each listener has a queue of its own
        assert by_id(got()) == by_id(map(self.expected, wanted))

    def test_registering_again_changes_nothing(self, pair: Pair) -> None:
        inbox = Mailbox()
        pair.b.register_listener(TOPIC, None, inbox)
        pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)
        sent = [publish(new_id(), TOPIC) for _ in range(2)]
        for message in sent:
            pair.a.send(message)
        assert inbox.wait(2) == sent
        pair.b.unregister_listener(TOPIC, None, inbox)
        assert code_of(lambda: pair.b.unregister_listener(TOPIC, None, inbox)) is UCode.NOT_FOUND

    def test_every_listener_of_the_same_filters_is_called(self, pair: Pair) -> None:
        inboxes = [Mailbox() for _ in range(3)]
        for inbox in inboxes:
            pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)
        message = publish(new_id(), TOPIC)
        pair.a.send(message)
        assert [inbox.wait(1) for inbox in inboxes] == [[message]] * 3

    def test_a_listener_is_called_once_however_many_of_its_filters_match(self, pair: Pair) -> None:
        inbox = Mailbox()
        for source in (TOPIC, any_at(ALPHA), UUri(ALPHA, 0x1FFFF, 1, 0x8001), OTHER_TOPIC):
            pair.b.register_listener(source, None, inbox)
        self.wait_connected(pair)
        sent = [publish(new_id(), topic) for topic in (TOPIC, OTHER_TOPIC) * 10]
        for message in sent:
            pair.a.send(message)
        wait_until(lambda: {m.id for m in sent} <= {m.id for m in inbox.messages}, "all messages")
        pair.b.stop_receiving()
        got = [m.id for m in inbox.messages if m.attributes.source != PROBE]
        assert sorted(got) == sorted(m.id for m in sent)

    def test_no_call_follows_an_unregistration(self, pair: Pair) -> None:
        inbox, other = Mailbox(), Mailbox()
        pair.b.register_listener(TOPIC, None, inbox)
        pair.b.register_listener(TOPIC, None, other)
        self.wait_connected(pair)
        sent = [publish(new_id(), TOPIC) for _ in range(3)]
        pair.a.send(sent[0])
        assert inbox.wait(1) == other.wait(1) == sent[:1]
        pair.b.unregister_listener(TOPIC, None, inbox)
        pair.a.send(sent[1])
        assert other.wait(2) == sent[:2]
        assert inbox.messages == sent[:1]
        pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)
        pair.a.send(sent[2])
        assert other.wait(3) == sent
        assert inbox.wait(2) == [sent[0], sent[2]]

    def test_unregistering_an_unknown_listener_is_not_found(self, pair: Pair) -> None:
        inbox = Mailbox()
        pair.b.register_listener(TOPIC, None, inbox)
        wrong: list[tuple[UUri, UUri | None, Mailbox]] = [
            (TOPIC, None, Mailbox()),
            (OTHER_TOPIC, None, inbox),
            (TOPIC, REMOTE_CLIENT, inbox),
        ]
        codes = [code_of(lambda w=each: pair.b.unregister_listener(*w)) for each in wrong]  # type: ignore[misc]
        assert codes == [UCode.NOT_FOUND] * 3

    @pytest.mark.parametrize("name", BAD_FILTERS)
    def test_filters_that_match_no_message_are_refused(self, pair: Pair, name: str) -> None:
        source, sink = BAD_FILTERS[name]
        assert code_of(lambda: pair.b.register_listener(source, sink, print)) is UCode.INVALID_ARGUMENT
        assert code_of(lambda: pair.b.unregister_listener(source, sink, print)) is UCode.INVALID_ARGUMENT

    def test_the_number_of_listeners_is_bounded(self, pair: Pair) -> None:
        def fill() -> None:
            for _ in range(self.limit_of_listeners):
                pair.b.register_listener(TOPIC, None, Mailbox())

        first = Mailbox()
        pair.b.register_listener(TOPIC, None, first)
        assert code_of(fill) is UCode.RESOURCE_EXHAUSTED
        assert code_of(lambda: pair.b.register_listener(TOPIC, None, first)) is UCode.OK  # nothing new

    def test_a_listener_that_raises_is_counted_and_affects_no_other(self, pair: Pair) -> None:
        def broken(message: UMessage) -> None:
            raise ValueError(message.id)

        inbox = Mailbox()
        pair.b.register_listener(TOPIC, None, broken)
        pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)
        sent = [publish(new_id(), TOPIC) for _ in range(3)]
        for message in sent:
            pair.a.send(message)
        assert inbox.wait(3) == sent
        assert pair.b.statistics()["listener_errors"] == 3

    def test_a_listener_may_register_send_and_unregister(self, pair: Pair) -> None:
        replies, late, done = Mailbox(), Mailbox(), Mailbox()

        def answering(message: UMessage) -> None:
            pair.b.send(publish(new_id(), UUri(BETA, 1, 1, 0x8001), message.payload))
            pair.b.register_listener(OTHER_TOPIC, None, late)
            pair.b.unregister_listener(TOPIC, None, answering)
            done(message)

        pair.a.register_listener(ANY, None, replies)
        pair.b.register_listener(TOPIC, None, answering)
        self.wait_connected(pair)
        pair.a.send(publish(new_id(), TOPIC, b"ping"))
        assert [m.payload for m in replies.wait(1)] == [b"ping"]
        assert len(done.wait(1)) == 1  # the reply is there before the listener has unregistered
        self.wait_connected(pair)
        pair.a.send(publish(new_id(), TOPIC, b"no listener"))
        pair.a.send(publish(new_id(), OTHER_TOPIC, b"late"))
        assert [m.payload for m in late.wait(1)] == [b"late"]
        assert len(replies.messages) == len(done.messages) == 1

    # --- sending ------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("name", invalid_messages())
    def test_a_message_that_breaks_the_rules_of_its_type_is_not_sent(self, pair: Pair, name: str) -> None:
        assert code_of(lambda: pair.a.send(invalid_messages()[name])) is UCode.INVALID_ARGUMENT
        assert pair.a.statistics()["sent"] == 0

    def test_a_refused_message_is_refused_again(self, pair: Pair) -> None:
        """A cache of checked messages must not accept the second one."""
        inbox = Mailbox()
        pair.b.register_listener(ANY, None, inbox)
        pair.b.register_listener(ANY, ANY, inbox)
        self.wait_connected(pair)
        codes = []
        for each in (response_from(METHOD, REMOTE_CLIENT), *invalid_messages().values()):
            again = msgspec.structs.replace(each)
            codes.append((code_of(lambda m=each: pair.a.send(m)), code_of(lambda m=again: pair.a.send(m))))  # type: ignore[misc]
        assert {first is second for first, second in codes[1:]} == {True}
        assert {first for first, _ in codes[1:]} == {UCode.INVALID_ARGUMENT}

    def test_no_transport_supports_receive(self, pair: Pair) -> None:
        assert code_of(lambda: pair.a.receive(TOPIC)) is UCode.UNIMPLEMENTED

    # --- life ---------------------------------------------------------------------------------------------------------

    def test_listeners_registered_before_opening_get_messages(self, unopened: Pair) -> None:
        inbox = Mailbox()
        unopened.b.register_listener(TOPIC, None, inbox)
        unopened.b.open()
        unopened.a.open()
        self.wait_connected(unopened)
        message = publish(new_id(), TOPIC)
        unopened.a.send(message)
        assert inbox.wait(1) == [message]

    def test_before_opening_and_after_closing_a_send_is_unavailable(self, unopened: Pair) -> None:
        message = publish(new_id(), TOPIC)
        assert code_of(lambda: unopened.a.send(message)) is UCode.UNAVAILABLE
        unopened.b.open()
        unopened.a.open()
        self.wait_connected(unopened)
        unopened.a.close()
        assert code_of(lambda: unopened.a.send(message)) is UCode.UNAVAILABLE
        assert code_of(lambda: unopened.a.send(publish(new_id(), METHOD))) is UCode.INVALID_ARGUMENT

    def test_after_stop_receiving_no_message_arrives_and_sending_works(self, pair: Pair) -> None:
        stopped, other = Mailbox(), Mailbox()
        pair.b.register_listener(TOPIC, None, stopped)
        pair.a.register_listener(ANY, None, other)
        self.wait_connected(pair)
        pair.b.stop_receiving()
        pair.b.stop_receiving()
        pair.b.register_listener(OTHER_TOPIC, None, stopped)
        answer = publish(new_id(), UUri(BETA, 1, 1, 0x8001))
        pair.b.send(answer)
        assert other.wait(1) == [answer]
        for topic in (TOPIC, OTHER_TOPIC):
            pair.a.send(publish(new_id(), topic))
        stopped.wait(1, 0.2)
        pair.b.close()
        assert stopped.messages == []

    def test_closing_may_be_repeated_and_leaves_no_thread(self, unopened: Pair) -> None:
        before = set(threading.enumerate())
        unopened.b.register_listener(ANY, None, print)
        unopened.b.open()
        unopened.a.open()
        for transport in (unopened.a, unopened.b):
            transport.close()
            transport.close()
            transport.stop_receiving()
        assert set(threading.enumerate()) <= before

    def test_a_transport_that_was_never_opened_can_be_closed(self, unopened: Pair) -> None:
        unopened.a.stop_receiving()
        unopened.a.close()
        unopened.b.close()

    def test_statistics_are_a_snapshot(self, pair: Pair) -> None:
        inbox = Mailbox()
        pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)
        before = pair.a.statistics(), pair.b.statistics()
        kept = [dict(each) for each in before]
        for _ in range(3):
            pair.a.send(publish(new_id(), TOPIC))
        inbox.wait(3)
        after = pair.a.statistics(), pair.b.statistics()
        assert [dict(each) for each in before] == kept
        assert after[0]["sent"] - before[0]["sent"] == 3
        assert after[1]["received"] - before[1]["received"] == 3
        assert all(type(value) is int for each in after for value in each.values())

    def test_a_listener_that_hangs_stops_the_progress_of_a_receiving_thread(self, pair: Pair) -> None:
        entered, go = threading.Event(), threading.Event()

        def hang(message: UMessage) -> None:
            entered.set()
            assert go.wait(DEADLINE_S)

        def working() -> set[tuple[str, int]]:
            """The threads that do not wait for input, with their turns."""
            return {(each.name, each.turns) for each in pair.b.receiving_threads() if not each.waiting}

        pair.b.register_listener(TOPIC, None, hang)
        self.wait_connected(pair)
        has_threads = bool(pair.b.receiving_threads())
        # Without receiving threads the sender's thread runs the listener.
        sender = threading.Thread(target=lambda: pair.a.send(publish(new_id(), TOPIC)))
        sender.start()
        try:
            assert entered.wait(DEADLINE_S)
            hanging, until = working(), time.monotonic() + 1.5  # without input SOME/IP has a turn each second
            while time.monotonic() < until:
                hanging &= working()
                time.sleep(0.05)
        finally:
            go.set()
            sender.join(DEADLINE_S)
        assert bool(hanging) is has_threads
        wait_until(lambda: not hanging & working(), "its progress")
        pair.b.close()
        assert list(pair.b.receiving_threads()) == []

    def test_counters_of_unregistered_listeners_are_kept(self, pair: Pair) -> None:
        inbox = Mailbox()
        pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)
        pair.a.send(publish(new_id(), TOPIC))
        inbox.wait(1)
        before = pair.b.statistics()["received"]
        pair.b.unregister_listener(TOPIC, None, inbox)
        assert pair.b.statistics()["received"] >= before > 0
