# SPDX-License-Identifier: Apache-2.0
"""The life of a transport: opening, ending, progress, counters. A part of `TransportContract`."""

import threading
import time
from itertools import pairwise
from typing import ClassVar, Final

from ustreamer.testing.mailbox import Mailbox
from ustreamer.testing.messages import BETA, METHOD, OTHER_TOPIC, TOPIC, code_of, new_id
from ustreamer.testing.pair import Pair, PairContract, now_s, resources
from ustreamer.testing.waiting import DEADLINE_S, wait_until
from ustreamer.transport_port import EndpointTransport
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuri import ANY, UUri

_PRESENT_SUFFIXES: Final = ("_now", "_open", "_waiting", "_bytes")
_CALLED_AFTER_CLOSE_S: Final = 0.2
_ROUNDS: Final = 10


class LifeContract(PairContract):
    """Each test checks a guarantee about the life of an `EndpointTransport`."""

    present_values: ClassVar[frozenset[str]] = frozenset()
    """Names of `statistics` that go up and down, although they end in none of `_now`, `_open`, `_waiting`, `_bytes`."""

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

    def test_closing_leaves_no_open_file(self) -> None:
        opened = 0
        for turn in range(3):
            with self.make_pair() as pair:
                pair.b.open()
                pair.a.open()
                pair.a.close()
                pair.b.close()
            if turn < 2:  # a library may keep what it opens first
                opened = resources()[0]
        wait_until(lambda: resources()[0] <= opened, f"{opened} open files, as after the last pair")

    def test_a_transport_that_was_never_opened_can_be_closed(self, unopened: Pair) -> None:
        unopened.a.stop_receiving()
        unopened.a.close()
        unopened.b.close()

    def test_closing_does_not_wait_forever_for_a_listener(self, pair: Pair) -> None:
        entered, go = threading.Event(), threading.Event()

        def hang(message: UMessage) -> None:
            entered.set()
            go.wait(DEADLINE_S + self.close_within_s)

        pair.b.register_listener(TOPIC, None, hang)
        self.wait_connected(pair)
        # Where the sender's thread runs the listener, the sender hangs with it.
        sender = threading.Thread(target=code_of, args=(lambda: pair.a.send(publish(new_id(), TOPIC)),))
        closer = threading.Thread(target=pair.b.close)
        sender.start()
        try:
            assert entered.wait(DEADLINE_S), "the message did not arrive"
            closer.start()
            closer.join(self.close_within_s)
            closed = not closer.is_alive()
        finally:
            go.set()
            for each in (sender, closer):
                each.join(DEADLINE_S)
        assert closed, f"close() took more than {self.close_within_s} s while a listener hung"

    def test_after_closing_no_listener_is_called(self, pair: Pair) -> None:
        inbox = Mailbox()
        pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)
        pair.b.close()
        code_of(lambda: pair.a.send(publish(new_id(), TOPIC)))
        assert inbox.wait(1, _CALLED_AFTER_CLOSE_S) == []

    def test_a_send_next_to_a_close_succeeds_or_is_unavailable(self, pair: Pair) -> None:
        self.wait_connected(pair)
        codes: set[UCode] = set()
        failures: list[Exception] = []
        sending, closed = threading.Event(), threading.Event()

        def send() -> None:
            after_close = 0
            try:
                while after_close < 10:
                    after_close += closed.is_set()
                    codes.add(code_of(lambda: pair.a.send(publish(new_id(), TOPIC))))
                    sending.set()
            except Exception as error:  # noqa: BLE001  # whatever the transport raises is the finding
                failures.append(error)
            finally:
                sending.set()

        sender = threading.Thread(target=send)
        sender.start()
        assert sending.wait(DEADLINE_S)
        pair.a.close()
        closed.set()
        sender.join(DEADLINE_S)
        assert not sender.is_alive(), "a send did not return after close()"
        assert failures == []
        assert codes <= {UCode.OK, UCode.UNAVAILABLE}

    def test_a_message_for_a_closed_end_fails_with_a_status_or_not_at_all(self, pair: Pair) -> None:
        self.wait_connected(pair)
        pair.b.close()
        began_s = now_s()
        code = code_of(lambda: pair.a.send(publish(new_id(), TOPIC)))
        assert code in {UCode.OK, UCode.UNAVAILABLE}
        assert now_s() - began_s < DEADLINE_S

    # --- progress and counters --------------------------------------------------------------------------------------

    def test_a_listener_that_hangs_stops_the_progress_of_a_receiving_thread(self, pair: Pair) -> None:
        entered, go = threading.Event(), threading.Event()

        def hang(message: UMessage) -> None:
            entered.set()
            assert go.wait(DEADLINE_S)

        pair.b.register_listener(TOPIC, None, hang)
        self.wait_connected(pair)
        has_threads = bool(pair.b.receiving_threads())
        # Without receiving threads the sender's thread runs the listener.
        sender = threading.Thread(target=lambda: pair.a.send(publish(new_id(), TOPIC)))
        sender.start()
        try:
            assert entered.wait(DEADLINE_S)
            hanging = _without_progress(pair.b)
        finally:
            go.set()
            sender.join(DEADLINE_S)
        assert bool(hanging) is has_threads
        wait_until(lambda: not hanging & _working(pair.b), "its progress")
        pair.b.close()
        assert list(pair.b.receiving_threads()) == []

    def test_a_receiving_thread_without_input_does_not_look_as_if_it_hangs(self, pair: Pair) -> None:
        inbox = Mailbox()
        pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)
        pair.a.send(publish(new_id(), TOPIC))
        inbox.wait(1)
        wait_until(lambda: not _without_progress(pair.b), "threads that wait for input, or have turns")

    def test_each_message_is_progress_of_each_receiving_thread(self, pair: Pair) -> None:
        inbox = Mailbox()
        pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)

        def turns() -> dict[str, int]:
            return {each.name: each.turns for each in pair.b.receiving_threads()}

        before = turns()
        for _ in range(4):
            pair.a.send(publish(new_id(), TOPIC))
        inbox.wait(4)
        wait_until(
            lambda: all(number >= before.get(name, 0) + 2 for name, number in turns().items()), "more turns"
        )

    def test_statistics_are_a_snapshot(self, pair: Pair) -> None:
        inbox = Mailbox()
        pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)
        before = pair.a.statistics(), pair.b.statistics()
        kept = [dict(each) for each in before]
        for count in range(1, _ROUNDS + 1):  # one by one: acknowledgements of earlier ones come in between
            pair.a.send(publish(new_id(), TOPIC))
            inbox.wait(count)
        after = pair.a.statistics(), pair.b.statistics()
        assert [dict(each) for each in before] == kept
        assert after[0]["sent"] - before[0]["sent"] == _ROUNDS
        assert after[1]["received"] - before[1]["received"] == _ROUNDS
        assert all(type(value) is int for each in after for value in each.values())

    def test_counters_of_unregistered_listeners_are_kept(self, pair: Pair) -> None:
        inbox = Mailbox()
        pair.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(pair)
        pair.a.send(publish(new_id(), TOPIC))
        inbox.wait(1)
        before = pair.b.statistics()["received"]
        pair.b.unregister_listener(TOPIC, None, inbox)
        assert pair.b.statistics()["received"] >= before > 0

    def test_a_counter_never_decreases(self, unopened: Pair) -> None:
        seen: list[list[dict[str, int]]] = [[], []]

        def read() -> None:
            for of_one, transport in zip(seen, unopened, strict=True):
                of_one.append(dict(transport.statistics()))

        read()
        unopened.b.open()
        unopened.a.open()
        read()
        inbox = Mailbox()
        unopened.b.register_listener(TOPIC, None, inbox)
        self.wait_connected(unopened)
        for _ in range(3):
            unopened.a.send(publish(new_id(), TOPIC))
        inbox.wait(3)
        read()
        unopened.b.unregister_listener(TOPIC, None, inbox)
        for step in (EndpointTransport.stop_receiving, EndpointTransport.close):
            for transport in unopened:
                getattr(transport, step.__name__)()
            read()
        falling = {
            name
            for of_one in seen
            for before, after in pairwise(of_one)
            for name, value in before.items()
            if after.get(name, 0) < value and not self._is_present_value(name)
        }
        assert falling == set()
        assert all(value >= 0 for of_one in seen for each in of_one for value in each.values())

    def _is_present_value(self, name: str) -> bool:
        is_present = name.endswith(_PRESENT_SUFFIXES) and not name.startswith("refused_")
        return is_present or name in self.present_values

    def test_a_name_of_a_counter_is_a_metric_name(self, pair: Pair) -> None:
        assert [name for name in pair.a.statistics() if not name.isidentifier() or name != name.lower()] == []


def _working(transport: EndpointTransport) -> set[tuple[str, int]]:
    """The threads that do not wait for input, with their turns."""
    return {(each.name, each.turns) for each in transport.receiving_threads() if not each.waiting}


def _without_progress(transport: EndpointTransport) -> set[tuple[str, int]]:
    """The threads that neither waited for input nor had a turn for 1.5 s. Without input SOME/IP has one each second."""
    found, until = _working(transport), now_s() + 1.5
    while found and now_s() < until:
        found &= _working(transport)
        time.sleep(0.05)
    return found
