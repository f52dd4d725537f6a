# SPDX-License-Identifier: Apache-2.0
"""UDP sockets: the status of their errors."""

import errno
import os
import socket

import pytest

from tests.waiting import wait_until
from ustreamer.transport_port import RouteUnavailable
from ustreamer.transports.someip.io.udp import (
    bind_udp,
    dropped_datagrams,
    pop_unreachable,
    report_unreachable,
    send_error,
)
from ustreamer.uprotocol.ustatus import UCode, UStatusError

PEER = ("10.0.0.9", 30509)


@pytest.mark.parametrize(
    ("number", "code", "is_route"),
    [
        (errno.EAGAIN, UCode.UNAVAILABLE, False),
        (errno.ENOBUFS, UCode.UNAVAILABLE, False),
        (errno.ENETDOWN, UCode.UNAVAILABLE, False),
        (errno.ENETUNREACH, UCode.UNAVAILABLE, True),
        (errno.EHOSTUNREACH, UCode.UNAVAILABLE, True),
        (errno.ECONNREFUSED, UCode.UNAVAILABLE, True),
        (errno.EPERM, UCode.PERMISSION_DENIED, False),
        (errno.EMSGSIZE, UCode.INVALID_ARGUMENT, False),
        (errno.EIO, UCode.INTERNAL, False),
    ],
)
def test_a_send_error_has_the_status_of_its_errno(number: int, code: UCode, is_route: bool) -> None:
    error = send_error(OSError(number, os.strerror(number)), 12, PEER)
    assert error.code is code
    assert "10.0.0.9:30509" in error.message
    assert "12 bytes" in error.message
    assert isinstance(error, RouteUnavailable) is is_route
    if isinstance(error, RouteUnavailable):
        assert error.route == PEER


def test_a_socket_is_non_blocking_and_an_address_in_use_is_named() -> None:
    with bind_udp(("127.0.0.1", 0)) as first:
        assert not first.getblocking()
        host, port = first.getsockname()
        with pytest.raises(
            UStatusError, match=f"cannot bind UDP 127.0.0.1:{port}: Address already"
        ) as refused:
            bind_udp((host, port))
    assert refused.value.code is UCode.UNAVAILABLE


def test_datagrams_that_a_full_receive_buffer_drops_are_counted() -> None:
    with bind_udp(("127.0.0.1", 0)) as full, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        full.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        assert dropped_datagrams(full) == 0
        for _ in range(100):
            sender.sendto(bytes(1_000), full.getsockname())
        kept = 100 - dropped_datagrams(full)
        assert 0 < kept < 100
        assert [len(full.recv(2_000)) for _ in range(kept)] == [1_000] * kept
        with pytest.raises(BlockingIOError):
            full.recv(2_000)


def test_a_closed_socket_has_no_count() -> None:
    closed = bind_udp(("127.0.0.1", 0))
    closed.close()
    assert dropped_datagrams(closed) == 0


def test_an_address_without_a_socket_is_reported_by_icmp() -> None:
    with bind_udp(("127.0.0.1", 0)) as gone:
        closed = gone.getsockname()
    with bind_udp(("127.0.0.1", 0)) as sender, bind_udp(("127.0.0.1", 0)) as there:
        assert pop_unreachable(sender) == []
        report_unreachable(sender)
        sender.sendto(b"to a peer", there.getsockname())
        assert pop_unreachable(sender) == []
        sender.sendto(b"to no socket", closed)
        found = list[tuple[str, int]]()

        def is_reported() -> bool:
            found.extend(pop_unreachable(sender))
            return bool(found)

        wait_until(is_reported)
        assert found == [closed]
        sender.sendto(b"reported once", there.getsockname())
        assert [there.recv(100), there.recv(100)] == [b"to a peer", b"reported once"]
