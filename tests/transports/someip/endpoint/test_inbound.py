# SPDX-License-Identifier: Apache-2.0
"""A single datagram has the same outcome as in a batch, on the unicast socket and on a multicast socket."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.transports.someip.endpoint_rig import BAD, EVENT, OPEN_DOOR, RESPONSE, Bench
from tests.transports.someip.loopback_rig import FAR, OURS, SECOND, LoopbackReceiver
from ustreamer.transports.someip.io.receive_loop import MAX_SLEEP_NS
from ustreamer.uprotocol.batch import MIN_BATCH
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuri import ANY

NO_RETURN = OPEN_DOOR[:14] + b"\x01" + OPEN_DOOR[15:]
FAILED = RESPONSE[:14] + b"\x80\x01" + RESPONSE[16:]
DATAGRAMS = {
    "an event": EVENT,
    "an event with an end to end result": EVENT[:15] + b"\x0d" + EVENT[16:],
    "two events": EVENT + EVENT,
    "an event and a part of one": EVENT + EVENT[:9],
    "an answer": RESPONSE,
    "an answer that is a failure": FAILED,
    "an answer to another call": RESPONSE[:10] + b"\x00\x02" + RESPONSE[12:],
    "a request": OPEN_DOOR,
    "a request without answer": NO_RETURN,
    "a request and an event": OPEN_DOOR + EVENT,
    **{what: datagram for what, (datagram, _) in BAD.items()},
}
Outcome = tuple[list[tuple[object, ...]], dict[str, int]]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(stack)


class BatchListener:
    """Receives batches, and passes on their messages one by one."""

    def __init__(self, on_message: Callable[[UMessage], None]) -> None:
        self._on_message = on_message

    def __call__(self, message: UMessage) -> None:
        self._on_message(message)

    def on_batch(self, messages: Sequence[UMessage]) -> None:
        for each in messages:
            self._on_message(each)


class Scene:
    """An endpoint without a running thread, with two open calls, and the messages of its listeners."""

    def __init__(
        self, bench: Bench, *, failing: bool = False, batches: bool = False, request_ttl_ms: int = 1_000
    ) -> None:
        self.endpoint = bench.another(bench.config(request_ttl_ms=request_ttl_ms))  # the same ECUs for each
        self.inbound = self.endpoint._inbound
        self.received: list[UMessage] = []
        listener = BatchListener(self._on_message) if batches else self._on_message
        for sink in (None, ANY):
            self.endpoint.register_listener(ANY, sink, listener)
        self._failing = failing
        for _ in range(2):
            self.endpoint._exchange.open_call(bench.request())

    def _on_message(self, message: UMessage) -> None:
        message.check(strict=True)
        self.received.append(message)
        if self._failing:
            raise ValueError("a bug")

    def outcome(self) -> Outcome:
        """Calls and their ids differ between scenes."""
        reply = [(each.attributes.type, each.attributes.source, each.payload) for each in self.received]
        assert len({each.id for each in self.received}) == len(reply)
        return [*reply], dict(self.endpoint.statistics())


def alone(scene: Scene, loop: LoopbackReceiver, datagrams: Sequence[bytes], names: Sequence[str]) -> Outcome:
    """The oracle: each datagram alone."""
    for datagram, name in zip(datagrams, names, strict=True):
        scene.inbound.on_datagram(datagram, loop.sender(name).getsockname())
    return scene.outcome()


def together(
    scene: Scene,
    loop: LoopbackReceiver,
    datagrams: Sequence[bytes],
    names: Sequence[str],
) -> Outcome:
    scene.inbound.on_batch(loop.receive_batch(datagrams, names))
    return scene.outcome()


@pytest.mark.parametrize("datagram", DATAGRAMS.values(), ids=DATAGRAMS)
def test_a_single_datagram_equals_a_datagram_in_a_batch(
    bench: Bench,
    loop: LoopbackReceiver,
    datagram: bytes,
) -> None:
    sent, names = [datagram, EVENT], [OURS, OURS]
    received, statistics = alone(Scene(bench), loop, sent, names)
    assert (received, statistics) == together(Scene(bench), loop, sent, names)
    assert statistics["datagrams"] == 2
    assert statistics["received"] == len(received) > 0
    assert statistics["listener_errors"] == 0


DATAGRAM = st.tuples(st.sampled_from(list(DATAGRAMS.values())), st.sampled_from([OURS, OURS, SECOND, FAR]))


@settings(max_examples=40, deadline=None)
@given(
    sent=st.one_of(
        st.lists(DATAGRAM, min_size=1, max_size=12),
        st.tuples(DATAGRAM, st.integers(MIN_BATCH, 2 * MIN_BATCH)).map(lambda each: [each[0]] * each[1]),
    ),
    kind=st.sampled_from(["plain", "failing", "batches"]),
)
@example(sent=[(EVENT, OURS)] * MIN_BATCH, kind="batches")
@example(sent=[(OPEN_DOOR, FAR)] * MIN_BATCH, kind="plain")
def test_any_datagrams_one_by_one_equal_a_batch(
    loop: LoopbackReceiver, sent: list[tuple[bytes, str]], kind: str
) -> None:
    datagrams, names = [datagram for datagram, _ in sent], [name for _, name in sent]
    failing, batches = kind == "failing", kind == "batches"
    with ExitStack() as stack:
        bench = Bench(stack)
        expected = alone(Scene(bench, failing=failing, batches=batches), loop, datagrams, names)
        received, statistics = expected
        assert together(Scene(bench, failing=failing, batches=batches), loop, datagrams, names) == expected
        assert statistics["listener_errors"] == (len(received) if failing else 0)


@pytest.mark.parametrize("name", [OURS, FAR])
@pytest.mark.parametrize("datagram", DATAGRAMS.values(), ids=DATAGRAMS)
def test_a_batch_of_one_equals_a_single_datagram(
    bench: Bench, loop: LoopbackReceiver, datagram: bytes, name: str
) -> None:
    expected = alone(Scene(bench), loop, [datagram], [name])
    assert together(Scene(bench), loop, [datagram], [name]) == expected


def test_a_single_datagram_takes_the_fast_path(
    bench: Bench,
    loop: LoopbackReceiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An event, a response, and a request from the second one on."""
    scene = Scene(bench)
    readable: list[bytes] = []
    alone(scene, loop, [OPEN_DOOR], [OURS])
    monkeypatch.setattr(
        scene.inbound, "_on_any_datagram", lambda datagram, address: readable.append(datagram)
    )
    received, statistics = alone(scene, loop, [EVENT, RESPONSE, OPEN_DOOR, b"short"], [OURS] * 4)
    kinds = [kind.name for kind, *_ in received]  # type: ignore[attr-defined]
    assert kinds == ["REQUEST", "PUBLISH", "RESPONSE", "REQUEST"]
    assert (readable, statistics["datagrams"], statistics["received"]) == ([b"short"], 5, 4)


def test_a_single_datagram_without_a_listener_is_counted(bench: Bench, loop: LoopbackReceiver) -> None:
    endpoint = bench.another(bench.config())
    endpoint._inbound.on_batch(loop.receive_batch([EVENT]))
    statistics = endpoint.statistics()
    assert (statistics["datagrams"], statistics["received"], statistics["no_listener"]) == (1, 0, 1)


def test_a_single_datagram_is_not_delivered_as_a_batch(bench: Bench, loop: LoopbackReceiver) -> None:
    """A batch listener receives a single message by the ordinary call."""

    class Bulk:
        def __init__(self) -> None:
            self.received: list[bytes] = []

        def __call__(self, message: UMessage) -> None:
            self.received.append(message.payload)

        def on_batch(self, messages: Sequence[UMessage]) -> None:
            raise AssertionError("there was one")

    endpoint, bulk = bench.another(bench.config()), Bulk()
    endpoint.register_listener(ANY, None, bulk)
    endpoint._inbound.on_batch(loop.receive_batch([EVENT]))
    assert bulk.received == [b"hello"]


SLEEP_MS = MAX_SLEEP_NS // 1_000_000


@pytest.mark.parametrize("number", [1, 2, MIN_BATCH, MIN_BATCH + 1])
@pytest.mark.parametrize(
    ("sent", "ttl_ms", "expected"),
    [
        ([EVENT], 1, True),
        ([OPEN_DOOR], SLEEP_MS, True),
        ([OPEN_DOOR], SLEEP_MS - 1, False),
        ([NO_RETURN], SLEEP_MS, True),
        ([NO_RETURN], SLEEP_MS - 1, False),
        ([EVENT, OPEN_DOOR], SLEEP_MS, True),
        ([EVENT, OPEN_DOOR], SLEEP_MS - 1, False),
        ([FAILED], SLEEP_MS, False),
    ],
)
def test_the_result_reports_whether_the_input_sets_no_early_deadline(
    bench: Bench,
    loop: LoopbackReceiver,
    number: int,
    sent: list[bytes],
    ttl_ms: int,
    *,
    expected: bool,
) -> None:
    """A request sets a deadline; the receive loop must check an early one. The slow path may set any deadline."""
    scene = Scene(bench, request_ttl_ms=ttl_ms)
    scene.inbound.on_datagram(OPEN_DOOR, bench.ecu.address)
    scene.inbound.on_datagram(NO_RETURN, bench.ecu.address)
    for _ in range(3):
        datagrams = sent * number
        together = scene.inbound.on_batch(loop.receive_batch(datagrams, [OURS] * len(datagrams)))
        assert together is expected
        each = [scene.inbound.on_datagram(every, bench.ecu.address) for every in datagrams]
        assert all(each) is expected


def test_the_response_to_a_call_sets_no_deadline(bench: Bench) -> None:
    scene = Scene(bench, request_ttl_ms=1)
    assert scene.inbound.on_datagram(RESPONSE, bench.ecu.address)
    assert not scene.inbound.on_datagram(RESPONSE, bench.ecu.address)  # unsolicited: the slow path refuses it


def test_the_first_request_of_a_client_takes_the_slow_path(bench: Bench) -> None:
    scene = Scene(bench, request_ttl_ms=SLEEP_MS)
    assert not scene.inbound.on_datagram(OPEN_DOOR, bench.ecu.address)
    assert scene.inbound.on_datagram(OPEN_DOOR, bench.ecu.address)
