# SPDX-License-Identifier: Apache-2.0
"""Batches of requests and responses give the results and pending calls of single messages on the fast path."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transports.someip.loopback_rig import FAR, OURS, SECOND, LoopbackReceiver
from tests.transports.someip.rpc.path_comparison import (
    CLIENTS,
    ECU,
    UNKNOWN_SENDER,
    FastSide,
    PathComparison,
    asking,
)
from ustreamer.core.base.clock import ManualClock
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import HEADER_LENGTH, MessageType, decode, encode
from ustreamer.transports.someip.protocol.correlation import DeadlineTable
from ustreamer.uprotocol.batch import MIN_BATCH, MessageBatch
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuid import UUID, UuidSource

UNKNOWN = UUID(0x7000, 1 << 63)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def open_entries(table: DeadlineTable[K, V]) -> dict[K, tuple[V, int]]:
    """Value and deadline of all entries, in order."""
    return {key: (value, at_ns) for key, (value, at_ns, _) in table._entries.items()}


def open_values(table: DeadlineTable[Any, V]) -> list[V]:
    return [value for value, _ in open_entries(table).values()]


def groups(table: DeadlineTable[Any, Any]) -> dict[object, list[object]]:
    return {group: list(keys) for group, keys in table._groups.items()}


def state(table: DeadlineTable[Any, Any]) -> object:
    return open_entries(table), groups(table), table.next_deadline_ns


def untouched(side: FastSide) -> object:
    """The state that an operation without effect must preserve."""
    return state(side.pending.calls), state(side.pending.requests), side.exchange.statistics()


def comparable(side: FastSide) -> object:
    """The open requests in order, without the random ids."""
    calls, requests = side.pending.calls, side.pending.requests
    return (
        list(open_entries(calls).items()),
        list(open_entries(requests).values()),
        {group: len(keys) for group, keys in groups(calls).items()},
        {group: len(keys) for group, keys in groups(requests).items()},
        calls.next_deadline_ns,
        requests.next_deadline_ns,
    )


class BatchSide(FastSide):
    """Decodes batches; a batch that is not decoded is processed one by one."""

    def receive_batch(
        self, datagrams: Sequence[bytes], senders: Sequence[Address]
    ) -> Sequence[UMessage] | None:
        before = untouched(self)
        first = datagrams[0]
        made = self.exchange.fast_in.decode_batch(
            first[:8] + bytes(4) + first[12:HEADER_LENGTH],
            [int.from_bytes(each[8:12]) for each in datagrams],
            [each[HEADER_LENGTH:] for each in datagrams],
            senders,
        )
        if made is None:
            assert untouched(self) == before
            for each in zip(datagrams, senders, strict=True):
                self.on_datagram(*each)
            return None
        for message in made:
            self.on_message(message)
        ids = [*(each.id for each in made), self.exchange._ids.next()]
        assert ids == sorted(set(ids))
        return made


class BatchComparison(PathComparison):
    """One side with single messages and one side with batches."""

    def __init__(self, **keys: Any) -> None:
        self.time = ManualClock()
        self.single, self.together = FastSide(self.time, **keys), BatchSide(self.time, **keys)
        self.slow = self.single
        self.sides = self.both = self.single, self.together
        self.ids = UuidSource(self.time.clock().wall_ms)

    def receive_batch(
        self, datagrams: Sequence[bytes], senders: Sequence[Address]
    ) -> tuple[Sequence[UMessage] | None, bool]:
        """The messages of the batch, and whether the fast path decodes each single datagram."""
        made = self.together.receive_batch(datagrams, senders)
        arriving, fast = self.single.exchange.fast_in, True
        for datagram, sender in zip(datagrams, senders, strict=True):
            message = arriving.decode_message(datagram, sender)
            if message is None:
                fast = False
                self.single.on_datagram(datagram, sender)
            else:
                self.single.on_message(message)
        self.check()
        return made, fast

    def check(self) -> None:
        assert self.together.snapshot() == self.single.snapshot()
        assert comparable(self.together) == comparable(self.single)


# ------------------------------------------------------------------------------------------------------------ responses


def answering(asked: bytes, **fields: Any) -> bytes:
    kind = {"message_type": MessageType.RESPONSE, "payload": b"ok"}
    return encode(msgspec.structs.replace(decode(asked)[0], **(kind | fields)))


AnswerFlaw = Callable[[list[bytes], list[Address], int], None]


def _all_from_unknown_sender(datagrams: list[bytes], senders: list[Address], where: int) -> None:
    senders[:] = [UNKNOWN_SENDER] * len(senders)


def _one_from_unknown_sender(datagrams: list[bytes], senders: list[Address], where: int) -> None:
    senders[where] = UNKNOWN_SENDER


def _another_port(datagrams: list[bytes], senders: list[Address], where: int) -> None:
    senders[where] = ECU[0], 9


def _an_unknown_id(datagrams: list[bytes], senders: list[Address], where: int) -> None:
    datagrams[where] = datagrams[where][:8] + b"\xee\xee\xee\xee" + datagrams[where][12:]


def _twice(datagrams: list[bytes], senders: list[Address], where: int) -> None:
    datagrams[where] = datagrams[where][:8] + datagrams[0][8:12] + datagrams[where][12:]


def _a_failure(datagrams: list[bytes], senders: list[Address], where: int) -> None:
    datagrams[:] = [each[:15] + b"\x01" + each[16:] for each in datagrams]


def _another_major(datagrams: list[bytes], senders: list[Address], where: int) -> None:
    datagrams[:] = [each[:13] + b"\x09" + each[14:] for each in datagrams]


def _a_length_too_large(datagrams: list[bytes], senders: list[Address], where: int) -> None:
    datagrams[:] = [each[:7] + bytes([each[7] + 1]) + each[8:] for each in datagrams]


def _none(datagrams: list[bytes], senders: list[Address], where: int) -> None: ...


ANSWER_FLAWS: list[AnswerFlaw] = [
    _all_from_unknown_sender,
    _one_from_unknown_sender,
    _another_port,
    _an_unknown_id,
    _twice,
    _a_failure,
    _another_major,
    _a_length_too_large,
]
A_CALL = st.tuples(
    st.sampled_from([0, 0, 0, 0, 1, 2]),
    st.sampled_from([0] * 20 + [2]),  # the other method has the same request and another response
    st.sampled_from([100] * 10 + [20]),
    st.just(8),
)


@settings(max_examples=80, deadline=None)
@given(
    calls=st.one_of(
        st.lists(A_CALL, min_size=1, max_size=20),
        st.integers(1, 20).map(lambda number: [(0, 0, 100, 8)] * number),
    ),
    flaw=st.sampled_from([_none] * 8 + ANSWER_FLAWS),
    where=st.integers(0, 19),
    late_ms=st.sampled_from([0, 0, 20, 50]),
)
def test_a_batch_of_responses_equals_single_responses(
    calls: list[tuple[int, int, int, int]], flaw: AnswerFlaw, where: int, late_ms: int
) -> None:
    comparison = BatchComparison()
    comparison.call(*calls)
    datagrams = [answering(each, method=1) for each, *_ in comparison.single.sent]
    senders = [ECU] * len(datagrams)
    flaw(datagrams, senders, where % len(datagrams))
    comparison.time.advance(ms=late_ms)
    made, fast = comparison.receive_batch(datagrams, senders)
    assert (made is not None) == fast
    if made is not None:
        assert [each.payload for each in made] == [b"ok"] * len(calls)
        assert [each.attributes.reqid for each in made] == [
            each.attributes.reqid for each in comparison.single.received
        ]
        assert isinstance(made, MessageBatch) == (len({caller for caller, *_ in calls}) == 1)
        assert comparison.together.exchange.statistics()["calls_open"] == 0
    comparison.wait(1_000)
    comparison.check()


@pytest.mark.parametrize("flaw", ANSWER_FLAWS, ids=lambda flaw: flaw.__name__)
def test_one_invalid_response_leaves_all_calls_open(flaw: AnswerFlaw) -> None:
    comparison = BatchComparison()
    comparison.call(*[(0, 0, 100, 8)] * 8)
    datagrams, senders = [answering(each) for each, *_ in comparison.single.sent], [ECU] * 8
    flaw(datagrams, senders, 4)
    made, _ = comparison.receive_batch(datagrams, senders)
    assert (made is not None) == (flaw in {_another_port, _another_major})  # both are accepted


def test_a_response_of_another_method_or_too_late_leaves_all_calls_open() -> None:
    for odd in ((0, 2, 100, 8), (0, 0, 20, 8)):
        comparison = BatchComparison()
        comparison.call(*[(0, 0, 100, 8)] * 4, odd, *[(0, 0, 100, 8)] * 4)
        comparison.time.advance(ms=20)
        datagrams = [answering(each, method=1) for each, *_ in comparison.single.sent]
        assert comparison.receive_batch(datagrams, [ECU] * 9) == (None, False)


def test_responses_to_one_caller_are_a_batch_with_their_reqids() -> None:
    comparison = BatchComparison()
    comparison.call(*[(0, 0, 100, 8)] * 8)
    asked = [call.request.id for call in open_values(comparison.single.pending.calls)]
    datagrams = [answering(each, payload=b"%d" % n) for n, (each, *_) in enumerate(comparison.single.sent)]
    made, _ = comparison.receive_batch(datagrams[::-1], [ECU] * 8)
    assert isinstance(made, MessageBatch)
    assert made.reqids == asked[::-1]
    assert list(made.payloads) == [b"%d" % n for n in range(8)][::-1]


# ------------------------------------------------------------------------------------------------------------- requests


def template_learned(**keys: Any) -> BatchComparison:
    """Both sides have accepted requests of the clients 0x12 and 0x13, with and without a response."""
    comparison = BatchComparison(**keys)
    for client in (0x12, 0x13):
        for kind in (0, 1):
            comparison.on_datagram(encode(asking(client=client, message_type=kind)), CLIENTS[0])
            comparison.respond((0, None, 2))
    comparison.wait(1_000)
    comparison.check()
    assert comparison.together.exchange.statistics()["requests_open"] == 0
    return comparison


REQUEST_FLAW = st.sampled_from(
    [{}] * 8
    + [
        {"client": 0x14},  # an unseen client
        {"method": 3},  # unknown, or without a template
        {"message_type": 0x80},
        {"interface_version": 3},
        {"return_code": 1},
    ]
)


@settings(max_examples=80, deadline=None)
@given(
    number=st.integers(1, 20),
    senders=st.lists(st.sampled_from([CLIENTS[0]] * 6 + CLIENTS), min_size=20, max_size=20),
    unknown_sender=st.one_of(st.none(), st.none(), st.integers(0, 19)),
    other_client=st.one_of(st.none(), st.none(), st.integers(0, 19)),
    kind=st.sampled_from([0, 0, 1]),
    flaw=REQUEST_FLAW,
    limit=st.sampled_from([1_000, 1_000, 1_000, 30, 20, 10, 4]),
    before=st.sampled_from([0, 0, 2]),
)
def test_a_batch_of_requests_equals_single_requests(
    number: int,
    senders: list[Address],
    unknown_sender: int | None,
    other_client: int | None,
    kind: int,
    flaw: dict[str, int],
    limit: int,
    before: int,
) -> None:
    comparison = template_learned(max_pending=limit, request_ttl_ms=100)
    for session in range(before):
        comparison.on_datagram(encode(asking(session=100 + session)), CLIENTS[0])
    comparison.time.advance(ms=10)
    asked = [
        asking(**({"session": session, "message_type": kind, "payload": b"%02d" % session} | flaw))
        for session in range(number)
    ]
    if other_client is not None:
        at = other_client % number
        asked[at] = msgspec.structs.replace(asked[at], client=0x13)
    senders = senders[:number]
    if unknown_sender is not None:
        senders[unknown_sender % number] = UNKNOWN_SENDER
    made, fast = comparison.receive_batch([encode(each) for each in asked], senders)
    assert (made is not None) == (fast and len({each.client for each in asked}) == 1)
    if made is not None:
        assert isinstance(made, MessageBatch)
        # Each request has its own id and its own response.
        opened = [open_entries(comparison.together.pending.requests)[each.id][0] for each in made]
        assert [each.session for each in opened] == list(range(number))
        assert {each.expects_response for each in opened} == {kind == MessageType.REQUEST}
    comparison.respond(*[(each, None, 2) for each in range(min(number, 8))])
    comparison.check()
    comparison.wait(1_000)
    comparison.check()


@pytest.mark.parametrize(
    ("sender", "client"), [(UNKNOWN_SENDER, 0x12), (CLIENTS[0], 0x13)], ids=["unknown sender", "other client"]
)
def test_one_different_request_prevents_batch_decoding(sender: Address, client: int) -> None:
    comparison = template_learned()
    requests = [encode(asking(session=number, client=client if number == 4 else 0x12)) for number in range(8)]
    made, _ = comparison.receive_batch(requests, [CLIENTS[0]] * 4 + [sender] + [CLIENTS[0]] * 3)
    assert made is None


@pytest.mark.parametrize(
    "fields",
    [{"client": 0x14}, {"method": 3}, {"message_type": 0x80}, {"interface_version": 3}, {"return_code": 1}],
    ids=str,
)
def test_requests_with_an_unseen_header_are_not_decoded_as_a_batch(fields: dict[str, int]) -> None:
    comparison = template_learned()
    requests = [encode(asking(**({"session": number} | fields))) for number in range(8)]
    made, fast = comparison.receive_batch(requests, [CLIENTS[0]] * 8)
    assert (made, fast) == (None, False)


@pytest.mark.parametrize(("limit", "hosts"), [(10, 2), (16, 1)])
def test_a_batch_above_the_limit_is_processed_one_by_one(limit: int, hosts: int) -> None:
    """The total limit, and the limit of one host, which is half of it."""
    comparison = template_learned(max_pending=limit)
    room = limit if hosts == 2 else limit // 2
    senders = [CLIENTS[0], CLIENTS[2]] * 10 if hosts == 2 else [CLIENTS[0]] * 20
    made, fast = comparison.receive_batch([encode(asking(session=n)) for n in range(20)], senders)
    assert (made, fast) == (None, False)
    assert comparison.together.exchange.statistics()["requests_open"] == room
    assert len(comparison.together.refused) == 20 - room


# ------------------------------------------------------------------------------------ received batches, on real sockets


def test_received_batches_of_responses_and_requests_are_decoded_as_batches(loop: LoopbackReceiver) -> None:
    comparison = template_learned()
    comparison.call(*[(0, 0, 100, 8)] * MIN_BATCH)
    answers = [answering(each) for each, to, _ in comparison.single.sent if to == ECU]
    requests = [encode(asking(session=number)) for number in range(MIN_BATCH)]
    exchange = comparison.together.exchange
    for datagrams, names in (
        (answers, [OURS] * MIN_BATCH),
        (answers, [OURS, SECOND] * (MIN_BATCH // 2)),
        (requests, []),
    ):
        made = exchange.decode_batch(loop.receive_batch(datagrams, names))
        assert (made is None) == (names == [OURS, SECOND] * (MIN_BATCH // 2))  # already answered
    opened = [each.address for each in open_values(comparison.together.pending.requests)]
    assert opened == [loop.sender(OURS).getsockname()] * MIN_BATCH


def test_requests_of_a_batch_keep_their_sender_addresses(loop: LoopbackReceiver) -> None:
    comparison = template_learned(clients=["127.0.0.1", "127.0.0.2"])
    names = [OURS, SECOND, FAR, OURS] * (MIN_BATCH // 4)
    made = comparison.together.exchange.decode_batch(
        loop.receive_batch([encode(asking(session=number)) for number in range(MIN_BATCH)], names)
    )
    assert made is not None
    opened = open_values(comparison.together.pending.requests)
    assert [(each.session, each.address) for each in opened] == [
        (number, loop.sender(name).getsockname()) for number, name in enumerate(names)
    ]


def test_fewer_than_min_batch_are_processed_one_by_one(loop: LoopbackReceiver) -> None:
    side = template_learned().together
    requests = [encode(asking(session=number)) for number in range(MIN_BATCH - 1)]
    before = untouched(side)
    assert side.exchange.decode_batch(loop.receive_batch(requests)) is None
    assert untouched(side) == before
