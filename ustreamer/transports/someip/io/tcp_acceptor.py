# SPDX-License-Identifier: Apache-2.0
"""Where ECUs connect to us: who may, and how many at a time. The rest is turned away at once."""

import logging
import socket
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from ustreamer.transports.someip.io.tcp_connection import listening, turn_away
from ustreamer.transports.someip.protocol.addresses import TcpAddress
from ustreamer.transports.someip.protocol.tcp_config import Tcp

log = logging.getLogger("ustreamer.someip")

_ACCEPTS: Final = 16  # before it is the turn of others


class TcpReason(StrEnum):
    """Why a connection was turned away or ended by us: labels of counters, so few and fixed."""

    STRANGER = "tcp_stranger"
    CONNECTIONS = "tcp_connections"
    HOST_CONNECTIONS = "tcp_host_connections"
    STREAM = "tcp_stream"  # where its next message begins is not known any more
    SLOW = "tcp_slow"  # a message has begun to come, and does not end
    IDLE = "tcp_idle"


class Door:
    """Belongs to the receiving thread."""

    def __init__(
        self,
        limits: Tcp,
        knows: Callable[[str], bool],
        accepted: Callable[[socket.socket, TcpAddress], None],
        refused: Callable[[TcpReason, TcpAddress], None],
    ) -> None:
        """`accepted` takes a connection over, and tells by `left` when it has ended."""
        self._limits = limits
        self._knows = knows
        self._accepted = accepted
        self._refused = refused
        self._listener: socket.socket | None = None
        self._hosts: dict[str, int] = {}
        self._inside = 0

    def open(self, address: tuple[str, int]) -> int:
        """Listen; the file descriptor to be polled. Raises OSError."""
        self._listener = listening(address)
        return self._listener.fileno()

    @property
    def port(self) -> int:
        """Where we listen; 0 if we do not."""
        if self._listener is None:
            return 0
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def fd(self) -> int | None:
        return None if self._listener is None else self._listener.fileno()

    def accept(self) -> bool:
        """Take who has come; False if no more can be taken for the moment, though the poller goes on to say so."""
        assert self._listener is not None
        for _ in range(_ACCEPTS):
            try:
                opened, (host, port) = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return True
            except OSError as error:  # no file descriptor is left
                log.warning("someip.tcp_not_accepted", extra={"reason": str(error)})
                return False
            peer = TcpAddress(host, port)
            reason = self._turned_away(host)
            if reason is not None:
                turn_away(opened)
                self._refused(reason, peer)
                continue
            opened.setblocking(False)
            self._inside += 1
            self._hosts[host] = self._hosts.get(host, 0) + 1
            self._accepted(opened, peer)
        return True

    def _turned_away(self, host: str) -> TcpReason | None:
        if not self._knows(host):
            return TcpReason.STRANGER
        if self._inside >= self._limits.connections:
            return TcpReason.CONNECTIONS
        if self._hosts.get(host, 0) >= self._limits.connections_per_host:
            return TcpReason.HOST_CONNECTIONS
        return None

    def left(self, host: str) -> None:
        """A connection of `host` has ended."""
        self._inside -= 1
        self._hosts[host] -= 1
        if not self._hosts[host]:
            del self._hosts[host]

    def close(self) -> None:
        """May be repeated."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
