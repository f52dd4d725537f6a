# SPDX-License-Identifier: Apache-2.0
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import pytest
import zenoh
from msgspec.structs import replace

from tests.transports.zenoh.sessions import CLOCK, endpoint, free_locator, plain_session, wait_for_link
from tests.waiting import wait_until
from ustreamer.testing.contract import Pair, TransportContract
from ustreamer.testing.mailbox import BatchMailbox, Mailbox
from ustreamer.testing.messages import (
    ALPHA,
    BETA,
    CLIENT,
    METHOD,
    OTHER_TOPIC,
    REMOTE_CLIENT,
    REMOTE_METHOD,
    TOPIC,
    code_of,
    new_id,
    response_from,
)
from ustreamer.testing.peer_contract import PeerContract
from ustreamer.transport_port import EndpointContext
from ustreamer.transports.zenoh import subscriber
from ustreamer.transports.zenoh.config import ZenohEndpoint
from ustreamer.transports.zenoh.decoder import VERSION_BYTE
from ustreamer.transports.zenoh.keys import message_key
from ustreamer.transports.zenoh.link_monitor import LinkMonitor
from ustreamer.transports.zenoh.publisher import ZenohSender
from ustreamer.transports.zenoh.receipts.awaited_receipts import AwaitedReceipts
from ustreamer.transports.zenoh.retransmit import AnsweredRequests, RetransmitConfig
from ustreamer.transports.zenoh.subscriber import ListenerFilters, ZenohSubscription
from ustreamer.transports.zenoh.tcp_info import find_link
from ustreamer.transports.zenoh.tokens.peer_tokens import PeerTokens
from ustreamer.transports.zenoh.transport import ZenohTransport
from ustreamer.uprotocol.batch import MAX_BATCH
from ustreamer.uprotocol.uattributes import UPriority
from ustreamer.uprotocol.umessage import UMessage, publish, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import ANY, UUri, any_at
from ustreamer.uprotocol.wire import encode


class TestPeersContract(TransportContract):
    present_values = frozenset({"links"})

    @contextmanager
    def make_pair(self) -> Iterator[Pair]:
        here = free_locator()
        yield Pair(endpoint(ALPHA, connect=(here,)), endpoint(BETA, listen=(here,)))


class TestPeerStreamersContract(PeerContract):
    @contextmanager
    def make_pair(self) -> Iterator[Pair]:
        here = free_locator()
        yield Pair(endpoint(ALPHA, connect=(here,)), endpoint(BETA, listen=(here,)))


class TestClientsOfARouterContract(TransportContract):
    present_values = frozenset({"links"})

    @contextmanager
    def make_pair(self) -> Iterator[Pair]:
        here = free_locator()
        with plain_session("router", listen=[here]):
            a, b = (endpoint(authority, mode="client", connect=(here,)) for authority in (ALPHA, BETA))
            yield Pair(a, b)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A send waits for the subscriber, however long a busy machine takes to declare it."""
    for each in ("_SETTLING_FIRST_NS", "_SETTLING_NS"):
        monkeypatch.setattr(f"ustreamer.transports.zenoh.link_monitor.{each}", 30_000_000_000)


@pytest.fixture
def pair(patient: None) -> Iterator[Pair]:
    here = free_locator()
    pair = Pair(endpoint(ALPHA, "a", connect=(here,)), endpoint(BETA, "b", listen=(here,)))
    try:
        pair.b.open()
        pair.a.open()
        wait_until(lambda: [each.statistics()["links"] for each in pair] == [1, 1], "the link")
        yield pair
    finally:
        pair.a.close()
        pair.b.close()


# --- messages taken without waiting -------------------------------------------------------------------------


def test_the_send_window_requires_a_known_window_of_every_link(pair: Pair) -> None:
    wait_until(lambda: pair.a.send_window() > 0, "the connection to be found")
    pair.b.close()
    wait_until(lambda: pair.a.send_window() == 0, "the link to go")
    assert endpoint(ALPHA, listen=(free_locator(),)).send_window() == 0


def test_puts_within_the_send_window_never_wait_for_a_stalled_node() -> None:
    """Messages within `send_window` fit into the kernel's buffer, so an inline send never waits."""
    here = free_locator()
    program = f"""
import time
from ustreamer.testing.mailbox import *
from ustreamer.testing.messages import *
from tests.transports.zenoh.sessions import *
b = endpoint(BETA, listen=({here!r},))
b.register_listener(ANY, None, lambda message: None)
b.open()
print("READY", flush=True)
time.sleep(60)
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        sender = endpoint(ALPHA, connect=(here,))
        try:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "READY\n"
            sender.open()
            wait_until(lambda: sender.send_window() > 0, "the connection to be found")
            sender.send(publish(new_id(), TOPIC))
            reader.send_signal(signal.SIGSTOP)
            longest_s, sent, payload = 0.0, 0, bytes(8_000)
            while sender.send_window() >= 2 * len(payload):
                before = time.monotonic()
                sender.send(publish(new_id(), TOPIC, payload))
                longest_s = max(longest_s, time.monotonic() - before)
                sent += 1
                assert sent < 10_000, "80 MB were accepted for a receiver that does not read"
            assert sent
            # A blocked put waits until the reader continues, which this one never does, or for 5 s.
            assert longest_s < 4.5
        finally:
            reader.kill()
            sender.close()


# --- opening and closing ----------------------------------------------------------------------------------------------


def test_an_address_in_use_is_unavailable_and_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        locator = f"tcp/127.0.0.1:{taken.getsockname()[1]}"
        transport = endpoint(ALPHA, listen=(locator,))
        with pytest.raises(UStatusError) as caught:
            transport.open()
    assert caught.value.code is UCode.UNAVAILABLE
    for part in (
        "endpoint 'backbone'",
        f'listening on ["{locator}"]',
        'mode "peer"',
        "Address already in use",
    ):
        assert part in caught.value.message
    transport.close()


def test_a_panic_of_zenoh_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our check of the metadata is off, so Zenoh panics, as it may at a value that the check does not know."""
    monkeypatch.setattr("ustreamer.transports.zenoh.locators.check_parameters", lambda _: None)
    monkeypatch.setattr("ustreamer.transports.zenoh.transport.check_parameters", lambda _: None)
    transport = endpoint(ALPHA, listen=(f"{free_locator()}?rel=9",))
    with pytest.raises(UStatusError, match=r"INVALID_ARGUMENT: endpoint 'backbone': .*InvalidReliability"):
        transport.open()
    transport.close()


def test_a_client_without_its_router_is_unavailable() -> None:
    locator = free_locator()
    transport = endpoint(ALPHA, mode="client", connect=(locator,))
    with pytest.raises(UStatusError, match=f"UNAVAILABLE: .*connecting to .*{locator}.*Unable to connect"):
        transport.open()


@pytest.mark.usefixtures("patient")
def test_a_peer_opens_alone_and_sends_when_a_node_connects() -> None:
    here = free_locator()
    sender, receiver, inbox = endpoint(ALPHA, connect=(here,)), endpoint(BETA, listen=(here,)), Mailbox()
    receiver.register_listener(TOPIC, None, inbox)
    message = publish(new_id(), TOPIC)
    sender.open()
    try:
        assert code_of(lambda: sender.send(message)) is UCode.UNAVAILABLE
        receiver.open()
        wait_for_link(sender)
        sender.send(message)
        assert inbox.wait(1) == [message]
    finally:
        sender.close()
        receiver.close()


def test_a_transport_is_opened_once(pair: Pair) -> None:
    assert code_of(pair.a.open) is UCode.FAILED_PRECONDITION
    pair.a.close()
    assert code_of(pair.a.open) is UCode.FAILED_PRECONDITION


@pytest.mark.parametrize("authority", ["*", "", "Not.Lower"])
def test_an_endpoint_needs_an_authority_for_its_keys(authority: str) -> None:
    config = ZenohEndpoint(transport="zenoh", authorities=("*",), connect=("tcp/127.0.0.1:1",))
    with pytest.raises(UStatusError, match="INVALID_ARGUMENT"):
        ZenohTransport(config, EndpointContext("backbone", authority, CLOCK))


def test_a_process_without_close_still_exits() -> None:
    """A daemon thread inside Zenoh aborts the process at its end; any other thread keeps it from ending."""
    program = f"""
from ustreamer.testing.mailbox import *
from ustreamer.testing.messages import *
from tests.transports.zenoh.sessions import *
here = {free_locator()!r}
a, b = endpoint(ALPHA, connect=(here,)), endpoint(BETA, listen=(here,))
b.register_listener(ANY, None, lambda message: None)
b.open()
a.open()
for _ in range(1000):
    a.send(publish(new_id(), TOPIC))
print("done")
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")


def test_close_does_not_wait_forever_for_a_listener(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ustreamer.transports.zenoh.transport._LISTENER_TIMEOUT_S", 0.05)
    entered, leave = threading.Event(), threading.Event()

    def stuck(message: UMessage) -> None:
        entered.set()
        leave.wait(30)

    pair.b.register_listener(TOPIC, None, stuck)
    pair.a.send(publish(new_id(), TOPIC))
    assert entered.wait(30)
    threads = threading.active_count()
    pair.b.close()
    assert threading.active_count() == threads - 1  # the links' thread; the stuck one is left behind
    leave.set()


# --- listeners --------------------------------------------------------------------------------------------------------


def test_listeners_of_the_same_filters_share_a_subscriber_and_a_thread(pair: Pair) -> None:
    before = threading.active_count()
    inboxes = [Mailbox() for _ in range(10)]
    for inbox in inboxes:
        pair.b.register_listener(ANY, None, inbox)
    assert threading.active_count() == before + 1
    for inbox in inboxes:
        pair.b.unregister_listener(ANY, None, inbox)
    assert threading.active_count() == before


def test_samples_during_a_registration_reach_its_listener(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that waited for a subscriber sends at once."""
    start = ZenohSubscription.start

    def started_late(reception: ZenohSubscription, session: zenoh.Session) -> None:
        start(reception, session)
        wait_until(lambda: reception.received == 1, "the message")

    monkeypatch.setattr(ZenohSubscription, "start", started_late)
    message, inbox = publish(new_id(), TOPIC), Mailbox()
    sending = threading.Thread(target=pair.a.send, args=(message,))
    sending.start()
    pair.b.register_listener(TOPIC, None, inbox)
    sending.join(30)
    assert inbox.wait(1) == [message]


def test_a_listener_refused_by_zenoh_is_not_registered(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(reception: ZenohSubscription, session: zenoh.Session) -> None:
        raise zenoh.ZError("no")

    inbox, message = Mailbox(), publish(new_id(), TOPIC)
    with monkeypatch.context() as patch:
        patch.setattr(ZenohSubscription, "start", refuse)
        with pytest.raises(UStatusError, match="endpoint 'b': cannot listen for .*: no") as refused:
            pair.b.register_listener(TOPIC, None, inbox)
    assert refused.value.code is UCode.UNAVAILABLE
    assert code_of(lambda: pair.b.unregister_listener(TOPIC, None, inbox)) is UCode.NOT_FOUND
    pair.b.register_listener(TOPIC, None, inbox)
    pair.a.send(message)
    assert inbox.wait(1) == [message]


@pytest.mark.parametrize("receipts", [False, True])
@pytest.mark.parametrize("part", [ZenohSubscription, LinkMonitor, AwaitedReceipts, PeerTokens])
def test_an_open_that_zenoh_refuses_leaves_nothing_open(
    part: type, monkeypatch: pytest.MonkeyPatch, *, receipts: bool
) -> None:
    if part is AwaitedReceipts and not receipts:
        pytest.skip("there is none")
    here = free_locator()
    transport = endpoint(ALPHA, listen=(here,), receipts=receipts)
    transport.register_listener(ANY, None, lambda message: None)
    threads = set(threading.enumerate())

    def refuse(*_: object) -> None:
        raise zenoh.ZError("the session is closed")

    with monkeypatch.context() as patch:
        patch.setattr(part, "start", refuse)
        with pytest.raises(UStatusError, match="the session is closed") as error:
            transport.open()
    assert error.value.code is UCode.UNAVAILABLE
    wait_until(lambda: {each.name for each in threading.enumerate()} <= {each.name for each in threads})
    assert transport.problems() == []  # the port is free
    transport.close()


def test_unregistering_waits_for_the_running_call_and_prevents_others(pair: Pair) -> None:
    entered, leave, calls = threading.Event(), threading.Event(), Mailbox()

    def slow(message: UMessage) -> None:
        calls(message)
        entered.set()
        leave.wait(30)

    other = Mailbox()
    pair.b.register_listener(TOPIC, None, slow)
    pair.b.register_listener(TOPIC, None, other)
    sent = [publish(new_id(), TOPIC) for _ in range(3)]
    for message in sent:
        pair.a.send(message)
    assert entered.wait(30)
    unregistering = threading.Thread(target=pair.b.unregister_listener, args=(TOPIC, None, slow))
    unregistering.start()
    unregistering.join(0.05)
    assert unregistering.is_alive()
    leave.set()
    unregistering.join(30)
    assert not unregistering.is_alive()
    assert other.wait(3) == sent
    assert calls.messages == sent[:1]


def test_stop_receiving_waits_for_the_running_call(pair: Pair) -> None:
    entered, leave, finished = threading.Event(), threading.Event(), threading.Event()

    def slow(message: UMessage) -> None:
        entered.set()
        leave.wait(30)
        finished.set()

    pair.b.register_listener(TOPIC, None, slow)
    pair.a.send(publish(new_id(), TOPIC))
    assert entered.wait(30)
    threading.Timer(0.05, leave.set).start()
    pair.b.stop_receiving()
    assert finished.is_set()


def test_two_listeners_that_unregister_each_other_do_not_deadlock(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ustreamer.transports.zenoh.transport._LISTENER_TIMEOUT_S", 0.05)
    both = threading.Barrier(2, timeout=30)
    done = Mailbox()

    def first(message: UMessage) -> None:
        both.wait()
        pair.b.unregister_listener(OTHER_TOPIC, None, second)
        done(message)

    def second(message: UMessage) -> None:
        both.wait()
        pair.b.unregister_listener(TOPIC, None, first)
        done(message)

    pair.b.register_listener(TOPIC, None, first)
    pair.b.register_listener(OTHER_TOPIC, None, second)
    for topic in (TOPIC, OTHER_TOPIC):
        pair.a.send(publish(new_id(), topic))
    assert len(done.wait(2)) == 2


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        (ListenerFilters(ANY, None), ListenerFilters(TOPIC, None), True),
        (ListenerFilters(ANY, None), ListenerFilters(ANY, ANY), False),
        (ListenerFilters(ANY, any_at("a")), ListenerFilters(ANY, any_at("b")), False),
        (ListenerFilters(ANY, any_at("a")), ListenerFilters(TOPIC, ANY), True),
        (
            ListenerFilters(UUri("a", 0xFFFF0001, 1, 0x8000), None),
            ListenerFilters(UUri("a", 0x2FFFF, 1, 0x8000), None),
            True,
        ),
        (
            ListenerFilters(UUri("a", 0xFFFF0001, 1, 0x8000), None),
            ListenerFilters(UUri("a", 0xFFFF0002, 1, 0x8000), None),
            False,
        ),
        (
            ListenerFilters(UUri("a", 1, 0xFF, 0x8000), None),
            ListenerFilters(UUri("a", 1, 2, 0xFFFF), None),
            True,
        ),
        (
            ListenerFilters(UUri("a", 1, 1, 0x8000), None),
            ListenerFilters(UUri("a", 1, 2, 0xFFFF), None),
            False,
        ),
    ],
)
def test_only_overlapping_filters_are_evaluated_per_message(
    one: ListenerFilters, other: ListenerFilters, overlap: bool
) -> None:
    transport = endpoint(ALPHA, listen=("tcp/127.0.0.1:1",))
    transport.register_listener(*one, print)
    transport.register_listener(*other, print)
    assert [len(call.covered.filters) for call in transport._subscriptions[other]._listeners] == [
        int(overlap)
    ]


def test_a_failing_listener_is_logged_once_per_kind(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    def broken(message: UMessage) -> None:
        raise ValueError(message.payload)

    pair.b.register_listener(TOPIC, None, broken)
    with caplog.at_level(logging.ERROR, "ustreamer.zenoh"):
        for _ in range(3):
            pair.a.send(publish(new_id(), TOPIC, b"x"))
        wait_until(lambda: pair.b.statistics()["listener_errors"] == 3, "three errors")
    assert [record.message for record in caplog.records] == ["zenoh.listener_failed"]
    assert caplog.records[0].exc_info is not None


# --- publishers -------------------------------------------------------------------------------------------------------


def test_publishers_are_declared_once_per_source_sink_and_priority(pair: Pair) -> None:
    inbox = Mailbox()
    pair.b.register_listener(ANY, None, inbox)
    pair.b.register_listener(ANY, any_at(BETA), inbox)
    for _ in range(5):
        pair.a.send(publish(new_id(), TOPIC))
        pair.a.send(publish(new_id(), TOPIC, ttl=100))
        pair.a.send(request(new_id(), CLIENT, REMOTE_METHOD, ttl=1000))
        pair.a.send(response_from(METHOD, REMOTE_CLIENT))
    inbox.wait(20)
    assert isinstance(pair.a, ZenohTransport)
    assert pair.a._sender is not None
    assert len(pair.a._sender._publishers) == 3


def test_the_number_of_publishers_is_bounded_and_the_least_recently_used_is_undeclared() -> None:
    here = free_locator()
    context = EndpointContext("backbone", ALPHA, CLOCK)
    with plain_session(listen=[here]) as there, plain_session(connect=[here]) as session:
        subscriber = there.declare_subscriber("up/**")
        links = LinkMonitor(context)
        links.start(session)
        wait_until(lambda: links.up, "the link")
        sender = ZenohSender(
            session, links, context, RetransmitConfig(ms=0), AnsweredRequests(0), max_publishers=3
        )
        topics = [TOPIC.with_resource(0x8000 + n) for n in range(4)]
        order = [0, 1, 2, 0, 3, 1, 0, 0, 3, 2]
        for n in order:
            sender.send(publish(new_id(), topics[n], bytes([n])))
        kept = {topic for topic in topics if sender._publishers.find((topic, None, UPriority.CS1))}
        assert kept == {topics[0], topics[3], topics[2]}
        assert [subscriber.recv().payload.to_bytes()[0] for _ in order] == order
        links.close()


def test_a_topic_can_be_prepared_before_the_start_and_after_the_end() -> None:
    transport = endpoint(ALPHA, listen=(free_locator(),))
    transport.prepare_topic(TOPIC)
    transport.open()
    transport.prepare_topic(TOPIC)
    transport.close()
    transport.prepare_topic(TOPIC)


def test_a_response_without_reqid_is_refused_after_valid_ones(pair: Pair) -> None:
    good = response_from(METHOD, REMOTE_CLIENT)
    inbox = Mailbox()
    pair.b.register_listener(ANY, any_at(BETA), inbox)
    pair.a.send(good)
    for changes in ({"reqid": None}, {"priority": UPriority.CS1}):
        attributes = replace(good.attributes, **changes)
        assert code_of(lambda a=attributes: pair.a.send(UMessage(new_id(), a))) is UCode.INVALID_ARGUMENT  # type: ignore[misc]


# --- outages ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
def test_without_a_node_sends_are_unavailable_and_later_ones_arrive() -> None:
    """Zenoh's own behaviour: every put in an outage of the router is lost silently."""
    here = free_locator()
    # Clients: a router passes nothing on between peers.
    sender, receiver = (endpoint(each, mode="client", connect=(here,)) for each in (ALPHA, BETA))
    inbox = Mailbox()
    receiver.register_listener(TOPIC, None, inbox)
    sent: list[UMessage] = []
    with plain_session("router", listen=[here]):
        receiver.open()
        sender.open()
        sent.append(publish(new_id(), TOPIC, b"before"))
        sender.send(sent[0])
        assert inbox.wait(1) == sent
    wait_until(lambda: sender.statistics()["links"] == 0, "the end of the link")
    for _ in range(3):
        assert code_of(lambda: sender.send(publish(new_id(), TOPIC, b"in between"))) is UCode.UNAVAILABLE
    with plain_session("router", listen=[here]):
        # At the very moment of the new link: the subscriber may be back a little later than we are.
        message = publish(new_id(), TOPIC, b"after")
        wait_until(lambda: code_of(lambda: sender.send(message)) is UCode.OK, "a send that works")
        wait_until(lambda: message in inbox.wait(1), "the message after the outage")
        # The router closed its session, so nothing was lost with it. On a busy machine that may look like a kill, and
        # the first message is put again.
        assert inbox.wait(2) in ([*sent, message], [*sent, *sent, message])
        sender.close()
        receiver.close()


@contextmanager
def sender_at_a_router() -> Iterator[ZenohTransport]:
    """A sender at a router that sends no keep-alive for minutes, with a receiver at the same router."""
    here = free_locator()
    with plain_session("router", listen=[here], lease_ms=600_000):
        sender = endpoint(ALPHA, connect=(here,))
        receiver = endpoint(BETA, mode="client", connect=(here,))
        with closing(sender), closing(receiver):
            receiver.register_listener(TOPIC, None, Mailbox())
            receiver.open()
            sender.open()
            yield sender


def test_puts_through_a_router_are_confirmed_without_a_keep_alive(patient: None) -> None:
    with sender_at_a_router() as sender:
        sender.send(publish(new_id(), TOPIC, b"first"))
        put_ns = time.monotonic_ns()

        def is_confirmed() -> bool:
            sender.send(publish(new_id(), TOPIC, b"further"))
            return sender._link_monitor.confirmed_ns > put_ns

        wait_until(is_confirmed, "the answer of the router")


def test_the_last_put_before_a_pause_is_confirmed_without_a_keep_alive(patient: None) -> None:
    with sender_at_a_router() as sender:
        for _ in range(2):  # each pause is confirmed, not only the first
            sender.send(publish(new_id(), TOPIC, b"last"))
            put_ns = time.monotonic_ns()
            wait_until(lambda: sender._link_monitor.confirmed_ns > put_ns, "the answer of the router")  # noqa: B023


@pytest.mark.parametrize("retransmit_ms", [15_000, 0])
def test_a_returning_provider_receives_unanswered_requests_again(patient: None, retransmit_ms: int) -> None:
    """A second call of a method can have side effects; with `retransmit_ms` 0 no request is sent again."""
    here = free_locator()
    streamer = endpoint(ALPHA, "streamer", connect=(here,), retransmit_ms=retransmit_ms)
    streamer._link_monitor.lost_since_ns = lambda noticed_ns: 0  # type: ignore[method-assign]  # all may have been lost
    provider = endpoint(BETA, "provider", listen=(here,))
    answers, asked_before, asked_after = Mailbox(), Mailbox(), Mailbox()
    with closing(streamer), closing(provider):
        streamer.register_listener(ANY, CLIENT, answers)
        provider.register_listener(ANY, REMOTE_METHOD, asked_before)
        provider.open()
        streamer.open()
        requests = [request(new_id(), CLIENT, REMOTE_METHOD, bytes([n]), ttl=60_000) for n in range(3)]
        for each in requests:
            streamer.send(each)
        first, _, third = asked_before.wait(3)
        for each in (third, first):
            provider.send(response(new_id(), each, b"done"))
        assert len(answers.wait(2)) == 2
        provider.unregister_listener(ANY, REMOTE_METHOD, asked_before)
        sender = streamer._sender
        assert sender is not None
        wait_until(lambda: any(each.lost_ns for each in sender._publishers), "the loss")
        provider.register_listener(ANY, REMOTE_METHOD, asked_after)
        last = request(new_id(), CLIENT, REMOTE_METHOD, b"last", ttl=60_000)
        streamer.send(last)
        again = [requests[1]] * bool(retransmit_ms)
        assert asked_after.wait(len(again) + 1) == [*again, last]


class LinkNotes:
    """A listener of a link."""

    def __init__(self, transport: ZenohTransport) -> None:
        self.states: list[bool] = []
        self.threads: set[str] = set()
        transport.watch_link(self)

    def __call__(self, up: bool) -> None:
        self.threads.add(threading.current_thread().name)
        self.states.append(up)

    def wait(self, *states: bool) -> None:
        wait_until(lambda: len(self.states) >= len(states), f"{states}, have {self.states}")
        assert self.states == list(states)


def test_link_watchers_are_notified_at_open_and_when_nodes_connect_or_leave() -> None:
    here = free_locator()
    transport = endpoint(ALPHA, listen=(here,))
    notes = LinkNotes(transport)
    assert notes.states == []
    transport.open()
    try:
        notes.wait(False)
        for before in ([False], [False, True, False]):
            with plain_session(connect=[here]):
                notes.wait(*before, True)
            notes.wait(*before, True, False)
        assert notes.threads == {threading.current_thread().name, "zenoh backbone links"}
    finally:
        transport.close()
    assert len(notes.states) == 5


def test_a_link_is_up_while_one_node_remains_and_joins_are_reported() -> None:
    here = free_locator()
    transport = endpoint(ALPHA, listen=(here,))
    notes = LinkNotes(transport)
    transport.open()
    try:
        with plain_session(connect=[here]):
            with plain_session(connect=[here]):
                wait_until(lambda: transport.statistics()["links"] == 2, "both nodes")
            wait_until(lambda: transport.statistics()["links"] == 1, "the end of one")
            notes.wait(False, True, True)
        notes.wait(False, True, True, False)
    finally:
        transport.close()


def test_a_link_that_a_publisher_closed_because_nothing_was_read_is_counted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its put waited too long, so Zenoh closed the link on its side. What it held is lost, and nothing else tells."""
    here, goes_on = free_locator(), threading.Event()
    transport = endpoint(ALPHA, listen=(here,))

    def wait(message: UMessage) -> None:
        goes_on.wait(60)

    transport.register_listener(ANY, None, wait)
    transport.open()
    message, monitor = publish(new_id(), TOPIC), transport._link_monitor
    try:
        with plain_session("client", connect=[here], wait_before_close_ms=1_500) as session:
            wait_until(lambda: transport.statistics()["links"] == 1, "the link")
            [node] = monitor._nodes.values()
            wait_until(lambda: node.link is not None, "the connection to be found")
            publisher = session.declare_publisher(
                message_key(TOPIC, None, ALPHA), congestion_control=zenoh.CongestionControl.BLOCK
            )
            wait_until(lambda: publisher.matching_status.matching, "the subscriber")  # type: ignore[attr-defined]
            attachment = VERSION_BYTE + encode(message.id, message.attributes)
            longest_s = 0.0
            while longest_s < 1.4:
                began_s = time.monotonic()
                publisher.put(bytes(10_000), attachment=attachment)
                longest_s = max(longest_s, time.monotonic() - began_s)
            wait_until(lambda: node.has_ended, "the end of the connection", within_s=30)
            goes_on.set()
            wait_until(lambda: transport.statistics()["links_closed_unread"] == 1, "the count")
    finally:
        goes_on.set()
        transport.close()
    [record] = [each for each in caplog.records if each.msg == "zenoh.link_closed_unread"]
    assert vars(record)["unread_bytes"] == node.unread > 0


def test_when_the_first_of_two_links_breaks_no_message_is_lost() -> None:
    """Two peers that connect to each other have two links. Zenoh goes on with the other one and reports nothing."""
    here, there = free_locator(), free_locator()
    sender = endpoint(ALPHA, listen=(here,), connect=(there,))
    receiver, inbox = endpoint(BETA, listen=(there,), connect=(here,)), Mailbox()
    receiver.register_listener(ANY, None, inbox)
    sent: list[UMessage] = []

    def send(count: int) -> None:
        for _ in range(count):
            sent.append(publish(new_id(), TOPIC, b"%d" % len(sent)))
            wait_until(lambda: is_sent(sender, sent[-1]), "an accepted message")

    def wait_received() -> None:
        wait_until(
            lambda: {each.id for each in sent} <= {each.id for each in inbox.messages}, "every message"
        )

    with closing(sender), closing(receiver):
        sender.open()
        receiver.open()
        assert sender._session is not None
        info = sender._session.info
        wait_until(lambda: len(info.links()) == 2, "two links")
        [node] = sender._link_monitor._nodes.values()
        wait_until(lambda: node.link is not None, "the kernel's state")
        wait_until(lambda: is_sent(sender, publish(new_id(), TOPIC)) and inbox.messages, "a subscriber")
        send(100)
        wait_received()
        first = info.links()[0]
        theirs = find_link(first.dst, first.src)
        assert theirs is not None
        theirs._second.shutdown(socket.SHUT_RDWR)
        theirs.release()
        send(100)
        wait_until(
            lambda: node not in sender._link_monitor._nodes.values() and len(sender._link_monitor), "a link"
        )
        send(100)
        wait_received()


class ForgetfulSession:
    """The session of a link monitor. It does not list the connections that existed when this was made."""

    def __init__(self, session: zenoh.Session) -> None:
        self.info = self
        self._info = session.info
        self._forgotten = {(each.src, each.dst) for each in session.info.links()}

    def links(self) -> list[zenoh.Link]:
        return [each for each in self._info.links() if (each.src, each.dst) not in self._forgotten]

    def transports(self) -> list[zenoh.Transport]:
        return self._info.transports() if self.links() else []


def test_a_node_whose_connection_zenoh_has_forgotten_connects_again(caplog: pytest.LogCaptureFixture) -> None:
    here = free_locator()
    sender = endpoint(ALPHA, listen=(here,))
    receiver, inbox = endpoint(BETA, mode="client", connect=(here,)), Mailbox()
    receiver.register_listener(ANY, None, inbox)
    with closing(sender), closing(receiver):
        sender.open()
        receiver.open()
        monitor = sender._link_monitor
        wait_until(lambda: len(monitor), "a node")
        assert sender._session is not None
        [node] = monitor._nodes.values()
        node._checks = 0  # the 2 s of checks begin again
        monitor._session = ForgetfulSession(sender._session)  # type: ignore[assignment]
        wait_until(lambda: node not in monitor._nodes.values() and len(monitor), "the next connection")
        assert "zenoh.link_forgotten" in caplog.messages
        last = publish(new_id(), TOPIC)
        wait_until(lambda: is_sent(sender, last), "an accepted message")
        wait_until(lambda: last.id in {each.id for each in inbox.messages}, "the message")


def is_sent(transport: ZenohTransport, message: UMessage) -> bool:
    """Send `message`; False if no node is connected."""
    try:
        transport.send(message)
    except UStatusError:
        return False
    return True


def test_a_link_up_at_open_is_reported_once_and_accepts_messages_in_the_call() -> None:
    here = free_locator()
    with plain_session("router", listen=[here]) as router:
        subscriber = router.declare_subscriber("up/**")
        transport = endpoint(ALPHA, mode="client", connect=(here,))  # a client is open when it has its router
        codes: list[UCode] = []

        def send(up: bool) -> None:
            codes.append(code_of(lambda: transport.send(publish(new_id(), TOPIC, b"at once"))))

        notes = LinkNotes(transport)
        transport.watch_link(send)
        transport.open()
        try:
            assert notes.states == [True]
            assert codes == [UCode.OK]
            assert subscriber.recv().payload.to_bytes() == b"at once"
        finally:
            transport.close()
    assert notes.states == [True]


def test_a_failing_link_watcher_is_logged_once_per_type(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(up: bool) -> None:
        raise ValueError(up)

    here = free_locator()
    transport = endpoint(ALPHA, listen=(here,))
    transport.watch_link(broken)
    notes = LinkNotes(transport)  # follows the broken one
    with caplog.at_level(logging.ERROR, "ustreamer.zenoh"):
        transport.open()
        try:
            with plain_session(connect=[here]):
                notes.wait(False, True)
            notes.wait(False, True, False)
        finally:
            transport.close()
    assert [record.message for record in caplog.records] == ["zenoh.link_watcher_failed"]
    assert caplog.records[0].exc_info is not None


def test_a_task_or_tick_that_fails_does_not_end_the_link_monitor(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> None:
        raise ValueError("broken")

    here, ticked = free_locator(), threading.Event()
    transport = endpoint(ALPHA, listen=(here,))
    monitor = transport._link_monitor
    monitor.add_tick(broken)
    monitor.add_tick(ticked.set)
    notes = LinkNotes(transport)
    with caplog.at_level(logging.ERROR, "ustreamer.zenoh"), closing(transport):
        transport.open()
        monitor.run_on_monitor(broken)
        with plain_session(connect=[here]):
            notes.wait(False, True)
            assert ticked.wait(30)
        notes.wait(False, True, False)
    assert [record.message for record in caplog.records] == ["zenoh.link_monitor_failed"]


def test_waiting_for_a_subscriber_ends_when_the_transport_closes() -> None:
    here = free_locator()
    sender = endpoint(ALPHA, listen=(here,))
    sender.open()
    with plain_session(connect=[here]):
        wait_for_link(sender)
        sender._link_monitor.settled_ns = CLOCK.monotonic_ns() + 60_000_000_000
        codes: list[UCode] = []
        waiting = threading.Thread(
            target=lambda: codes.append(code_of(lambda: sender.send(publish(new_id(), TOPIC))))
        )
        waiting.start()
        assert sender._sender is not None
        wait_until(lambda: bool(sender._sender and sender._sender._publishers), "the send")
        sender.close()
        waiting.join(30)
        assert not waiting.is_alive()


def test_waiting_for_a_subscriber_is_bounded() -> None:
    here = free_locator()
    sender = endpoint(ALPHA, listen=(here,))
    sender.open()
    with plain_session(connect=[here]):
        wait_for_link(sender)
        begun = time.monotonic()
        for _ in range(30):
            sender.send(publish(new_id(), TOPIC))
        assert time.monotonic() - begun < 20  # a second for the first of them, and nothing for the others
        assert sender.statistics()["sent"] == 30
        sender.close()


def test_receiving_follows_the_nodes_and_ends_at_once_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriber, "_AWAY_POLL_S", 60.0)
    begun, here, inbox = time.monotonic(), free_locator(), Mailbox()
    receiver = endpoint(BETA, listen=(here,))
    receiver.register_listener(TOPIC, None, inbox)
    receiver.open()
    for count in (1, 2):
        with closing(endpoint(ALPHA, connect=(here,))) as sender:
            sender.open()
            wait_for_link(sender, receiver)
            sender.send(publish(new_id(), TOPIC))
            inbox.wait(count)
        wait_until(lambda: not receiver._link_monitor.connected.is_set(), "the end of the node")
    receiver.close()
    assert time.monotonic() - begun < 30  # a thread that is not woken waits for 60 s


def test_a_subscription_that_was_never_started_can_be_stopped() -> None:
    reception = ZenohSubscription(
        ListenerFilters(ANY, None), "backbone", ALPHA, 1024, AnsweredRequests(0), threading.Event()
    )
    reception.stop()
    reception.join(1)
    reception.wait_call_done(1)


def test_the_repr_shows_endpoint_and_state(pair: Pair) -> None:
    pair.b.register_listener(ANY, None, print)
    assert [repr(each) for each in pair] == [
        "<ZenohTransport 'a': open, 0 listeners>",
        "<ZenohTransport 'b': open, 1 listeners>",
    ]
    pair.a.close()
    assert repr(pair.a) == "<ZenohTransport 'a': closed, 0 listeners>"


@pytest.mark.usefixtures("patient")
def test_a_backlog_is_delivered_in_batches_in_order() -> None:
    here = free_locator()
    inbox, alone = BatchMailbox(), Mailbox()
    receiver, sender = endpoint(BETA, listen=(here,)), endpoint(ALPHA, connect=(here,))
    with closing(receiver), closing(sender):
        receiver.register_listener(TOPIC, None, inbox)
        receiver.register_listener(OTHER_TOPIC, None, alone)
        receiver.open()
        sender.open()
        sent = [publish(new_id(), TOPIC, b"%d" % n) for n in range(300)]
        for message in sent:
            sender.send(message)
        other = publish(new_id(), OTHER_TOPIC)
        sender.send(other)
        assert alone.wait(1) == [
            other
        ]  # so all earlier samples wait in the channel, except those being delivered
        inbox.go.set()
        assert inbox.wait(300) == sent
        assert 1 < inbox.largest <= MAX_BATCH
        assert receiver.statistics()["received"] == 301


@pytest.mark.usefixtures("patient")
def test_a_failing_batch_listener_does_not_end_the_receiving_thread() -> None:
    class Failing(BatchMailbox):
        def on_batch(self, messages: Sequence[UMessage]) -> None:
            super().on_batch(messages)
            raise ValueError("a bug")

    here = free_locator()
    failing = Failing()
    receiver, sender = endpoint(BETA, listen=(here,)), endpoint(ALPHA, connect=(here,))
    with closing(receiver), closing(sender):
        receiver.register_listener(TOPIC, None, failing)
        receiver.open()
        sender.open()
        sent = [publish(new_id(), TOPIC, b"%d" % n) for n in range(200)]
        for message in sent:
            sender.send(message)
        failing.go.set()
        assert failing.wait(200) == sent
        wait_until(lambda: receiver.statistics()["listener_errors"] > 0, "an error")


def test_no_counter_decreases_while_a_listener_is_unregistered(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = Mailbox()
    pair.b.register_listener(TOPIC, None, inbox)
    pair.a.send(publish(new_id(), TOPIC))
    inbox.wait(1)
    received = [pair.b.statistics()["received"]]
    join = ZenohSubscription.join

    def count_and_join(subscription: ZenohSubscription, timeout_s: float) -> None:
        received.append(pair.b.statistics()["received"])
        join(subscription, timeout_s)

    monkeypatch.setattr(ZenohSubscription, "join", count_and_join)
    pair.b.unregister_listener(TOPIC, None, inbox)
    received.append(pair.b.statistics()["received"])
    assert received == [1, 1, 1]
