# SPDX-License-Identifier: Apache-2.0
"""The window of messages that the broker has not acknowledged, without a broker."""

import threading
import time
from typing import Any

import pytest
from ustreamer_mqtt.unconfirmed import OVERHEAD_BYTES, UnconfirmedMessages

from tests.waiting import wait_until
from ustreamer.core.base.clock import ManualClock
from ustreamer.testing.durable_contract import RecordedSentStore
from ustreamer.testing.messages import TOPIC, new_id
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID

COUNT = 20_000


class Rig:
    """A window, and a library that gives packet ids from 1. The properties of a packet are the rest of its ttl in s."""

    def __init__(self, messages: int = 4, size: int = 1_000_000, receive_maximum: int = 2) -> None:
        self.clock = ManualClock()
        self.published: list[bytes] = []
        self.properties: list[bytes] = []
        self.changed: dict[int, bytes | None] = {}
        self.has_id = True
        self.window = UnconfirmedMessages("net", messages, size, self.clock.clock(), self, self.shorten)
        self.window.on_connack(receive_maximum, 1_000_000)
        self.window.on_up()

    def publish(self, topic: str, payload: bytes, properties: bytes) -> int | None:
        if not self.has_id:
            return None
        self.published.append(payload)
        self.properties.append(properties)
        return len(self.published)

    def change(self, mid: int, properties: bytes | None) -> None:
        self.changed[mid] = properties

    @staticmethod
    def shorten(message: UMessage, left_s: int) -> bytes:
        return b"%d" % left_s

    def reconnect(self, receive_maximum: int = 2, max_packet_bytes: int = 1_000_000) -> bool:
        """Whether the library must forget its messages."""
        self.window.on_down()
        must_forget = self.window.on_connack(receive_maximum, max_packet_bytes)
        self.window.on_up()
        return must_forget

    def send(self, number: int, topic: str = "topic", ttl: int | None = None) -> UMessage:
        message = publish(new_id(), TOPIC, b"%d" % number, ttl=ttl)
        self.window.send(message, topic, b"", may_wait=False)
        return message

    def acknowledge(self, *mids: int, reason: int = 0) -> None:
        self.window.on_acknowledged([(mid, reason) for mid in mids])


def test_the_library_gets_no_more_than_the_broker_takes() -> None:
    rig = Rig()
    for number in range(4):
        rig.send(number)
    assert rig.published == [b"0", b"1"]
    rig.acknowledge(1)
    assert rig.published == [b"0", b"1", b"2"]
    rig.acknowledge(2, 3)
    assert rig.published == [b"0", b"1", b"2", b"3"]
    rig.acknowledge(4)
    assert (rig.window.confirmed, rig.window.count, rig.window.bytes) == (4, 0, 0)


def test_a_full_window_is_unavailable_and_says_why() -> None:
    rig = Rig()
    assert rig.window.window_bytes() == 4 * OVERHEAD_BYTES
    for number in range(4):
        rig.send(number)
    assert rig.window.window_bytes() == 0
    with pytest.raises(UStatusError, match="'net': 4 messages without an acknowledgement") as refused:
        rig.send(5)
    assert refused.value.code is UCode.UNAVAILABLE
    assert rig.window.sent == 4


def test_a_window_has_bytes_too_and_one_message_always_fits() -> None:
    rig = Rig(size=OVERHEAD_BYTES)
    large = publish(new_id(), TOPIC, bytes(OVERHEAD_BYTES))
    rig.window.send(large, "topic", b"", may_wait=False)
    with pytest.raises(UStatusError, match="UNAVAILABLE"):
        rig.send(1)


def test_a_sender_waits_for_room() -> None:
    rig = Rig(messages=1)
    rig.send(0)
    message = publish(new_id(), TOPIC, b"1")
    sender = threading.Thread(target=lambda: rig.window.send(message, "topic", b""))
    sender.start()
    wait_until(lambda: rig.window._waiting, "the sender")
    rig.acknowledge(1)
    sender.join(10)
    assert rig.published == [b"0", b"1"]


def test_a_lost_connection_ends_the_wait() -> None:
    rig = Rig(messages=1)
    rig.send(0)
    refused: list[UCode] = []

    def send() -> None:
        with pytest.raises(UStatusError) as error:
            rig.window.send(publish(new_id(), TOPIC), "topic", b"")
        refused.append(error.value.code)

    sender = threading.Thread(target=send)
    sender.start()
    wait_until(lambda: rig.window._waiting, "the sender")
    rig.window.on_down()
    sender.join(10)
    assert refused == [UCode.UNAVAILABLE]
    assert rig.window.window_bytes() == 0


def test_after_an_outage_the_library_repeats_what_it_has() -> None:
    rig = Rig()
    sent = [rig.send(number) for number in range(4)]
    rig.window.on_down()
    assert rig.window.on_connack(2, 1_000_000) is False
    rig.window.on_up()
    assert rig.published == [b"0", b"1"]  # the library sends these itself
    assert rig.window.messages() == sent


def test_a_broker_that_takes_less_gets_the_messages_again_in_their_order() -> None:
    rig = Rig()
    sent = [rig.send(number) for number in range(4)]
    rig.window.on_down()
    assert rig.window.on_connack(1, 1_000_000) is True
    assert rig.window.messages() == sent
    rig.window.on_up()
    assert rig.published == [b"0", b"1", b"0"]
    rig.acknowledge(3)
    assert rig.published[-1] == b"1"
    assert rig.window.messages() == sent[1:]


def test_without_a_free_packet_id_a_message_waits() -> None:
    rig = Rig()
    rig.send(0)
    rig.has_id = False
    rig.send(1)
    assert rig.published == [b"0"]
    rig.has_id = True
    rig.acknowledge(1)
    assert rig.published == [b"0", b"1"]


def test_a_packet_that_the_broker_does_not_take_is_refused_and_not_sent_again_and_again() -> None:
    rig = Rig()
    small, large = rig.send(0), publish(new_id(), TOPIC, bytes(500))
    rig.window.send(large, "topic", b"", may_wait=False)
    rig.window.on_down()
    assert rig.window.on_connack(2, 100) is True
    rig.window.on_up()
    assert rig.window.messages() == [small]
    assert rig.window.refused == 1
    with pytest.raises(UStatusError, match="a packet of 514 bytes, the broker takes 100") as refused:
        rig.window.send(large, "topic", b"", may_wait=False)
    assert refused.value.code is UCode.RESOURCE_EXHAUSTED


def test_a_refused_message_is_counted_and_not_sent_again(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.send(0)
    rig.acknowledge(1, reason=0x87)
    rig.acknowledge(1)  # no message waits for it any more
    assert (rig.window.refused, rig.window.confirmed, rig.window.count) == (1, 0, 0)
    (record,) = caplog.records
    assert record.msg == "mqtt.message_refused"
    assert record.__dict__["reason"] == "PERMISSION_DENIED (0x87)"


def test_a_success_without_subscribers_is_a_confirmation() -> None:
    rig = Rig()
    rig.send(0)
    rig.acknowledge(1, reason=0x10)
    assert (rig.window.refused, rig.window.confirmed) == (0, 1)


def test_the_store_gets_what_waits_for_too_long_until_it_is_confirmed() -> None:
    rig = Rig()
    store = rig.window.store = RecordedSentStore()
    assert rig.window.service() is None
    first = rig.send(0)
    assert rig.window.service() == 25
    assert store.ids() == []
    assert rig.window.is_unconfirmed(first.id)
    rig.clock.advance(ms=51)
    second = rig.send(1)
    rig.window.service()
    assert store.ids() == [first.id]
    rig.window.on_down()
    rig.clock.advance(ms=25)
    rig.window.service()
    assert store.ids() == [first.id, second.id]
    rig.window.on_up()
    rig.acknowledge(1)
    store.busy = True
    rig.clock.advance(ms=25)
    rig.window.service()
    store.busy = False
    rig.clock.advance(ms=25)
    rig.window.service()
    assert store.ids() == [second.id]
    assert not rig.window.is_unconfirmed(first.id)


def test_what_a_busy_store_refuses_is_offered_again() -> None:
    rig = Rig()
    store = rig.window.store = RecordedSentStore()
    store.busy = True
    message = rig.send(0)
    rig.window.on_down()
    rig.window.service()
    store.busy = False
    rig.clock.advance(ms=25)
    rig.window.service()
    assert store.ids() == [message.id]


def test_after_a_close_nothing_is_accepted_and_the_rest_is_known() -> None:
    rig = Rig()
    sent = [rig.send(number) for number in range(3)]
    rig.window.close()
    rig.window.on_up()
    with pytest.raises(UStatusError, match="UNAVAILABLE"):
        rig.send(3)
    assert rig.window.messages() == sent


# --- topics that the broker refuses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("reason", "code"), [(0x87, UCode.PERMISSION_DENIED), (0x90, UCode.INTERNAL)])
def test_a_refused_topic_is_avoided_for_a_while_and_others_are_not(reason: int, code: UCode) -> None:
    rig = Rig()
    rig.send(0, "forbidden")
    rig.acknowledge(1, reason=reason)
    assert rig.window.avoided_topics == 1
    with pytest.raises(
        UStatusError, match=r"refuses messages of topic 'forbidden' .* again in 30 s"
    ) as refused:
        rig.send(1, "forbidden")
    assert refused.value.code is code
    rig.send(2)
    rig.acknowledge(2)
    rig.clock.advance(s=29)
    with pytest.raises(UStatusError, match="again in 1 s"):
        rig.send(3, "forbidden")
    rig.clock.advance(s=1)
    rig.send(4, "forbidden")
    assert rig.published == [b"0", b"2", b"4"]
    rig.acknowledge(3)
    rig.send(5, "forbidden")
    assert (rig.window.confirmed, rig.window.refused, rig.window.avoided_topics) == (2, 1, 0)


def test_a_quota_that_is_used_up_is_no_reason_to_avoid_a_topic() -> None:
    rig = Rig()
    rig.send(0)
    rig.acknowledge(1, reason=0x97)
    rig.send(1)
    assert (rig.window.refused, rig.window.avoided_topics) == (1, 0)


def test_what_waits_of_a_refused_topic_is_refused_too() -> None:
    rig = Rig(receive_maximum=1)
    for number, topic in enumerate(("forbidden", "forbidden", "allowed", "forbidden")):
        rig.send(number, topic)
    rig.acknowledge(1, reason=0x87)
    assert rig.published == [b"0", b"2"]
    rig.acknowledge(2)
    assert (rig.window.refused, rig.window.confirmed, rig.window.count, rig.window.bytes) == (3, 1, 0, 0)


def test_after_an_outage_nothing_of_a_refused_topic_is_sent_again() -> None:
    rig = Rig(receive_maximum=3)
    for number, topic in enumerate(("forbidden", "forbidden", "allowed")):
        rig.send(number, topic)
    rig.acknowledge(1, reason=0x87)
    rig.window.on_down()
    assert rig.window.on_connack(3, 1_000_000)
    rig.window.on_up()
    assert rig.published == [b"0", b"1", b"2", b"2"]
    rig.acknowledge(4)
    assert (rig.window.refused, rig.window.confirmed, rig.window.count) == (2, 1, 0)


class EndingBroker:
    """Ends the connection for each message of the topic `ending`, and acknowledges all before it."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig

    def connection(self, seconds: float = 1.0, *, broker_ended: bool = True) -> list[bytes]:
        """A connection that ends. Returns the messages it had."""
        rig = self.rig
        before = len(rig.published)
        must_forget = rig.window.on_connack(4, 1_000_000)
        repeated = [] if must_forget else [each.message.payload for each in self.on_wire.values()]
        rig.window.on_up()
        rig.clock.advance(s=seconds)
        had = [*repeated, *rig.published[before:]]
        rig.window.on_down(broker_ended=broker_ended)
        return had

    @property
    def on_wire(self) -> dict[int, Any]:
        return self.rig.window._on_wire


def rig_with_a_message_that_ends_connections() -> EndingBroker:
    rig = Rig(messages=8, receive_maximum=4)
    for number, topic in enumerate(("ending", "allowed", "allowed", "ending", "allowed")):
        rig.send(number, topic)
    rig.window.on_down(broker_ended=True)
    return EndingBroker(rig)


def test_a_message_that_ends_each_connection_is_sent_alone_and_then_refused() -> None:
    broker = rig_with_a_message_that_ends_connections()
    rig = broker.rig
    assert broker.connection() == [b"0", b"1", b"2", b"3"]
    alone = 0
    while not rig.window.avoided_topics:
        assert broker.connection() == [b"0"]
        alone += 1
    assert (alone, rig.window.refused) == (9, 1)  # what waits; what was sent last is refused below
    assert rig.window.on_connack(4, 1_000_000)
    rig.window.on_up()
    assert rig.published[-3:] == [b"1", b"2", b"4"]
    assert rig.window.refused == 2
    with pytest.raises(
        UStatusError, match="ends each connection with a message of topic 'ending'.* again in"
    ):
        rig.send(5, "ending")
    rig.acknowledge(*broker.on_wire)
    assert (rig.window.confirmed, rig.window.count, rig.window.bytes) == (3, 0, 0)


def test_a_message_is_not_refused_within_10_s_nor_after_few_connections() -> None:
    quick, slow = rig_with_a_message_that_ends_connections(), rig_with_a_message_that_ends_connections()
    for _ in range(50):
        quick.connection(0.19)
    for _ in range(2):
        slow.connection(60)
    assert (quick.rig.window.refused, slow.rig.window.refused) == (0, 0)
    slow.connection(60)
    assert slow.rig.window.avoided_topics == 1


def test_connections_that_end_for_another_reason_refuse_nothing() -> None:
    broker = rig_with_a_message_that_ends_connections()
    for _ in range(50):
        assert broker.connection(broker_ended=False) == [b"0", b"1", b"2", b"3"]
    assert broker.rig.window.refused == 0


def test_an_acknowledgement_shows_that_the_broker_takes_messages() -> None:
    broker = rig_with_a_message_that_ends_connections()
    rig = broker.rig
    for _ in range(2):
        broker.connection(60)
    rig.window.on_connack(4, 1_000_000)
    rig.window.on_up()
    rig.acknowledge(*broker.on_wire)
    assert rig.published[-4:] == [b"1", b"2", b"3", b"4"]  # no longer one by one
    rig.window.on_down(broker_ended=True)
    assert len(broker.connection(60)) == 4
    assert rig.window.refused == 0


def test_without_a_message_on_the_wire_no_message_is_to_blame() -> None:
    rig = Rig()
    for _ in range(10):
        rig.window.on_down(broker_ended=True)
        rig.clock.advance(s=60)
        rig.window.on_connack(2, 1_000_000)
        rig.window.on_up()
    rig.send(0)
    rig.send(1)
    assert rig.published == [b"0", b"1"]
    assert rig.window.avoided_topics == 0


def test_an_attempt_without_an_answer_blames_no_message() -> None:
    rig = Rig()
    rig.send(0)
    for _ in range(10):
        rig.window.on_down(broker_ended=True)
        rig.clock.advance(s=60)
    assert rig.window.avoided_topics == 0


def test_the_number_of_avoided_topics_is_bounded() -> None:
    rig = Rig(receive_maximum=1)
    for number in range(2_000):
        rig.send(number, f"topic-{number}")
        rig.acknowledge(number + 1, reason=0x87)
    assert rig.window.avoided_topics == 1_024
    rig.send(0, "topic-0")


def test_a_smaller_broker_refuses_half_of_a_full_window_in_linear_time() -> None:
    """A search in a list for each message would take seconds, on the thread of the connection."""
    rig = Rig(messages=2 * COUNT, size=1 << 30, receive_maximum=1)
    for number in range(2 * COUNT):
        message = publish(new_id(), TOPIC, bytes(1 + number % 2 * 100))
        rig.window.send(message, "topic", b"", may_wait=False)
    before_ns = time.thread_time_ns()
    assert rig.window.on_connack(1, 100)
    assert time.thread_time_ns() - before_ns < 1_000_000_000
    assert (rig.window.refused, rig.window.count) == (COUNT, COUNT)


# --- messages whose ttl ends ------------------------------------------------------------------------------------------


def test_what_expires_in_an_outage_is_not_sent_again() -> None:
    rig = Rig()
    sent = [rig.send(number, ttl=ttl) for number, ttl in enumerate((2_000, 60_000, 2_000, None))]
    rig.clock.advance(s=10)
    assert rig.reconnect() is False
    assert rig.changed == {1: None, 2: b"50"}
    assert rig.published == [b"0", b"1", b"3"]  # the library sends the second one itself
    assert rig.window.messages() == [sent[1], sent[3]]
    assert (rig.window.expired, rig.window.count) == (2, 2)
    rig.acknowledge(2, 3)
    assert (rig.window.confirmed, rig.window.count, rig.window.bytes) == (2, 0, 0)


def test_a_broker_that_takes_less_gets_no_message_that_has_expired() -> None:
    rig = Rig()
    for number, ttl in enumerate((60_000, 2_000, 60_000, 2_000)):
        rig.send(number, ttl=ttl)
    rig.clock.advance(s=10)
    assert rig.reconnect(1, 300) is False  # one is left on the wire
    rig.acknowledge(1)
    assert rig.published == [b"0", b"1", b"2"]
    assert rig.properties == [b"", b"", b"50"]
    assert (rig.window.expired, rig.window.count) == (2, 1)


def test_what_a_library_must_forget_is_sent_with_the_rest_of_its_ttl() -> None:
    rig = Rig()
    for number in range(4):
        rig.send(number, ttl=60_000)
    rig.clock.advance(s=10)
    assert rig.reconnect(1) is True
    rig.clock.advance(s=10)
    rig.acknowledge(3)
    assert rig.published == [b"0", b"1", b"0", b"1"]
    assert rig.properties == [b"", b"", b"50", b"40"]


@pytest.mark.parametrize(
    ("ttl", "waited_ms", "rest"),
    [
        (60_000, 999, None),
        (60_000, 1_000, b"59"),
        (60_000, 59_999, b"1"),
        (60_500, 999, b"60"),
        (2_000, 2_000, b"1"),
        (1, 1, None),
        (None, 100_000_000, None),
        (0, 100_000_000, None),
    ],
)
def test_the_rest_of_a_ttl_is_rounded_up(ttl: int | None, waited_ms: int, rest: bytes | None) -> None:
    rig = Rig()
    rig.send(0, ttl=ttl)
    rig.clock.advance(ms=waited_ms)
    rig.reconnect()
    assert rig.changed == ({} if rest is None else {1: rest})
    assert (rig.window.expired, rig.window.count) == (0, 1)


def test_a_second_outage_shortens_the_rest_again_until_it_ends() -> None:
    rig = Rig()
    rig.send(0, ttl=3_000)
    for rest in (b"2", b"1", b"1", None):
        rig.clock.advance(ms=1_000 if rest else 1)
        rig.reconnect()
        assert rig.changed == {1: rest}
    assert rig.window.expired == 1


@pytest.mark.parametrize("before_the_send", [True, False])
def test_a_step_of_the_clock_ends_no_ttl(before_the_send: bool) -> None:
    """An ECU starts in the year 2000 and gets the time later."""
    rig = Rig()
    id = UUID(rig.clock.clock().wall_ms() << 16 | 0x7000, 0b10 << 62)
    if before_the_send:
        rig.clock.step(s=700_000_000)
    rig.window.send(publish(id, TOPIC, ttl=5_000), "topic", b"")
    if not before_the_send:
        rig.clock.step(s=700_000_000)
    rig.clock.advance(s=3)
    rig.reconnect()
    assert rig.changed == {1: b"2"}


def test_what_expires_behind_a_slow_broker_makes_room() -> None:
    rig = Rig(messages=3, receive_maximum=1)
    rig.send(0)
    rig.send(1, ttl=1_000)
    rig.send(2, ttl=1_000)
    message = publish(new_id(), TOPIC, b"3")
    sender = threading.Thread(target=lambda: rig.window.send(message, "topic", b""))
    sender.start()
    wait_until(lambda: rig.window._waiting, "the sender")
    rig.clock.advance(ms=1_001)
    rig.acknowledge(1)
    sender.join(10)
    assert rig.published == [b"0", b"3"]
    assert rig.window.expired == 2


def test_the_store_does_not_keep_what_has_expired() -> None:
    rig = Rig()
    store = rig.window.store = RecordedSentStore()
    rig.send(0, ttl=1_000)
    rig.window.on_down()
    rig.window.service()
    assert len(store.ids()) == 1
    rig.clock.advance(ms=1_001)
    rig.reconnect()
    rig.window.service()
    assert (store.ids(), rig.window.expired) == ([], 1)


def test_a_rest_that_makes_a_packet_too_large_is_left_out() -> None:
    """Such a packet would end each connection. The property of the whole ttl has some bytes."""
    rig = Rig()
    message = publish(new_id(), TOPIC, bytes(86), ttl=60_000)
    rig.window.send(message, "topic", b"")
    rig.clock.advance(s=10)
    assert rig.reconnect(max_packet_bytes=101) is False
    assert rig.changed == {}
    rig.reconnect(max_packet_bytes=102)
    assert rig.changed == {1: b"50"}
