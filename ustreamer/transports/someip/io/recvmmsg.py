# SPDX-License-Identifier: Apache-2.0
"""Oracle: the datagrams as sent, one `recv` each; compared in tests/transports/someip/io/test_recvmmsg.py.

Receives many datagrams of one socket in one system call (recvmmsg, Linux 2.6.33), and reads them in place. `recv`
costs a call, a release of the interpreter and an allocation for each: 0.6 us, and 0.25 more for header and payload.
The batch costs 0.45 in total, for datagrams of one size. A single datagram is read with `recv` (`adaptive_reader`): a
foreign call costs 10 us on a cold cache. In: a file descriptor. Out: sizes, senders, and datagrams or columns of
header fields.
"""

import ctypes
import errno
import mmap
import os
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import HEADER_LENGTH
from ustreamer.uprotocol.batch import MAX_BATCH, unpack_columns
from ustreamer.uprotocol.bounded_cache import BoundedCache

MAX_DATAGRAMS: Final = MAX_BATCH
_INLINE_BYTES: Final = 1_472  # of each datagram, consecutive: the payload of an Ethernet frame
# Not a power of two: then all headers would compete for the same cache lines.
_STRIDE: Final = 1_536
_SOCKADDR_BYTES: Final = 16  # struct sockaddr_in: family, port, host, padding
_SOCKADDR_IN6_BYTES: Final = 28  # struct sockaddr_in6: family, port, flow, host, scope
_MAX_CACHED: Final = 4_096
# Of each datagram, for its rest; pages are allocated on first use.
_OVERFLOW_BYTES: Final = 65_536
_CONTROL_WORDS: Final = 4  # struct cmsghdr and struct timespec: length, level and type, s, ns
_SO_TIMESTAMPNS: Final = 35
_STAMP_LENGTH: Final = _CONTROL_WORDS * 8
_STAMP_TYPE: Final = int.from_bytes(struct.pack("@ii", socket.SOL_SOCKET, _SO_TIMESTAMPNS), sys.byteorder)
_SOCKADDRS_OFFSET: Final = MAX_DATAGRAMS * (_STRIDE + _OVERFLOW_BYTES)  # their offset, behind both areas


class _Iovec(ctypes.Structure):
    """struct iovec"""

    _fields_: ClassVar = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class _Msghdr(ctypes.Structure):
    """struct msghdr"""

    _fields_: ClassVar = [
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint),
        ("parts", ctypes.c_void_p),
        ("number_of_parts", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    ]


class _Mmsghdr(ctypes.Structure):
    """struct mmsghdr"""

    _fields_: ClassVar = [("header", _Msghdr), ("length", ctypes.c_uint)]


def _lengths_of(messages: "ctypes.Array[_Mmsghdr]") -> "memoryview[int]":
    words = memoryview(messages).cast("B").cast("I")
    return words[_Mmsghdr.length.offset // 4 :: ctypes.sizeof(_Mmsghdr) // 4]


class _StampedMessages:
    """The same messages with room for the stamp of each. The kernel changes the lengths, so each call restores them."""

    def __init__(self, messages: "ctypes.Array[_Mmsghdr]") -> None:
        self._control = (ctypes.c_int64 * (MAX_DATAGRAMS * _CONTROL_WORDS))()
        self._messages = type(messages)()
        ctypes.memmove(self._messages, messages, ctypes.sizeof(messages))
        for number, message in enumerate(self._messages):
            message.header.control = ctypes.addressof(self._control) + number * _CONTROL_WORDS * 8
            message.header.control_length = _CONTROL_WORDS * 8
        self._fresh = bytes(self._messages)
        self.lengths = _lengths_of(self._messages)
        self._words = memoryview(self._control).cast("B").cast("q")

    def reset(self) -> int:
        """Forget the stamps. Returns the address for recvmmsg."""
        ctypes.memset(self._control, 0, ctypes.sizeof(self._control))
        ctypes.memmove(self._messages, self._fresh, len(self._fresh))
        return ctypes.addressof(self._messages)

    def stamps_ms(self, number: int) -> list[int]:
        words = self._words[: number * _CONTROL_WORDS].tolist()
        if (
            words[::_CONTROL_WORDS].count(_STAMP_LENGTH) + words[1::_CONTROL_WORDS].count(_STAMP_TYPE)
            < 2 * number
        ):
            return []
        times = zip(words[2::_CONTROL_WORDS], words[3::_CONTROL_WORDS], strict=True)
        return [seconds * 1_000 + ns // 1_000_000 for seconds, ns in times]


class DatagramBatch:
    """The datagrams of one system call, until the next `receive`. Belongs to one thread."""

    def __init__(self, *, ipv6: bool = False) -> None:
        """All senders have the IP version. Raises OSError where there is no recvmmsg."""
        self._sockaddr_bytes = _SOCKADDR_IN6_BYTES if ipv6 else _SOCKADDR_BYTES
        self.sizes: list[int] = []
        """The size of each datagram."""
        self.received_ms = 0
        """When the host received them, in ms since the epoch; 0: now. `ReceiveTimes` sets it."""
        self.received_each_ms: Sequence[int] = ()
        """When it received each one; empty if that is the same for all."""
        self._stamped: _StampedMessages | None = None
        self._addresses: BoundedCache[bytes, Address] = BoundedCache(_MAX_CACHED)
        self._memory = mmap.mmap(-1, _SOCKADDRS_OFFSET + MAX_DATAGRAMS * self._sockaddr_bytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._inline = memoryview(self._memory)[: MAX_DATAGRAMS * _STRIDE]
        self._iovecs = (_Iovec * (2 * MAX_DATAGRAMS))()
        self._messages = (_Mmsghdr * MAX_DATAGRAMS)()
        for number, message in enumerate(self._messages):
            inline, overflow = self._iovecs[2 * number], self._iovecs[2 * number + 1]
            inline.base, inline.length = address + number * _STRIDE, _INLINE_BYTES
            overflow.base, overflow.length = (
                address + MAX_DATAGRAMS * _STRIDE + number * _OVERFLOW_BYTES,
                _OVERFLOW_BYTES,
            )
            message.header.parts, message.header.number_of_parts = ctypes.addressof(inline), 2
            message.header.name = address + _SOCKADDRS_OFFSET + number * self._sockaddr_bytes
            # Never changes, because every sender has the same IP version.
            message.header.name_length = self._sockaddr_bytes
        self._lengths = _lengths_of(self._messages)
        self._recvmmsg, self._headers_address = _load_recvmmsg(), ctypes.addressof(self._messages)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            self.receive(probe.fileno())

    def receive(self, fd: int) -> int:
        """Receive at most MAX_DATAGRAMS datagrams; returns how many. Raises OSError, also for a pending ICMP error."""
        number: int = self._recvmmsg(fd, self._headers_address, MAX_DATAGRAMS, socket.MSG_DONTWAIT, None)
        if number < 0:
            return self._on_failure()
        self.sizes = self._lengths[:number].tolist()
        return number

    def receive_stamped(self, fd: int) -> int:
        """As `receive`, and reads their stamps (SO_TIMESTAMPNS, which the socket must have)."""
        stamped = self._stamped = self._stamped or _StampedMessages(self._messages)
        number: int = self._recvmmsg(fd, stamped.reset(), MAX_DATAGRAMS, socket.MSG_DONTWAIT, None)
        if number < 0:
            return self._on_failure()
        self.sizes = stamped.lengths[:number].tolist()
        return number

    def stamps_ms(self) -> Sequence[int]:
        """The stamp of each datagram of `receive_stamped`, in ms since the epoch; none if one has no stamp."""
        return () if self._stamped is None else self._stamped.stamps_ms(len(self.sizes))

    def _on_failure(self) -> int:
        self.sizes = []
        code = ctypes.get_errno()
        if code in {errno.EAGAIN, errno.EINTR}:
            return 0
        raise OSError(code, os.strerror(code))

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def common_sender(self) -> Address | None:
        """The sender of all datagrams; None if there are several senders."""
        size = self._sockaddr_bytes
        senders = self._memory[_SOCKADDRS_OFFSET : _SOCKADDRS_OFFSET + len(self.sizes) * size]
        first = senders[:size]
        return self._address(first) if first * len(self.sizes) == senders else None

    def senders(self) -> list[Address]:
        """The sender of each datagram."""
        size = self._sockaddr_bytes
        end = _SOCKADDRS_OFFSET + len(self.sizes) * size
        return [self._address(self._memory[at : at + size]) for at in range(_SOCKADDRS_OFFSET, end, size)]

    def _address(self, sender: bytes) -> Address:
        known = self._addresses.get(sender)
        if known is None:
            is_ipv6 = len(sender) == _SOCKADDR_IN6_BYTES
            host = (
                socket.inet_ntop(socket.AF_INET6, sender[8:24]) if is_ipv6 else socket.inet_ntoa(sender[4:8])
            )
            known = host, int.from_bytes(sender[2:4])
            self._addresses.add(sender, known)
        return known

    def datagrams(self) -> list[bytes]:
        """Each datagram alone."""
        return [self._datagram(number, size) for number, size in enumerate(self.sizes)]

    def _datagram(self, number: int, size: int) -> bytes:
        begin, beyond = number * _STRIDE, size - _INLINE_BYTES
        if beyond <= 0:
            return self._memory[begin : begin + size]
        overflow = MAX_DATAGRAMS * _STRIDE + number * _OVERFLOW_BYTES
        return self._memory[begin : begin + _INLINE_BYTES] + self._memory[overflow : overflow + beyond]

    def columns(self, header: str) -> Sequence[tuple[Any, ...]] | None:
        """The header fields and the payloads as columns; None unless all datagrams have one size.

        `header` is the struct format of HEADER_LENGTH bytes.
        """
        sizes = self.sizes
        size = sizes[0] if sizes else 0
        if not HEADER_LENGTH <= size <= _INLINE_BYTES or sizes.count(size) < len(sizes):
            return None
        record = f"{header}{size - HEADER_LENGTH}s{_STRIDE - size}x"  # the unused bytes
        return unpack_columns(record, self._inline[: len(sizes) * _STRIDE])


def _load_recvmmsg() -> Any:  # a foreign function
    """The function of the C library, with access to its errno. Raises OSError if there is none."""
    try:
        found = ctypes.CDLL(None, use_errno=True).recvmmsg
    except AttributeError:
        raise OSError(errno.ENOSYS, "the C library has no recvmmsg") from None
    found.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p]
    found.restype = ctypes.c_int
    return found
