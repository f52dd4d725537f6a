# SPDX-License-Identifier: Apache-2.0
"""TCP connections to the SOME/IP port: silent ones, unfinished messages, garbage, cookies."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from ustreamer.host.attack.attack import Attack, Need
from ustreamer.host.attack.clients.someip_host import HONEST, HOSTS, REQUEST, frame
from ustreamer.host.attack.scene import Scene

FAMILY: Final = "SOME/IP streams"
_NEEDS: Final = (Need.SOMEIP_TCP,)
_TIMEOUT_S: Final = 0.5
_COOKIE: Final = bytes.fromhex("ffff0000 00000008 dead beef 01 01 01 00")


@contextmanager
def _connection(scene: Scene, host: str) -> Iterator[socket.socket]:
    place = scene.someip
    with socket.socket() as opened:
        opened.settimeout(_TIMEOUT_S)
        opened.bind((host, 0))
        opened.connect((place.address[0], place.tcp))
        yield opened


def _served(scene: Scene) -> str:
    """The effect if another host gets no connection that stays; "" if it does."""
    try:
        with _connection(scene, HONEST) as honest:
            honest.settimeout(0.2)
            try:
                closed = honest.recv(1) == b""
            except TimeoutError:
                return ""
    except OSError:
        closed = True
    return "a host that does nothing else gets no TCP connection" if closed else ""


def _many(scene: Scene, stack: ExitStack, host: str, number: int) -> list[socket.socket]:
    """As many connections of one host as the streamer accepts, at most `number`."""
    opened = []
    for _ in range(number):
        try:
            opened.append(stack.enter_context(_connection(scene, host)))
        except OSError:
            continue
    return opened


def silent(scene: Scene) -> str:
    with ExitStack() as stack:
        _many(scene, stack, HOSTS[0], 200)
        scene.hold()
        return _served(scene)


def unfinished(scene: Scene) -> str:
    """Each connection announces the largest message, and never sends its last byte."""
    head = frame(0x7777, 1, REQUEST, length=1_048_576 - 8)
    with ExitStack() as stack:
        for number, each in enumerate(_many(scene, stack, HOSTS[1], 64)):
            _send(each, head + bytes(1_048_576 - 16 - 1 - number))
        scene.hold()
        return _served(scene)


def _send(opened: socket.socket, data: bytes) -> bool:
    try:
        opened.sendall(data)
    except OSError:  # closed, or not read
        return False
    return True


def _stream(make: Callable[[Scene, int], bytes], rate: float) -> Callable[[Scene], str]:
    """An attack that writes to a connection, and opens another when the streamer closes it."""

    def run(scene: Scene) -> str:
        with ExitStack() as stack:
            opened: socket.socket | None = None
            for number in scene.paced(rate):
                try:
                    opened = opened or stack.enter_context(_connection(scene, HOSTS[2]))
                except OSError:
                    continue
                if not _send(opened, make(scene, number)):
                    opened.close()
                    opened = None
            return _served(scene)

    return run


def garbage(scene: Scene, number: int) -> bytes:
    return scene.rng.randbytes(1_000)


def cookies(scene: Scene, number: int) -> bytes:
    return _COOKIE * 500


def unknown_types(scene: Scene, number: int) -> bytes:
    return frame(0x7777, 1, 0x55) * 1_000


def unread_replies(scene: Scene, number: int) -> bytes:
    """Requests with error replies that stay unread."""
    return frame(0x7777, 1, REQUEST, client=5) * 200


ATTACKS: Final = (
    Attack("tcp-silent", FAMILY, "hold all TCP connections and send nothing", _NEEDS, silent),
    Attack("tcp-unfinished", FAMILY, "fill the memory with unfinished messages", _NEEDS, unfinished),
    Attack("tcp-garbage", FAMILY, "write random bytes", _NEEDS, _stream(garbage, 200)),
    Attack("tcp-cookies", FAMILY, "write nothing but magic cookies", _NEEDS, _stream(cookies, 50)),
    Attack(
        "tcp-unknown-types", FAMILY, "write messages of an unknown type", _NEEDS, _stream(unknown_types, 50)
    ),
    Attack(
        "tcp-unread-replies", FAMILY, "write requests and read no reply", _NEEDS, _stream(unread_replies, 50)
    ),
)
