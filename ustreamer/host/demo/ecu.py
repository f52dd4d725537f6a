# SPDX-License-Identifier: Apache-2.0
"""A simulated ECU with plain SOME/IP over UDP and without uProtocol, for the demo and for tests."""

import socket
from collections.abc import Callable, Mapping
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Final, Self, TypeAlias

from ustreamer.transports.someip.protocol.codec import (
    MessageType,
    ReturnCode,
    SomeIpMessage,
    encode,
    next_session,
    split,
)

_POLL_S: Final = 0.2
_JOIN_S: Final = 2.0

EcuMethods: TypeAlias = Mapping[tuple[int, int], Callable[[bytes], bytes]]
"""By service and method: a function from the payload of a request to the payload of its response."""


class SimulatedEcu:
    """Sends events to one address, the streamer's, and answers requests: a method that it does not have is an error.

    `address` is its own; port 0 is any free port. `start` and `close`, or a `with` block.
    """

    def __init__(
        self,
        streamer: tuple[str, int],
        address: tuple[str, int] = ("127.0.0.1", 0),
        methods: EcuMethods | None = None,
        major: int = 1,
    ) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.settimeout(_POLL_S)
        self.address: tuple[str, int] = self._socket.getsockname()
        self._streamer = streamer
        self._methods = methods or {}
        self._major = major
        self._stop = Event()
        self._lock = Lock()
        self._sessions: dict[tuple[int, int], int] = {}
        self.calls = 0
        """The number of requests received."""
        self._threads = [Thread(target=self._serve, name="ecu methods", daemon=True)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the threads and close the socket."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_JOIN_S)
        self._socket.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send_event(self, service: int, event: int, payload: bytes = b"") -> None:
        """Send one event to the streamer. From any thread."""
        with self._lock:
            session = self._sessions[service, event] = next_session(self._sessions.get((service, event), 0))
        message = SomeIpMessage(
            service, event, 0, session, self._major, MessageType.NOTIFICATION, ReturnCode.E_OK, payload
        )
        self._socket.sendto(encode(message), self._streamer)

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                datagram, sender = self._socket.recvfrom(65_536)
            except TimeoutError:
                continue
            for request in split(datagram)[0]:
                if request.message_type == MessageType.REQUEST:
                    self._socket.sendto(encode(self._respond(request)), sender)

    def _respond(self, request: SomeIpMessage) -> SomeIpMessage:
        self.calls += 1
        method = self._methods.get((request.service, request.method))
        return SomeIpMessage(
            request.service,
            request.method,
            request.client,
            request.session,
            request.interface_version,
            MessageType.ERROR if method is None else MessageType.RESPONSE,
            ReturnCode.E_UNKNOWN_METHOD if method is None else ReturnCode.E_OK,
            b"" if method is None else method(request.payload),
        )
