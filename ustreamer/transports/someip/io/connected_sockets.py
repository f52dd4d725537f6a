# SPDX-License-Identifier: Apache-2.0
"""Sockets that receive from one sender only: its datagrams form batches, whatever others send in between.

The kernel delivers to a connected socket the datagrams from the address of one service, and no others. Datagrams from
any other address, including another port of the same host, and from senders beyond MAX_PEER_SOCKETS reach the socket
of the endpoint. A flood from one sender fills only its own buffer.

* A socket is bound before it is connected, and any sender reaches it in between. It therefore has a kernel filter
  (classic BPF) from before bind to close, which checks the sender of every datagram.
* Two sockets share an address by SO_REUSEADDR, which all of them must have. They have it only while a socket is
  opened, because any process could take the address by it.
* Senders with IPv6 addresses have none: the filter reads an IPv4 header.
* These sockets never send. When the endpoint has sent to a closed port of the sender, ICMP reports it to the
  connected socket, as an error of its next `recv`. The error is unrelated to receiving.
"""

import logging
import socket
from array import array
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import Final

from ustreamer.transports.someip.io.poller import Handler, Poller
from ustreamer.transports.someip.io.udp import dropped_datagrams
from ustreamer.transports.someip.protocol.addresses import Address, is_ipv6
from ustreamer.transports.someip.protocol.socket_marks import copy_interface

log = logging.getLogger("ustreamer.someip")

MAX_PEER_SOCKETS: Final = 8
"""A limit because the kernel may check all sockets of one address for every datagram."""
_SO_ATTACH_FILTER: Final = 26  # asm-generic/socket.h
_INSTRUCTION: Final = Struct(
    "=HBBI"
    # linux/filter.h, struct sock_filter: code, jump if true, if false, operand
)
_PROGRAM: Final = Struct("@HP")  # struct sock_fprog: number of instructions, their address
_LOAD_WORD, _LOAD_HALF, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x28, 0x15, 0x06
_IP_SOURCE: Final = 0xFFF0_0000 + 12  # SKF_NET_OFF: offset from the IP header
_UDP_SOURCE: Final = 0
_ACCEPT_ALL_BYTES: Final = 0x7FFF_FFFF


def attach_sender_filter(opened: socket.socket, sender: Address) -> None:
    """Let the kernel drop every datagram for `opened` that is not from `sender`. Raises OSError."""
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
    instructions = array("B", program)
    address, size = instructions.buffer_info()
    opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, _PROGRAM.pack(size // _INSTRUCTION.size, address))


def open_connected(sharing: Sequence[socket.socket], sender: Address, buffer: int) -> socket.socket:
    """A socket at the address that all of `sharing` have, which receives from `sender` only.

    Raises OSError; the sockets of `sharing` are then unchanged.
    """
    connected = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        connected.setblocking(False)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        attach_sender_filter(connected, sender)
        copy_interface(sharing[0], connected)
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
    """The connected sockets of one endpoint. Belongs to its receiving thread, except for `open` and `close`."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._dropped_by_closed = 0

    def open(
        self,
        own: socket.socket,
        senders: Iterable[Address],
        buffer: int,
        poller: Poller,
        make_reader: Callable[[socket.socket, Address], Handler],
    ) -> None:
        """Open a socket for each of the first senders. Without a socket, the datagrams of a sender reach `own`.

        `make_reader` returns the handler of a socket that only its second argument, the sender, can reach.
        """
        for sender in [each for each in dict.fromkeys(senders) if not is_ipv6(each[0])][:MAX_PEER_SOCKETS]:
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
        """Close all, after the end of the receiving thread."""
        self._dropped_by_closed = self.dropped
        for opened in self._sockets:
            opened.close()
        self._sockets.clear()

    @property
    def dropped(self) -> int:
        """Datagrams that the kernel dropped in full buffers. From any thread."""
        return self._dropped_by_closed + sum(map(dropped_datagrams, tuple(self._sockets)))

    def __len__(self) -> int:
        return len(self._sockets)
