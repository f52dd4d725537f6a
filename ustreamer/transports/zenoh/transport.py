# SPDX-License-Identifier: Apache-2.0
"""The Zenoh transport: one session per endpoint, because sessions that share one share its stalls."""

import atexit
import json
import logging
import os
import re
import socket
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from threading import Lock
from typing import Final, NamedTuple

import zenoh

from ustreamer.core.delivery.delivery import BulkTransmit, Transmit
from ustreamer.core.peers.election import Announcement
from ustreamer.core.peers.topic_advertisements import Put
from ustreamer.hooks import EndpointContext, EndpointTransport
from ustreamer.transports.zenoh.config import ZenohEndpoint
from ustreamer.transports.zenoh.decoder import Reason
from ustreamer.transports.zenoh.errors import reason
from ustreamer.transports.zenoh.link_monitor import Links, lease_ms
from ustreamer.transports.zenoh.peer_tokens import Tokens
from ustreamer.transports.zenoh.publisher import Sender
from ustreamer.transports.zenoh.retransmit import Answered, Replay
from ustreamer.transports.zenoh.subscriber import Call, Filters, Given, Reception
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid
from ustreamer.uprotocol.utransport import Listener
from ustreamer.uprotocol.uuri import ANY, ANY_AUTHORITY, UUri, check_authority, check_filters

log = logging.getLogger("ustreamer.zenoh")

MAX_LISTENERS: Final = 256
_RUNTIME: Final = "(rx: (worker_threads: 16))"
"""Zenoh reads the sockets of all sessions of a process on two threads. To close one whose peer has stopped reading blocks
such a thread for up to 10 s (SO_LINGER), so two stalled peers made every endpoint deaf (measured: for 7.3 s)."""
_TCP: Final = re.compile(r"tcp/(.+):(\d+)")
_PATIENCE_S: Final = 5.0  # with listeners, which are to be quick, and may be stuck, or wait for each other


class _Registration(NamedTuple):
    filters: Filters
    listener: Listener


class ZenohTransport(EndpointTransport):
    """uProtocol over one Zenoh session.

    A send means that Zenoh has taken the message: it tells nobody whether it arrived. With no node connected it is
    UNAVAILABLE; just after a link came up, it waits until a subscriber matches (1 s, after an outage 5 s). What `transmitter`
    gives never waits, and is RouteUnavailable where no subscriber matches. What was put shortly before the subscribers of
    a route were lost is put again when they are back (`replay_ms`), but for requests that have been answered.
    """

    def __init__(self, config: ZenohEndpoint, context: EndpointContext) -> None:
        check_authority(context.authority, f"authority of endpoint {context.name}")
        if context.authority == ANY_AUTHORITY:
            raise invalid(f"endpoint {context.name!r}: authority '*', expected the name of one authority")
        self._config = config
        self._context = context
        self._session: zenoh.Session | None = None
        self._sender: Sender | None = None
        self._links = Links(context)
        self._answered = Answered(config.replay_messages if config.replay_ms else 0)
        trusted = () if isinstance(config.neighbours, bool) else config.neighbours
        self._tokens = Tokens(context.name, trusted)
        self._route_watchers: list[Callable[[Hashable], None]] = []
        self._receiving = True
        self._closed = False
        # Never held while a listener runs or is waited for: a listener may register another.
        self._lock = Lock()
        self._registrations: dict[_Registration, None] = {}
        self._receptions: dict[Filters, Reception] = {}
        self._retired = Counter[str]()

    # --- life ---------------------------------------------------------------------------------------------------------

    def problems(self) -> Sequence[str]:
        """A configuration that Zenoh refuses, and TCP ports to listen on that are taken."""
        try:
            listen = json.loads(zenoh_config(self._config, self._context.name).get_json("listen/endpoints"))
        except UStatusError as error:
            return [error.message]
        everywhere = (
            listen if isinstance(listen, list) else [each for part in listen.values() for each in part]
        )
        return [problem for locator in everywhere if (problem := _taken(locator))]

    def open(self) -> None:
        """Open the session and declare what was registered.

        Raises UStatusError: UNAVAILABLE naming the addresses if they cannot be had (a client's router must be there; a
        peer goes on trying), INVALID_ARGUMENT for a configuration that Zenoh refuses, FAILED_PRECONDITION when repeated.
        """
        if self._sender is not None or self._closed:
            raise UStatusError(UCode.FAILED_PRECONDITION, f"{self!r}: can be opened once")
        config = zenoh_config(self._config, self._context.name)
        os.environ.setdefault("ZENOH_RUNTIME", _RUNTIME)  # read by Zenoh when the first session is opened
        try:
            session = zenoh.open(config)
        except zenoh.ZError as error:
            text = f"endpoint {self._context.name!r}: no Zenoh session, {_addresses(config)}: {reason(error)}"
            raise UStatusError(UCode.UNAVAILABLE, text) from error
        # Python waits for no daemon thread at its end, and one that is inside Zenoh then aborts the process.
        atexit.register(self.close)
        replay = Replay(self._config.replay_ms, self._config.replay_messages, self._config.replay_bytes)
        self._sender = Sender(session, self._links, self._context, replay, self._answered, self._route_opened)
        self._links.watch(
            session, lease_ms(config)
        )  # after the sender: who is told that the link is up sends at once
        # Before the first message is asked for: whose it is should be known by then.
        self._tokens.start(session)
        with self._lock:
            self._session = session
            for reception in self._receptions.values():
                reception.start(session)

    def stop_receiving(self) -> None:
        """Undeclare all subscribers; what has come in still goes to the listeners, for 5 s at most."""
        self._tokens.announce(frozenset())  # and nothing in between: another streamer may take over at once
        self._tokens.puts.end()
        with self._lock:
            self._receiving = False
            receptions = list(self._receptions.values())
        for reception in receptions:
            reception.end()
        monotonic_ns = self._context.clock.monotonic_ns
        until_ns = monotonic_ns() + round(_PATIENCE_S * 1e9)
        for reception in receptions:
            reception.join(max(0, until_ns - monotonic_ns()) / 1e9)

    def close(self) -> None:
        """End all threads and the session: at once, or within 20 s if a listener is stuck or a send waits."""
        self.stop_receiving()
        self._closed = True
        with self._lock:
            session, self._session = self._session, None
        if session is None or self._sender is None:
            return
        atexit.unregister(self.close)
        self._sender.close()
        self._tokens.close()
        self._links.close()
        try:
            session.close()  # type: ignore[no-untyped-call]
        except zenoh.ZError as error:  # it waits 10 s for its own threads and then goes on without them
            log.warning("zenoh.close", extra={"endpoint": self._context.name, "why": reason(error)})

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(self, message: UMessage) -> None:
        sender = self._sender
        if sender is None or self._closed:
            message.check(strict=False)
            raise UStatusError(UCode.UNAVAILABLE, f"{self!r} is not open")
        sender.send(message)

    def transmitter(self, subscriber: UUri | None) -> Transmit:
        sender = self._sender
        return self._transmit if sender is None or self._closed else sender.put

    def bulk_transmitter(self, subscriber: UUri | None) -> BulkTransmit:
        sender = self._sender
        return super().bulk_transmitter(subscriber) if sender is None or self._closed else sender.put_all

    def room(self) -> int:
        """What the kernel's buffers of all links have room for; 0 where one is not over TCP, or cannot be asked."""
        return self._links.room()

    def _transmit(self, message: UMessage) -> None:
        """As `send`, and never waits: for whoever keeps what is refused, and is told when its route is open."""
        sender = self._sender
        if sender is None or self._closed:
            return self.send(message)  # which says so
        sender.put(message)
        return None

    def watch_routes(self, opened: Callable[[Hashable], None]) -> None:
        self._route_watchers.append(opened)

    def _route_opened(self, route: Hashable) -> None:
        for opened in self._route_watchers:
            opened(route)

    def watch_link(self, changed: Callable[[bool], None]) -> None:
        """As EndpointTransport says; the link is up while at least one Zenoh node is connected."""
        self._links.tell(changed)

    def announce(self, announcements: frozenset[Announcement]) -> None:
        if self._config.neighbours is not False and self._receiving:
            self._tokens.announce(announcements)

    def watch_neighbours(self, changed: Callable[[frozenset[Announcement]], None]) -> None:
        if self._config.neighbours is not False:
            self._tokens.watch(changed)

    def announce_puts(self, puts: frozenset[Put]) -> None:
        if self._config.neighbours is not False and self._receiving:
            self._tokens.puts.announce(puts)

    def watch_puts(self, changed: Callable[[frozenset[Put], frozenset[Put]], None]) -> None:
        if self._config.neighbours is not False:
            self._tokens.puts.watch(changed)

    # --- listeners ----------------------------------------------------------------------------------------------------

    def register_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        registration = self._registration(source_filter, sink_filter, listener)
        with self._lock:
            if registration in self._registrations:
                return
            if len(self._registrations) >= MAX_LISTENERS:
                raise UStatusError(
                    UCode.RESOURCE_EXHAUSTED, f"{self!r}: {MAX_LISTENERS} listeners are the limit"
                )
            filters = registration.filters
            is_new = filters not in self._receptions
            if is_new:
                name, authority = self._context.name, self._context.authority
                self._receptions[filters] = Reception(
                    filters, name, authority, self._config.queue, self._answered
                )
            self._registrations[registration] = None
            self._assign()
            if is_new:
                self._start(registration)

    def unregister_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        registration = self._registration(source_filter, sink_filter, listener)
        with self._lock:
            if registration not in self._registrations:
                raise UStatusError(
                    UCode.NOT_FOUND, f"{self!r}: no such listener for {source_filter}, {sink_filter}"
                )
            del self._registrations[registration]
            self._assign()
            reception = self._receptions[registration.filters]
            unused = all(each.filters != registration.filters for each in self._registrations)
            if unused:
                del self._receptions[registration.filters]
        reception.wait_call_done(_PATIENCE_S)
        if unused:
            reception.end()
            reception.join(_PATIENCE_S)
            with self._lock:
                self._retired.update(_counts(reception))

    def _registration(self, source: UUri, sink: UUri | None, listener: Listener) -> _Registration:
        check_filters(source, sink)
        for uuri in (source, sink):
            if uuri is not None:
                uuri.check()
        own = self._context.authority
        return _Registration(Filters(source.with_authority(own), sink and sink.with_authority(own)), listener)

    def _start(self, first: _Registration) -> None:
        """Receive what `first` is the first to ask for: after it was assigned, as what comes at once is not kept."""
        if self._session is None or not self._receiving:
            return
        filters = first.filters
        try:
            self._receptions[filters].start(self._session)
        except zenoh.ZError as error:
            del self._registrations[first], self._receptions[filters]
            text = f"endpoint {self._context.name!r}: cannot listen for {filters}: {reason(error)}"
            raise UStatusError(UCode.UNAVAILABLE, text) from error

    def _assign(self) -> None:
        """Tell each reception whom to call; a listener is given a message once, however many of its filters match."""
        calls: dict[Filters, list[Call]] = {filters: [] for filters in self._receptions}
        before: dict[Listener, list[Filters]] = {}
        for filters, listener in self._registrations:
            earlier = before.setdefault(listener, [])
            calls[filters].append(
                Call(listener, Given(tuple(each for each in earlier if _overlap(each, filters))))
            )
            earlier.append(filters)
        for filters, reception in self._receptions.items():
            reception.use(tuple(calls[filters]))

    # --- reading ------------------------------------------------------------------------------------------------------

    def statistics(self) -> Mapping[str, int]:
        """`received`, `sent`, `listener_errors`, `refused_<reason>` since the start; `links` (connected nodes) now.

        Of what was sent, `replayed` was put again because it may have been lost, and `unreplayed` could not be. Of what other
        streamers announce, `refused_announcement` could not be read, `refused_announcement_room` was too much, and so was
        `refused_put_room` of what they say that they put. Of what we put, Zenoh would not say `undeclared_puts`.
        """
        with self._lock:
            counts = self._retired.copy()
            for reception in self._receptions.values():
                counts.update(_counts(reception))
        sender = self._sender
        out = {name: getattr(sender, name, 0) for name in ("sent", "replayed", "unreplayed")}
        names = ("received", "listener_errors", *(f"refused_{each}" for each in Reason))
        announced = {
            "refused_announcement": self._tokens.refused,
            "refused_announcement_room": self._tokens.crowded_out,
            "refused_put_room": self._tokens.puts.crowded_out,
            "undeclared_puts": self._tokens.puts.undeclared,
        }
        return {**out, "links": len(self._links), **{name: counts[name] for name in names}, **announced}

    def __repr__(self) -> str:
        state = "closed" if self._closed else "new" if self._sender is None else "open"
        return f"<ZenohTransport {self._context.name!r}: {state}, {len(self._registrations)} listeners>"


def zenoh_config(config: ZenohEndpoint, endpoint: str) -> zenoh.Config:
    """The session's configuration; reads the file. INVALID_ARGUMENT naming what Zenoh does not accept."""
    where = f"endpoint {endpoint!r}"
    try:
        if config.config is not None:
            where = f"endpoint {endpoint!r}: Zenoh configuration '{config.config}'"
            made = zenoh.Config.from_file(str(config.config))
        else:
            made = zenoh.Config()
        for path, value in _settings(config).items():
            where = f"endpoint {endpoint!r}: Zenoh's {path} = {json.dumps(value)}"
            made.insert_json5(path, json.dumps(value))
    except zenoh.ZError as error:
        raise invalid(f"{where}: {reason(error)}") from error
    return made


def _settings(config: ZenohEndpoint) -> dict[str, object]:
    """Zenoh's paths and values for the keys of our section; without a file, nothing is left to Zenoh's defaults."""
    alone = config.config is None
    settings = {
        "mode": config.mode or ("peer" if alone else None),
        "listen/endpoints": config.listen if config.listen is not None or not alone else (),
        "connect/endpoints": config.connect if config.connect is not None or not alone else (),
        "scouting/multicast/enabled": config.scouting if config.scouting is not None or not alone else False,
    }
    return {path: value for path, value in settings.items() if value is not None}


def _taken(locator: str) -> str | None:
    """Why a TCP locator such as tcp/127.0.0.1:7447 cannot be listened on; None if it can, or is of another protocol."""
    match = _TCP.match(locator)
    if match is None:
        return None
    host, port = match[1].strip("[]"), int(match[2])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what just closed is free, as for Zenoh
        try:
            probe.bind((host, port))
        except OSError as error:
            return f"listen: cannot listen on {locator}: {error.strerror}"
    return None


def _addresses(config: zenoh.Config) -> str:
    mode, listen, connect = (
        config.get_json(path) for path in ("mode", "listen/endpoints", "connect/endpoints")
    )
    return f"mode {mode}, listening on {listen}, connecting to {connect}"


def _counts(reception: Reception) -> dict[str, int]:
    refused = {f"refused_{each}": count for each, count in reception.refused.items()}
    return {"received": reception.received, "listener_errors": reception.listener_errors, **refused}


def _overlap(one: Filters, other: Filters) -> bool:
    """Whether some message matches both."""
    if one.sink is None or other.sink is None:
        return one.sink is other.sink and _intersect(one.source, other.source)
    return _intersect(one.sink, other.sink) and _intersect(one.source, other.source)


def _intersect(one: UUri, other: UUri) -> bool:
    """Whether some address matches both patterns: part by part equal, or a wildcard on either side."""
    parts = zip(_parts(one), _parts(other), _parts(ANY), strict=True)
    return all(a == b or wildcard in (a, b) for a, b, wildcard in parts)


def _parts(uuri: UUri) -> tuple[str | int, ...]:
    return uuri.authority_name, uuri.ue_type, uuri.ue_instance, uuri.ue_version_major, uuri.resource_id
