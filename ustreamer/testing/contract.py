# SPDX-License-Identifier: Apache-2.0
"""The contract of every EndpointTransport: subclass `TransportContract` in a test module and implement `make_pair`.

    class TestMyTransport(TransportContract):
        @contextmanager
        def make_pair(self) -> Iterator[Pair]:
            yield Pair(MyTransport(...at ALPHA...), MyTransport(...at BETA...))

The suite opens `b` before `a`, closes both, and sends from `a` (authority ALPHA) to `b` (authority BETA). A protocol
that cannot carry everything overrides `messages` and `expected`. A test that does not apply is set to None in the
subclass, next to the reason.
"""

import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from ustreamer.testing.bench import StreamerBench, streamer_with
from ustreamer.testing.life_contract import LifeContract
from ustreamer.testing.mailbox import BatchMailbox, Mailbox
from ustreamer.testing.messages import (
    ALPHA,
    BAD_FILTERS,
    BETA,
    FILTERS,
    METHOD,
    OTHER_TOPIC,
    PROBE,
    REMOTE_CLIENT,
    TOPIC,
    by_id,
    code_of,
    four_messages,
    invalid_messages,
    new_id,
    response_from,
)
from ustreamer.testing.pair import Pair
from ustreamer.testing.port_contract import PortContract
from ustreamer.testing.waiting import DEADLINE_S, wait_until
from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuri import ANY, UUri, any_at

__all__ = ["Pair", "TransportContract"]


class TransportContract(LifeContract, PortContract):
    """The contract. Each test checks a guarantee of `EndpointTransport` or `UTransport`."""

    # --- carrying -----------------------------------------------------------------------------------------------------

    def test_every_message_arrives_unchanged(self, pair: Pair) -> None:
        publications, addressed = Mailbox(), Mailbox()
        pair.b.register_listener(ANY, None, publications)
        pair.b.register_listener(ANY, any_at(BETA), addressed)
        self.wait_connected(pair)
        sent = self.messages()
        for message in sent:
            pair.a.send(message)
        published = [self.expected(m) for m in sent if m.attributes.type is UMessageType.PUBLISH]
        others = [self.expected(m) for m in sent if m.attributes.type is not UMessageType.PUBLISH]
        wait_until(
            lambda: {m.id for m in published} <= {m.id for m in publications.messages}, "the publications"
        )
        assert [m for m in publications.messages if m.attributes.source != PROBE] == published
        # A message of a higher class may overtake.
        assert by_id(addressed.wait(len(others))) == by_id(others)

    def test_a_payload_of_any_size_is_untouched(self, pair: Pair, payload_size: int) -> None:
        inbox = Mailbox()
        pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)
        payload = bytes(i * 7 & 0xFF for i in range(payload_size))
        pair.a.send(publish(new_id(), TOPIC, payload))
        assert [m.payload for m in inbox.wait(1)] == [payload]

    @pytest.mark.parametrize("format", UPayloadFormat, ids=lambda each: each.name)
    def test_a_payload_is_never_read(self, pair: Pair, format: UPayloadFormat) -> None:
        inbox = Mailbox()
        pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)
        payloads = (b'{ "b" : 1, "a": 1.0 }', b"\xff\xfe{", b"  \r\n", b"\x0a\x80", b"\x00" * 9)
        sent = [
            self.expected(publish(new_id(), TOPIC, payload, format))
            for payload in payloads
            if len(payload) <= max(self.payload_sizes)
        ]
        for message in sent:
            pair.a.send(message)
        assert inbox.wait(len(sent)) == sent

    def test_messages_that_differ_in_one_attribute_arrive_unchanged(self, pair: Pair) -> None:
        """A transport may keep what messages of one topic have in common, and nothing else."""
        inbox = Mailbox()
        pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)
        changes: list[dict[str, object]] = [
            {},
            {"ttl": 9_000},
            {"ttl": 9_001},
            {"payload_format": UPayloadFormat.JSON},
            {"payload_format": UPayloadFormat.TEXT},
            {"priority": UPriority.CS6},
            {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
            {},
        ]
        plain = publish(new_id(), TOPIC).attributes
        sent = [UMessage(new_id(), msgspec.structs.replace(plain, **each), b"x") for each in changes]
        for message in sent:
            pair.a.send(message)
        # A message of a higher class may overtake.
        assert by_id(inbox.wait(len(sent))) == by_id(map(self.expected, sent))

    def test_messages_of_one_topic_keep_their_order(self, pair: Pair) -> None:
        inbox = Mailbox()
        pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)
        sent = [publish(new_id(), TOPIC, str(n).encode()) for n in range(500)]
        for message in sent:
            pair.a.send(message)
        assert [m.payload for m in inbox.wait(500)] == [m.payload for m in sent]

    def test_messages_of_several_threads_arrive_each_in_the_order_of_its_thread(self, pair: Pair) -> None:
        inbox = Mailbox()
        pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)
        sent = [[publish(new_id(), TOPIC, b"%d %d" % (part, n)) for n in range(50)] for part in range(4)]

        together = threading.Barrier(len(sent))

        def send(messages: Sequence[UMessage]) -> None:
            together.wait(DEADLINE_S)
            for message in messages:
                pair.a.send(message)

        threads = [threading.Thread(target=send, args=(messages,)) for messages in sent]
        for each in threads:
            each.start()
        for each in threads:
            each.join(DEADLINE_S)
        arrived = inbox.wait(200)
        assert len(arrived) == 200
        for messages in sent:
            ids = {message.id for message in messages}
            assert [message for message in arrived if message.id in ids] == messages

    def test_a_type_that_the_protocol_does_not_support_is_unimplemented(self, pair: Pair) -> None:
        supported = {message.attributes.type for message in self.messages()}
        others = [message for message in four_messages() if message.attributes.type not in supported]
        assert [code_of(lambda m=each: pair.a.send(m)) for each in others] == [  # type: ignore[misc]
            UCode.UNIMPLEMENTED
        ] * len(others)

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

    def test_a_streamer_carries_messages_both_ways_and_accounts_for_each(
        self, unopened: Pair, tmp_path: Path
    ) -> None:
        """The streamer has `b` as its endpoint. A uEntity of BETA is on an in-process network at another endpoint."""
        answer_topic = UUri(BETA, 1, 1, 0x8001)
        outside = Mailbox()
        with StreamerBench(tmp_path) as bench:
            streamer = bench.make_streamer(*streamer_with(bench, unopened.b, (TOPIC, PROBE, answer_topic)))
            inside = bench.entity("inside", BETA)
            inside.listen(ANY)
            unopened.a.register_listener(answer_topic, None, outside)
            streamer.start()
            unopened.a.open()

            def is_connected() -> bool:
                inside.publish(answer_topic)
                if code_of(lambda: unopened.a.send(publish(new_id(), PROBE))) is UCode.OK:
                    outside.wait(1, 0.05)
                return bool(inside.received and outside.messages)

            wait_until(is_connected, "messages in both directions")
            sent = [publish(new_id(), TOPIC, str(n).encode()) for n in range(20)]
            for message in sent:
                unopened.a.send(message)
            last = UMessage(new_id(), publish(new_id(), answer_topic).attributes, b"last")
            inside.transport.send(last)
            ids = {message.id for message in sent}
            wait_until(lambda: ids <= {each.id for each in inside.received}, "all publications")
            wait_until(lambda: last in outside.messages, "the last publication at the other end")
            assert [each for each in inside.received if each.id in ids] == sent
            unopened.a.close()
            streamer.stop()
            assert streamer.ledger().delivered > len(sent)

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

    def test_no_waiting_message_reaches_a_listener_after_its_unregistration(self, pair: Pair) -> None:
        entered, go = threading.Event(), threading.Event()
        calls: list[UMessage] = []
        calls_at_return: list[int] = []
        other = Mailbox()

        def slow(message: UMessage) -> None:
            calls.append(message)
            entered.set()
            go.wait(DEADLINE_S)

        def unregister() -> None:
            pair.b.unregister_listener(TOPIC, None, slow)
            calls_at_return.append(len(calls))
            go.set()

        def send() -> None:
            for message in sent:
                pair.a.send(message)

        pair.b.register_listener(TOPIC, None, slow)
        pair.b.register_listener(TOPIC, None, other)
        self.wait_connected(pair)
        sent = [publish(new_id(), TOPIC) for _ in range(20)]
        threads = [threading.Thread(target=send), threading.Thread(target=unregister)]
        threads[0].start()
        assert entered.wait(DEADLINE_S)
        threads[1].start()
        threads[1].join(0.2)  # it may wait for the call in progress
        go.set()
        for each in threads:
            each.join(DEADLINE_S)
        assert len(other.wait(20)) == 20
        assert calls_at_return == [len(calls)], "calls of the listener at the return, and in the end"

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
            for _ in range(self.listeners_above_limit):
                pair.b.register_listener(TOPIC, None, Mailbox())

        first = Mailbox()
        pair.b.register_listener(TOPIC, None, first)
        assert code_of(fill) is UCode.RESOURCE_EXHAUSTED
        assert code_of(lambda: pair.b.register_listener(TOPIC, None, first)) is UCode.OK  # nothing new

    def test_a_batch_listener_receives_each_message_once_in_order(self, pair: Pair) -> None:
        inbox = BatchMailbox()
        pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)
        sent = [publish(new_id(), TOPIC, str(n).encode()) for n in range(100)]
        sender = threading.Thread(target=lambda: [pair.a.send(message) for message in sent])
        sender.start()
        inbox.go.set()
        sender.join(DEADLINE_S)
        assert inbox.wait(100) == sent

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
