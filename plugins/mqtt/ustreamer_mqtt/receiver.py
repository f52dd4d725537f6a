# SPDX-License-Identifier: Apache-2.0
"""Receives messages: the thread that decodes packets, calls the listeners and acknowledges.

    loop thread --put--> inbox (bounded) --> decode, origin checks --> listeners --> PUBACK

A packet is acknowledged when the listeners have taken its message. A durable endpoint acknowledges when the message was
sent on or is on disk, and drops copies of messages that it has taken, also after a restart: see `ReceivedStore`.

The broker sends at most `receive_maximum` packets without an acknowledgement, and the connection is not read while the
inbox is full. So a slow streamer slows the broker down and loses nothing.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable
from enum import StrEnum
from queue import SimpleQueue
from struct import Struct
from threading import Event, Thread, current_thread
from typing import Final, NamedTuple, TypeVar

from paho.mqtt.client import MQTTMessage

from ustreamer.core.base.log_limit import limited
from ustreamer.core.routing.listener_table import ListenerTable
from ustreamer.transport_port import EndpointContext, ReceivedStore, ReceivingThread
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid_argument
from ustreamer.uprotocol.uuid import UUID
from ustreamer_mqtt.config import MqttEndpoint
from ustreamer_mqtt.properties import PropertiesDecoder, PublishProperties
from ustreamer_mqtt.topics import authorities_of, topic_of

log = logging.getLogger("ustreamer.mqtt")
T = TypeVar("T")

_JOIN_S: Final = 5.0
_RECENT_IDS: Final = 65_536
_SAFE_MS: Final = 10
_SAFE_TRIES: Final = 30
_ID: Final = Struct(">Q1sQ")
_TAG: Final = b"\0"


class RefusalReason(StrEnum):
    """Why a packet is no message, each with a counter `refused_<reason>`."""

    TOPIC = "topic"
    PROPERTIES = "properties"
    VERSION = "version"
    ADDRESS = "address"
    RULES = "rules"
    UNREADABLE = "unreadable"


class _Refusal(Exception):
    def __init__(self, reason: RefusalReason, error: UStatusError) -> None:
        super().__init__(error.message)
        self.reason = reason


class _Packet(NamedTuple):
    message: MQTTMessage
    connection: int
    received_ns: int
    size: int


class PacketDecoder:
    """Makes messages of packets, and checks their origin. Not locked."""

    def __init__(self, config: MqttEndpoint) -> None:
        self._structure = config.topics
        self._backend = config.authorities[0] if config.topics == "off_vehicle" else None
        self._decoder = PropertiesDecoder(config.max_user_properties)

    def decode(self, packet: MQTTMessage) -> UMessage:
        """The message in a packet. Raises _Refusal.

        The rules of a broker are about topics, so a topic and the addresses in the properties must be the same.
        """
        topic = _checked(RefusalReason.TOPIC, lambda: packet.topic)
        source, sink = _checked(RefusalReason.TOPIC, lambda: authorities_of(topic, self._structure))
        try:
            id, attributes = self._decoder.decode(_properties(packet), source, sink)
        except UStatusError as error:
            is_version = error.code is UCode.UNIMPLEMENTED
            raise _Refusal(
                RefusalReason.VERSION if is_version else RefusalReason.PROPERTIES, error
            ) from error
        message = UMessage(id, attributes, bytes(packet.payload))
        _checked(RefusalReason.RULES, lambda: message.check(strict=False))
        _checked(RefusalReason.ADDRESS, lambda: self._check_address(topic, sink, message))
        return message

    def _check_address(self, topic: str, sink_authority: str | None, message: UMessage) -> None:
        source, sink = message.attributes.source, message.attributes.sink
        if self._backend is None:
            expected = topic_of(source, sink)
            same = expected == topic
        else:
            wanted = sink_authority if sink is None else sink.authority_name
            expected = f"{source.authority_name}/{wanted}"
            same = expected == topic
        if not same:
            raise invalid_argument(
                f"topic {topic[:300]!r}, but the properties have the addresses of {expected!r}"
            )


def _checked(reason: RefusalReason, step: Callable[[], T]) -> T:
    try:
        return step()
    except UStatusError as error:
        raise _Refusal(reason, error) from error
    except UnicodeDecodeError as error:
        raise _Refusal(reason, invalid_argument(f"no UTF-8 text: {error.reason}")) from error


def _properties(packet: MQTTMessage) -> PublishProperties:
    found = packet.properties
    correlation = getattr(found, "CorrelationData", None)
    return PublishProperties(
        tuple(getattr(found, "UserProperty", ())),
        getattr(found, "ContentType", None),
        None if correlation is None else bytes(correlation),
        getattr(found, "MessageExpiryInterval", None),
    )


class _RecentIds:
    """Remembers at least the last `_RECENT_IDS` ids, and at most twice as many."""

    def __init__(self) -> None:
        self._young: set[bytes] = set()
        self._old: set[bytes] = set()

    def load(self, ids: set[bytes]) -> None:
        self._old = ids

    def __contains__(self, id: bytes) -> bool:
        return id in self._young or id in self._old

    def add(self, id: bytes) -> None:
        self._young.add(id)
        if len(self._young) >= _RECENT_IDS:
            self._old, self._young = self._young, set()


class PacketReceiver:
    """The receiving thread of one endpoint."""

    def __init__(
        self,
        config: MqttEndpoint,
        context: EndpointContext,
        listeners: ListenerTable,
        acknowledge: Callable[[MQTTMessage, int], None],
        wake_loop: Callable[[], None],
    ) -> None:
        self._name = context.name
        self._monotonic_ns = context.clock.monotonic_ns
        self._listeners = listeners
        self._acknowledge = acknowledge
        self._wake_loop = wake_loop
        self._max_waiting = config.receive_maximum
        self._max_bytes = config.receive_bytes
        self._decoder = PacketDecoder(config)
        self._inbox: SimpleQueue[_Packet | None] = SimpleQueue()
        self.store: ReceivedStore | None = None
        self._recent = _RecentIds()
        self._unsafe: deque[tuple[_Packet, bytes]] = deque()
        """Delivered, but not acknowledged: a kill may still lose them."""
        self.refused = dict.fromkeys(RefusalReason, 0)
        self.counts: Counter[str] = Counter()
        self._put_bytes = self._taken_bytes = 0  # each written by one thread
        self._is_accepting = True
        self._is_full = False
        self._turns = 0
        """Even while the thread waits for packets, odd while it processes one."""
        self._thread: Thread | None = None

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.store is not None:
            self._recent.load({*self.store.load(), *map(receipt_id, self.store.restored())})
        self._thread = Thread(target=self._run, name=f"mqtt {self._name} receiver", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take no more packets: the broker keeps them, if the session survives. What waits still goes to the listeners.

        Waits for that, 5 s at most. May be repeated.
        """
        self._is_accepting = False
        self._inbox.put(None)
        thread = self._thread
        if thread is not None and thread is not current_thread():
            thread.join(_JOIN_S)

    def wait_safe(self) -> None:
        """Wait until the loop thread has acknowledged everything, 0.3 s at most."""
        pause = Event()
        for _ in range(_SAFE_TRIES):
            if not self._unsafe:
                break
            self._wake_loop()
            pause.wait(_SAFE_MS / 1000)

    def close(self) -> None:
        """Close the store, when the loop thread has ended. May be repeated."""
        if self.store is not None:
            self.store.close()

    def receiving_thread(self) -> ReceivingThread | None:
        thread = self._thread
        if thread is None or not self._is_accepting:
            return None
        turns = self._turns
        return ReceivingThread(thread.name, turns, waiting=turns % 2 == 0 and thread.is_alive())

    # --- the loop thread ----------------------------------------------------------------------------------------------

    def put(self, message: MQTTMessage, connection: int) -> None:
        """Queue a packet."""
        if not self._is_accepting:
            return
        size = len(message.payload)
        self._put_bytes += size
        self.counts["redelivered"] += message.dup
        self._inbox.put(_Packet(message, connection, self._monotonic_ns(), size))

    def refuse_unreadable(self, reason: str) -> None:
        """A packet that the library cannot read; it is acknowledged already."""
        self._refuse(_Refusal(RefusalReason.UNREADABLE, invalid_argument(reason)))

    def may_read(self) -> bool:
        """False if the inbox is full; the receiver wakes the loop thread when it is not any more."""
        if self._has_room():
            return True
        if not self._is_full:
            self._is_full = True
            self.counts["input_pauses"] += 1
        return self._has_room()  # again: the receiver may have emptied it before it saw the flag

    def _has_room(self) -> bool:
        return self._inbox.qsize() < self._max_waiting and self.waiting_bytes < self._max_bytes

    def service(self) -> int | None:
        """Acknowledge what is safe now. Returns the time to the next call in ms; None if nothing waits for it."""
        store, unsafe = self.store, self._unsafe
        if store is None or not unsafe:
            return None
        before_ns = store.safe_before_ns()
        safe: list[tuple[_Packet, bytes]] = []
        while unsafe and unsafe[0][0].received_ns < before_ns:
            safe.append(unsafe.popleft())
        if safe:
            store.add(b"".join([id for _, id in safe]))
            for packet, _ in safe:
                self._acknowledge(packet.message, packet.connection)
        return _SAFE_MS if unsafe else None

    # --- the receiving thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        inbox = self._inbox
        while (packet := inbox.get()) is not None:
            self._turns += 1
            self._take(packet)
            self._taken_bytes += packet.size
            if self._is_full and self._has_room():
                self._is_full = False
                self._wake_loop()
            self._turns += 1

    def _take(self, packet: _Packet) -> None:
        id = b""
        try:
            message = self._decoder.decode(packet.message)
        except _Refusal as refusal:
            self._refuse(refusal)
        except Exception as error:  # noqa: BLE001  # a defect must not end the thread at each copy of this packet
            self._refuse(_Refusal(RefusalReason.UNREADABLE, invalid_argument(repr(error))))
        else:
            id = b"" if self.store is None else receipt_id(message.id)
            if id and id in self._recent:
                self.counts["duplicates"] += 1
            else:
                if not self._listeners.deliver(message):
                    self.counts["no_listener"] += 1
                if id:
                    self._recent.add(id)
        if self.store is None:
            self._acknowledge(packet.message, packet.connection)
            return
        self._unsafe.append((packet, id))
        if len(self._unsafe) == 1:
            self._wake_loop()

    def _refuse(self, refusal: _Refusal) -> None:
        self.refused[refusal.reason] += 1
        extra = {"endpoint": self._name, "reason": str(refusal.reason), "why": str(refusal)}
        log.warning("mqtt.packet_refused", extra={**extra, **limited(self._name, refusal.reason)})

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return self._inbox.qsize()

    @property
    def waiting_bytes(self) -> int:
        return max(0, self._put_bytes - self._taken_bytes)


def receipt_id(id: UUID) -> bytes:
    """An id as `ReceivedStore` has it."""
    return _ID.pack(id.msb, _TAG, id.lsb)
