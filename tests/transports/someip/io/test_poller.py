# SPDX-License-Identifier: Apache-2.0
"""What the receiving thread waits for, and that others may change it meanwhile."""

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from ustreamer.transports.someip.io.poller import READABLE, WRITABLE, Handler, Poller


@pytest.fixture
def poller() -> Iterator[Poller]:
    made = Poller()
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def test_what_comes_is_handled_and_nothing_else(
    poller: Poller, pair: tuple[socket.socket, socket.socket]
) -> None:
    near, far = pair
    seen: list[int] = []
    poller.add(near.fileno(), seen.append)

    poller.wait(0)
    assert seen == []
    far.send(b"x")
    poller.wait(1)
    assert seen == [READABLE]


def test_what_is_waited_for_may_change_while_another_thread_waits(
    poller: Poller, pair: tuple[socket.socket, socket.socket]
) -> None:
    near, _ = pair
    seen: list[int] = []
    poller.add(near.fileno(), seen.append)
    waiting = threading.Thread(target=poller.wait, args=(10,))
    waiting.start()

    poller.change(near.fileno(), READABLE | WRITABLE)
    waiting.join(30)

    assert not waiting.is_alive()
    assert seen == [WRITABLE]


def test_what_a_handler_removes_is_not_handled_in_the_same_round(poller: Poller) -> None:
    first, second = (os.eventfd(1, os.EFD_NONBLOCK) for _ in range(2))
    seen: list[int] = []

    def handler(fd: int, other: int) -> None:
        seen.append(fd)
        poller.remove(other)

    poller.add(first, lambda _: handler(first, second))
    poller.add(second, lambda _: handler(second, first))
    poller.wait(1)
    os.close(first)
    os.close(second)

    assert len(seen) == 1


def quietly(_: int) -> bool:
    return True


def busily(_: int) -> bool:
    return False


@pytest.mark.parametrize(
    ("handlers", "quiet"),
    [
        ([], False),
        ([quietly], True),
        ([quietly, quietly], True),
        ([busily, quietly], False),
        ([quietly, busily], False),
        ([lambda _: None, quietly], False),
    ],
)
def test_it_is_quiet_if_something_came_and_every_handler_says_so(
    poller: Poller, handlers: list[Handler], *, quiet: bool
) -> None:
    fds = [os.eventfd(1, os.EFD_NONBLOCK) for _ in handlers]
    for fd, handler in zip(fds, handlers, strict=True):
        poller.add(fd, handler)
    assert poller.wait(0) is quiet
    for fd in fds:
        os.close(fd)


def test_it_is_not_quiet_where_a_handler_has_removed_another(poller: Poller) -> None:
    fds = [os.eventfd(1, os.EFD_NONBLOCK) for _ in range(2)]

    def remove(other: int) -> bool:
        poller.remove(other)
        return True

    poller.add(fds[0], lambda _: remove(fds[1]))
    poller.add(fds[1], lambda _: remove(fds[0]))
    assert poller.wait(0) is False
    for fd in fds:
        os.close(fd)


def test_to_remove_what_is_not_there_changes_nothing(poller: Poller) -> None:
    fd = os.eventfd(1, os.EFD_NONBLOCK)
    poller.add(fd, quietly)
    poller.remove(12345)
    assert poller.wait(0) is True
    os.close(fd)
