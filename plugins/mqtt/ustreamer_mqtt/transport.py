# SPDX-License-Identifier: Apache-2.0
"""The endpoint at a broker.

streamer's threads   send --> encoder --> window (unconfirmed.py) --> client library --> broker
loop thread          broker --> client library --> inbox              acknowledgements --> window
receiving thread     inbox --> decoder, origin checks --> listeners, PUBACK
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final

from paho.mqtt.client import MQTTMessage

from ustreamer.core.base.log_limit import limited
from ustreamer.core.delivery.plugin_errors import FOREIGN_ERRORS
from ustreamer.core.delivery.ports import SendOne
from ustreamer.core.routing.listener_table import ListenerTable
from ustreamer.transport_port import (
    EndpointContext,
    EndpointTransport,
    ReceivedStore,
    ReceivingThread,
    SentStore,
    Unconfirmed,
)
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid_argument
from ustreamer.uprotocol.utransport import Listener
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, UUri, check_authority
from ustreamer_mqtt.config import MqttEndpoint
from ustreamer_mqtt.connection import BrokerConnection, tls_context
from ustreamer_mqtt.encoder import MessageEncoder
from ustreamer_mqtt.receiver import PacketReceiver
from ustreamer_mqtt.topics import filters_of
from ustreamer_mqtt.unconfirmed import UnconfirmedMessages

log = logging.getLogger("ustreamer.mqtt")

_FINISH_S: Final = 2.0


class MqttTransport(EndpointTransport):
    """uProtocol over one connection to a broker of MQTT 5, with QoS 1.

    A successful send means that the message is in the window of those that the broker has to acknowledge. After an
    outage the unacknowledged messages are sent again, in their order and before all others, unless their ttl has ended.
    """

    loss_counters: ClassVar[Sequence[str]] = ("broker_refusals", "expired_unconfirmed")

    def __init__(self, config: MqttEndpoint, context: EndpointContext) -> None:
        check_authority(context.authority, f"authority of endpoint {context.name}")
        if context.authority == ANY_AUTHORITY:
            raise invalid_argument(
                f"endpoint {context.name!r}: authority '*', expected the name of one authority"
            )
        self._config = config
        self._name = context.name
        self._listeners = ListenerTable(self, context.authority, self._on_listener_error)
        self._connection = BrokerConnection(config, context, filters_of(config), self)
        self._encoder = MessageEncoder(config, context.authority)
        self._unconfirmed = UnconfirmedMessages(
            context.name,
            config.max_in_flight,
            config.max_in_flight_bytes,
            context.clock,
            self._connection,
            self._encoder.shorten,
        )
        self._receiver = PacketReceiver(
            config, context, self._listeners, self._connection.acknowledge, self._connection.wake
        )
        self._link_watchers: list[Callable[[bool], None]] = []
        self._link: bool | None = None
        self._is_open = self._is_closed = self._is_stopped = False

    # --- life ---------------------------------------------------------------------------------------------------------

    def problems(self) -> Sequence[str]:
        """Files of `tls` that are not usable. The broker may come later."""
        if not self._config.address.tls:
            return ()
        try:
            tls_context(self._config)
        except UStatusError as error:
            return [error.message]
        return ()

    def open(self) -> None:
        """Connect and subscribe. The broker may be away: then the link is down until it comes.

        Raises UStatusError if the broker refuses the client or a subscription, FAILED_PRECONDITION if repeated.
        """
        if self._is_open or self._is_closed:
            raise UStatusError(UCode.FAILED_PRECONDITION, f"{self!r}: can be opened once")
        self._is_open = True
        self._receiver.start()
        try:
            self._connection.open()
        except UStatusError:
            self.close()
            raise

    def stop_receiving(self) -> None:
        """Packets that arrived still go to the listeners, for 5 s at most. A session keeps its subscriptions."""
        if self._is_stopped:
            return
        self._is_stopped = True
        if self._is_open:
            if not self._config.session_expiry_s:
                self._connection.unsubscribe()
            self._receiver.stop()

    def close(self) -> None:
        """End all threads and the connection: at once, or within 16 s if a listener hangs or the network does."""
        self.stop_receiving()
        self._is_closed = True
        self._link_watchers.clear()
        self._unconfirmed.close()
        if self._is_open:
            self._receiver.wait_safe()
            self._connection.close()
            self._receiver.close()

    def finish(self) -> Unconfirmed:
        """Close as `close` does; waits up to 2 s more for acknowledgements of the broker. See EndpointTransport."""
        if self._is_open and not self._is_closed:
            self._unconfirmed.wait_confirmed(_FINISH_S)
        self.close()
        return Unconfirmed(self._unconfirmed.messages())

    def keep_unconfirmed(self, store: SentStore) -> None:
        self._unconfirmed.store = store

    def keep_received(self, store: ReceivedStore) -> None:
        self._receiver.store = store

    def awaits_receipt(self, id: UUID) -> bool:
        """Whether the broker has not acknowledged a sent message."""
        return self._unconfirmed.is_unconfirmed(id)

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(self, message: UMessage) -> None:
        """Send a message; waits up to 1 s for room in the window, on no thread of the connection."""
        topic, properties = self._encoder.encode(message)
        self._unconfirmed.send(message, topic, properties, may_wait=not self._connection.is_loop_thread)

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        return self.send

    def has_listener(self, attributes: UAttributes) -> bool:
        """Only the broker knows its clients, so the answer is whether it is connected."""
        return bool(self._link)

    def send_window(self) -> int:
        """The free part of the window of unacknowledged messages."""
        return self._unconfirmed.window_bytes()

    # --- listeners ----------------------------------------------------------------------------------------------------

    def register_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        self._listeners.register(source_filter, sink_filter, listener)

    def unregister_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        self._listeners.unregister(source_filter, sink_filter, listener)

    def watch_link(self, changed: Callable[[bool], None]) -> None:
        """See EndpointTransport; the link is up while the broker accepts this client and its subscriptions."""
        self._link_watchers.append(changed)

    def _on_listener_error(self, error: BaseException, message: UMessage) -> None:
        extra = {"endpoint": self._name, "message_id": str(message.id)}
        log.error("mqtt.listener_failed", exc_info=error, extra=extra)

    def _set_link(self, up: bool) -> None:
        if up is self._link:
            return
        self._link = up
        for changed in tuple(self._link_watchers):
            try:
                changed(up)
            except FOREIGN_ERRORS:  # they must not end the loop thread
                log.exception("mqtt.watcher_failed", extra={"endpoint": self._name, **limited(self._name)})

    # --- the loop thread: see ConnectionOwner -------------------------------------------------------------------------

    def on_connack(self, receive_maximum: int, max_packet_bytes: int) -> bool:
        return self._unconfirmed.on_connack(receive_maximum, max_packet_bytes)

    def on_up(self) -> None:
        self._unconfirmed.on_up()
        self._set_link(True)

    def on_down(self, *, broker_ended: bool) -> None:
        self._unconfirmed.on_down(broker_ended=broker_ended)
        self._set_link(False)

    def on_message(self, message: MQTTMessage, connection: int) -> None:
        self._receiver.put(message, connection)

    def on_unreadable(self, reason: str) -> None:
        self._receiver.refuse_unreadable(reason)

    def on_acknowledged(self, acknowledgements: Sequence[tuple[int, int]]) -> None:
        self._unconfirmed.on_acknowledged(acknowledgements)

    def may_read(self) -> bool:
        return self._receiver.may_read()

    def service(self) -> int | None:
        waits = [each for each in (self._unconfirmed.service(), self._receiver.service()) if each is not None]
        return min(waits, default=None)

    # --- reading ------------------------------------------------------------------------------------------------------

    def receiving_threads(self) -> Sequence[ReceivingThread]:
        """The thread of the connection and that of the listeners. One that has ended does not wait: it hangs."""
        found = (self._connection.receiving_thread(), self._receiver.receiving_thread())
        return [each for each in found if each is not None]

    def statistics(self) -> Mapping[str, int]:
        unconfirmed, receiver, connection = self._unconfirmed, self._receiver, self._connection
        return {
            **_COUNTED,
            "sent": unconfirmed.sent,
            "confirmed": unconfirmed.confirmed,
            "broker_refusals": unconfirmed.refused,
            "expired_unconfirmed": unconfirmed.expired,
            "avoided_topics_now": unconfirmed.avoided_topics,
            "unconfirmed_now": unconfirmed.count,
            "unconfirmed_bytes": unconfirmed.bytes,
            "received": self._listeners.received,
            "listener_errors": self._listeners.listener_errors,
            "packets_waiting": receiver.waiting,
            "packets_bytes": receiver.waiting_bytes,
            **receiver.counts,
            **{f"refused_{reason}": count for reason, count in receiver.refused.items()},
            "links_now": int(bool(self._link)),
            "connects": connection.connects,
            "connection_losses": connection.losses,
            "connection_refusals": connection.refusals,
        }

    def __repr__(self) -> str:
        return f"<MqttTransport {self._name!r} at {self._config.broker}>"


_COUNTED: Final = dict.fromkeys(("duplicates", "input_pauses", "no_listener", "redelivered"), 0)
