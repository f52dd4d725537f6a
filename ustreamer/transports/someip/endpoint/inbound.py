# SPDX-License-Identifier: Apache-2.0
"""From the bytes that come in at an endpoint to its listeners: events, requests and answers, and what is refused.

Belongs to the receiving thread, but for `deliver` of what the endpoint itself answers.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from ustreamer.transports.someip.endpoint.event_batcher import Arrivals
from ustreamer.transports.someip.endpoint.listeners import Listeners
from ustreamer.transports.someip.io.recvmmsg import Helping
from ustreamer.transports.someip.io.tcp_acceptor import TcpReason
from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress
from ustreamer.transports.someip.protocol.codec import MalformedMessage, MalformedReason, SomeIpMessage, split
from ustreamer.transports.someip.protocol.mapping import Refusal
from ustreamer.transports.someip.protocol.tp import TpReason
from ustreamer.transports.someip.rpc.exchange import Exchange
from ustreamer.uprotocol.batch import Run
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import UMessage

log = logging.getLogger("ustreamer.someip")

OTHER_STREAMER: Final = "other_streamer"
"""Why a message is refused that comes from another streamer: it would go round."""
_REASONS: Final = (
    *map(str, MalformedReason),
    *map(str, Refusal),
    *map(str, TpReason),
    *map(str, TcpReason),
    OTHER_STREAMER,
)


class Incoming:
    """What comes in at one endpoint. `take` and `take_one` say whether it was events and nothing else.

    Events set no deadlines: who waits for one need not look again (`Receiving`).
    """

    def __init__(
        self,
        name: str,
        exchange: Exchange,
        listeners: Listeners,
        other_streamers: Collection[str],
        answer: Callable[[bytes, Address], None],
        reasons: Iterable[str] = (),
    ) -> None:
        """`answer` sends an answer of our own; `reasons` are those of others that `count_refusal` is told."""
        self._name = name
        self._exchange = exchange
        self._listeners = listeners
        self._other_streamers = other_streamers
        self._answer = answer
        self._arrivals = Arrivals(exchange.messages, listeners.hearing, self.deliver, self._listener_failed)
        self._reported: set[type[Exception]] = set()
        self._refused = dict.fromkeys([*_REASONS, *reasons], 0)
        self._datagrams = self._received = self._unheard = self._listener_errors = 0

    # --- datagrams ------------------------------------------------------------------------------------------------------

    def take(self, helping: Helping) -> bool:
        """Take in what has arrived together, in order."""
        self._datagrams += len(helping)
        alike = self._exchange.alike(helping)
        if alike is None:
            return self._take_each(helping)
        self._arrivals.deliver_all(alike)
        return type(alike) is Run and alike.attributes.type is UMessageType.PUBLISH

    def take_one(self, datagram: bytes, address: Address) -> bool:
        """As `take` of one, with no wait for another."""
        self._datagrams += 1
        exchange = self._exchange
        attributes = exchange.event(datagram, address[0])
        if attributes is not None:
            self.deliver(exchange.message(attributes, datagram))
            return True
        message = exchange.arriving.message(datagram, address)
        if message is None:
            self._take_any(datagram, address)
        else:
            self.deliver(message)
        return False

    def _take_each(self, helping: Helping) -> bool:
        arrivals, event_in = self._arrivals, self._exchange.event
        message_in = self._exchange.arriving.message
        only_events = True
        for datagram, address in zip(helping.datagrams(), helping.senders(), strict=True):
            attributes = event_in(datagram, address[0])
            if attributes is not None:
                arrivals.attributes.append(attributes)
                arrivals.datagrams.append(datagram)
                continue
            only_events = False
            message = message_in(datagram, address)
            if message is not None:
                arrivals.add(message)
            else:
                arrivals.deliver()  # they came before
                self._take_any(datagram, address)
        arrivals.deliver()
        return only_events

    def _take_any(self, datagram: bytes, address: Address) -> None:
        messages, malformed = split(datagram)
        for error in malformed:
            self.count_refusal(error.reason, address, error)
            answer = self._exchange.malformed(datagram, error, address)
            if answer is not None:
                self._answer(answer, address)
        self._take_messages(messages, address)

    # --- messages -------------------------------------------------------------------------------------------------------

    def take_stream(
        self, messages: list[SomeIpMessage], malformed: list[MalformedMessage], address: TcpAddress
    ) -> None:
        """Take in what came over TCP."""
        for error in malformed:
            self.count_refusal(error.reason, address, error)
        self._take_messages(messages, address)

    def _take_messages(self, messages: Iterable[SomeIpMessage], address: Address) -> None:
        if address[0] in self._other_streamers:
            for message in messages:
                self.count_refusal(OTHER_STREAMER, address, message)
            return
        incoming = self._exchange.incoming
        for message in messages:
            outcome = incoming(message, address)
            if isinstance(outcome, UMessage):
                self.deliver(outcome)
                continue
            if outcome is None:
                continue
            self.count_refusal(outcome.reason, address, message)
            if outcome.answer is not None:
                self._answer(outcome.answer, address)

    def deliver(self, message: UMessage) -> None:
        """Call everybody who listens for `message`."""
        listeners = self._listeners.hearing(message.attributes)
        if listeners:
            self._received += 1
        else:
            self._unheard += 1
        for listener in listeners:
            try:
                listener(message)
            except Exception as error:  # noqa: BLE001  # foreign code: reported, and the next datagram is served
                self._listener_failed(error, message)

    def _listener_failed(self, error: Exception, message: UMessage) -> None:
        self._listener_errors += 1
        if type(error) not in self._reported:
            self._reported.add(type(error))
            log.error(
                "someip.listener_failed",
                exc_info=error,
                extra={"endpoint": self._name, "message_id": str(message.id)},
            )

    def count_refusal(self, reason: str, address: Address, what: object) -> None:
        self._refused[reason] += 1
        if self._refused[reason] == 1:  # the first shows what it is about; the others are in the counter
            log.warning(
                "someip.refused",
                extra={
                    "endpoint": self._name,
                    "reason": str(reason),
                    "sender": f"{address[0]}:{address[1]}",
                    "refused": str(what)[:500],
                },
            )

    def statistics(self) -> Mapping[str, int]:
        """`SomeipTransport.statistics` says what they are."""
        return {
            "datagrams": self._datagrams,
            "received": self._received + self._arrivals.received,
            "unheard": self._unheard,
            "listener_errors": self._listener_errors,
        }

    def refusals(self) -> Mapping[str, int]:
        return {f"refused_{reason}": number for reason, number in self._refused.items()}
