# SPDX-License-Identifier: Apache-2.0
"""The connection to the broker: with `client`, the only module that calls the client library, paho-mqtt.

    loop thread    connect, read, write, keep alive, retry       calls the owner (`ConnectionOwner`)
    any thread     publish, acknowledge, wake

The library runs as its documentation describes for an external event loop. So only the loop thread writes to the
socket, `poll` has no limit of 1024 files, and reading can pause. The library keeps no queue of its own: it gets a
message only when the broker takes it (`Receive Maximum`).
"""

import logging
import os
import random
import select
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from threading import Event, Thread, current_thread
from typing import Any, Final, Protocol

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from ustreamer.core.base.backoff import backoff_ns
from ustreamer.core.base.log_limit import limited
from ustreamer.transport_port import EndpointContext, ReceivingThread
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer_mqtt.client import UNREADABLE, TolerantClient
from ustreamer_mqtt.config import MqttEndpoint
from ustreamer_mqtt.reason_codes import FIRST_FAILURE, PASSING, PASSING_ENDS, ucode_of

log = logging.getLogger("ustreamer.mqtt")

FIRST_RETRY_MS: Final = 500
MAX_RETRY_MS: Final = 10_000
"""The pauses that up-spec recommends (`req~up-transport-mqtt5-reconnection~1`)."""
_MAX_READS: Final = 64
_IDLE_MS: Final = 1_000
_JOIN_S: Final = 5.0
_UNLIMITED: Final = 65_535
UNLIMITED_BYTES: Final = 268_435_460
"""The largest packet of MQTT."""
_DISCONNECT_MS: Final = 1_000


class ConnectionOwner(Protocol):
    """What the loop thread calls. No method waits."""

    def on_connack(self, receive_maximum: int, max_packet_bytes: int) -> bool:
        """The broker accepted the connection and takes this number of unacknowledged messages, and no larger packets.

        The library sends all of its messages again now. True: it must forget them instead, because they are more or larger.
        """
        ...

    def on_up(self) -> None:
        """Subscribed: messages can be sent and received."""
        ...

    def on_down(self, *, broker_ended: bool) -> None:
        """The connection is lost. Also called when an attempt failed.

        `broker_ended`: the broker ended it, perhaps because of a message that it got.
        """
        ...

    def on_message(self, message: MQTTMessage, connection: int) -> None:
        """A PUBLISH packet. `connection` is for `acknowledge`."""
        ...

    def on_unreadable(self, reason: str) -> None:
        """A PUBLISH packet that the library cannot read. It is acknowledged."""
        ...

    def on_acknowledged(self, acknowledgements: Sequence[tuple[int, int]]) -> None:
        """Packet ids of sent messages, with reason codes."""
        ...

    def may_read(self) -> bool:
        """False: nothing is read until `wake`."""
        ...

    def service(self) -> int | None:
        """Called after each wake-up. Returns the time to the next call in ms; None: no hurry."""
        ...


class PackedProperties(Properties):
    """Properties of a PUBLISH packet that are packed already."""

    def __init__(self, packed: bytes) -> None:  # the base class makes dicts for all properties of MQTT: 20 us
        self._packed = packed

    def pack(self) -> bytes:
        return self._packed

    def __str__(self) -> str:
        return f"{len(self._packed)} bytes"

    __setattr__ = object.__setattr__


class BrokerConnection:
    """One client of one broker. `open` starts the thread, `close` ends it."""

    def __init__(
        self, config: MqttEndpoint, context: EndpointContext, filters: Sequence[str], owner: ConnectionOwner
    ) -> None:
        self._config = config
        self._name = context.name
        self._clock = context.clock
        self._owner = owner
        self._filters = filters
        self.client_id = config.client_id or f"ustreamer-{context.authority}-{context.name}"
        self.connects = self.losses = self.refusals = 0
        self._turns = 0
        """Even while the thread waits, for the socket or for a connection; odd while it processes."""
        self.number = 0
        """The number of the current connection, or of the last one."""
        self._client = self._new_client()
        self._acknowledgements: list[tuple[int, int]] = []
        self._packets = 0
        self._connack: ReasonCode | None = None
        self._suback: Sequence[ReasonCode] | None = None
        self._fault: UStatusError | None = None
        """Why the connection cannot be used, although the broker accepted it."""
        self._goodbye = ""
        self._end_reason = 0
        """Of MQTT, as the library reports the end of the connection; 0: the library has not noticed an end."""
        self._broker_ended = False
        self._is_up = False
        self._first_result = Event()
        self._first_error: UStatusError | None = None
        self._closing = Event()
        self._is_closed = False
        self._subscribed = True
        self._wake_fd = -1
        self._woken = False
        self._thread: Thread | None = None

    def _new_client(self) -> TolerantClient:
        config = self._config
        client = TolerantClient(
            self._on_unreadable,
            self._on_puback,
            CallbackAPIVersion.VERSION2,
            self.client_id,
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=False,
            manual_ack=True,
        )
        client.max_inflight_messages_set(0)  # the owner has the window
        client.connect_timeout = config.connect_timeout_ms / 1000
        if config.username is not None:
            client.username_pw_set(config.username, config.password)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        client.on_socket_open = _set_no_delay
        # With it only the loop thread writes. The library may leave out a call, so `publish` wakes the loop thread.
        client.on_socket_register_write = _ignore
        return client

    # --- any thread ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start, and wait for the result of the first attempt. The broker may be away: the thread keeps trying.

        Raises UStatusError if the broker refuses this client, INVALID_ARGUMENT for files of `tls` that are not usable.
        """
        if self._config.address.tls:
            self._client.tls_set_context(tls_context(self._config))
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = Thread(target=self._run, name=f"mqtt {self._name}", daemon=True)
        self._thread.start()
        self._first_result.wait(2 * self._config.connect_timeout_ms / 1000 + 1)
        if self._first_error is not None:
            raise self._first_error

    def receiving_thread(self) -> ReceivingThread | None:
        """The progress of the loop thread, between `open` and `close`."""
        thread = self._thread
        if thread is None or self._closing.is_set():
            return None
        turns = self._turns
        return ReceivingThread(thread.name, turns, waiting=turns % 2 == 0 and thread.is_alive())

    @property
    def is_loop_thread(self) -> bool:
        return current_thread() is self._thread

    def publish(self, topic: str, payload: bytes, properties: bytes) -> int | None:
        """Give the library a message; returns its packet id. None: the library has no free id.

        While the connection is lost, the library keeps it for the next one.
        """
        info = self._client.publish(topic, payload, 1, properties=PackedProperties(properties))
        if not self.is_loop_thread:
            self.wake()
        return None if info.rc == MQTTErrorCode.MQTT_ERR_QUEUE_SIZE else info.mid

    def change(self, mid: int, properties: bytes | None) -> None:
        """Call in `on_connack` only. What the library is to repeat has these properties; None: it does not repeat it."""
        self._client.change(mid, None if properties is None else PackedProperties(properties))

    def acknowledge(self, message: MQTTMessage, connection: int) -> None:
        """The message is taken. Of an earlier connection: the broker sends it again, so nothing is sent."""
        if message.qos and connection == self.number:
            self._client.ack(message.mid, message.qos)
            if not self.is_loop_thread:
                self.wake()

    def wake(self) -> None:
        if not self._woken and self._wake_fd >= 0:
            self._woken = True
            with suppress(OSError):  # closed meanwhile
                os.eventfd_write(self._wake_fd, 1)

    def unsubscribe(self) -> None:
        """Receive nothing more from now on, on this and on later connections."""
        self._subscribed = False
        if self._is_up:
            self._client.unsubscribe(list(self._filters))
            self.wake()

    def close(self) -> None:
        """Disconnect, and end the thread: within some seconds. May be repeated."""
        self._closing.set()
        self.wake()
        thread = self._thread
        if thread is not None and thread is not current_thread():
            thread.join(_JOIN_S + self._config.connect_timeout_ms / 1000)
            if not thread.is_alive() and self._wake_fd >= 0:
                fd, self._wake_fd = self._wake_fd, -1
                os.close(fd)

    # --- the loop thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        failures = 0
        while not self._closing.is_set():
            error = self._attempt()
            was_up, self._is_up = self._is_up, False
            if was_up:
                failures = 0
                self.losses += 1
            self._owner.on_down(broker_ended=self._broker_ended)
            if self._closing.is_set():
                break
            self._report(error, was_up=was_up)
            pause_ns = backoff_ns(FIRST_RETRY_MS, MAX_RETRY_MS, failures, random.random())  # noqa: S311 - jitter
            failures += 1
            self._pause(pause_ns)
        self._first_result.set()

    def _report(self, error: UStatusError, *, was_up: bool) -> None:
        """Log the end of an attempt; a refusal at the start ends the start."""
        extra = {"endpoint": self._name, "broker": self._config.broker, "reason": str(error)}
        if was_up:
            log.warning("mqtt.connection_lost", extra={**extra, **limited(self._name)})
        else:
            log.warning("mqtt.not_connected", extra={**extra, **limited(self._name)})
        if not self._first_result.is_set():
            if error.code not in PASSING:
                self._first_error = error
            self._first_result.set()

    def _pause(self, pause_ns: int) -> None:
        """Wait for the next attempt; the owner is serviced meanwhile."""
        until_ns = self._clock.monotonic_ns() + pause_ns
        while (left_ns := until_ns - self._clock.monotonic_ns()) > 0:
            wait_ms = self._owner.service()
            if self._closing.wait(min(left_ns / 1e9, _IDLE_MS / 1e3 if wait_ms is None else wait_ms / 1e3)):
                return

    def _attempt(self) -> UStatusError:
        """Connect and serve the connection; returns why it ended."""
        self._connack = self._suback = self._fault = None
        self._goodbye = ""
        self._end_reason, self._broker_ended = 0, False
        address = self._config.address
        try:
            self._client.connect_async(
                address.host,
                address.port,
                self._config.keepalive_s,
                clean_start=self._config.clean_start and not self.connects,
                properties=self._connect_properties(),
            )
            self._client.reconnect()
        except (OSError, ValueError) as error:
            return UStatusError(UCode.UNAVAILABLE, f"{self._where}: {_text(error)}")
        self.number += 1
        try:
            return self._serve()
        finally:
            self._drop_socket()

    @property
    def _where(self) -> str:
        return f"endpoint {self._name!r}: broker {self._config.broker}"

    def _connect_properties(self) -> Properties:
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.ReceiveMaximum = self._config.receive_maximum
        properties.MaximumPacketSize = self._config.max_packet_bytes
        properties.SessionExpiryInterval = self._config.session_expiry_s
        return properties

    def _serve(self) -> UStatusError:
        """Read and write until the connection ends; returns why."""
        deadline_ns = self._clock.monotonic_ns() + self._config.connect_timeout_ms * 1_000_000
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        while (found := self._client.socket()) is not None:
            if self._closing.is_set() and not self._say_goodbye():
                break
            self._turn(poll, found)
            if self._connack is not None and self._connack.value >= FIRST_FAILURE:
                return self._refused("refuses the connection", self._connack)
            if self._fault is not None:
                return self._fault
            if self._suback is not None and not self._is_up:
                refused = [code for code in self._suback if code.value >= FIRST_FAILURE]
                if refused:
                    return self._refused("refuses a subscription", refused[0])
                self._on_ready()
            if not self._is_up and self._clock.monotonic_ns() > deadline_ns:
                return UStatusError(
                    UCode.UNAVAILABLE, f"{self._where}: no answer within {self._config.connect_timeout_ms} ms"
                )
        if self._connack is not None and self._connack.value >= FIRST_FAILURE:
            return self._refused("refuses the connection", self._connack)
        self._broker_ended = self._end_reason >= FIRST_FAILURE and self._end_reason not in PASSING_ENDS
        return UStatusError(UCode.UNAVAILABLE, f"{self._where}: {self._goodbye or 'the connection ended'}")

    def _turn(self, poll: "select.poll", found: Any) -> None:
        """Wait for the socket or a wake-up, and process what is there."""
        client, owner = self._client, self._owner
        fd = found.fileno()
        if fd < 0:
            self._drop_socket()
            return
        events = select.POLLIN if owner.may_read() else 0
        poll.register(fd, events | (select.POLLOUT if client.want_write() else 0))
        wait_ms = owner.service()
        # Bytes that TLS has decrypted already do not make the socket readable.
        has_bytes = bool(events and isinstance(found, ssl.SSLSocket) and found.pending())
        timeout_ms = 0 if has_bytes else min(_IDLE_MS, _IDLE_MS if wait_ms is None else wait_ms)
        ready = dict(poll.poll(timeout_ms))
        self._turns += 1
        if self._wake_fd in ready:
            os.eventfd_read(self._wake_fd)
            self._woken = False
        if has_bytes or ready.get(fd, 0) & ~select.POLLOUT:
            self._read()
        if client.want_write():
            client.loop_write()
        client.loop_misc()
        poll.unregister(fd)
        self._turns += 1

    def _read(self) -> None:
        client = self._client
        for _ in range(_MAX_READS):
            before = self._packets
            try:
                result = client.loop_read()
            except UNREADABLE as error:
                self._fault = UStatusError(
                    UCode.UNAVAILABLE, f"{self._where} sent a packet that cannot be read: {error}"
                )
                break
            if result != MQTTErrorCode.MQTT_ERR_SUCCESS or self._packets == before:
                break
            if not self._owner.may_read():
                break
        if self._acknowledgements:
            acknowledgements, self._acknowledgements = self._acknowledgements, []
            self._owner.on_acknowledged(acknowledgements)

    def _on_ready(self) -> None:
        self._is_up = True
        self.connects += 1
        extra = {"endpoint": self._name, "broker": self._config.broker, "client_id": self.client_id}
        log.info("mqtt.connected", extra={**extra, **limited(self._name)})
        self._owner.on_up()
        self._first_result.set()

    def _refused(self, what: str, reason: ReasonCode) -> UStatusError:
        self.refusals += 1
        return UStatusError(
            ucode_of(reason.value), f"{self._where} {what}: {reason.getName()} (0x{reason.value:02X})"
        )

    def _say_goodbye(self) -> bool:
        """Send what waits and a DISCONNECT packet; False if that is done, or takes too long."""
        client = self._client
        if not self._is_closed:
            self._is_closed = True
            self._owner.service()
            if client.is_connected():
                client.disconnect()
            deadline_ns = self._clock.monotonic_ns() + _DISCONNECT_MS * 1_000_000
            while client.want_write() and (found := client.socket()) is not None:
                left_ms = (deadline_ns - self._clock.monotonic_ns()) // 1_000_000
                poll = select.poll()
                poll.register(found.fileno(), select.POLLOUT)
                if left_ms <= 0 or not poll.poll(left_ms):
                    break
                client.loop_write()
        return False

    def _drop_socket(self) -> None:
        """Close the socket, also where the library did not. What it has not read comes again."""
        found = self._client.socket()
        if found is not None:
            found.close()
            self._client.loop_read()  # sees that it is closed

    # --- callbacks of the library, on the loop thread -----------------------------------------------------------------

    def _on_connect(
        self, client: Client, userdata: Any, flags: Any, reason: ReasonCode, properties: Properties | None
    ) -> None:
        self._packets += 1
        self._connack = reason
        if reason.value >= FIRST_FAILURE:
            return
        if getattr(properties, "MaximumQoS", 1) < 1:
            self._fault = UStatusError(UCode.UNIMPLEMENTED, f"{self._where} does not support QoS 1")
            return
        receive_maximum = getattr(properties, "ReceiveMaximum", _UNLIMITED)
        if self._owner.on_connack(receive_maximum, getattr(properties, "MaximumPacketSize", UNLIMITED_BYTES)):
            client.drop_out_messages()
        if self._subscribed:
            # In a group MQTT has no `noLocal`; config.py sees to it that a group receives none of our own messages.
            options = SubscribeOptions(qos=1, noLocal=not self._config.shared, retainHandling=2)
            client.subscribe([(each, options) for each in self._filters])
        else:
            self._suback = ()

    def _on_disconnect(
        self, client: Client, userdata: Any, flags: Any, reason: ReasonCode, properties: Properties | None
    ) -> None:
        self._end_reason = reason.value
        if getattr(flags, "is_disconnect_packet_from_server", False):
            self._goodbye = f"the broker ended the connection: {reason.getName()} (0x{reason.value:02X})"

    def _on_message(self, client: Client, userdata: Any, message: MQTTMessage) -> None:
        self._packets += 1
        self._owner.on_message(message, self.number)

    def _on_unreadable(self, reason: str) -> None:
        self._packets += 1
        self._owner.on_unreadable(reason)

    def _on_publish(
        self, client: Client, userdata: Any, mid: int, reason: ReasonCode, properties: Properties
    ) -> None:
        """Takes no lock: the library holds one of its own here."""
        self._on_puback(mid, reason.value)

    def _on_puback(self, mid: int, reason: int) -> None:
        self._packets += 1
        self._acknowledgements.append((mid, reason))

    def _on_subscribe(
        self, client: Client, userdata: Any, mid: int, reasons: Sequence[ReasonCode], properties: Properties
    ) -> None:
        self._packets += 1
        self._suback = reasons


def _ignore(client: Client, userdata: Any, sock: Any) -> None:
    """Nothing to do."""


def _set_no_delay(client: Client, userdata: Any, sock: Any) -> None:
    """A packet must not wait for the acknowledgement of the last one."""
    with suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class _ClosingSocket(ssl.SSLSocket):
    """Closed when its handshake fails: the library forgets it then."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except (OSError, ValueError):
            self.close()
            raise


def tls_context(config: MqttEndpoint) -> ssl.SSLContext:
    """The settings of TLS. Raises UStatusError(INVALID_ARGUMENT) that names the file."""
    tls = config.tls
    try:
        context = ssl.create_default_context(cafile=None if tls is None else tls.ca)
        if tls is not None and tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
        context.sslsocket_class = _ClosingSocket
    except (OSError, ValueError) as error:
        files = (
            "" if tls is None else ", ".join(str(each) for each in (tls.ca, tls.certificate, tls.key) if each)
        )
        raise UStatusError(UCode.INVALID_ARGUMENT, f"tls: {files}: {_text(error)}") from error
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _text(error: Exception) -> str:
    text = getattr(error, "strerror", None)
    return text if isinstance(text, str) and text else str(error) or type(error).__name__
