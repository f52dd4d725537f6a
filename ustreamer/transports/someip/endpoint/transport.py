# SPDX-License-Identifier: Apache-2.0
"""A SOME/IP endpoint: one UDP socket, one thread that receives, and senders on whatever thread calls.

Beside the one socket there are some that only receive, each from one ECU that the configuration names (`direct`).
What a message means and what becomes of it is decided in `exchange`. The thread is `receiving`, what it reads a socket with
`reading`, and from the bytes to the listeners it is `incoming`; here all of it is put together.
Peers are those of the configuration and, with `sd`, those that service discovery finds (`discovering`).
"""

import random
import socket
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import ClassVar

from ustreamer.core.delivery.delivery import BulkTransmit, Transmit
from ustreamer.core.peers.election import Announcement, Who
from ustreamer.core.routing.subscriptions import Subscription, SubscriptionDirectory
from ustreamer.hooks import EndpointContext, EndpointTransport, SubscriberGone
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.discovery.event_publisher import SubscribedEvents
from ustreamer.transports.someip.discovery.sd_driver import Discovering, Surroundings
from ustreamer.transports.someip.endpoint.inbound import Incoming
from ustreamer.transports.someip.endpoint.listeners import Listeners
from ustreamer.transports.someip.endpoint.outbound import Sending
from ustreamer.transports.someip.io.adaptive_reader import reader
from ustreamer.transports.someip.io.connected_sockets import Direct
from ustreamer.transports.someip.io.multicast_groups import Groups
from ustreamer.transports.someip.io.poller import Handler, Poller
from ustreamer.transports.someip.io.receive_loop import JOIN_S, Receiving, Work
from ustreamer.transports.someip.io.recvmmsg import Helping
from ustreamer.transports.someip.io.tcp_connection import listening
from ustreamer.transports.someip.io.tcp_connections import Connections, TcpCallbacks
from ustreamer.transports.someip.io.udp import bound
from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress
from ustreamer.transports.someip.protocol.mapping import EventReceiver
from ustreamer.transports.someip.rpc.exchange import Exchange
from ustreamer.transports.someip.sd.drop_reasons import REASONS
from ustreamer.transports.someip.sd.offered_groups import offers
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.utransport import Listener
from ustreamer.uprotocol.uuri import UUri


class SomeipTransport(EndpointTransport):
    """UTransport on SOME/IP over UDP; every receiver is a delivery target of its own, and sending never waits."""

    unicast: ClassVar[bool] = True
    inline: ClassVar[bool] = True

    def __init__(self, config: SomeipEndpoint, context: EndpointContext) -> None:
        self._config = config
        self._name = context.name
        self._monotonic_ns = context.clock.monotonic_ns
        self._exchange = Exchange(config, context.authority, context.clock)
        self._listeners = Listeners(context.authority)
        self._incoming = Incoming(
            self._name,
            self._exchange,
            self._listeners,
            config.other_streamers,
            self._answer_quietly,
            () if config.sd is False else REASONS,
        )
        work = Work(self._turn, self._next_deadline_ns, self._say_goodbye)
        self._receiving = receiving = Receiving(self._name, work, self._monotonic_ns)
        self._helping: Helping
        self._opened: Callable[[Hashable], None] = lambda route: None
        self._connections = Connections(
            config.tcp,
            self._monotonic_ns,
            random.random,
            self._exchange.services.knows,
            TcpCallbacks(
                self._incoming.take_stream,
                self._incoming.count_refusal,
                self._route_opened,
                self._stream_came,
                self._stream_gone,
            ),
        )
        services = self._exchange.services
        self._sending = Sending(
            config.tp, self._connections, context.clock, receiving.wake_by, services.no_event
        )
        self._receivers = {each.subscriber: each for each in services.receivers}
        self._groups = Groups(config.bind, config.receive_buffer, self._reader)
        self._direct = Direct()
        self._subscribed: SubscribedEvents | None = None
        self._discovering = self._discovery(context)
        self._leaving = self._exchange.leaving(
            self._sending.send_alike, self.send, receiving.wake_by, self._concerns_discovery
        )
        self._transmitters = {each.subscriber: self._events_to(each) for each in self._receivers.values()}
        self._socket: socket.socket | None = None
        self._closed = False
        self._answers_lost = 0

    def _discovery(self, context: EndpointContext) -> Discovering | None:
        if self._config.sd is False:
            return None
        offered = offers(self._config.services, context.authority)
        self._subscribed = SubscribedEvents(offered, self._sending.events_to)
        return Discovering(
            self._config,
            context,
            self._exchange.services,
            offered,
            self._subscribed,
            self._connections,
            Surroundings(
                self._incoming.deliver,
                self._route_opened,
                self._service_gone,
                self._incoming.count_refusal,
                self._reader,
                self._receiving.wake,
            ),
        )

    # --- life -----------------------------------------------------------------------------------------------------------

    def problems(self) -> Sequence[str]:
        found = [] if self._discovering is None else self._discovering.problems()
        try:
            bound((self._config.bind, self._config.port)).close()
        except UStatusError as error:
            found.append(f"port: {error.message}")
        if self._config.listens_over_tcp:
            address = (self._config.bind, self._config.tcp_port)
            try:
                listening(address).close()
            except OSError as error:
                found.append("port_tcp: cannot listen at TCP {}:{}: {}".format(*address, error.strerror))
        return found

    def open(self) -> None:
        """As the port says, once."""
        if self._closed:
            raise UStatusError(UCode.UNAVAILABLE, f"endpoint {self._name!r} was closed; make a new one")
        if self._socket is not None:
            return
        try:
            self._helping = Helping()  # first, as nothing is open yet
        except OSError as error:
            raise UStatusError(
                UCode.UNAVAILABLE, f"endpoint {self._name!r} cannot receive: {error.strerror}"
            ) from error
        opened = bound((self._config.bind, self._config.port))
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._config.receive_buffer)
        self._socket = opened
        self._sending.open(opened)
        poller = self._receiving.open()
        senders = self._exchange.services.senders
        self._direct.open(opened, senders, self._config.receive_buffer, poller, self._reader)
        poller.add(opened.fileno(), self._reader(opened))
        self._groups.open(poller)
        try:
            self._groups.join_all(self._exchange.services.groups)
            self._open_tcp(poller)
            if self._discovering is not None:
                self._discovering.open(poller, self.address, self.tcp_address)
        except UStatusError:
            self.close()
            raise
        self._receiving.start()

    def _open_tcp(self, poller: Poller) -> None:
        config, connections = self._config, self._connections
        connections.open(config.bind, poller, self._receiving.wake)
        if config.listens_over_tcp:
            connections.listen(config.tcp_port)
        for service in config.services:
            if service.uses("tcp") and not service.offered and service.tcp_address is not None:
                connections.connect(service.tcp_address)
        for receiver in self._receivers.values():
            if receiver.over_tcp:
                connections.expect(receiver.address[0])

    @property
    def tcp_address(self) -> TcpAddress:
        """Where we listen over TCP while open; port 0 if nothing is offered over it."""
        return TcpAddress(self._config.bind, self._connections.port)

    @property
    def address(self) -> Address:
        """Our address on the network while open: the bound port where the configured one is 0."""
        if self._socket is None:
            return (self._config.bind, self._config.port)
        host, port = self._socket.getsockname()
        return (host, port)

    def stop_receiving(self) -> None:
        """As the port says. Callers of calls that are open are told UNAVAILABLE: their answers are not read any more."""
        self._receiving.stop()
        for response in self._exchange.give_up_calls():
            self._incoming.deliver(response)

    def close(self) -> None:
        self._closed = True
        self.stop_receiving()
        if self._socket is not None:
            self._sending.flush(JOIN_S)
            for datagram, address in self._exchange.give_up_requests():
                self._answer_quietly(datagram, address)
        self._sending.close()
        if self._discovering is not None:
            self._discovering.close()
        self._connections.close()
        self._groups.close()
        self._direct.close()
        self._receiving.close()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def watch_routes(self, opened: Callable[[Hashable], None]) -> None:
        """As the port says, of receivers for which too much waits to be sent in segments, of connections over TCP, and of services."""
        self._sending.watch_routes(opened)
        self._opened = opened

    def _route_opened(self, route: Hashable) -> None:
        self._opened(route)

    def _service_gone(self, service: UUri, addresses: list[Address], why: str) -> None:
        """Callers that wait for its answers are told, and do not wait for their ttl."""
        for response in self._exchange.service_gone(service, addresses, why):
            self._incoming.deliver(response)

    # --- listeners ------------------------------------------------------------------------------------------------------

    def register_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        self._listeners.register(source_filter, sink_filter, listener)

    def unregister_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        self._listeners.unregister(source_filter, sink_filter, listener)
        self._receiving.wait_until_calls_are_over()

    # --- receiving ------------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Do what is due."""
        if self._discovering is not None:
            self._discovering.turn()
        responses, datagrams = self._exchange.expire()
        for datagram, address in datagrams:
            self._answer_quietly(datagram, address)
        for response in responses:
            self._incoming.deliver(response)
        for each in self._exchange.expire_segments():
            self._incoming.count_refusal(each.reason, each.peer, each.detail)
        self._sending.run()
        self._connections.on_timer()

    def _next_deadline_ns(self) -> int | None:
        deadlines = [
            self._exchange.next_deadline_ns,
            self._sending.next_deadline_ns,
            self._connections.next_deadline_ns,
        ]
        if self._discovering is not None:
            deadlines.append(self._discovering.next_deadline_ns)
        return min((each for each in deadlines if each is not None), default=None)

    def _say_goodbye(self) -> None:
        if self._discovering is not None:
            self._discovering.say_goodbye()

    def _reader(self, opened: socket.socket, sender: Address | None = None) -> Handler:
        return reader(
            opened, sender, self._helping, self._incoming.take, self._incoming.take_one, self._monotonic_ns
        )

    def _stream_came(self, peer: TcpAddress, *, inbound: bool) -> None:
        if self._discovering is not None:
            self._discovering.stream_came(peer, inbound=inbound)

    def _stream_gone(self, peer: TcpAddress, *, inbound: bool) -> None:
        if not inbound:
            for response in self._exchange.connection_gone(peer, self._connections.waiting_at(peer)):
                self._incoming.deliver(response)
        if self._discovering is not None:
            self._discovering.stream_gone(peer, inbound=inbound)

    def _answer_quietly(self, datagram: bytes, address: Address) -> None:
        """Send an answer of our own. Nobody could try again: the client does, after its own timeout."""
        try:
            self._sending.put(datagram, address)
        except UStatusError:
            self._answers_lost += 1

    # --- sending --------------------------------------------------------------------------------------------------------

    def send(self, message: UMessage) -> None:
        """As the port says. A Publish goes to every receiver of its topic; a Notification cannot be carried."""
        message.check(strict=False)
        kind = message.attributes.type
        if kind is not UMessageType.PUBLISH and self._stays_here(message):
            return
        if kind is UMessageType.REQUEST:
            self._send_request(message)
        elif kind is UMessageType.RESPONSE:
            self._send_response(message)
        elif kind is UMessageType.PUBLISH:
            self._send_publish(message)
        else:
            raise UStatusError(
                UCode.UNIMPLEMENTED,
                f"{kind.name} {message.id} to {message.attributes.sink}: SOME/IP has no notification to one receiver",
            )

    def _concerns_discovery(self, message: UMessage) -> bool:
        return self._discovering is not None and self._discovering.concerns(message)

    def _stays_here(self, message: UMessage) -> bool:
        """Hand a message to service discovery if it is for a uEntity that lives there; whether it was."""
        discovering = self._discovering
        if discovering is None or not discovering.concerns(message):
            return False
        discovering.hand_over(message)
        self._receiving.wake()
        return True

    def transmitter(self, subscriber: UUri | None) -> Transmit:
        """What sends events to one receiver, or (None) whatever names its own way; NOT_FOUND comes when it is used."""
        if subscriber is None:
            return self._leaving.transmit
        known = self._transmitters.get(subscriber)
        if known is not None:
            return known
        if self._subscribed is not None:
            return self._subscribed.transmitter(subscriber)

        def refuse(message: UMessage) -> None:
            raise UStatusError(
                UCode.NOT_FOUND, f"subscriber {subscriber}: not a receiver of endpoint {self._name!r}"
            )

        return refuse

    def bulk_transmitter(self, subscriber: UUri | None) -> BulkTransmit:
        if subscriber is None:
            return self._leaving.transmit_all
        # Only who is a receiver by the configuration: whoever has subscribed may be elsewhere, or gone, by the next burst.
        receiver = self._receivers.get(subscriber)
        burst = None if receiver is None else self._sending.bursts_to(receiver)
        if receiver is None or burst is None:
            return super().bulk_transmitter(subscriber)
        return self._only_ours(receiver, burst)

    def _events_to(self, receiver: EventReceiver) -> Transmit:
        """What sends to a receiver of the configuration; with service discovery, unless another streamer serves it."""
        transmit = self._sending.events_to(receiver, bursts=True)
        if self._discovering is None:
            return transmit
        is_elsewhere = self._discovering.is_elsewhere(receiver)

        def transmit_ours(message: UMessage) -> None:
            if is_elsewhere():
                raise SubscriberGone(receiver.subscriber)
            transmit(message)

        return transmit_ours

    def _only_ours(self, receiver: EventReceiver, burst: BulkTransmit) -> BulkTransmit:
        if self._discovering is None:
            return burst
        is_elsewhere = self._discovering.is_elsewhere(receiver)
        return lambda messages: 0 if is_elsewhere() else burst(messages)

    def _send_publish(self, message: UMessage) -> None:
        topic = message.attributes.source
        subscribers = [each.subscriber for each in self._receivers.values() if topic in each.events]
        if self._subscribed is not None:
            subscribers += self._subscribed.subscribers_of(topic)
        if not subscribers:
            raise self._exchange.services.no_event(topic)
        for subscriber in subscribers:
            self.transmitter(subscriber)(message)

    def _send_request(self, message: UMessage) -> None:
        outgoing = self._exchange.call(message)
        try:
            self._sending.send(outgoing.datagram, outgoing.address, outgoing.segmenting, outgoing.deadline_ns)
        except UStatusError:
            if self._exchange.abandon(outgoing.request_id):
                raise  # to be tried again or answered; but not if we have stopped and told the caller meanwhile
        self._receiving.wake_by(self._exchange.sent(outgoing))

    def _send_response(self, message: UMessage) -> None:
        try:
            answer = self._exchange.answer(message)
        except UStatusError as error:
            if (
                error.code is UCode.NOT_FOUND
                and self._discovering is not None
                and self._discovering.streamers.there
            ):
                raise SubscriberGone(message.attributes.source) from error  # another one's client asked
            raise
        if answer is not None:
            self._sending.send(*answer)
            self._exchange.answered(message)

    # --- other streamers ------------------------------------------------------------------------------------------------

    def announce(self, announcements: frozenset[Announcement]) -> None:
        """As the port says, with service discovery."""
        if self._discovering is not None:
            self._discovering.streamers.announce(announcements)

    def watch_neighbours(self, changed: Callable[[frozenset[Announcement]], None]) -> None:
        """As the port says, with service discovery."""
        if self._discovering is not None:
            self._discovering.streamers.watch(changed)

    def believe(self, brings: Callable[[Who, str], bool]) -> None:
        """As the port says, with service discovery: of several that offer a service here, one does."""
        if self._discovering is not None:
            self._discovering.streamers.believe(brings)

    # --- what the configuration fixes, and counters ---------------------------------------------------------------------

    def subscriptions(self) -> Sequence[Subscription]:
        """Every receiver's wish for every event of its service.

        A receiver is the subscriber //<authority>/<n << 16 | service>/<major>/0: n is 0 for the first one of the
        service, which is its `remote` where it has one, then 1, 2, ...
        """
        return [
            Subscription(topic, receiver.subscriber, receiver.period_ns)
            for receiver in self._receivers.values()
            for topic in receiver.events
        ]

    def topics(self) -> Sequence[UUri]:
        """The events of the services that are listed and that we do not offer ourselves."""
        return [
            UUri(self._config.authority, each.ue_id, each.major, event.id)
            for each in self._config.services
            if not each.offered
            for event in each.events
        ]

    def directory(self, changed: Callable[[], None]) -> SubscriptionDirectory | None:
        """Other devices that subscribe ECUs here, at the uSubscription that service discovery stands for."""
        return None if self._discovering is None else self._discovering.directory(changed)

    def statistics(self) -> Mapping[str, int]:
        """Counters since the start.

        `datagrams` came in; of the messages in them `received` went to a listener, which failed for `listener_errors`,
        and `unheard` matched none; `sent`; `calls_open`, `calls_expired` of ours, and
        `calls_lost` whose service, or the connection to it, went; `requests_open`, `requests_expired` of clients;
        `unwanted_answers` to REQUEST_NO_RETURN; `answers_lost` that the kernel did not take; messages in segments that are
        `tp_open` with `tp_bytes` of memory, `tp_completed`, and `tp_duplicates` of segments; of ours, `tp_segmented` were long,
        `tp_waiting` with `tp_waiting_bytes` of payload are not sent whole, and `tp_unsent` were given up with a part sent.
        Of connections over TCP: `tcp_open` at present, `tcp_accepted` that others have opened, `tcp_established` in all,
        `tcp_ended`; messages that are `tcp_waiting` to be sent again after one has ended, that were `tcp_sent_again`, and that
        were `tcp_given_up` though they may have been lost.
        """
        return {
            **self._incoming.statistics(),
            "answers_lost": self._answers_lost,
            **self._exchange.statistics(),
            **self._sending.statistics(),
            **({} if self._discovering is None else self._discovering.statistics()),
            **self._connections.statistics(),
            **self._incoming.refusals(),
        }
