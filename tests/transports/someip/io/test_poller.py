# SPDX-License-Identifier: Apache-2.0
"""The poller: handlers of file descriptors, and changes from other threads during a wait."""

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


def test_only_ready_file_descriptors_are_handled(
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


def test_file_descriptors_may_change_during_a_wait(
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


def test_a_removed_file_descriptor_is_not_handled_in_the_same_round(poller: Poller) -> None:
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
def test_wait_returns_true_if_all_handlers_of_a_round_do(
    poller: Poller, handlers: list[Handler], *, quiet: bool
) -> None:
    fds = [os.eventfd(1, os.EFD_NONBLOCK) for _ in handlers]
    for fd, handler in zip(fds, handlers, strict=True):
        poller.add(fd, handler)
    assert poller.wait(0) is quiet
    for fd in fds:
        os.close(fd)


def test_wait_returns_false_if_a_handler_removed_another(poller: Poller) -> None:
    fds = [os.eventfd(1, os.EFD_NONBLOCK) for _ in range(2)]

    def remove(other: int) -> bool:
        poller.remove(other)
        return True

    poller.add(fds[0], lambda _: remove(fds[1]))
    poller.add(fds[1], lambda _: remove(fds[0]))
    assert poller.wait(0) is False
    for fd in fds:
        os.close(fd)


def test_removing_an_unknown_file_descriptor_changes_nothing(poller: Poller) -> None:
    fd = os.eventfd(1, os.EFD_NONBLOCK)
    poller.add(fd, quietly)
    poller.remove(12345)
    assert poller.wait(0) is True
    os.close(fd)
