# SPDX-License-Identifier: Apache-2.0
"""Sent messages that the broker has not acknowledged, and the window for them.

    send -> pending -> on the wire (at most the broker's Receive Maximum) -> PUBACK -> confirmed

In: messages (`send`), acknowledgements, the state of the connection. Out: messages for the client library, and for the
`SentStore` of a durable endpoint what waits for more than 50 ms, or for a connection.

A broker may end the connection for a message that it does not take, without a refusal. After two such connections in a
row, messages are sent one by one. The one that ends further connections, for 10 s in all, is refused.

A message whose ttl ends before it is sent, or sent again, is given up. Others that waited have the rest of their ttl as
Message Expiry Interval.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from threading import Condition
from typing import Final, Protocol

from ustreamer.core.base.clock import Clock
from ustreamer.core.base.log_limit import limited
from ustreamer.core.delivery.expiry import Expiry
from ustreamer.transport_port import SentStore
from ustreamer.uprotocol.bounded_cache import BoundedCache
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer_mqtt.properties import interval_s_of
from ustreamer_mqtt.reason_codes import ENDS_CONNECTIONS, FIRST_FAILURE, TOPIC_REFUSALS, ucode_of

log = logging.getLogger("ustreamer.mqtt")

OVERHEAD_BYTES: Final = 200
"""Of each message, as the egress queues count it."""
_PACKET_BYTES: Final = 9
"""Of each packet, besides topic, properties and payload."""
_OVERDUE_NS: Final = 50_000_000
_ROUTE: Final = "unconfirmed"
_WAIT_S: Final = 1.0  # a caller may hold the lock of an egress queue
_STORE_MS: Final = 25
AVOIDED_S: Final = 30
"""How long no message of a topic is sent that the broker has refused."""
_MAX_AVOIDED: Final = 1_024
_ONE_BY_ONE_AFTER: Final = 2
_REFUSED_AFTER: Final = 4
_REFUSED_AFTER_NS: Final = 10_000_000_000
"""Connections in a row that the broker ended without an acknowledgement, and the time since the first of these ends."""
_NS_PER_S: Final = 1_000_000_000


class ClientLibrary(Protocol):
    """What sends the messages, and repeats them on a new connection."""

    def publish(self, topic: str, payload: bytes, properties: bytes) -> int | None:
        """Returns a packet id; None if there is no free one."""
        ...

    def change(self, mid: int, properties: bytes | None) -> None:
        """Before messages are repeated: repeat this one with other properties; None: do not repeat it."""
        ...


class _Sent:
    """A message that the broker has not acknowledged. `deadline_ns`: the end of its ttl; None: it has none."""

    __slots__ = (
        "deadline_ns",
        "interval_s",
        "is_kept",
        "message",
        "packet_bytes",
        "properties",
        "sent_ns",
        "size",
        "topic",
    )

    def __init__(
        self, message: UMessage, topic: str, properties: bytes, sent_ns: int, deadline_ns: int | None
    ) -> None:
        self.message = message
        self.topic = topic
        self.properties = properties
        self.sent_ns = sent_ns
        self.size = len(message.payload) + OVERHEAD_BYTES
        self.packet_bytes = len(message.payload) + len(properties) + len(topic) + _PACKET_BYTES
        self.is_kept = False
        self.deadline_ns = deadline_ns
        self.interval_s = interval_s_of(message.attributes.ttl)

    def has_expired(self, now_ns: int) -> bool:
        return self.deadline_ns is not None and self.deadline_ns < now_ns


class UnconfirmedMessages:
    """The window of one endpoint.

    `confirmed` counts acknowledgements, `refused` those that are a refusal, `expired` messages that were given up.
    """

    def __init__(
        self,
        endpoint: str,
        max_messages: int,
        max_bytes: int,
        clock: Clock,
        library: ClientLibrary,
        shorten: Callable[[UMessage, int], bytes],
    ) -> None:
        """`shorten` returns the properties of a message whose ttl ends in this number of seconds."""
        self.sent = self.confirmed = self.refused = self.expired = 0
        self.store: SentStore | None = None
        self._endpoint = endpoint
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._monotonic_ns = clock.monotonic_ns
        self._expiry = Expiry(clock)
        self._library = library
        self._shorten = shorten
        # Never held while a store or a listener is called. The library's locks are taken inside it, never around it.
        self._changed = Condition()
        self._is_up = False
        self._is_closed = False
        self._receive_maximum = 1
        """How many messages the broker gets at a time: `_broker_maximum`, or one."""
        self._broker_maximum = 1
        """The Receive Maximum of the broker."""
        self._max_packet_bytes = 0
        self._is_connected = False
        """Between CONNACK and the end of the connection."""
        self._ends = 0
        """Connections in a row that the broker ended before it acknowledged one of the messages on the wire."""
        self._first_end_ns = 0
        self._on_wire: dict[int, _Sent] = {}
        """By packet id, in order of the sends."""
        self._pending: deque[_Sent] = deque()
        self._ids: dict[UUID, _Sent] = {}
        self._bytes = 0
        self._waiting = 0
        """Threads that wait for room."""
        self._released: list[UUID] = []
        """Confirmed messages that the store still has."""
        self._next_service_ns = 0
        self._avoided: BoundedCache[str, tuple[int, int]] = BoundedCache(_MAX_AVOIDED)
        """By topic: the reason of the broker, and until when. A broker may end the connection with each refusal."""

    # --- sending, on any thread ---------------------------------------------------------------------------------------

    def send(self, message: UMessage, topic: str, properties: bytes, *, may_wait: bool = True) -> None:
        """Send a message, or queue it behind those that the broker has to acknowledge first.

        Waits for room in the window for 1 s at most. Raises UStatusError: UNAVAILABLE without room or connection,
        RESOURCE_EXHAUSTED for a packet that is larger than the broker takes, and the code of the broker for a topic that
        it has refused in the last 30 s.
        """
        now_ns = self._monotonic_ns()
        deadline_ns = self._expiry.deadline_ns(message, now_ns, 0) if message.attributes.ttl else None
        sent = _Sent(message, topic, properties, now_ns, deadline_ns)
        with self._changed:
            if topic in self._avoided:
                self._check_topic(topic, sent.sent_ns)
            if may_wait and self._is_up and not self._has_room(sent.size):
                self._waiting += 1
                self._changed.wait_for(lambda: not self._is_up or self._has_room(sent.size), _WAIT_S)
                self._waiting -= 1
            if not self._is_up:
                raise UStatusError(
                    UCode.UNAVAILABLE, f"endpoint {self._endpoint!r}: not connected to the broker"
                )
            if sent.packet_bytes > self._max_packet_bytes:
                text = f"a packet of {sent.packet_bytes} bytes, the broker takes {self._max_packet_bytes}"
                raise UStatusError(UCode.RESOURCE_EXHAUSTED, f"endpoint {self._endpoint!r}: {text}")
            if not self._has_room(sent.size):
                text = f"{len(self._ids)} messages without an acknowledgement of the broker"
                raise UStatusError(UCode.UNAVAILABLE, f"endpoint {self._endpoint!r}: {text}")
            self._pending.append(sent)
            self._ids[message.id] = sent
            self._bytes += sent.size
            self.sent += 1
            self._pump(sent)

    def _check_topic(self, topic: str, now_ns: int) -> None:
        reason, until_ns = self._avoided[topic]
        if now_ns < until_ns:
            text = f"endpoint {self._endpoint!r}: {self._why_avoided(topic)}"
            wait_s = -(-(until_ns - now_ns) // _NS_PER_S)
            raise UStatusError(ucode_of(reason), f"{text}; it is asked again in {wait_s} s")
        del self._avoided[topic]

    def _why_avoided(self, topic: str) -> str:
        reason, _ = self._avoided[topic]
        if reason == ENDS_CONNECTIONS:
            return f"the broker ends each connection with a message of topic {topic!r}"
        return f"the broker refuses messages of topic {topic!r} (0x{reason:02X})"

    def _has_room(self, size: int) -> bool:
        count = len(self._on_wire) + len(self._pending)
        return not count or (count < self._max_messages and self._bytes + size <= self._max_bytes)

    def _pump(self, new: _Sent | None = None) -> None:
        """Give the library what the broker takes now. `new` has not waited."""
        pending, on_wire = self._pending, self._on_wire
        while pending and self._is_up and len(on_wire) < self._receive_maximum:
            sent = pending[0]
            if sent.deadline_ns is not None and sent is not new:
                now_ns = self._monotonic_ns()
                if sent.has_expired(now_ns):
                    self._give_up(pending.popleft())
                    continue
                self._set_interval(sent, now_ns)
            mid = self._library.publish(sent.topic, sent.message.payload, sent.properties)
            if (
                mid is None
            ):  # 65 535 ids, of which the last one in use is the next one: an acknowledgement frees it
                return
            pending.popleft()
            on_wire[mid] = sent

    def _give_up(self, sent: _Sent) -> None:
        """Its ttl has ended."""
        self._forget(sent)
        self.expired += 1
        if self._waiting:
            self._changed.notify_all()

    def _set_interval(self, sent: _Sent, now_ns: int) -> bool:
        """Set the Message Expiry Interval to the rest of the ttl. False: it did not change."""
        if sent.deadline_ns is None:
            return False
        left_s = max(1, -(-(sent.deadline_ns - now_ns) // _NS_PER_S))
        if left_s >= sent.interval_s:
            return False
        properties = self._shorten(sent.message, left_s)
        packet_bytes = sent.packet_bytes + len(properties) - len(sent.properties)
        if packet_bytes > self._max_packet_bytes:  # the broker would end the connection
            return False
        sent.properties, sent.packet_bytes, sent.interval_s = properties, packet_bytes, left_s
        return True

    def window_bytes(self) -> int:
        """As `EndpointTransport.send_window`: a payload of any size counts `OVERHEAD_BYTES` extra."""
        if not self._is_up:
            return 0
        free = self._max_messages - len(self._on_wire) - len(self._pending)
        return max(0, min(free * OVERHEAD_BYTES, self._max_bytes - self._bytes))

    # --- the loop thread ----------------------------------------------------------------------------------------------

    def on_connack(self, receive_maximum: int, max_packet_bytes: int) -> bool:
        """What the broker takes from now on. True: less than the library has, which must forget its messages.

        Messages that are too large for this broker, which another one has accepted, are refused. So are those of a
        topic that the broker has refused. Those whose ttl has ended are given up.
        """
        with self._changed:
            self._is_connected = True
            self._broker_maximum = receive_maximum
            self._receive_maximum = receive_maximum if self._ends < _ONE_BY_ONE_AFTER else 1
            self._max_packet_bytes = max_packet_bytes
            self._give_up_expired()
            unwanted = [
                each
                for each in self._in_order()
                if each.packet_bytes > max_packet_bytes or each.topic in self._avoided
            ]
            if len(self._on_wire) <= self._receive_maximum and not unwanted:
                self._set_intervals()
                return False
            left_out = set(unwanted)  # by identity
            self._pending = deque(each for each in self._in_order() if each not in left_out)
            self._on_wire.clear()
            for each in unwanted:
                self._forget(each)
            self.refused += len(unwanted)
        if unwanted:
            first = unwanted[0]
            is_large = first.packet_bytes > max_packet_bytes
            why = f"larger than {max_packet_bytes} bytes" if is_large else self._why_avoided(first.topic)
            self._log_refused(first, why)
        return True

    def _give_up_expired(self) -> None:
        # A resumed session repeats each PUBLISH with its packet id (MQTT-4.4.0-1); the library does so. To leave one
        # out frees its id: the broker has processed it, or never saw it, and keeps no state of QoS 1. With QoS 2 a
        # PUBREL would have to follow a PUBREC, but the endpoint sends none.
        now_ns = self._monotonic_ns()
        for mid, sent in list(self._on_wire.items()):
            if sent.has_expired(now_ns):
                self._library.change(mid, None)
                self._give_up(self._on_wire.pop(mid))
        expired = [each for each in self._pending if each.has_expired(now_ns)]
        if expired:
            self._pending = deque(each for each in self._pending if not each.has_expired(now_ns))
            for each in expired:
                self._give_up(each)

    def _set_intervals(self) -> None:
        """Of what the library repeats."""
        now_ns = self._monotonic_ns()
        for mid, sent in self._on_wire.items():
            if self._set_interval(sent, now_ns):
                self._library.change(mid, sent.properties)

    def on_up(self) -> None:
        with self._changed:
            self._is_up = not self._is_closed
            self._pump()

    def on_down(self, *, broker_ended: bool = False) -> None:
        """Wakes the threads that wait for room. `broker_ended`: as `ConnectionOwner.on_down`."""
        with self._changed:
            was_connected, self._is_connected = self._is_connected, False
            self._is_up = False
            if was_connected and broker_ended and self._on_wire:
                self._note_end()
            self._changed.notify_all()

    def _note_end(self) -> None:
        """Count a connection that the broker ended. The next `on_connack` refuses the message that is known to end it."""
        now_ns = self._monotonic_ns()
        if not self._ends:
            self._first_end_ns = now_ns
        self._ends += 1
        if self._ends < _REFUSED_AFTER or now_ns < self._first_end_ns + _REFUSED_AFTER_NS:
            return
        self._ends = 0
        self._avoid(next(iter(self._on_wire.values())).topic, ENDS_CONNECTIONS)

    def on_acknowledged(self, acknowledgements: Sequence[tuple[int, int]]) -> None:
        """The broker acknowledged these packet ids, or refused them."""
        refused = None
        with self._changed:
            for mid, reason in acknowledgements:
                sent = self._on_wire.pop(mid, None)
                if sent is None:
                    continue
                self._ends, self._receive_maximum = 0, self._broker_maximum
                self._forget(sent)
                if reason >= FIRST_FAILURE:
                    self.refused += 1
                    refused = refused or (sent, reason)
                    if reason in TOPIC_REFUSALS:
                        self._avoid(sent.topic, reason)
                else:
                    self.confirmed += 1
            self._pump()
            if self._waiting:
                self._changed.notify_all()
        if refused is not None:
            sent, reason = refused
            self._log_refused(sent, f"{ucode_of(reason).name} (0x{reason:02X})")

    def _avoid(self, topic: str, reason: int) -> None:
        """Send no message of this topic for a while, also not those that wait."""
        self._avoided.pop(topic, None)
        self._avoided.add(topic, (reason, self._monotonic_ns() + AVOIDED_S * _NS_PER_S))
        waiting = [each for each in self._pending if each.topic == topic]
        if waiting:
            self._pending = deque(each for each in self._pending if each.topic != topic)
            for each in waiting:
                self._forget(each)
            self.refused += len(waiting)

    def _log_refused(self, sent: _Sent, why: str) -> None:
        extra = {"endpoint": self._endpoint, "topic": sent.topic, "message_id": str(sent.message.id)}
        log.warning("mqtt.message_refused", extra={**extra, "reason": why, **limited(self._endpoint)})

    def _forget(self, sent: _Sent) -> None:
        self._bytes -= sent.size
        if self._ids.get(sent.message.id) is sent:
            del self._ids[sent.message.id]
        if sent.is_kept:
            self._released.append(sent.message.id)

    def service(self) -> int | None:
        """Keep in the store what waits for too long, and release what is confirmed. Returns the time to the next call.

        In ms; None if nothing waits, or there is no store.
        """
        store = self.store
        if store is None or not (self._ids or self._released):
            return None
        now_ns = self._monotonic_ns()
        if now_ns < self._next_service_ns:
            return _STORE_MS
        self._next_service_ns = now_ns + _STORE_MS * 1_000_000
        before_ns = now_ns - _OVERDUE_NS
        with self._changed:
            released, self._released = self._released, []
            overdue = [
                each
                for each in self._in_order()
                if not each.is_kept and (not self._is_up or each.sent_ns < before_ns)
            ]
        if released and not store.release(_ROUTE, released):
            with self._changed:
                self._released[:0] = released
        if overdue and store.keep(_ROUTE, [each.message for each in overdue]) is not None:
            with self._changed:
                for each in overdue:
                    each.is_kept = True
                    if self._ids.get(each.message.id) is not each:  # confirmed meanwhile
                        self._released.append(each.message.id)
        return _STORE_MS

    # --- reading and ending -------------------------------------------------------------------------------------------

    def _in_order(self) -> Iterator[_Sent]:
        return chain(self._on_wire.values(), self._pending)

    def is_unconfirmed(self, id: UUID) -> bool:
        return id in self._ids

    @property
    def count(self) -> int:
        return len(self._on_wire) + len(self._pending)

    @property
    def avoided_topics(self) -> int:
        """Topics that the broker has refused, also some that it is asked again for."""
        return len(self._avoided)

    @property
    def bytes(self) -> int:
        return self._bytes

    def wait_confirmed(self, timeout_s: float) -> None:
        """Wait until the broker has acknowledged everything, or the connection is lost."""
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: not (self._is_up and self.count), timeout_s)
            self._waiting -= 1

    def close(self) -> None:
        """Accept nothing more. May be repeated."""
        self._is_closed = True
        self.on_down()

    def messages(self) -> list[UMessage]:
        """All of them, in order of their sends."""
        with self._changed:
            return [each.message for each in self._in_order()]
