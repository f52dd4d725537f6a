# SPDX-License-Identifier: Apache-2.0
"""Input of an endpoint, from received bytes to listeners: events, requests, responses, and refusals.

Belongs to the receiving thread, except `deliver` of messages that the endpoint itself creates.

Fast paths: `on_batch` decodes a whole batch at once, or each datagram by `_decode_each`. Its oracle is `on_datagram`;
compared in tests/transports/someip/endpoint/test_inbound.py. Readable path: `_on_any_datagram`
(`read_messages` and `Exchange.decode_message`). In production the readable path decodes no plain event, and no plain RPC message over UDP
after the first request of each client, method and version.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import repeat
from typing import TYPE_CHECKING, Final

from ustreamer.core.base.intrusions import PeerRefusals
from ustreamer.core.delivery.plugin_errors import FOREIGN_ERRORS
from ustreamer.transports.someip.endpoint.event_batcher import EventBatcher
from ustreamer.transports.someip.endpoint.listeners import Listeners
from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress, format_address
from ustreamer.transports.someip.protocol.codec import (
    MAX_REFUSALS,
    MalformedMessage,
    MalformedReason,
    MessageType,
    SomeIpMessage,
    read_messages,
    refusal_limit,
)
from ustreamer.transports.someip.protocol.mapping import SomeipRefusal
from ustreamer.transports.someip.protocol.tcp_config import TcpReason
from ustreamer.transports.someip.protocol.tp import TpReason
from ustreamer.transports.someip.rpc.exchange import Exchange, RefusedMessage
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import UMessage

if TYPE_CHECKING:
    from ustreamer.transports.someip.io.recvmmsg import DatagramBatch

log = logging.getLogger("ustreamer.someip")

PEER_STREAMER: Final = "peer_streamer"
"""Reason for refusing a message from another streamer: it would loop."""
_REASONS: Final = (
    *map(str, MalformedReason),
    *map(str, SomeipRefusal),
    *map(str, TpReason),
    *map(str, TcpReason),
    PEER_STREAMER,
)
_TYPE_FIELD: Final = slice(14, 15)  # of a header
_NOTIFICATION: Final = bytes((MessageType.NOTIFICATION,))
MAX_REPLIES: Final = 16
"""Error replies to one datagram. A datagram can hold 4 095 requests, and each reply is a datagram."""


class Inbound:
    """Input of one endpoint. `on_batch` and `on_datagram` return whether the input set no early deadline.

    Then the receive loop need not check its deadlines (`ReceiveLoop`). Events and responses set none. A plain request of
    a client sets one at the end of its ttl. All other input may set any.
    """

    def __init__(
        self,
        name: str,
        exchange: Exchange,
        listeners: Listeners,
        peer_streamers: Collection[str],
        send_reply: Callable[[bytes, Address], None],
        reasons: Iterable[str] = (),
        *,
        request_deadlines_are_late: bool = False,
    ) -> None:
        """`send_reply` sends a reply of this endpoint; `reasons` are additional reasons for `count_refusal`.

        `request_deadlines_are_late`: the receive loop wakes anyway before the ttl of a client's request ends.
        """
        self._name = name
        self._exchange = exchange
        self._listeners = listeners
        self._peer_streamers = peer_streamers
        self._send_reply = send_reply
        self._request_deadlines_are_late = request_deadlines_are_late
        self._batcher = EventBatcher(
            exchange.event_messages, listeners.listeners_for, self.deliver, self._listener_failed
        )
        self._reported: set[type[BaseException]] = set()
        self._refused = dict.fromkeys([*_REASONS, *reasons], 0)
        self.refused_by_host = PeerRefusals()
        self._datagrams = self._received = self._no_listener = self._listener_errors = 0

    # --- datagrams ----------------------------------------------------------------------------------------------------

    def on_batch(self, batch: "DatagramBatch") -> bool:
        """Process the datagrams of a batch, in order."""
        self._datagrams += len(batch)
        self._exchange.received_ms = batch.received_ms
        messages = self._exchange.decode_batch(batch)
        if messages is None:
            return self._decode_each(batch)
        self._batcher.deliver_batch(messages)
        return self._sets_no_early_deadline(messages[0])

    def on_datagram(self, datagram: bytes, address: Address, received_ms: int = 0) -> bool:
        """As `on_batch` of one datagram, without collecting."""
        self._datagrams += 1
        exchange, message = self._exchange, None
        exchange.received_ms = received_ms
        if datagram[_TYPE_FIELD] == _NOTIFICATION:
            attributes = exchange.match_event(datagram, address[0])
            if attributes is not None:
                self.deliver(exchange.event_message(attributes, datagram))
                return True
        else:
            message = exchange.fast_in.decode_message(datagram, address)
        if message is None:
            self._on_any_datagram(datagram, address)
            return False
        self.deliver(message)
        return self._sets_no_early_deadline(message)

    def _sets_no_early_deadline(self, message: UMessage) -> bool:
        """Whether a message of the fast path, and others of its type, set no deadline that the loop could miss."""
        return self._request_deadlines_are_late or message.attributes.type is not UMessageType.REQUEST

    def _decode_each(self, batch: "DatagramBatch") -> bool:
        exchange, batcher, match_event = self._exchange, self._batcher, self._exchange.match_event
        decode_message = self._exchange.fast_in.decode_message
        no_early_deadline = True
        times = batch.received_each_ms or repeat(batch.received_ms, len(batch))
        for datagram, address, received_ms in zip(batch.datagrams(), batch.senders(), times, strict=True):
            attributes = match_event(datagram, address[0])
            if attributes is not None:
                batcher.attributes.append(attributes)
                batcher.datagrams.append(datagram)
                batcher.received_ms.append(received_ms)
                continue
            message = decode_message(datagram, address)
            if message is not None:
                batcher.add_message(message)
                no_early_deadline &= self._sets_no_early_deadline(message)
            else:
                no_early_deadline = False
                batcher.flush()  # collected events arrived before
                exchange.received_ms = received_ms
                self._on_any_datagram(datagram, address)
        batcher.flush()
        return no_early_deadline

    def _on_any_datagram(self, datagram: bytes, address: Address) -> None:
        refused = 0
        for offset, found in read_messages(datagram):
            if refused == MAX_REFUSALS:
                rest = refusal_limit(datagram, offset)
                self.count_refusal(rest.reason, address, rest)
                return
            if isinstance(found, SomeIpMessage):
                refusal = self._on_message(found, address)
                if refusal is None:
                    continue
                reason, reply = refusal.reason, refusal.reply
            else:
                reason, reply = found.reason, self._exchange.malformed_reply(datagram, found, address)
            refused += 1
            self.count_refusal(reason, address, found)
            if reply is not None and refused <= MAX_REPLIES:
                self._send_reply(reply, address)

    # --- messages -----------------------------------------------------------------------------------------------------

    def on_stream(
        self, messages: list[SomeIpMessage], malformed: list[MalformedMessage], address: TcpAddress
    ) -> None:
        """Process messages received over TCP."""
        self._exchange.received_ms = 0
        for error in malformed:
            self.count_refusal(error.reason, address, error)
        for message in messages:
            refusal = self._on_message(message, address)
            if refusal is None:
                continue
            self.count_refusal(refusal.reason, address, message)
            if refusal.reply is not None:
                self._send_reply(refusal.reply, address)

    def _on_message(self, message: SomeIpMessage, address: Address) -> RefusedMessage | None:
        """Deliver a message; the refusal if it is not delivered."""
        if address[0] in self._peer_streamers:
            return RefusedMessage(PEER_STREAMER)
        outcome = self._exchange.decode_message(message, address)
        if isinstance(outcome, UMessage):
            self.deliver(outcome)
            return None
        return outcome

    def deliver(self, message: UMessage) -> None:
        """Call every listener that matches `message`."""
        listeners = self._listeners.listeners_for(message.attributes)
        if listeners:
            self._received += 1
        else:
            self._no_listener += 1
        for listener in listeners:
            try:
                listener(message)
            except FOREIGN_ERRORS as error:  # reported, and the next datagram is processed
                self._listener_failed(error, message)

    def _listener_failed(self, error: BaseException, message: UMessage) -> None:
        self._listener_errors += 1
        if type(error) not in self._reported:
            self._reported.add(type(error))
            log.error(
                "someip.listener_failed",
                exc_info=error,
                extra={"endpoint": self._name, "message_id": str(message.id)},
            )

    # [impl->COMPAT-1201]
    def count_refusal(self, reason: str, address: Address, refused: object) -> None:
        self._refused[reason] += 1
        self.refused_by_host.add(reason, address[0])
        about = (refused.service, refused.method) if isinstance(refused, SomeIpMessage) else None
        self._exchange.failures.add(str(reason), about, address[0])
        if self._refused[reason] == 1:  # the first one shows the cause; the others are counted
            log.warning(
                "someip.refused",
                extra={
                    "endpoint": self._name,
                    "reason": str(reason),
                    "sender": format_address(address),
                    "refused": str(refused)[:500],
                },
            )

    def statistics(self) -> Mapping[str, int]:
        """`SomeipTransport.statistics` describes them."""
        return {
            "datagrams": self._datagrams,
            "received": self._received + self._batcher.delivered_in_batches,
            "no_listener": self._no_listener,
            "listener_errors": self._listener_errors,
        }

    def refusals(self) -> Mapping[str, int]:
        return {f"refused_{reason}": number for reason, number in self._refused.items()}
