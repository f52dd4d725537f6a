# SPDX-License-Identifier: Apache-2.0
"""The Zenoh transport: one session per endpoint, because endpoints that share a session share its stalls."""

import atexit
import logging
import os
import re
import socket
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec
import zenoh

from ustreamer.core.delivery.ports import SendBatch, SendOne
from ustreamer.core.peers.election import Announcement, RouterId
from ustreamer.core.peers.topic_advertisements import TopicAdvertisement
from ustreamer.transport_port import (
    BoundAddress,
    EndpointContext,
    EndpointTransport,
    PeerTopicTransport,
    PeerTransport,
    ReceivedStore,
    ReceivingThread,
    SentStore,
    Unconfirmed,
)
from ustreamer.transports.zenoh.config import ZenohEndpoint
from ustreamer.transports.zenoh.decoder import SampleRefusalReason
from ustreamer.transports.zenoh.errors import is_panic, zenoh_error_text
from ustreamer.transports.zenoh.foreign_keys import ForeignKeys
from ustreamer.transports.zenoh.keys import EVERY_KEY
from ustreamer.transports.zenoh.link_monitor import LinkMonitor, lease_ms
from ustreamer.transports.zenoh.locators import check_parameters, missing_interface, parse_locator
from ustreamer.transports.zenoh.publisher import ZenohSender
from ustreamer.transports.zenoh.receipts.no_receipts import NEVER_NS
from ustreamer.transports.zenoh.receipts.receipt_keys import ReceiptGiverId, receipt_id
from ustreamer.transports.zenoh.retransmit import AnsweredRequests, RetransmitConfig
from ustreamer.transports.zenoh.subscriber import (
    CoveredFilters,
    ListenerEntry,
    ListenerFilters,
    ZenohSubscription,
)
from ustreamer.transports.zenoh.tokens.peer_tokens import PeerTokens
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid_argument
from ustreamer.uprotocol.utransport import Listener
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import ANY, ANY_AUTHORITY, UUri, check_authority, check_filters

if TYPE_CHECKING:
    from ustreamer.transports.zenoh.receipts.awaited_receipts import AwaitedReceipts
    from ustreamer.transports.zenoh.receipts.receipt_giver import ReceiptGiver


log = logging.getLogger("ustreamer.zenoh")

MAX_LISTENERS: Final = 256
_RUNTIME: Final = "(rx: (worker_threads: 16), tx: (worker_threads: 16))"
"""16 threads that read the sockets of all sessions of this process, and 16 that write to them. The closing of a socket
whose node has stopped reading blocks one of them for up to 10 s (SO_LINGER). With Zenoh's own numbers of threads two
stalled nodes stopped all endpoints for 7.3 s, by the reading ones. With a `wait_before_close` above the lease it was
5 s, by the writing ones. An environment with `ZENOH_RUNTIME` replaces this."""
_ANSWERED_REQUESTS: Final = 32_768  # 1 MB, filled by calls only
_AGGREGATION: Final = "aggregation/publishers"
_MTLS: Final = "transport/link/tls/enable_mtls"
_USERS: Final = "transport/auth/usrpwd/dictionary_file"
_LISTENER: Final = r"(tcp|tls|ws|udp|quic)/([^?#]+):(\d+)"
_SOCKET: Final = r"unixsock-stream/([^?#]+)"
_LISTENER_TIMEOUT_S: Final = 5.0  # a listener should be quick, but it can hang or wait for another one


class _Registration(msgspec.Struct, frozen=True):
    filters: ListenerFilters
    listener: Listener


class ZenohTransport(EndpointTransport, PeerTransport, PeerTopicTransport):
    """uProtocol over one Zenoh session.

    A successful send means that Zenoh accepted the message, not that the message arrived. Without a connected node
    `send` raises UNAVAILABLE. Just after a link comes up it waits for a subscriber (1 s, after an outage 5 s).
    The function from `transmitter` never waits and raises RouteUnavailable if no subscriber matches. Messages put
    shortly before a route lost its subscribers are put again when they return (`retransmit_ms`), but no answered request.
    """

    loss_counters: ClassVar[Sequence[str]] = ("not_retransmitted", "receipts_missing", "sent_while_node_lost")

    def __init__(self, config: ZenohEndpoint, context: EndpointContext) -> None:
        check_authority(context.authority, f"authority of endpoint {context.name}")
        if context.authority == ANY_AUTHORITY:
            raise invalid_argument(
                f"endpoint {context.name!r}: authority '*', expected the name of one authority"
            )
        self._config = config
        self._context = context
        self._session: zenoh.Session | None = None
        self._sender: ZenohSender | None = None
        self._sent_store: SentStore | None = None
        self._link_monitor = LinkMonitor(context)
        self._foreign_keys = ForeignKeys(context.name, self._link_monitor.run_on_monitor)
        self._answered_requests = AnsweredRequests(_ANSWERED_REQUESTS if config.retransmit_ms else 0)
        trusted = () if isinstance(config.peers, bool) else config.peers
        self._peer_tokens = PeerTokens(context.name, trusted)
        self._awaited: AwaitedReceipts | None
        self._giver: ReceiptGiver | None
        self._awaited, self._giver = _receipt_parts(config, context)
        self._route_watchers: list[Callable[[Hashable], None]] = []
        self._receiving = True
        self._closed = False
        # Never held during a listener call or while waiting for one: a listener may register another.
        self._lock = Lock()
        self._registrations: dict[_Registration, None] = {}
        self._subscriptions: dict[ListenerFilters, ZenohSubscription] = {}
        # A subscription that ends: its thread still processes samples, and its counters must not be missing meanwhile.
        self._ending: dict[ZenohSubscription, None] = {}
        self._closed_counters = Counter[str]()

    # --- life ---------------------------------------------------------------------------------------------------------

    def problems(self) -> Sequence[str]:
        """Settings that Zenoh refuses, and addresses and certificates that it cannot listen with."""
        try:
            settings = zenoh_config(self._config, self._context.name)
        except UStatusError as error:
            in_file = self._config.config is not None and str(self._config.config) in error.message
            return [f"config: {error.message}" if in_file else error.message]
        from ustreamer.transports.zenoh.private_files import unusable_certificates  # imported by `check` only

        locators = _listen_locators(settings)
        found = [problem for locator in locators if (problem := _port_in_use(locator))]
        return [*found, *self._missing_interfaces(locators), *unusable_certificates(settings, locators)]

    def _missing_interfaces(self, listen: Sequence[str]) -> Iterator[str]:
        """The locators that Zenoh cannot open, because `#iface=` names an interface that this machine has not.

        A client needs one locator to connect; any other session goes on without.
        """
        for locator in listen:
            if interface := missing_interface(locator):
                yield f"listen: {locator}: this machine has no interface {interface!r}"
        connect = self._config.connect or ()
        if self._config.mode == "client" and connect and all(map(missing_interface, connect)):
            yield f"connect: this machine has no interface {missing_interface(connect[0])!r}"

    def file_addresses(self) -> Sequence[BoundAddress]:
        """The addresses of the Zenoh configuration file, unless `listen` replaces them."""
        if self._config.config is None or self._config.listen is not None:
            return ()
        try:
            locators = _listen_locators(zenoh_config(self._config, self._context.name))
            return [parse_locator(each, 0).bound_address("config") for each in locators]
        except (UStatusError, ValueError):
            return ()  # `problems` or Zenoh reports it

    def warnings(self) -> Sequence[str]:
        """Missing interfaces, and secrets of the Zenoh configuration file that every user of this machine can read."""
        found = [
            f"connect[{index}]: this machine has no interface {interface!r}, so {locator} cannot be reached"
            for index, locator in enumerate(self._config.connect or ())
            if (interface := missing_interface(locator))
        ]
        return [*found, *self._exposed_secrets()]

    def _exposed_secrets(self) -> Sequence[str]:
        if self._config.config is None:
            return ()
        from ustreamer.transports.zenoh.private_files import exposed_secrets  # imported by `check` only

        try:
            settings = zenoh_config(self._config, self._context.name)
        except UStatusError:
            return ()  # `problems` reports it
        return list(exposed_secrets(settings, self._config.config))

    def open(self) -> None:
        """Open the session and declare the registered listeners.

        Raises UStatusError: UNAVAILABLE with the addresses if they cannot be opened (a client needs its router; a peer
        keeps trying), INVALID_ARGUMENT for a configuration that Zenoh refuses, FAILED_PRECONDITION if repeated. After an
        error it is closed.
        """
        if self._sender is not None or self._closed:
            raise UStatusError(UCode.FAILED_PRECONDITION, f"{self!r}: can be opened once")
        config = zenoh_config(self._config, self._context.name)
        os.environ.setdefault("ZENOH_RUNTIME", _RUNTIME)  # read by Zenoh when the first session is opened
        session = self._opened_session(config)
        # At exit Python does not wait for daemon threads, and a thread inside Zenoh then aborts the process.
        atexit.register(self.close)
        try:
            self._start(session, config)
        except BaseException as error:
            with self._lock:
                self._session = session  # `close` ends it
            self.close()
            if not isinstance(error, zenoh.ZError):
                raise
            text = f"endpoint {self._context.name!r}: cannot start: {zenoh_error_text(error)}"
            raise UStatusError(UCode.UNAVAILABLE, text) from error

    def _start(self, session: zenoh.Session, config: zenoh.Config) -> None:
        """Start all parts on a new session. Raises zenoh.ZError if the session is closed."""
        retransmit = RetransmitConfig(self._config.retransmit_ms, self._config.retransmit_bytes)
        self._sender = ZenohSender(
            session,
            self._link_monitor,
            self._context,
            retransmit,
            self._answered_requests,
            self._on_route_opened,
            self._config.max_publishers,
            self._sent_store,
            self._awaited,
        )
        # Before the link is known to be up: the first put should know its receivers.
        if self._awaited is not None and self._giver is not None:
            self._awaited.start(session)
            self._giver.start(session)
            # Zenoh declares all subscribers again before it reports a new link.
            self._link_monitor.add_watcher(self._giver.on_link)
        # After the sender: a watcher may send as soon as the link is up.
        self._link_monitor.start(session, lease_ms(config))
        # Before the subscriptions: the peers that forward a message should be known when it arrives.
        self._peer_tokens.start(session)
        with self._lock:
            self._session = session
            for subscription in self._subscriptions.values():
                self._announce_receipts(subscription.filters)
                subscription.start(session)
            if self._giver is not None:
                self._giver.on_ready()
        self._foreign_keys.start(session)

    def _opened_session(self, config: zenoh.Config) -> zenoh.Session:
        for locator in _listen_locators(config):
            if obstacle := _socket_file_obstacle(locator):
                raise invalid_argument(f"endpoint {self._context.name!r}: listen: {locator}: {obstacle}")
        where = f"endpoint {self._context.name!r}: no Zenoh session, {_describe_addresses(config)}"
        try:
            return zenoh.open(config)
        except zenoh.ZError as error:
            raise UStatusError(UCode.UNAVAILABLE, f"{where}: {zenoh_error_text(error)}") from error
        except BaseException as error:
            if not is_panic(error):
                raise
            text = f"{where}: Zenoh cannot use these settings: {zenoh_error_text(error)}"
            raise invalid_argument(text) from error

    def stop_receiving(self) -> None:
        """Undeclare all subscribers; received samples still go to the listeners, for 5 s at most."""
        # Directly before the rest: a peer streamer takes over at once.
        self._peer_tokens.announce(frozenset())
        self._peer_tokens.topic_tokens.stop()
        with self._lock:
            self._receiving = False
            subscriptions = list(self._subscriptions.values())
            if self._giver is not None:
                self._giver.withdraw()
        self._foreign_keys.stop()
        for subscription in subscriptions:
            subscription.stop()
        monotonic_ns = self._context.clock.monotonic_ns
        until_ns = monotonic_ns() + round(_LISTENER_TIMEOUT_S * 1e9)
        for subscription in subscriptions:
            subscription.join(max(0, until_ns - monotonic_ns()) / 1e9)

    def close(self) -> None:
        """End all threads and the session: at once, or within 20 s if a listener hangs or a send waits."""
        self.stop_receiving()
        self._closed = True
        with self._lock:
            session, self._session = self._session, None
        if session is None:
            return
        atexit.unregister(self.close)
        if self._sender is not None:
            self._sender.close()
        if self._awaited is not None and self._giver is not None:
            self._giver.close()
            self._awaited.close()
        self._peer_tokens.close()
        self._link_monitor.close()
        try:
            session.close()  # type: ignore[no-untyped-call]
        except zenoh.ZError as error:  # Zenoh waits 10 s for its threads, then continues without them
            log.warning(
                "zenoh.close_failed", extra={"endpoint": self._context.name, "why": zenoh_error_text(error)}
            )

    def finish(self) -> Unconfirmed:
        """Close as `close` does; wait up to 2 s for receipts, and 2 s for nodes to read all. See EndpointTransport."""
        sender = self._sender
        if sender is None or self._closed:
            return Unconfirmed()
        sender.wait_receipts()
        self._link_monitor.hold_links()
        self.close()
        return sender.unconfirmed()

    def keep_unconfirmed(self, store: SentStore) -> None:
        """See EndpointTransport; needs the retransmit buffer."""
        self._sent_store = store

    def keep_received(self, store: ReceivedStore) -> None:
        if self._giver is not None:
            self._giver.store = store

    def awaits_receipt(self, id: UUID) -> bool:
        return self._awaited is not None and self._awaited.is_awaited(receipt_id(id))

    def unstored_since_ns(self) -> int:
        return NEVER_NS if self._sender is None else self._sender.unstored_since_ns()

    def _announce_receipts(self, filters: ListenerFilters) -> None:
        if self._giver is not None:
            self._giver.announce(filters)

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(self, message: UMessage) -> None:
        sender = self._sender
        if sender is None or self._closed:
            message.check(strict=False)
            raise UStatusError(UCode.UNAVAILABLE, f"endpoint {self._context.name!r} is not open")
        sender.send(message)

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        sender = self._sender
        return self._transmit if sender is None or self._closed else sender.put_message

    def batch_transmitter(self, subscriber: UUri | None) -> SendBatch:
        sender = self._sender
        return super().batch_transmitter(subscriber) if sender is None or self._closed else sender.put_batch

    def has_listener(self, attributes: UAttributes) -> bool:
        sender = self._sender
        return sender is not None and not self._closed and sender.has_listener(attributes)

    def prepare_topic(self, topic: UUri) -> None:
        sender = self._sender
        if sender is not None and not self._closed:
            sender.prepare_topic(topic)

    def send_window(self) -> int:
        """Bytes that the kernel buffers of all links can take; 0 if a link is not TCP or cannot be queried."""
        return self._link_monitor.send_window()

    def _transmit(self, message: UMessage) -> None:
        """As `send`, but never waits: for callers that queue a refused message and watch routes."""
        sender = self._sender
        if sender is None or self._closed:
            return self.send(message)  # raises the error
        sender.put_message(message)
        return None

    def watch_routes(self, opened: Callable[[Hashable], None]) -> None:
        self._route_watchers.append(opened)

    def _on_route_opened(self, route: Hashable) -> None:
        for opened in self._route_watchers:
            opened(route)

    def watch_link(self, changed: Callable[[bool], None]) -> None:
        """See EndpointTransport; the link is up while at least one Zenoh node is connected."""
        self._link_monitor.add_watcher(changed)

    def link_problem(self) -> str:
        """As `EndpointTransport.link_problem`."""
        is_stalled = self._link_monitor.down_by_stopped_nodes or (
            self._sender is not None and self._sender.stalled_ns() is not None
        )
        return "receiver_stalled" if is_stalled else ""

    def receiver_stalled_ms(self, address: UUri) -> int | None:
        """As `EndpointTransport.receiver_stalled_ms`."""
        at_ns = None if self._sender is None else self._sender.stalled_ns(address)
        if at_ns is None:
            return None
        clock = self._context.clock
        return clock.wall_ms() - (clock.monotonic_ns() - at_ns) // 1_000_000

    def link_suspicion(self) -> str:
        """As `EndpointTransport.link_suspicion`."""
        return self._link_monitor.suspicion()

    def announce(self, announcements: frozenset[Announcement]) -> None:
        if self._config.peers is not False and self._receiving:
            self._peer_tokens.announce(announcements)

    def watch_peers(self, changed: Callable[[frozenset[Announcement]], None]) -> None:
        if self._config.peers is not False:
            self._peer_tokens.watch_announcements(changed)

    def trust_peers(self, is_trusted: Callable[[RouterId, str], bool]) -> None:
        """Nothing to do: this transport never stands by for a peer."""

    def advertise_topics(self, advertisements: frozenset[TopicAdvertisement]) -> None:
        if self._config.peers is not False and self._receiving:
            self._peer_tokens.topic_tokens.advertise(advertisements)

    def watch_topic_advertisements(
        self, changed: Callable[[frozenset[TopicAdvertisement], frozenset[TopicAdvertisement]], None]
    ) -> None:
        if self._config.peers is not False:
            self._peer_tokens.topic_tokens.watch_advertisements(changed)

    # --- listeners ----------------------------------------------------------------------------------------------------

    def register_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        registration = self._new_registration(source_filter, sink_filter, listener)
        with self._lock:
            if registration in self._registrations:
                return
            if len(self._registrations) >= MAX_LISTENERS:
                raise UStatusError(
                    UCode.RESOURCE_EXHAUSTED, f"{self!r}: {MAX_LISTENERS} listeners are the limit"
                )
            filters = registration.filters
            is_new = filters not in self._subscriptions
            if is_new:
                name, authority = self._context.name, self._context.authority
                self._subscriptions[filters] = ZenohSubscription(
                    filters,
                    name,
                    authority,
                    self._config.queue,
                    self._answered_requests,
                    self._link_monitor.connected,
                )
            self._registrations[registration] = None
            self._update_listeners()
            if is_new:
                self._start_first(registration)

    def unregister_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        registration = self._new_registration(source_filter, sink_filter, listener)
        with self._lock:
            if registration not in self._registrations:
                raise UStatusError(
                    UCode.NOT_FOUND, f"{self!r}: no such listener for {source_filter}, {sink_filter}"
                )
            del self._registrations[registration]
            self._update_listeners()
            subscription = self._subscriptions[registration.filters]
            unused = all(each.filters != registration.filters for each in self._registrations)
            if unused:
                if self._giver is not None:
                    self._giver.withdraw(registration.filters)
                del self._subscriptions[registration.filters]
                self._ending[subscription] = None
        subscription.wait_call_done(_LISTENER_TIMEOUT_S)
        if unused:
            subscription.stop()
            subscription.join(_LISTENER_TIMEOUT_S)
            with self._lock:
                del self._ending[subscription]
                self._closed_counters.update(_counters_of(subscription))

    def _new_registration(self, source: UUri, sink: UUri | None, listener: Listener) -> _Registration:
        check_filters(source, sink)
        for uuri in (source, sink):
            if uuri is not None:
                uuri.check()
        own = self._context.authority
        if self._giver is not None:
            listener = self._giver.listener(listener)
        return _Registration(
            ListenerFilters(source.with_authority(own), sink and sink.with_authority(own)), listener
        )

    def _start_first(self, first: _Registration) -> None:
        """Start the subscription that `first` created; call after `_update_listeners`, else first samples are lost."""
        if self._session is None or not self._receiving:
            return
        filters = first.filters
        self._announce_receipts(filters)
        try:
            self._subscriptions[filters].start(self._session)
            if self._giver is not None:
                self._giver.on_ready()
        except zenoh.ZError as error:
            del self._registrations[first], self._subscriptions[filters]
            if self._giver is not None:
                self._giver.withdraw(filters)
            text = f"endpoint {self._context.name!r}: cannot listen for {filters}: {zenoh_error_text(error)}"
            raise UStatusError(UCode.UNAVAILABLE, text) from error

    def _update_listeners(self) -> None:
        """Assign listeners to subscriptions; a listener receives a message once, however many of its filters match."""
        entries: dict[ListenerFilters, list[ListenerEntry]] = {filters: [] for filters in self._subscriptions}
        before: dict[Listener, list[ListenerFilters]] = {}
        for registration in self._registrations:
            filters, listener = registration.filters, registration.listener
            earlier = before.setdefault(listener, [])
            entries[filters].append(
                ListenerEntry(
                    listener, CoveredFilters(tuple(each for each in earlier if _overlap(each, filters)))
                )
            )
            earlier.append(filters)
        for filters, subscription in self._subscriptions.items():
            subscription.set_listeners(tuple(entries[filters]))

    # --- reading ------------------------------------------------------------------------------------------------------

    def call_when_read(self, action: Callable[[], None]) -> None:
        """See EndpointTransport; needs one subscription for all publications, as the streamer has."""
        with self._lock:
            publications = [each for filters, each in self._subscriptions.items() if filters.sink is None]
        if len(publications) == 1:
            publications[0].call_when_read(action)

    def receiving_threads(self) -> Sequence[ReceivingThread]:
        subscriptions = list(self._subscriptions.values())
        found = (each.receiving_thread() for each in subscriptions)
        return [each for each in found if each is not None]

    def statistics(self) -> Mapping[str, int]:
        """`received`, `sent`, `listener_errors`, `refused_<reason>` since the start; `links` (connected nodes) now.

        `refused_key_older_layout` and `refused_key_other_layout` count samples with a key of another length, up to
        about 1 000 each.
        `retransmitted` counts possibly lost messages that were put again, `not_retransmitted` those that could not be.
        `links_closed_unread` counts links that a node ended because this streamer did not read: what the node held is
        lost on its side. `links_closed_stalled` counts links that ended after 4 s without an acknowledgement.
        `sent_while_node_lost` counts messages that were sent while a node was absent, which may lack them.
        `refused_announcement` counts invalid tokens of peers, `refused_announcement_limit` and
        `refused_advertisement_limit` those over the limits. `advertisements_failed` counts our topic advertisements
        that Zenoh refused. With `receipts`: `receipts_received`, `receipts_waiting`, and `receipts_missing` (that
        never came) count one receipt for each message and receiver. `receipts_given` counts ids in own receipts,
        `receipt_duplicates` dropped copies. `receipts_not_announced` counts filters without an announcement,
        `refused_receipt` malformed receipts, and receivers and listeners above the bounds.
        """
        with self._lock:
            counts = self._closed_counters.copy()
            for subscription in (*self._subscriptions.values(), *self._ending):
                counts.update(_counters_of(subscription))
        sender = self._sender
        out = {name: getattr(sender, name, 0) for name in ("sent", "retransmitted", "not_retransmitted")}
        names = ("received", "listener_errors", *(f"refused_{each}" for each in SampleRefusalReason))
        peer_counters = {
            "refused_announcement": self._peer_tokens.refused,
            "refused_announcement_limit": self._peer_tokens.over_limit,
            "refused_advertisement_limit": self._peer_tokens.topic_tokens.over_limit,
            "advertisements_failed": self._peer_tokens.topic_tokens.failed,
        }
        return {
            **out,
            "links": len(self._link_monitor),
            "links_closed_unread": self._link_monitor.closed_unread,
            "links_closed_stalled": self._link_monitor.closed_stalled,
            "sent_while_node_lost": self._link_monitor.sent_while_node_lost,
            **{name: counts[name] for name in names},
            **self._foreign_keys.counters(),
            **peer_counters,
            **self._receipt_counters(),
        }

    def _receipt_counters(self) -> dict[str, int]:
        giver, awaited = self._giver, self._awaited
        if giver is None or awaited is None:
            return {}
        return {
            "receipts_given": giver.given,
            "receipts_not_announced": giver.not_announced,
            "receipt_duplicates": giver.duplicates,
            "receipts_received": awaited.received,
            "receipts_missing": awaited.missing,
            "receipts_waiting": awaited.count,
            "refused_receipt": awaited.refused,
        }

    def __repr__(self) -> str:
        state = "closed" if self._closed else "new" if self._sender is None else "open"
        return f"<ZenohTransport {self._context.name!r}: {state}, {len(self._registrations)} listeners>"


def zenoh_config(config: ZenohEndpoint, endpoint: str) -> zenoh.Config:
    """The session's configuration; reads the file. INVALID_ARGUMENT names the setting that Zenoh refuses."""
    where = f"endpoint {endpoint!r}"
    try:
        if config.config is not None:
            where = f"endpoint {endpoint!r}: Zenoh configuration '{config.config}'"
            zenoh_settings = zenoh.Config.from_file(str(config.config))
        else:
            zenoh_settings = zenoh.Config()
        for path, value in _settings(config).items():
            text = msgspec.json.encode(value).decode()
            where = f"endpoint {endpoint!r}: Zenoh's {path} = {text}"
            zenoh_settings.insert_json5(path, text)
        where = f"endpoint {endpoint!r}: identities"
        if config.identities:
            _set_access_control(zenoh_settings, config)
        if msgspec.json.decode(zenoh_settings.get_json(_AGGREGATION)) == []:
            # Zenoh declares one aggregated publisher to adjacent nodes, not each: 0.1 ms instead of 7 at 2 500 topics.
            zenoh_settings.insert_json5(_AGGREGATION, msgspec.json.encode([EVERY_KEY]).decode())
        for path in ("listen/endpoints", "connect/endpoints"):  # those of the file too
            where = f"endpoint {endpoint!r}: Zenoh's {path}"
            for locator in _locators(zenoh_settings, path):
                check_parameters(locator)
    except zenoh.ZError as error:
        raise invalid_argument(f"{where}: {zenoh_error_text(error)}") from error
    except ValueError as error:
        raise invalid_argument(f"{where}: {error}") from error
    return zenoh_settings


def _listen_locators(settings: zenoh.Config) -> list[str]:
    """The locators to listen on in the mode of the session."""
    found = msgspec.json.decode(settings.get_json("listen/endpoints"))
    if isinstance(found, dict):
        mode = msgspec.json.decode(settings.get_json("mode")) or "peer"
        found = found.get(mode) or ()
    return [each for each in found if isinstance(each, str)]


def _locators(settings: zenoh.Config, path: str) -> list[str]:
    """The locators at `path`: one list, or one per mode."""
    found = msgspec.json.decode(settings.get_json(path))
    lists = [found] if isinstance(found, list) else found.values()
    return [each for part in lists for each in part or () if isinstance(each, str)]


def _set_access_control(settings: zenoh.Config, config: ZenohEndpoint) -> None:
    """Let only the identities send. Raises ZError if the file does not authenticate them."""
    from ustreamer.transports.zenoh.access_control import access_control  # few endpoints have identities

    def setting(path: str) -> object:
        return msgspec.json.decode(settings.get_json(path))

    if any(each.certificate for each in config.identities) and not setting(_MTLS):
        raise zenoh.ZError(f"certificates are not required: set {_MTLS} to true in the file")
    if any(each.user for each in config.identities) and not setting(_USERS):
        raise zenoh.ZError(f"users are not known: set {_USERS} in the file")
    if setting("access_control/enabled"):
        raise zenoh.ZError("access_control of the file would be replaced: leave it out of the file")
    text = msgspec.json.encode(access_control(config.identities)).decode()
    settings.insert_json5("access_control", text)


def _receipt_parts(
    config: ZenohEndpoint, context: EndpointContext
) -> "tuple[AwaitedReceipts, ReceiptGiver] | tuple[None, None]":
    """The two sides of receipts, if the endpoint has them. Few have: their modules are imported here."""
    if not config.receipts:
        return None, None
    from ustreamer.transports.zenoh.receipts.awaited_receipts import AwaitedReceipts
    from ustreamer.transports.zenoh.receipts.receipt_giver import ReceiptGiver

    instance, window_ns = context.instance or "0", config.retransmit_ms * 1_000_000
    awaited = AwaitedReceipts(instance, context.clock.monotonic_ns, window_ns)
    giver = ReceiptGiverId(context.authority, context.name, instance)
    return awaited, ReceiptGiver(giver, context.clock.monotonic_ns)


def _settings(config: ZenohEndpoint) -> dict[str, object]:
    """Zenoh's paths and values for the keys of our section."""
    section = config.in_force()
    settings = {
        "mode": section.mode,
        "listen/endpoints": section.listen,
        "connect/endpoints": section.connect,
        "scouting/multicast/enabled": section.scouting,
    }
    return {path: value for path, value in settings.items() if value is not None}


def _socket_file_obstacle(locator: str) -> str:
    """The reason why Zenoh may not bind a Unix socket; empty if it may, and for another protocol.

    Zenoh removes what is at the path and at its lock file, whatever it is.
    """
    match = re.match(_SOCKET, locator)
    if match is None:
        return ""
    from ustreamer.core.storage.socket_files import lock_obstacle, socket_obstacle  # few listen at a socket

    return socket_obstacle(Path(match[1])) or lock_obstacle(Path(f"{match[1]}.lock"))


def _port_in_use(locator: str) -> str | None:
    """The reason why a locator cannot be listened on; None if it can, or if it has no port."""
    if obstacle := _socket_file_obstacle(locator):
        return f"listen: {locator}: {obstacle}"
    match = re.match(_LISTENER, locator)
    if match is None:
        return None
    host, port = match[2].strip("[]"), int(match[3])
    if port > 0xFFFF:
        return f"listen: port {port} of {locator} is not in 0 to 65535"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    is_udp = match[1] in {"udp", "quic"}
    with socket.socket(family, socket.SOCK_DGRAM if is_udp else socket.SOCK_STREAM) as probe:
        if not is_udp:  # a port closed just now is free, as for Zenoh
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return f"listen: cannot listen on {locator}: {error.strerror}"
    return None


def _describe_addresses(config: zenoh.Config) -> str:
    mode, listen, connect = (
        config.get_json(path) for path in ("mode", "listen/endpoints", "connect/endpoints")
    )
    return f"mode {mode}, listening on {listen}, connecting to {connect}"


def _counters_of(subscription: ZenohSubscription) -> dict[str, int]:
    refused = {f"refused_{each}": count for each, count in subscription.refused.items()}
    return {"received": subscription.received, "listener_errors": subscription.listener_errors, **refused}


def _overlap(one: ListenerFilters, other: ListenerFilters) -> bool:
    """True if a message can match both."""
    if one.sink is None or other.sink is None:
        return one.sink is other.sink and _intersect(one.source, other.source)
    return _intersect(one.sink, other.sink) and _intersect(one.source, other.source)


def _intersect(one: UUri, other: UUri) -> bool:
    """True if an address can match both patterns: each part is equal, or a wildcard on either side."""
    parts = zip(_parts(one), _parts(other), _parts(ANY), strict=True)
    return all(a == b or wildcard in (a, b) for a, b, wildcard in parts)


def _parts(uuri: UUri) -> tuple[str | int, ...]:
    return uuri.authority_name, uuri.ue_type, uuri.ue_instance, uuri.ue_version_major, uuri.resource_id
