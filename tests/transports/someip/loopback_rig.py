# SPDX-License-Identifier: Apache-2.0
"""The rig of the batch tests: a `DatagramBatch` that receives from named senders on loopback."""

import socket
from collections.abc import Sequence
from contextlib import ExitStack, closing

from ustreamer.transports.someip.io.recvmmsg import DatagramBatch
from ustreamer.transports.someip.io.udp import bind_udp

BUFFER = 1 << 20
OURS, SECOND, FAR = "127.0.0.1", "127.0.0.1 the second", "127.0.0.2"


class LoopbackReceiver:
    """A socket with senders, and the batches that it received."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.receiver = stack.enter_context(closing(bind_udp(("127.0.0.1", 0))))
        self.receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        self._senders: dict[str, socket.socket] = {}
        self.batch = DatagramBatch()

    def sender(self, name: str) -> socket.socket:
        """The sender with this name; the first word is its host."""
        known = self._senders.get(name)
        if known is None:
            known = self._stack.enter_context(closing(bind_udp((name.split(maxsplit=1)[0], 0))))
            known.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
            known.connect(self.receiver.getsockname())
            self._senders[name] = known
        return known

    def send(self, datagrams: Sequence[bytes], names: Sequence[str] = ()) -> None:
        """Send from the named senders, or all from one."""
        for each, name in zip(datagrams, names or [OURS] * len(datagrams), strict=True):
            self.sender(name).send(each)  # on loopback a sent datagram is there at once

    def receive(self) -> int:
        return self.batch.receive(self.receiver.fileno())

    def receive_batch(self, datagrams: Sequence[bytes], names: Sequence[str] = ()) -> DatagramBatch:
        """Send and receive at most MAX_DATAGRAMS datagrams as one batch."""
        self.send(datagrams, names)
        assert self.receive() == len(datagrams)
        return self.batch
