# SPDX-License-Identifier: Apache-2.0
"""Sockets that one sender only can reach, so that what it sends comes in by itself: many alike, whatever others send meanwhile.

A socket that is connected to the address at which a service lives gets from the kernel what comes from there, and nothing else;
what comes from anywhere else, another port of the same host among them, goes to the endpoint's own socket, as does all of whom no
more such sockets are made for. And a flood from one sender fills a buffer that is its own.

* Before a socket is connected it is bound, and in between anybody reaches it. So it has a filter in the kernel (classic BPF),
  from before it is bound until it is closed, that reads the sender of every datagram.
* Two sockets have one address by SO_REUSEADDR, which all must have. They have it only while this one is made, as any process
  could take the address by it.
* Nothing is sent here. But when the endpoint has sent to a closed port of that sender, ICMP says so to the socket that is
  connected to it, as an error of the next `recv`, which has nothing to do with receiving.
"""

import ctypes
import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import Final

from ustreamer.transports.someip.io.poller import Handler, Poller
from ustreamer.transports.someip.protocol.addresses import Address

log = logging.getLogger("ustreamer.someip")

MAX_PEER_SOCKETS: Final = 8
"""The kernel may have to look at all sockets of one address for every datagram."""
_SO_ATTACH_FILTER: Final = 26  # asm-generic/socket.h
_INSTRUCTION: Final = Struct(
    "=HBBI"
)  # linux/filter.h, struct sock_filter: code, jump if true, if false, operand
_PROGRAM: Final = Struct("@HP")  # struct sock_fprog: number of instructions, where they are
_LOAD_WORD, _LOAD_HALF, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x28, 0x15, 0x06
_IP_SOURCE: Final = 0xFFF0_0000 + 12  # SKF_NET_OFF: from the IP header on
_UDP_SOURCE: Final = 0
_ACCEPT_ALL_BYTES: Final = 0x7FFF_FFFF


def attach_sender_filter(opened: socket.socket, sender: Address) -> None:
    """Have the kernel drop every datagram for `opened` that is not from `sender`. Raises OSError if it cannot."""
    host, port = sender
    program = b"".join(
        _INSTRUCTION.pack(*each)
        for each in (
            (_LOAD_WORD, 0, 0, _IP_SOURCE),
            (_JUMP_IF_EQUAL, 0, 3, int.from_bytes(socket.inet_aton(host))),
            (_LOAD_HALF, 0, 0, _UDP_SOURCE),
            (_JUMP_IF_EQUAL, 0, 1, port),
            (_RETURN, 0, 0, _ACCEPT_ALL_BYTES),
            (_RETURN, 0, 0, 0),
        )
    )
    instructions = ctypes.create_string_buffer(program, len(program))
    length = len(program) // _INSTRUCTION.size
    opened.setsockopt(
        socket.SOL_SOCKET, _SO_ATTACH_FILTER, _PROGRAM.pack(length, ctypes.addressof(instructions))
    )


def open_connected(sharing: Sequence[socket.socket], sender: Address, buffer: int) -> socket.socket:
    """A socket at the address that all of `own` have, and that `sender` alone can reach. Raises OSError; then all is as it was."""
    connected = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        connected.setblocking(False)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        attach_sender_filter(connected, sender)
        for each in (*sharing, connected):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            connected.bind(sharing[0].getsockname())
        finally:
            for each in (*sharing, connected):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        connected.connect(sender)
    except OSError:
        connected.close()
        raise
    return connected


class PerPeerSockets:
    """The sockets of one endpoint. Belongs to its receiving thread, but for `open` and `close`."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def open(
        self,
        own: socket.socket,
        senders: Iterable[Address],
        buffer: int,
        poller: Poller,
        make_reader: Callable[[socket.socket, Address], Handler],
    ) -> None:
        """Have a socket for each of the first few; what one cannot be had for comes to `own`, as if there were none.

        `reader` makes what reads a socket that the second of its arguments alone can reach.
        """
        for sender in list(dict.fromkeys(senders))[:MAX_PEER_SOCKETS]:
            try:
                opened = open_connected([own, *self._sockets], sender, buffer)
            except OSError as error:
                log.info(
                    "someip.peer_socket_failed",
                    extra={"sender": "{}:{}".format(*sender), "reason": str(error)},
                )
                continue
            self._sockets.append(opened)
            poller.add(opened.fileno(), make_reader(opened, sender))

    def close(self) -> None:
        """When the receiving thread has ended."""
        for opened in self._sockets:
            opened.close()
        self._sockets.clear()

    def __len__(self) -> int:
        return len(self._sockets)
