# SPDX-License-Identifier: Apache-2.0
"""Accepts TCP connections from ECUs, within limits per host and in total. Every other connection is reset at once."""

import logging
import socket
from collections.abc import Callable
from typing import Final

from ustreamer.core.base.log_limit import limited
from ustreamer.transports.someip.io.tcp_connection import close_with_reset, open_listener
from ustreamer.transports.someip.protocol.addresses import TcpAddress
from ustreamer.transports.someip.protocol.socket_marks import UNMARKED, SocketMarks
from ustreamer.transports.someip.protocol.tcp_config import TcpConfig, TcpReason

log = logging.getLogger("ustreamer.someip")

_MAX_ACCEPTS_PER_TICK: Final = 16  # then other sockets are served


class TcpAcceptor:
    """Belongs to the receiving thread."""

    def __init__(
        self,
        limits: TcpConfig,
        is_known_host: Callable[[str], bool],
        on_accepted: Callable[[socket.socket, TcpAddress], None],
        on_refused: Callable[[TcpReason, TcpAddress], None],
    ) -> None:
        """`on_accepted` takes over a connection; its owner calls `on_closed` at its end."""
        self._limits = limits
        self._is_known_host = is_known_host
        self._on_accepted = on_accepted
        self._on_refused = on_refused
        self._listener: socket.socket | None = None
        self._open_by_host: dict[str, int] = {}
        self._open_count = 0

    def open(self, address: tuple[str, int], marks: SocketMarks = UNMARKED) -> int:
        """Listen; returns the file descriptor to poll. Raises OSError."""
        self._listener = open_listener(address, marks)
        return self._listener.fileno()

    @property
    def port(self) -> int:
        """The listening port; 0 if not listening."""
        if self._listener is None:
            return 0
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def fd(self) -> int | None:
        return None if self._listener is None else self._listener.fileno()

    def accept_pending(self) -> bool:
        """Accept the waiting connections. False if none can be accepted for now, though the poller still reports
        them.
        """
        assert self._listener is not None
        for _ in range(_MAX_ACCEPTS_PER_TICK):
            try:
                opened, (host, port, *_) = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return True
            except OSError as error:  # no file descriptor is left
                log.warning("someip.tcp_not_accepted", extra={"reason": str(error), **limited()})
                return False
            peer = TcpAddress(host, port)
            reason = self._refusal_reason(host)
            if reason is not None:
                close_with_reset(opened)
                self._on_refused(reason, peer)
                continue
            opened.setblocking(False)
            self._open_count += 1
            self._open_by_host[host] = self._open_by_host.get(host, 0) + 1
            self._on_accepted(opened, peer)
        return True

    def _refusal_reason(self, host: str) -> TcpReason | None:
        if not self._is_known_host(host):
            return TcpReason.UNKNOWN_HOST
        if self._open_count >= self._limits.connections:
            return TcpReason.CONNECTIONS
        if self._open_by_host.get(host, 0) >= self._limits.connections_per_host:
            return TcpReason.HOST_CONNECTIONS
        return None

    def on_closed(self, host: str) -> None:
        """A connection of `host` is closed."""
        self._open_count -= 1
        self._open_by_host[host] -= 1
        if not self._open_by_host[host]:
            del self._open_by_host[host]

    def close(self) -> None:
        """May be repeated."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
