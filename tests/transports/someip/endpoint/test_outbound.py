# SPDX-License-Identifier: Apache-2.0
"""Output of an endpoint, tested without the endpoint."""

import socket
from collections.abc import Iterator

import msgspec
import pytest

from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.transports.someip.endpoint.outbound import Outbound
from ustreamer.transports.someip.io.tcp_connections import TcpCallbacks, TcpConnections
from ustreamer.transports.someip.io.udp import pop_unreachable, report_unreachable
from ustreamer.transports.someip.protocol.codec import MessageType, split
from ustreamer.transports.someip.protocol.mapping import (
    EventReceiver,
    EventTemplate,
    encode_event,
    id_with_request_id,
)
from ustreamer.transports.someip.protocol.tcp_config import TcpConfig
from ustreamer.transports.someip.protocol.tp_config import TpLimits, TpSegmentation
from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

TOPIC = UUri("hpc", 0x1234, 1, 0x8001)
EVENT = EventTemplate(0x1234, 0x8001, 1)
IDS = UuidSource(SYSTEM_CLOCK.wall_ms)


@pytest.fixture
def ours() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.bind(("127.0.0.1", 0))
        yield made


@pytest.fixture
def theirs() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.bind(("127.0.0.1", 0))
        made.settimeout(30.0)
        yield made


@pytest.fixture
def sending() -> Outbound:
    return outbound()


def outbound(bridged: frozenset[str] = frozenset(), *, refuses_oversized: bool = False) -> Outbound:
    callbacks = TcpCallbacks(lambda *_: None, lambda *_: None, lambda _: None)
    connections = TcpConnections(
        TcpConfig(), SYSTEM_CLOCK.monotonic_ns, lambda: 0.5, lambda _: True, callbacks
    )
    no_event = lambda topic: UStatusError(UCode.NOT_FOUND, f"{topic}: no event")  # noqa: E731
    return Outbound(
        TpLimits(),
        connections,
        SYSTEM_CLOCK,
        lambda _: None,
        no_event,
        bridged,
        refuses_oversized=refuses_oversized,
    )


def receiver(at: socket.socket) -> EventReceiver:
    return EventReceiver(UUri("chassis", 7, 1, 0), at.getsockname(), 0, {TOPIC: EVENT})


def event(payload: bytes, topic: UUri = TOPIC) -> UMessage:
    return publish(IDS.next(), topic, payload)


def sessions(at: socket.socket, number: int) -> list[int]:
    found = []
    for _ in range(number):
        [message], _ = split(at.recv(65_535))
        assert message.message_type == MessageType.NOTIFICATION
        found.append(message.session)
    return found


def test_single_events_and_batches_share_the_session_counter(
    sending: Outbound, ours: socket.socket, theirs: socket.socket
) -> None:
    sending.open(ours)
    to = receiver(theirs)
    one_by_one = sending.event_transmitter(to, with_batch=True)
    burst = sending.batch_transmitter(to)
    assert burst is not None
    one_by_one(event(b"a"))
    assert burst([event(b"b"), event(b"c")]) == 2
    one_by_one(event(b"d"))
    assert sessions(theirs, 4) == [1, 2, 3, 4]
    assert sending.statistics()["sent"] == 4


@pytest.mark.parametrize("how", ["one by one", "list", "column batch", "in segments"])
def test_an_event_of_another_someip_network_keeps_its_request_id(
    ours: socket.socket, theirs: socket.socket, how: str
) -> None:
    bridge = outbound(frozenset({TOPIC.authority_name}))
    bridge.open(ours)
    segmentation = TpSegmentation(segment_bytes=16) if how == "in segments" else None
    template = msgspec.structs.replace(EVENT, segmentation=segmentation)
    to = msgspec.structs.replace(receiver(theirs), events={TOPIC: template})
    transmit = bridge.event_transmitter(to, with_batch=True)
    transmit_batch = bridge.batch_transmitter(to)
    request_ids = [0x4711, 1, 0xFFFF, 0, 0x0063_8000]
    events = [
        UMessage(id_with_request_id(IDS.next(), each), event(b"").attributes, b"0123456789abcdef+")
        for each in request_ids
    ]
    if transmit_batch is None or how == "one by one":
        for each in events:
            transmit(each)
    else:
        batch = MessageBatch.from_messages(events) if how == "column batch" else events
        assert batch is not None
        assert transmit_batch(batch) == len(events)
    bridge.flush(30.0)
    datagrams = len(events) * (2 if how == "in segments" else 1)
    received = [split(theirs.recv(65_535))[0][0].request_id for _ in range(datagrams)]
    assert list(dict.fromkeys(received)) == request_ids


def test_an_unknown_topic_is_refused_with_the_error_of_the_services(
    sending: Outbound, ours: socket.socket, theirs: socket.socket
) -> None:
    sending.open(ours)
    to = receiver(theirs)
    transmit = sending.event_transmitter(to, with_batch=True)
    burst = sending.batch_transmitter(to)
    assert burst is not None
    other = event(b"x", TOPIC.with_resource(0x8002))
    with pytest.raises(UStatusError, match="8002: no event"):
        transmit(other)
    assert burst([event(b"a"), other, event(b"b")]) == 1  # the caller then sends it alone and gets the error


@pytest.mark.parametrize("segmentation", [None, TpSegmentation(segment_bytes=1_392)])
def test_a_receiver_without_a_socket_costs_others_no_event(
    sending: Outbound, ours: socket.socket, theirs: socket.socket, segmentation: TpSegmentation | None
) -> None:
    """The kernel reports an ICMP error to the next call of the socket, to whomever that one sends."""
    report_unreachable(ours)
    sending.open(ours)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone:
        gone.bind(("127.0.0.1", 0))
        closed = receiver(gone)
    template = {TOPIC: msgspec.structs.replace(EVENT, segmentation=segmentation)}
    to_closed, to_theirs = (
        sending.event_transmitter(msgspec.structs.replace(each, events=template))
        for each in (closed, receiver(theirs))
    )
    for _ in range(20):
        to_closed(event(b"to no socket"))
        to_theirs(event(b"there"))
    assert sessions(theirs, 20) == list(range(1, 21))
    assert set(pop_unreachable(ours)) == {closed.address}


# [utest->RPC-318]
@pytest.mark.parametrize("refuses", [False, True])
def test_an_event_above_1400_bytes_without_segments_is_counted_or_refused(
    ours: socket.socket, theirs: socket.socket, caplog: pytest.LogCaptureFixture, refuses: bool
) -> None:
    sender = outbound(refuses_oversized=refuses)
    sender.open(ours)
    to = receiver(theirs)
    transmit = sender.event_transmitter(to, with_batch=True)
    transmit_batch = sender.batch_transmitter(to)
    assert transmit_batch is not None
    transmit(event(bytes(1_400)))
    assert sender.statistics()["oversized"] == 0
    large = [event(bytes(1_401)) for _ in range(3)]
    if refuses:
        with pytest.raises(UStatusError, match="payload of 1401 bytes .* needs segments") as refused:
            transmit(large[0])
        assert refused.value.code is UCode.INVALID_ARGUMENT
        assert transmit_batch([event(b"small"), *large]) == 1
        assert sessions(theirs, 2) == [1, 2]
    else:
        transmit(large[0])
        assert transmit_batch(large) == 3
        assert sessions(theirs, 5) == [1, 2, 3, 4, 5]
    assert sender.statistics()["oversized"] == (0 if refuses else 4)
    assert [each.message for each in caplog.records] == ([] if refuses else ["someip.oversized"])


# [utest->RPC-318]
def test_a_request_above_1400_bytes_without_segments_is_counted_or_refused(
    ours: socket.socket, theirs: socket.socket
) -> None:
    datagram = encode_event(EVENT, 1, bytes(1_401))
    counting, refusing = outbound(), outbound(refuses_oversized=True)
    for each in (counting, refusing):
        each.open(ours)
    counting.send(datagram, theirs.getsockname(), None)
    assert counting.send_equal_sized([datagram], theirs.getsockname()) == 1
    assert counting.statistics()["oversized"] == 2
    with pytest.raises(UStatusError, match="needs segments"):
        refusing.send(datagram, theirs.getsockname(), None)
    assert refusing.send_equal_sized([datagram] * 2, theirs.getsockname()) == 0
    refusing.send(datagram, theirs.getsockname(), TpSegmentation())  # in segments it is sent
    assert refusing.statistics()["sent"] == 1


@pytest.mark.parametrize("closed", [False, True], ids=["not yet open", "closed"])
def test_nothing_is_sent_before_open(
    sending: Outbound, ours: socket.socket, theirs: socket.socket, closed: bool
) -> None:
    if closed:
        sending.open(ours)
        sending.close()
    to = receiver(theirs)
    transmit = sending.event_transmitter(to, with_batch=True)
    burst = sending.batch_transmitter(to)
    assert burst is not None
    with pytest.raises(UStatusError, match="the endpoint is not open") as refused:
        transmit(event(b"a"))
    assert refused.value.code is UCode.UNAVAILABLE
    assert burst([event(b"a")]) == 0
    assert sending.statistics()["sent"] == 0
