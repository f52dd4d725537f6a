# SPDX-License-Identifier: Apache-2.0
"""The listeners, on an asyncio loop in their own thread; other threads use `run_on_loop`."""

import asyncio
import logging
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, ParamSpec

from ustreamer.core.base.log_limit import limited
from ustreamer.core.storage.socket_files import socket_obstacle
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer_wamp import errors
from ustreamer_wamp.config import ListenAddress, Tls, WampConfig
from ustreamer_wamp.connections.admission import Admission, AdmissionLimits, address_group_of
from ustreamer_wamp.connections.connection import (
    HANDSHAKE_BYTES,
    TLS_HANDSHAKE_BYTES,
    Connection,
    ConnectionContext,
    ConnectionOptions,
)
from ustreamer_wamp.connections.rawsocket import RawSocketConnection
from ustreamer_wamp.connections.websocket import HttpGate, WebSocketConnection
from ustreamer_wamp.realm import Realm

log = logging.getLogger("ustreamer.wamp")

P = ParamSpec("P")

_TICK_S: Final = 0.25
_CERTIFICATE_CHECK_NS: Final = 2 * 10**9  # between two checks of the certificate files
_GOODBYE_S: Final = 2.0
_JOIN_S: Final = 5.0
_BACKLOG: Final = 128
_ACCEPTS_PER_TURN: Final = 32
"""Connections accepted in one iteration of the loop, which serves clients in between."""
_ACCEPT_RETRY_S: Final = 1.0
_MAX_REFUSED: Final = 32
"""Connections at one time that wait for the reason of their refusal; further ones are closed without a reason."""
_NS_PER_S: Final = 10**9


class WampServer:
    """All listeners of one section. `open`, serve, `close`; not reusable."""

    def __init__(
        self,
        config: WampConfig,
        realms: Mapping[str, Realm],
        monotonic_ns: Callable[[], int],
        counts: Counter[str],
        pages: Callable[[str], Mapping[str, Callable[[], tuple[str, bytes]]]] = lambda _: {},
        tick: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`pages`: by WebSocket path, the pages for a plain GET.

        `tick` gets the monotonic time four times a second.
        """
        self._on_tick = tick
        self._config = config
        self._monotonic_ns = monotonic_ns
        self._pages = pages
        self._counts = counts
        self._context = ConnectionContext(
            realms=realms,
            monotonic_ns=monotonic_ns,
            cpu_ns=time.thread_time_ns,
            outbox=config.outbox,
            admission=Admission(
                AdmissionLimits(
                    config.max_sessions,
                    config.max_sessions_per_address,
                    config.max_connects_per_s,
                    config.max_unfinished_bytes,
                    config.max_cpu_percent_per_address,
                )
            ),
            max_message_bytes=config.max_message_bytes,
            max_hello_bytes=config.max_hello_bytes,
            max_control_frames_per_s=config.max_control_frames_per_s,
            hello_timeout_ns=config.hello_timeout_s * _NS_PER_S,
            message_timeout_ns=config.message_timeout_s * _NS_PER_S,
            ping_interval_ns=config.ping_interval_s * _NS_PER_S,
            pong_timeout_ns=config.pong_timeout_s * _NS_PER_S,
            close_timeout_ns=5 * _NS_PER_S,
            counts=counts,
            refusals=next(iter(realms.values())).refusals,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="wamp", daemon=True)
        self._admission = self._context.admission
        self._connections: dict[Connection, None] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._listening: list[socket.socket] = []
        self._tls: _Certificates | None = None
        self._accepting = True
        self._all_closed: asyncio.Event | None = None
        self.urls: list[str] = []
        """The listening addresses, with the assigned port in place of 0."""

    # --- life -----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open all listeners and start the thread. Raises UStatusError(UNAVAILABLE) naming the failed address."""
        bound: list[tuple[ListenAddress, socket.socket]] = []
        try:
            if self._config.tls is not None and any(each.tls for each in self._config.listeners):
                self._tls = _Certificates(self._config.tls)
            bound.extend((listen, _listening_socket(listen)) for listen in self._config.listeners)
        except UStatusError:
            for _, each in bound:
                each.close()
            self._loop.close()
            raise
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._serve(bound), self._loop).result(_JOIN_S)
        except BaseException:
            self.close()
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _serve(self, bound: list[tuple[ListenAddress, socket.socket]]) -> None:
        for listen, each in bound:
            each.setblocking(False)
            each.listen(_BACKLOG)
            self._listening.append(each)
            self._loop.add_reader(each, self._on_connectable, listen, each)
            self.urls.append(_url(listen, each))
        self._tick()

    def stop_accepting(self) -> None:
        """Refuse new connections; sessions continue."""
        self.run_on_loop(self._stop_accepting)

    def _stop_accepting(self) -> None:
        self._accepting = False
        listening, self._listening = self._listening, []
        for each in listening:
            self._loop.remove_reader(each)
            each.close()

    def close(self) -> None:
        """Send GOODBYE to all sessions, close everything, end the thread. May be repeated."""
        if not self._thread.is_alive():
            if not self._loop.is_closed() and not self._loop.is_running():
                self._loop.close()
            return
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result(_JOIN_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_JOIN_S)
        self._loop.close()
        for listen in self._config.listeners:
            if listen.socket:
                Path(listen.socket).unlink(missing_ok=True)

    async def _shut_down(self) -> None:
        self._stop_accepting()
        self._all_closed = asyncio.Event()
        await asyncio.sleep(0)
        for connection in list(self._connections):
            connection.shut_down(errors.SYSTEM_SHUTDOWN)
        if self._connections:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_closed.wait(), _GOODBYE_S)
        for connection in list(self._connections):
            connection.abort()
        if self._opening:
            await asyncio.wait(self._opening, timeout=_GOODBYE_S)
        await asyncio.sleep(0)  # their sockets are closed in the next iteration

    def run_on_loop(self, function: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> bool:
        """Run a call on the loop's thread, from any other thread; False if the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(partial(function, *args, **kwargs))
        except RuntimeError:  # closed
            return False
        return True

    def run_after(self, seconds: float, function: Callable[[], None]) -> None:
        """Run a call after a delay. On the loop's thread only."""
        self._loop.call_later(seconds, function)

    # --- connections ----------------------------------------------------------------------------------------

    def _on_connectable(self, listen: ListenAddress, listening: socket.socket) -> None:
        """Accept waiting connections. Each has a place, or is refused, before anything is read from it."""
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                accepted, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file descriptor or memory left
                self._counts["accept_failures"] += 1
                log.warning("wamp.accept_failed", extra={"reason": str(error), **limited()})
                self._loop.remove_reader(listening)
                self._loop.call_later(_ACCEPT_RETRY_S, self._accept_again, listen, listening)
                return
            self._admit(listen, accepted, str(peer[0]) if isinstance(peer, tuple) else "")

    def _accept_again(self, listen: ListenAddress, listening: socket.socket) -> None:
        if listening in self._listening:
            self._loop.add_reader(listening, self._on_connectable, listen, listening)

    def _admit(self, listen: ListenAddress, accepted: socket.socket, address: str) -> None:
        accepted.setblocking(False)
        group = address_group_of(address)
        may_connect = self._admission.may_connect(group, self._monotonic_ns())
        reason = (
            self._refusal(group) if may_connect else "max_connects_per_s: this address connects too often"
        )
        if reason:
            self._counts["refused_too_many"] += 1
            self._context.refusals.add("too_many", group or "unix")
            log.warning(
                "wamp.client_refused", extra={"peer": group or "unix", "reason": reason, **limited(group)}
            )
            refused = len(self._connections) - len(self._admission)
            if listen.tls or not may_connect or refused >= _MAX_REFUSED:
                accepted.close()
                return
        connection = self._make_connection(
            listen,
            {
                "private": listen.tls or bool(listen.socket),
                "address": address,
                "accepted": accepted,
                "refusal_reason": reason,
            },
        )
        self._connections[connection] = None
        if not reason:
            self._admission.add(connection)
            connection.start_handshake(TLS_HANDSHAKE_BYTES if listen.tls else HANDSHAKE_BYTES)
        opening = self._loop.create_task(self._open_connection(connection, accepted, tls=listen.tls))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    def _refusal(self, group: str) -> str:
        """Why a group gets no further connection; "" if it gets one, for which another one may end."""
        config = self._config
        if not self._admission.has_room(group):
            return f"max_sessions_per_address: there are {config.max_sessions_per_address} of {group} already"
        if self._admission.is_full():
            reason = f"max_sessions: there are {config.max_sessions} already"
            largest = self._admission.largest(group)
            if largest is None:
                return reason
            largest.evict(reason)
        return ""

    async def _open_connection(self, connection: Connection, accepted: socket.socket, *, tls: bool) -> None:
        """Run the TLS handshake, if any, and connect the protocol to its socket."""
        context = self._tls.context if tls and self._tls is not None else None
        try:
            await self._loop.connect_accepted_socket(lambda: connection, accepted, ssl=context)
        except OSError as error:  # the client has no or another TLS, or is gone, or took too long
            # Its frames and itself are a cycle with the TLS buffers of asyncio, 256 KiB, until a garbage collection.
            error.__traceback__ = None
            self._counts["refused_tls_handshake"] += 1
            self._context.refusals.add("tls_handshake", connection.address_group)
            self._on_closed(connection)

    def _make_connection(self, listen: ListenAddress, options: ConnectionOptions) -> Connection:
        ends = (self._context, self._loop, self._on_connected, self._on_closed)
        if not listen.websocket:
            return RawSocketConnection(*ends, **options)
        http_gate = HttpGate(listen.path, self._config.origins, self._pages(listen.path))
        return WebSocketConnection(*ends, http_gate, **options)

    def _on_connected(self, connection: Connection) -> None:
        """The connection is open; with TLS, its handshake is complete."""
        if not self._accepting:
            connection.refusal_reason = "the router stops"

    def _on_closed(self, connection: Connection) -> None:
        if self._connections.pop(connection, self) is self:
            return
        self._admission.remove(connection)
        if not self._connections and self._all_closed is not None:
            self._all_closed.set()

    def _tick(self) -> None:
        """Check all deadlines. A part that raises stops neither the other parts nor the next tick."""
        self._loop.call_later(_TICK_S, self._tick)
        now_ns = self._monotonic_ns()
        reload = () if self._tls is None else (self._tls.reload_if_changed,)
        for tick in (*(each.tick for each in self._connections), self._on_tick, *reload):
            try:
                tick(now_ns)
            except Exception:  # a defect of one connection must not keep the others open for ever
                self._counts["tick_errors"] += 1
                log.exception("wamp.tick_failed", extra=limited())

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def unfinished_bytes(self) -> int:
        """The bytes of handshakes and messages in progress, of all connections."""
        return self._admission.unfinished_bytes


class _Certificates:
    """A TLS context for later connections. A new one replaces it when a file of `tls` has changed."""

    def __init__(self, tls: Tls) -> None:
        """Raises UStatusError(UNAVAILABLE) that names the files."""
        self._tls = tls
        self._files = [each for each in (tls.certificate, tls.key, tls.client_ca) if each is not None]
        self._checked_ns = 0
        try:
            self._loaded_stamp = self._stamp()
            self.context = self._load()
        except (OSError, ValueError) as error:
            files = ", ".join(map(str, self._files))
            text = f"TLS certificate and key in {files}: {error}: expected PEM, and a key without password"
            raise UStatusError(UCode.UNAVAILABLE, text) from error

    def _stamp(self) -> tuple[tuple[int, int], ...]:
        found = [path.stat() for path in self._files]
        return tuple((each.st_mtime_ns, each.st_ino) for each in found)

    def _load(self) -> ssl.SSLContext:
        """Read all files. Raises OSError, ValueError for an encrypted key."""
        tls = self._tls
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
        if tls.client_ca is not None:
            context.load_verify_locations(tls.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def reload_if_changed(self, now_ns: int) -> None:
        """Reload changed files; invalid ones are logged, and the old context stays."""
        if now_ns - self._checked_ns < _CERTIFICATE_CHECK_NS:
            return
        self._checked_ns = now_ns
        try:
            stamp = self._stamp()
            if stamp == self._loaded_stamp:
                return
            self.context = self._load()  # not into the old one: it would keep an authority that was replaced
        except (OSError, ValueError) as error:
            log.warning("wamp.certificate_not_loaded", extra={"reason": str(error)})
            return
        self._loaded_stamp = stamp
        log.info("wamp.certificate_loaded", extra={"certificate": str(self._tls.certificate)})


def _no_password() -> str:
    """Without it OpenSSL asks on the terminal."""
    raise ValueError("the key is encrypted")


def problems(config: WampConfig) -> list[str]:
    """The problems of addresses and certificate files that would make `WampServer.open` fail."""
    found = []
    for each in config.listeners:
        try:
            if not each.socket:
                _listening_network_socket(each).close()
        except OSError as error:
            found.append(f"listen: cannot listen on {each.url}: {error.strerror or error}")
    if config.tls is not None and any(each.tls for each in config.listeners):
        found += _certificate_problems(config.tls)
    obstacles = (socket_obstacle(Path(each.socket)) for each in config.listeners if each.socket)
    found += [f"listen: {obstacle}" for obstacle in obstacles if obstacle]
    return found


def _certificate_problems(tls: Tls) -> list[str]:
    files = [each for each in (tls.certificate, tls.key, tls.client_ca) if each is not None]
    if missing := [f"tls: {path} is no file" for path in files if not path.is_file()]:
        return missing
    try:
        _Certificates(tls)
    except UStatusError as error:
        return [f"tls: {error.message}"]
    return []


def _listening_socket(listen: ListenAddress) -> socket.socket:
    try:
        return _listening_unix_socket(listen.socket) if listen.socket else _listening_network_socket(listen)
    except OSError as error:
        raise UStatusError(UCode.UNAVAILABLE, f"listen {listen.url}: {error}") from error


def _listening_network_socket(listen: ListenAddress) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(
        listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def _listening_unix_socket(path: str) -> socket.socket:
    if obstacle := socket_obstacle(Path(path)):
        raise FileExistsError(obstacle)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        Path(path).unlink(missing_ok=True)  # a stale socket
        bound.bind(path)
        Path(path).chmod(0o660)
    except OSError:
        bound.close()
        raise
    return bound


def _url(listen: ListenAddress, bound: socket.socket) -> str:
    if listen.socket:
        return listen.url
    scheme = ("ws" if listen.websocket else "rs") + "s" * listen.tls
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    return f"{scheme}://{host}:{bound.getsockname()[1]}{listen.path}"
