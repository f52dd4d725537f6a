# SPDX-License-Identifier: Apache-2.0
"""The kernel's state of connections that another library owns."""

import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Thread
from time import monotonic_ns
from typing import NamedTuple

import pytest

from tests.waiting import wait_until
from ustreamer.transports.zenoh.tcp_info import LinkEnd, TcpLink, find_link, wait_link_end


class Connection(NamedTuple):
    near: socket.socket
    far: socket.socket
    links: list[TcpLink]
    """Released in the end."""

    @property
    def locators(self) -> tuple[str, str]:
        ours, theirs = self.near.getsockname(), self.near.getpeername()
        host = f"[{ours[0]}]" if ":" in ours[0] else ours[0]
        return f"tcp/{host}:{ours[1]}", f"tcp/{host}:{theirs[1]}"


@pytest.fixture(params=["127.0.0.1", "::1"])
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    try:
        listening = socket.create_server((request.param, 0), family=family)
    except OSError:
        pytest.skip(f"{request.param} is not to be had here")
    with listening, socket.create_connection(listening.getsockname()[:2]) as near:
        far, _ = listening.accept()
        with far:
            connection = Connection(near, far, [])
            yield connection
            for link in connection.links:
                link.release()


def found(connection: Connection) -> TcpLink:
    link = find_link(*connection.locators)
    assert link is not None
    connection.links.append(link)
    return link


def reset(far: socket.socket) -> None:
    far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    far.close()


def test_a_connection_is_found_by_its_two_ends_and_stays_open(connection: Connection) -> None:
    link = found(connection)
    assert link.fd == connection.near.fileno()
    other = found(connection._replace(near=connection.far, far=connection.near))
    assert other.fd == connection.far.fileno()
    connection.near.sendall(b"still")
    assert connection.far.recv(9) == b"still"


def test_a_connection_that_is_shut_down_ends_at_both_sides_after_its_data(connection: Connection) -> None:
    link = found(connection)
    connection.near.sendall(b"before")
    link.shut_down()
    assert connection.far.recv(9) == b"before"
    assert connection.far.recv(9) == b""
    assert connection.near.recv(9) == b""  # the owner of the descriptor learns of it
    link.shut_down()


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        ("tcp/127.0.0.1:1", "tcp/127.0.0.1:2"),
        ("udp/127.0.0.1:1", "udp/127.0.0.1:2"),
        ("unixsock-stream/x", "tcp/127.0.0.1:2"),
    ],
)
def test_a_foreign_connection_is_not_found(src: str, dst: str) -> None:
    assert find_link(src, dst) is None


def test_received_bytes_are_counted_and_sent_bytes_acknowledged(connection: Connection) -> None:
    link = found(connection)
    connection.far.sendall(bytes(123))
    connection.near.sendall(bytes(456))

    def settled() -> bool:
        state = link.state()
        return state is not None and (state.received, state.unacked) == (123, 0)

    before = link.state()
    assert before is not None
    wait_until(settled, "all of it")
    state = link.state()
    assert state is not None
    assert state.peer_open
    assert state.acked == before.acked + before.unacked
    assert state.received_ago_ms < 5_000


def test_unread_bytes_count_as_unacknowledged(connection: Connection) -> None:
    link = found(connection)
    connection.near.setblocking(False)
    written = 0
    with suppress(BlockingIOError):
        while True:
            written += connection.near.send(bytes(65_536))
    state = link.state()
    assert state is not None
    assert 0 < state.unacked < written
    assert written <= state.acked + state.unacked <= written + 1  # its beginning counts


def test_the_send_window_is_accepted_without_blocking(connection: Connection) -> None:
    link = found(connection)
    connection.near.setblocking(False)
    taken = 0
    while room := link.send_window():
        before = link.send_window()
        assert connection.near.send(bytes(min(room, 65_536))) == min(room, 65_536)
        taken += min(room, 65_536)
        assert link.send_window() <= before + (1 << 20)  # the kernel may have enlarged its buffer meanwhile
    assert taken >= 1 << 15
    with suppress(BlockingIOError):
        while True:
            connection.near.send(bytes(65_536))
    assert link.send_window() == 0
    while connection.far.recv(1 << 20):
        if link.send_window():
            break


def test_a_connection_ended_by_the_peer_is_not_established(connection: Connection) -> None:
    link = found(connection)
    connection.far.close()
    wait_until(lambda: (state := link.state()) is not None and not state.peer_open, "the end")


def test_accepted_connections_are_distinguished_by_their_peer_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        at = listening.getsockname()
        with socket.create_connection(at) as first, socket.create_connection(at) as second:
            near, later = listening.accept()[0], listening.accept()[0]
            with near, later:
                link = found(Connection(near, first, []))
                was_closed = link.is_closed
                os.dup2(later.fileno(), near.fileno())
                assert (was_closed, link.is_closed) == (False, True)
                link.release()
                link = found(Connection(near, second, []))
                assert not link.is_closed
                link.release()


def test_a_reset_connection_is_not_established(connection: Connection) -> None:
    link = found(connection)
    reset(connection.far)
    wait_until(lambda: (state := link.state()) is not None and not state.peer_open, "the reset")


def test_a_reused_descriptor_is_detected(connection: Connection) -> None:
    link = found(connection)
    with socket.socket(socket.AF_UNIX) as other:
        os.dup2(other.fileno(), connection.near.fileno())
        assert link.is_closed
        assert link.send_window() == 0
    connection.near.close()
    assert link.is_closed
    assert link.send_window() == 0


def test_only_what_the_other_side_does_ends_a_connection(connection: Connection) -> None:
    link = found(connection)
    connection.near.shutdown(socket.SHUT_WR)
    connection.near.close()
    assert connection.far.recv(1) == b""
    state = link.state()
    assert state is not None
    assert state.peer_open


@pytest.mark.parametrize(("end", "counted"), [(socket.socket.close, 1), (reset, 0)])
def test_the_end_can_be_read_after_zenoh_has_closed_its_descriptor(
    connection: Connection, end: Callable[[socket.socket], None], counted: int
) -> None:
    link = found(connection)
    before = link.state()
    end(connection.far)
    connection.near.close()
    wait_until(lambda: (state := link.state()) is not None and not state.peer_open, "the end")
    after = link.state()
    assert before is not None
    assert after is not None
    assert after.received == before.received + counted


def test_a_released_link_has_no_state_and_the_connection_ends(connection: Connection) -> None:
    link = found(connection)
    connection.near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 10))
    connection.near.setblocking(False)
    written = 0
    with suppress(BlockingIOError):
        while True:
            written += connection.near.send(bytes(65_536))
    connection.near.close()
    began_ns = monotonic_ns()
    link.release()
    assert monotonic_ns() - began_ns < 5_000_000_000  # despite Zenoh's linger time
    assert link.state() is None
    assert link.hold() is None
    while read := connection.far.recv(1 << 20):
        written -= len(read)
    assert not written


# --- the end of a connection ------------------------------------------------------------------------------------------


def held_at_close(connection: Connection) -> socket.socket:
    """The near end, closed by its owner with unread data on the other side, and held."""
    held = found(connection).hold()
    assert held is not None
    connection.near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 10))
    connection.near.sendall(b"last words")
    connection.near.shutdown(socket.SHUT_WR)
    connection.near.close()
    return held


def test_a_side_that_reads_all_and_closes_has_read_everything(connection: Connection) -> None:
    held = held_at_close(connection)
    assert connection.far.recv(100) == b"last words"
    connection.far.sendall(b"sent at the same time")
    ending = Thread(target=connection.far.close)
    ending.start()
    assert wait_link_end(held, monotonic_ns() + 30_000_000_000, monotonic_ns) is LinkEnd.READ
    ending.join()
    assert held.fileno() == -1


def test_a_side_that_closes_with_unread_data_has_not(connection: Connection) -> None:
    held = held_at_close(connection)
    connection.far.close()
    assert wait_link_end(held, monotonic_ns() + 30_000_000_000, monotonic_ns) is LinkEnd.UNREAD


def test_a_side_that_does_not_read_has_not(connection: Connection) -> None:
    held = held_at_close(connection)
    began_ns = monotonic_ns()
    assert wait_link_end(held, began_ns + 50_000_000, monotonic_ns) is LinkEnd.NONE
    assert 50_000_000 <= monotonic_ns() - began_ns < 5_000_000_000  # closing does not wait for the other side


def test_a_connection_that_is_gone_cannot_be_held(connection: Connection) -> None:
    link = found(connection)
    connection.near.close()
    assert link.hold() is None
