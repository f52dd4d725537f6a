# SPDX-License-Identifier: Apache-2.0
"""Routes that open and close, and what is put again: against real sessions in this process."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import ExitStack
from time import monotonic_ns

import msgspec
import pytest
import zenoh

from tests.transports.contract import ALPHA, METHOD, REMOTE_CLIENT, TOPIC, new_id, wait_until
from tests.transports.zenoh.nets import CLOCK, free_locator, plain_session
from ustreamer.core.clock import Clock
from ustreamer.hookspecs import EndpointContext, RouteUnavailable
from ustreamer.transports.zenoh import sending
from ustreamer.transports.zenoh.inbound import inbound
from ustreamer.transports.zenoh.links import Links
from ustreamer.transports.zenoh.replay import Replay
from ustreamer.transports.zenoh.sending import Sender
from ustreamer.uprotocol.uattributes import UAttributes, UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage, publish, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.wire import encode_tail

LONG_AGO = 0


class Bench:
    """A sender on a session that a client may be connected to, and what its losses are said to be."""

    def __init__(self, stack: ExitStack, replay: Replay) -> None:
        self._stack = stack
        self.leapt_ms = 0
        clock = Clock(CLOCK.monotonic_ns, lambda: CLOCK.wall_ms() + self.leapt_ms)
        context = EndpointContext("backbone", ALPHA, clock)
        self.here = free_locator()
        session = stack.enter_context(plain_session(listen=[self.here]))
        self.links = Links(context)
        self.opened: list[Hashable] = []
        self.sender = Sender(session, self.links, context, replay, self.opened.append)
        stack.callback(self.links.close)
        self.links.watch(session)
        self.lost_since_ns = LONG_AGO
        self.links.lost_since_ns = lambda noticed_ns: self.lost_since_ns  # type: ignore[method-assign]
        self.visitor = stack.enter_context(plain_session("client", connect=[self.here]))
        wait_until(lambda: self.links.up, "the link")

    def listen(self) -> "zenoh.Subscriber[zenoh.Handler[zenoh.Sample]]":
        return self.visitor.declare_subscriber("up/**")

    def put(self, *messages: UMessage) -> None:
        for message in messages:
            wait_until(lambda: self.took(message), "somebody to listen")  # noqa: B023  called at once

    def took(self, message: UMessage) -> bool:
        try:
            self.sender.put(message)
        except RouteUnavailable:
            return False
        return True

    def forget(self, subscriber: "zenoh.Subscriber[zenoh.Handler[zenoh.Sample]]") -> None:
        """Have a subscriber leave, and wait until the sender knows."""
        subscriber.undeclare()  # type: ignore[no-untyped-call]
        wait_until(lambda: any(each.lost_ns for each in self.sender._publishers.values()), "the loss")


MakeBench = Callable[..., Bench]


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    with ExitStack() as stack:
        yield lambda **bounds: Bench(stack, Replay(**bounds))


def numbered(n: int, topic: int = 0, **keywords: object) -> UMessage:
    return publish(new_id(), TOPIC.with_resource(0x8000 + topic), b"%d" % n, **keywords)  # type: ignore[arg-type]


def received(subscriber: "zenoh.Subscriber[zenoh.Handler[zenoh.Sample]]", count: int) -> list[int]:
    return [int(subscriber.recv().payload.to_bytes()) for _ in range(count)]


def test_a_route_that_nobody_listens_to_is_refused_and_told_when_it_opens(make_bench: MakeBench) -> None:
    bench = make_bench()
    with pytest.raises(RouteUnavailable, match="nobody listens to") as refused:
        bench.sender.put(numbered(0))
    assert bench.opened == []
    subscriber = bench.listen()
    wait_until(lambda: bool(bench.opened), "the opening")
    assert bench.opened == [refused.value.route]
    bench.sender.put(numbered(1))
    assert received(subscriber, 1) == [1]


def test_messages_of_one_topic_and_class_share_a_route_whatever_else_they_say(make_bench: MakeBench) -> None:
    bench = make_bench()
    routes = []
    for message in (numbered(0), numbered(1, ttl=5000), numbered(2, priority=UPriority.CS5), numbered(3, 1)):
        with pytest.raises(RouteUnavailable) as refused:
            bench.sender.put(message)
        routes.append(refused.value.route)
    assert routes[0] == routes[1]
    assert len(set(routes)) == 3


def test_what_may_have_been_lost_is_put_again_in_order_before_anything_newer(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(*(numbered(n) for n in range(3)))
    assert received(subscriber, 3) == [0, 1, 2]
    bench.forget(subscriber)
    assert not bench.took(numbered(9))
    subscriber = bench.listen()
    bench.put(numbered(3))
    assert received(subscriber, 4) == [0, 1, 2, 3]
    assert (bench.sender.sent, bench.sender.replayed, bench.sender.unreplayed) == (4, 3, 0)


def test_what_is_put_again_has_the_same_id_and_can_be_lost_again(make_bench: MakeBench) -> None:
    bench = make_bench()
    attachments = set()
    subscriber = bench.listen()
    bench.put(numbered(0))
    for _ in range(3):
        attachment = subscriber.recv().attachment
        assert attachment is not None
        attachments.add(attachment.to_bytes())
        for publisher in bench.sender._publishers.values():
            publisher.lost_ns = 0
        bench.forget(subscriber)
        subscriber = bench.listen()
    assert len(attachments) == 1


def test_only_what_was_put_since_the_loss_began_is_put_again(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(numbered(0))
    bench.lost_since_ns = monotonic_ns()
    bench.put(numbered(1))
    bench.forget(subscriber)
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
    bench.forget(subscriber)
    assert received(bench.listen(), 1) == [0]


def test_where_nothing_is_known_of_a_loss_the_window_holds(make_bench: MakeBench) -> None:
    bench = make_bench(ms=1)
    subscriber = bench.listen()
    bench.put(numbered(0))
    put = monotonic_ns()
    wait_until(lambda: monotonic_ns() > put + 2_000_000, "a longer time than the window")
    bench.forget(subscriber)
    subscriber = bench.listen()
    bench.put(numbered(1))
    assert received(subscriber, 1) == [1]
    assert bench.sender.replayed == 0


def test_what_is_over_is_not_put_again(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    short = numbered(0, ttl=100)
    bench.put(short, numbered(1))
    bench.forget(subscriber)
    wait_until(lambda: CLOCK.wall_ms() > short.id.time_ms + 100, "its end")
    assert received(bench.listen(), 1) == [1]
    wait_until(lambda: bench.sender.unreplayed == 1, "the count")


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
    bench.forget(subscriber)
    bench.leapt_ms = years * 365 * 86_400_000
    wait_until(lambda: monotonic_ns() > put + 100_000_000, "its end")
    assert received(bench.listen(), 1) == [1]
    wait_until(lambda: bench.sender.unreplayed == 1, "the count")


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
    bench.forget(subscriber)
    subscriber = bench.listen()
    bench.put(numbered(5))
    assert received(subscriber, len(again) + 1) == [*again, 5]


def test_the_bounds_are_those_of_all_routes_together(make_bench: MakeBench) -> None:
    bench = make_bench(messages=3)
    subscriber = bench.listen()
    bench.put(*(numbered(n, n % 2) for n in range(5)))
    assert len(bench.sender._memory) == 3
    bench.forget(subscriber)
    wait_until(lambda: all(each.lost_ns for each in bench.sender._publishers.values()), "both losses")
    assert sorted(received(bench.listen(), 3)) == [2, 3, 4]


def test_what_is_too_old_is_forgotten(make_bench: MakeBench) -> None:
    bench = make_bench(ms=1)
    subscriber = bench.listen()
    bench.put(numbered(0))
    first = monotonic_ns()
    wait_until(lambda: monotonic_ns() > first + 1_000_000, "its age")
    bench.put(numbered(1))
    assert len(bench.sender._memory) == 1
    assert received(subscriber, 2) == [0, 1]


def test_a_publisher_that_goes_before_its_messages_were_put_again_says_so(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.sender._max_publishers = 1
    subscriber = bench.listen()
    bench.put(numbered(0))
    bench.forget(subscriber)
    assert not bench.took(numbered(1, 1))
    assert bench.sender.unreplayed == 1


def test_many_are_put_in_their_order_and_remembered(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(numbered(0), numbered(1, 1))
    shared = [numbered(0, topic).attributes for topic in range(2)]
    many = [UMessage(new_id(), shared[n // 5 % 2], b"%d" % n) for n in range(2, 40)]  # five of each in a row
    assert bench.sender.put_all(many) == 38
    assert received(subscriber, 40) == list(range(40))
    assert (bench.sender.sent, len(bench.sender._memory)) == (40, 40)
    bench.forget(subscriber)
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
        found.append(inbound(str(sample.key_expr), sample.attachment.to_bytes(), sample.payload.to_bytes()))
    return [each for each in found if isinstance(each, UMessage)]


def test_answers_go_out_as_they_are_one_by_one_and_together_and_again(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[UAttributes] = []

    def counting(attributes: UAttributes) -> bytes:
        encoded.append(attributes)
        return encode_tail(attributes)

    monkeypatch.setattr(sending, "encode_tail", counting)
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
    assert bench.sender.put_all(many) == 37
    assert bench.sender.put_all([answered(40, **kinds[2])]) == 0  # never put before, and never again
    for n in range(41, 44):
        many.append(answered(n))
        bench.put(many[-1])
    sent = [*first, *many]
    assert read(subscriber, len(sent)) == sent
    # Three kinds, the one with a token at every try: nothing else is written anew.
    assert [each.token for each in encoded].count(None) == 2
    bench.forget(subscriber)
    assert read(bench.listen(), len(sent)) == sent


def test_an_answer_to_what_is_no_id_is_refused_whatever_went_before(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(answered(0))
    assert read(subscriber, 1)
    for reqid in (None, UUID(1, 1)):
        wrong = answered(1, reqid=reqid)
        assert bench.sender.put_all([wrong]) == 0
        with pytest.raises(UStatusError, match="expected reqid"):
            bench.sender.put(wrong)


def test_what_is_kept_of_answers_is_bounded_and_goes_with_its_publisher(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_HEADERS", 10)
    bench = make_bench()
    _subscriber = bench.listen()
    for n in range(30):
        bench.put(answered(n, ttl=60_000 + n))
        assert len(bench.sender._headers_of_answers) <= 10
    bench.sender._retire()
    assert not bench.sender._headers_of_answers


def test_many_end_at_the_first_that_cannot_be_put(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.visitor.declare_subscriber(f"up/{ALPHA}/*/*/*/8000/**")
    bench.put(numbered(0))
    assert not bench.took(numbered(9, 1))  # nobody listens to this one
    assert bench.sender.put_all([numbered(1), numbered(2), numbered(9, 1), numbered(3)]) == 2
    assert bench.sender.put_all([numbered(9, 2), numbered(3)]) == 0  # never put before: `put` sees to that
    assert bench.sender.put_all([]) == 0
    assert received(subscriber, 3) == [0, 1, 2]
    assert bench.sender.sent == 3


def test_many_end_with_their_link(make_bench: MakeBench) -> None:
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
    assert bench.sender.put_all(alike) == 3
    assert (puts, bench.sender.sent) == ([b"1", b"2", b"3"], 4)


@pytest.mark.parametrize("together", [list, iter], ids=["alike", "one after the other"])
def test_many_that_are_alike_go_out_and_are_remembered_as_one_by_one(
    make_bench: MakeBench, together: Callable[[list[UMessage]], Iterable[UMessage]]
) -> None:
    """An iterator is asked for each message when the one before it was sent, and so knows nothing of what is alike."""
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(numbered(0, ttl=60_000))
    attributes = numbered(0, ttl=60_000).attributes
    many = [UMessage(new_id(), attributes, b"x" * n) for n in range(70)]
    assert bench.sender.put_all(together(many)) == 70
    assert read(subscriber, 71)[1:] == many
    remembered = bench.sender._memory.of(bench.sender._headers[attributes].publisher)
    assert [message for _, message in remembered][1:] == many
    times_ns = [put_ns for put_ns, _ in remembered]
    assert times_ns == sorted(times_ns)
    assert (bench.sender.sent, bench.sender._headers[attributes].publisher.used) == (71, 71)


@pytest.mark.parametrize("together", [list, iter], ids=["alike", "one after the other"])
def test_many_end_at_what_zenoh_refuses(
    make_bench: MakeBench, together: Callable[[list[UMessage]], Iterable[UMessage]]
) -> None:
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
    assert bench.sender.put_all(together(alike)) == 2
    assert (puts, bench.sender.sent, len(bench.sender._memory)) == ([b"1", b"2"], 3, 3)
