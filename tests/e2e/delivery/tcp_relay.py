# SPDX-License-Identifier: Apache-2.0
"""A relay that can be cut: it forwards TCP connections of one port to another, until no byte passes any more."""

import socket
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from threading import Event, Thread
from types import TracebackType
from typing import Self

_LARGEST = 65_536


class TcpRelay:
    """Forwards connections to `port` on loopback. After a cut it reads and drops everything, without an error to
    either side.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.setblocking(False)
        self.port: int = self._listening.getsockname()[1]
        self._other: dict[socket.socket, socket.socket | None] = {}
        self._selector = DefaultSelector()
        self._selector.register(self._listening, EVENT_READ)
        self._near: set[socket.socket] = set()
        self._cutting = Event()
        self._is_cut = Event()
        self._healing = Event()
        self._closing = Event()
        self._thread = Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Cut right after the next bytes of the client, such as a keep-alive.

        The kernel acknowledges the dropped bytes, unlike a cut cable, so this last sign of life is the only one.
        """
        self._cutting.set()
        assert self._is_cut.wait(30)

    def heal(self) -> None:
        """Reset the connections, as nodes without their state do; new connections pass."""
        self._cutting.clear()
        self._is_cut.clear()
        self._healing.set()

    def _run(self) -> None:
        while not self._closing.is_set():
            for key, _ in self._selector.select(0.01):
                ready = key.fileobj
                assert isinstance(ready, socket.socket)
                if ready is self._listening:
                    self._accept()
                elif ready in self._other:  # the other end may have closed it already
                    self._forward(ready)
            if self._healing.is_set():
                self._healing.clear()
                for end in list(self._other):
                    self._close_pair(end)
        for end in list(self._other):
            self._close_pair(end)
        self._selector.close()
        self._listening.close()

    def _accept(self) -> None:
        near, _ = self._listening.accept()
        if self._is_cut.is_set():  # the client waits in vain for a response
            self._register(near, None)
            return
        try:
            far = socket.create_connection(("127.0.0.1", self._port), 1)
        except OSError:
            near.close()
            return
        self._near.add(near)
        self._register(near, far)
        self._register(far, near)

    def _register(self, end: socket.socket, other: socket.socket | None) -> None:
        self._other[end] = other
        self._selector.register(end, EVENT_READ)

    def _forward(self, end: socket.socket) -> None:
        try:
            data = end.recv(_LARGEST)
        except OSError:
            data = b""
        if self._is_cut.is_set():
            if not data:
                self._selector.unregister(end)  # the end of a connection does not pass either
            return
        other = self._other[end]
        if not data or other is None:
            self._close_pair(end)
            return
        with suppress(OSError):
            other.sendall(data)
        if self._cutting.is_set() and end in self._near:
            self._is_cut.set()

    def _close_pair(self, end: socket.socket) -> None:
        for each in (end, self._other.pop(end, None)):
            if each is not None:
                self._other.pop(each, None)
                self._near.discard(each)
                with suppress(KeyError, ValueError):
                    self._selector.unregister(each)
                each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join(30)
