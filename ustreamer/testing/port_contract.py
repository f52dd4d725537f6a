# SPDX-License-Identifier: Apache-2.0
"""What the streamer asks of an endpoint besides messages. A part of `TransportContract`."""

import threading
from itertools import chain

from ustreamer.core.base.recent_failures import RecentFailure
from ustreamer.core.routing.subscriptions import Subscription
from ustreamer.testing.mailbox import Mailbox
from ustreamer.testing.messages import METHOD, OTHER_TOPIC, TOPIC, new_id
from ustreamer.testing.pair import Pair, PairContract, resources
from ustreamer.testing.waiting import wait_until
from ustreamer.transport_port import EndpointTransport, Unconfirmed
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuri import UUri

_MESSAGES = 50


class PortContract(PairContract):
    """Each test checks a method of `EndpointTransport` that the streamer calls."""

    # --- answers ------------------------------------------------------------------------------------------------------

    def test_the_answers_of_an_endpoint_have_the_types_of_the_port(self, pair: Pair) -> None:
        for each in pair:
            assert (type(each.unicast), type(each.inline)) == (bool, bool)
            window = each.send_window()
            assert type(window) is int
            assert window >= 0
            assert all(type(text) is str and text for text in chain(each.problems(), each.warnings()))
            assert all(type(found) is Subscription for found in each.subscriptions())
            assert all(type(topic) is UUri for topic in each.topics())
            assert type(each.sends_field(TOPIC)) is bool
            assert type(each.input_problem(TOPIC)) is str
            assert type(each.link_problem()) is str
            assert type(each.link_suspicion()) is str
            assert each.knows_method(METHOD) in (None, False, True)
            assert all(type(failure) is RecentFailure for failure in each.recent_failures(METHOD) or ())
            assert type(each.awaits_receipt(new_id())) is bool
            assert type(each.has_listener(publish(new_id(), TOPIC).attributes)) is bool
            values = each.field_values(TOPIC)
            assert all(value.attributes.type is UMessageType.PUBLISH for value in values)
            directory = each.subscription_directory(lambda: None)
            assert directory is None or list(directory.subscribers(OTHER_TOPIC)) == []

    def test_an_endpoint_that_never_waits_has_a_send_window(self, pair: Pair) -> None:
        assert not pair.a.inline or pair.a.send_window() > 0

    def test_a_check_of_the_environment_has_no_side_effect(self, unopened: Pair) -> None:
        files, threads = resources()
        for each in unopened:
            first = [*each.problems(), *each.warnings()]
            assert [*each.problems(), *each.warnings()] == first
        now = resources()
        assert now[0] <= files  # an earlier test may close some
        assert now[1] <= threads

    def test_a_topic_can_be_prepared_at_any_time(self, unopened: Pair) -> None:
        unopened.a.prepare_topic(TOPIC)
        unopened.b.open()
        unopened.a.open()
        unopened.a.prepare_topic(TOPIC)
        unopened.a.prepare_topic(TOPIC)
        inbox = Mailbox()
        unopened.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(unopened)
        message = publish(new_id(), TOPIC)
        unopened.a.send(message)
        assert inbox.wait(1) == [message]
        unopened.a.close()
        unopened.a.prepare_topic(OTHER_TOPIC)

    def test_a_listener_that_receives_a_topic_is_not_denied(self, pair: Pair) -> None:
        inbox = Mailbox()
        pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)
        message = publish(new_id(), TOPIC)
        pair.a.send(message)
        assert inbox.wait(1) == [message]
        assert pair.a.has_listener(message.attributes)

    def test_the_end_of_reading_is_reported_at_most_once(self, pair: Pair) -> None:
        inbox, reported = Mailbox(), Mailbox()
        pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)
        last = publish(new_id(), TOPIC)
        pair.b.call_when_read(lambda: reported(last))
        for _ in range(3):
            pair.a.send(publish(new_id(), TOPIC))
        assert len(inbox.wait(3)) == 3
        assert len(reported.wait(2, 0.1)) <= 1

    def test_finishing_returns_what_is_unconfirmed_and_closes(self, pair: Pair) -> None:
        inbox = Mailbox()
        pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)
        message = publish(new_id(), TOPIC)
        pair.a.send(message)
        inbox.wait(1)
        unconfirmed = pair.a.finish()
        assert type(unconfirmed) is Unconfirmed
        assert type(unconfirmed.forgotten) is int
        assert {type(each) for each in unconfirmed.messages} <= {UMessage}
        assert type(pair.a.finish()) is Unconfirmed
        pair.a.close()

    # --- transmitters -------------------------------------------------------------------------------------------------

    def test_a_transmitter_sends_one_message(self, pair: Pair) -> None:
        inbox = Mailbox()
        pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)
        sent = [publish(new_id(), TOPIC, str(n).encode()) for n in range(3)]
        transmit = pair.a.transmitter(None)
        for message in sent:
            transmit(message)
        assert inbox.wait(3) == sent

    def test_a_batch_arrives_in_order_and_the_number_of_sent_messages_is_returned(self, pair: Pair) -> None:
        inbox = Mailbox()
        pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)
        sent = [publish(new_id(), TOPIC, str(n).encode()) for n in range(_MESSAGES)]
        transmit, transmit_batch = pair.a.transmitter(None), pair.a.batch_transmitter(None)
        done = 0
        while done < len(sent):
            count = transmit_batch(iter(sent[done:]))
            assert 0 <= count <= len(sent) - done
            done += count
            if done < len(sent):  # as the egress queue: the refused message is sent again, alone
                transmit(sent[done])
                done += 1
        assert inbox.wait(len(sent)) == sent

    def test_a_batch_of_a_closed_endpoint_sends_nothing_and_raises_nothing(self, unopened: Pair) -> None:
        sent = [publish(new_id(), TOPIC)]
        assert unopened.a.batch_transmitter(None)(sent) == 0
        unopened.b.open()
        unopened.a.open()
        transmit_batch = unopened.a.batch_transmitter(None)
        unopened.a.close()
        assert transmit_batch(sent) == 0

    # --- links --------------------------------------------------------------------------------------------------------

    def test_the_first_state_of_a_link_is_reported_by_open(self, unopened: Pair) -> None:
        reports: list[list[bool]] = [[], []]
        for transport, of_one in zip(unopened, reports, strict=True):
            transport.watch_link(of_one.append)
        assert reports == [[], []], "a link was reported before open()"
        for transport, of_one in ((unopened.b, reports[1]), (unopened.a, reports[0])):
            transport.open()
            reports_links = type(transport).watch_link is not EndpointTransport.watch_link
            assert bool(of_one) is reports_links, f"{transport} at the return of open()"
        self.wait_connected(unopened)
        for of_one in reports:
            wait_until(lambda each=of_one: not each or each[-1], "the last report: up")  # type: ignore[misc]
        assert {type(up) for of_one in reports for up in of_one} <= {bool}

    def test_a_link_that_is_up_accepts_messages(self, unopened: Pair) -> None:
        """At a link-up the streamer sends what waits."""
        codes: list[object] = []

        def on_link(up: bool) -> None:
            if up:
                try:
                    unopened.a.send(publish(new_id(), TOPIC))
                except Exception as error:  # noqa: BLE001  # whatever the transport raises is the finding
                    codes.append(error)

        unopened.a.watch_link(on_link)
        unopened.b.open()
        unopened.a.open()
        self.wait_connected(unopened)
        assert codes == []

    def test_a_watcher_of_links_that_raises_does_no_harm(self, unopened: Pair) -> None:
        def broken(up: bool) -> None:
            raise ValueError(f"link {up}")

        reports: list[bool] = []
        unopened.a.watch_link(broken)
        unopened.a.watch_link(reports.append)
        unopened.b.open()
        unopened.a.open()
        inbox = Mailbox()
        unopened.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(unopened)
        message = publish(new_id(), TOPIC)
        unopened.a.send(message)
        assert inbox.wait(1) == [message]

    def test_nothing_is_reported_after_a_close(self, unopened: Pair) -> None:
        after_close: list[object] = []
        closed = threading.Event()

        def note(what: object) -> None:
            if closed.is_set():
                after_close.append(what)

        unopened.a.watch_link(note)
        unopened.a.watch_routes(note)
        unopened.b.open()
        unopened.a.open()
        self.wait_connected(unopened)
        unopened.a.close()
        closed.set()
        unopened.b.close()
        assert after_close == []
