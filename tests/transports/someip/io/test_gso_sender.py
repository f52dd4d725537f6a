# SPDX-License-Identifier: Apache-2.0
"""Batches of events: the receiver gets the datagrams that single sends would produce, whatever the kernel supports."""

import errno
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ustreamer.transports.someip.io.gso_sender import EventHeaderTemplate, GsoSender
from ustreamer.transports.someip.protocol.codec import MAX_SESSION, SomeIpMessage, decode
from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

TOPIC, OTHER, LARGE = (UUri("hpc", 0x9077, 1, 0x8001 + number) for number in range(3))
WITHIN_S = 30.0


def events(first: int = 0) -> dict[UUri, EventHeaderTemplate]:
    """Templates of TOPIC and OTHER after `sent` events; LARGE is not among them."""
    tail = bytes.fromhex("01020200")
    return {
        topic: (bytes.fromhex(f"0777{topic.resource_id:04x}"), tail, count(first)) for topic in (TOPIC, OTHER)
    }


def message(payload: bytes, topic: UUri = TOPIC) -> UMessage:
    return publish(UUID(0, 0), topic, payload)


class Refusing:
    """A socket whose kernel does not segment datagrams above `largest` bytes, or whose calls fail after some time."""

    def __init__(self, real: socket.socket, largest: int, code: int = errno.EINVAL) -> None:
        self.real, self.largest, self.code = real, largest, code
        self.tried = self.single = 0
        self.singles_that_fail = 0

    def sendmsg(
        self,
        datagrams: list[bytes],
        control: list[tuple[int, int, bytes]],
        flags: int,
        address: tuple[str, int],
    ) -> int:
        self.tried += 1
        if len(datagrams[0]) > self.largest:
            raise OSError(self.code, "as the test has it")
        return self.real.sendmsg(datagrams, control, flags, address)

    def sendto(self, datagram: bytes, address: tuple[str, int]) -> int:
        self.single += 1
        if self.singles_that_fail:
            self.singles_that_fail -= 1
            raise OSError(errno.ENOBUFS, "full")
        return self.real.sendto(datagram, address)


class Scene:
    def __init__(self, sender: socket.socket, receiver: socket.socket) -> None:
        self.socket, self._receiver = sender, receiver
        self.bursts = GsoSender()
        self.bursts.open(sender)
        self.send = self.bursts.event_sender(events(), receiver.getsockname())

    def received(self, number: int) -> list[SomeIpMessage]:
        return [decode(self._receiver.recv(65_536))[0] for _ in range(number)]

    def through(self, kernel: Refusing) -> None:
        self.bursts.open(kernel)  # type: ignore[arg-type]


@pytest.fixture
def scene() -> Iterator[Scene]:
    sender, receiver = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    with closing(sender), closing(receiver):
        for each in (sender, receiver):
            each.bind(("127.0.0.1", 0))
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        receiver.settimeout(WITHIN_S)
        yield Scene(sender, receiver)


SIZES = [[8] * 3, [8, 8, 9, 9, 8], [0, 0], [1_400] * 63, [60_000, 60_000], [1_456] * 3, [1_457] * 3, [7]]


@pytest.mark.parametrize("sizes", SIZES)
def test_each_event_arrives_as_one_datagram_in_order(scene: Scene, sizes: list[int]) -> None:
    sent = [message(bytes([number]) * size) for number, size in enumerate(sizes)]
    assert scene.send(sent) == len(sizes)
    arrived = scene.received(len(sizes))
    assert [each.payload for each in arrived] == [each.payload for each in sent]
    assert [each.session for each in arrived] == list(range(1, len(sizes) + 1))
    assert {(each.service, each.method, each.client, each.interface_version) for each in arrived} == {
        (0x0777, 0x8001, 0, 2)
    }
    assert scene.bursts.sent_count == len(sizes)


def test_more_datagrams_than_one_call_accepts_use_several_calls(scene: Scene) -> None:
    kernel = Refusing(scene.socket, 1_472)
    scene.through(kernel)
    assert scene.send(message(b"%03d" % number) for number in range(150)) == 150
    assert [each.payload for each in scene.received(150)] == [b"%03d" % number for number in range(150)]
    assert (kernel.tried, kernel.single) == (3, 0)


@pytest.mark.parametrize(("payload", "calls"), [(1_007, 1), (1_024, 2), (1_400, 2), (1_456, 2)])
def test_more_bytes_than_one_call_accepts_use_several_calls(scene: Scene, payload: int, calls: int) -> None:
    kernel = Refusing(scene.socket, 1_472)
    scene.through(kernel)
    sent = [message(bytes([number]) * payload) for number in range(64)]
    assert scene.send(sent) == 64
    assert [each.payload for each in scene.received(64)] == [each.payload for each in sent]
    assert (kernel.tried, kernel.single) == (calls, 0)
    assert scene.bursts.sent_count == 64


def test_the_first_rejected_call_ends_the_batch(scene: Scene) -> None:
    kernel = Refusing(scene.socket, 0, errno.ENOBUFS)
    scene.through(kernel)
    assert scene.send([message(bytes(1_400))] * 64) == 0
    assert kernel.tried == 1


def test_each_event_has_its_own_session_counter(scene: Scene) -> None:
    topics = [TOPIC, OTHER, TOPIC, TOPIC, OTHER]
    scene.send(message(b"same size", topic) for topic in topics)
    assert [(each.method, each.session) for each in scene.received(5)] == [
        (0x8001, 1),
        (0x8002, 1),
        (0x8001, 2),
        (0x8001, 3),
        (0x8002, 2),
    ]


def test_the_batch_ends_at_an_event_without_a_template(scene: Scene) -> None:
    assert scene.send([message(b"1"), message(b"2"), message(b"3", LARGE), message(b"4")]) == 2
    assert [each.payload for each in scene.received(2)] == [b"1", b"2"]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EMSGSIZE, errno.EIO, errno.EOPNOTSUPP])
def test_an_unsupported_size_is_sent_one_by_one_and_not_tried_again(scene: Scene, code: int) -> None:
    kernel = Refusing(scene.socket, 99, code)
    scene.through(kernel)
    for _ in range(2):
        assert scene.send([message(bytes(84))] * 3) == 3
    assert (kernel.tried, kernel.single) == (1, 6)
    assert scene.send([message(bytes(83))] * 3) == 3  # a smaller size may be supported
    assert (kernel.tried, kernel.single) == (2, 6)
    assert len(scene.received(9)) == 9


def test_a_size_that_one_receiver_does_not_support_is_sent_in_batches_to_others(scene: Scene) -> None:
    kernel = Refusing(scene.socket, 0)
    scene.through(kernel)
    assert scene.send([message(b"1")] * 3) == 3
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as other:
        other.bind(("127.0.0.1", 0))
        kernel.largest = 1_472
        send = scene.bursts.event_sender(events(), other.getsockname())
        assert send([message(b"1")] * 3) == 3
    assert (kernel.tried, kernel.single) == (2, 3)


def test_the_receivers_with_a_limit_are_bounded(scene: Scene) -> None:
    scene.through(Refusing(scene.socket, 0))
    for port in range(10_000, 10_300):
        scene.bursts.send_equal_sized([b"1", b"2"], ("127.0.0.1", port))
    assert len(scene.bursts._max_bytes) <= 256


def test_a_full_queue_does_not_disable_batches(scene: Scene) -> None:
    kernel = Refusing(scene.socket, 0, errno.ENOBUFS)
    scene.through(kernel)
    assert scene.send([message(b"1")] * 3) == 0
    kernel.largest = 1_472
    assert scene.send([message(b"2")] * 3) == 3
    assert (kernel.tried, kernel.single) == (2, 0)


def test_the_batch_ends_at_the_first_rejected_datagram(scene: Scene) -> None:
    kernel = Refusing(scene.socket, 1_472)
    scene.through(kernel)
    kernel.singles_that_fail = 1
    assert scene.send([message(b"a"), message(b"bc"), message(b"def"), message(b"def")]) == 0
    assert scene.send([message(b"def"), message(b"def"), message(b"a")]) == 3
    assert scene.bursts.sent_count == 3


def test_a_closed_sender_sends_nothing(scene: Scene) -> None:
    scene.bursts.close()
    assert scene.send([message(b"1")] * 3) == 0
    assert scene.send([]) == 0


# ----------------------------------------------------------------------------------------------------- message batches


class Kernel:
    """A socket that accepts `room` datagrams, single or of one batch, and then refuses one call."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.taken: list[list[bytes]] = []
        self.refused = 0

    def sendmsg(self, datagrams: list[bytes], *_: object) -> None:
        self._accept(datagrams)

    def sendto(self, datagram: bytes, address: tuple[str, int]) -> None:
        self._accept([datagram])

    def _accept(self, datagrams: list[bytes]) -> None:
        if len(datagrams) > self.room and not self.refused:
            self.refused += 1
            raise OSError(errno.ENOBUFS, "full")
        self.room -= len(datagrams)
        self.taken.append(list(datagrams))


def equal(payloads: Sequence[bytes], topic: UUri = TOPIC) -> MessageBatch:
    made = MessageBatch.from_messages([message(each, topic) for each in payloads])
    assert made is not None
    return made


class SenderWithKernel:
    """A batch sender, and the datagrams that the kernel received."""

    def __init__(self, room: int, first: int) -> None:
        self.gso_sender, self.kernel = GsoSender(), Kernel(room)
        self.gso_sender.open(self.kernel)  # type: ignore[arg-type]
        self.send = self.gso_sender.event_sender(events(first), ("127.0.0.1", 1))


TOPIC_AND_SIZES = st.tuples(
    st.sampled_from([TOPIC, TOPIC, OTHER, LARGE]),
    st.one_of(
        st.tuples(st.sampled_from([0, 1, 8, 1_007, 1_400, 1_456, 1_457]), st.integers(1, 150)).map(
            lambda each: [each[0]] * each[1]
        ),
        st.lists(st.sampled_from([0, 8, 9, 1_400]), min_size=1, max_size=20),
    ),
)


@settings(max_examples=80, deadline=None)
@given(
    topics_and_sizes=st.lists(TOPIC_AND_SIZES, min_size=1, max_size=3),
    room=st.sampled_from([10_000] * 3 + [0, 1, 63, 64, 65, 100, 130]),
    first=st.sampled_from([0, 7, MAX_SESSION - 100, MAX_SESSION - 1, MAX_SESSION]),
)
def test_a_batch_is_sent_byte_for_byte_as_its_messages_until_one_is_rejected(
    topics_and_sizes: list[tuple[UUri, list[int]]], room: int, first: int
) -> None:
    columns, rows = SenderWithKernel(room, first), SenderWithKernel(room, first)
    for topic, sizes in topics_and_sizes:
        message_batch = equal([bytes([number]) * size for number, size in enumerate(sizes)], topic)
        assert columns.send(message_batch) == rows.send(iter(list(message_batch)))
        assert columns.kernel.taken == rows.kernel.taken
        assert (
            columns.gso_sender.sent_count == rows.gso_sender.sent_count == sum(map(len, columns.kernel.taken))
        )
        if rows.kernel.refused:
            break  # the sessions used by rejected events are unspecified


def sessions(taken: list[list[bytes]]) -> list[int]:
    return [decode(each)[0].session for burst in taken for each in burst]


def test_the_session_of_a_batch_wraps_from_65535_to_1() -> None:
    gso = SenderWithKernel(10_000, MAX_SESSION - 2)
    assert gso.send(equal([b"1", b"2", b"3", b"4"])) == 4
    assert sessions(gso.kernel.taken) == [65_534, 65_535, 1, 2]


@pytest.mark.parametrize(("room", "taken"), [(0, 0), (63, 0), (64, 64), (127, 64), (128, 128), (150, 150)])
def test_events_before_the_rejected_call_are_counted_as_accepted(room: int, taken: int) -> None:
    """A retry of the rest never reuses a session."""
    gso, message_batch = SenderWithKernel(room, 0), equal([b"%03d" % number for number in range(150)])
    assert gso.send(message_batch) == taken
    gso.kernel.room = 10_000
    if taken < len(message_batch):
        assert gso.send(message_batch[taken:]) == len(message_batch) - taken
    payloads = [each[16:] for burst in gso.kernel.taken for each in burst]
    assert payloads == list(message_batch.payloads)
    assert gso.gso_sender.sent_count == 150
    assert sessions(gso.kernel.taken) == sorted(set(sessions(gso.kernel.taken)))


def test_a_batch_without_a_template_or_without_messages_uses_no_session() -> None:
    gso = SenderWithKernel(10_000, 0)
    assert gso.send(equal([b"1", b"2"], LARGE)) == 0
    assert gso.send(equal([b"1", b"2"])[:0]) == 0
    assert gso.send(equal([b"3"])) == 1
    assert (sessions(gso.kernel.taken), gso.gso_sender.sent_count) == ([1], 1)


def test_a_batch_of_one_size_is_sent_without_creating_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The purpose of a batch: no message objects."""

    def made(_: MessageBatch) -> Iterator[UMessage]:
        raise AssertionError("messages were made")

    gso, message_batch = SenderWithKernel(10_000, 0), equal([b"1", b"2"])
    monkeypatch.setattr(MessageBatch, "__iter__", made)
    assert gso.send(message_batch) == 2


def test_a_batch_uses_udp_segment_on_a_real_socket(scene: Scene) -> None:
    kernel = Refusing(scene.socket, 1_472)
    scene.through(kernel)
    message_batch = equal([b"%03d" % number for number in range(150)])
    assert scene.send(message_batch) == 150
    arrived = scene.received(150)
    assert [(each.payload, each.session) for each in arrived] == [
        (payload, number + 1) for number, payload in enumerate(message_batch.payloads)
    ]
    assert (kernel.tried, kernel.single) == (3, 0)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EMSGSIZE])
def test_a_batch_of_an_unsupported_size_is_sent_one_by_one(scene: Scene, code: int) -> None:
    kernel = Refusing(scene.socket, 18, code)
    scene.through(kernel)
    message_batch = equal([b"%03d" % number for number in range(70)])
    assert scene.send(message_batch) == 70
    assert [each.session for each in scene.received(70)] == list(range(1, 71))
    assert (kernel.tried, kernel.single) == (1, 70)
