# SPDX-License-Identifier: Apache-2.0
"""Ports on loopback that nobody uses now, below those that the kernel gives to outgoing connections meanwhile.

They are used a moment after they were found free, and tests run side by side: so each process has blocks of its own, and
gives no port twice. SOME/IP's own ports, and those of the files in configs/, are above.
"""

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from threading import Lock
from typing import Final

_RANGE: Final = range(20_000, 30_000)
_BLOCK: Final = 100
_TRIALS: Final = 100

_claims: list[socket.socket] = []
"""One for each of our blocks. A name of Linux's abstract namespace is bound once, and free again when its process ends."""


def tcp_ports(count: int) -> list[int]:
    """So many different ones."""
    return _free_ports(socket.SOCK_STREAM, count)


def udp_ports(count: int) -> list[int]:
    """So many different ones."""
    return _free_ports(socket.SOCK_DGRAM, count)


def _own_ports() -> Iterator[int]:
    """Ports of ours, without end; each once while there are blocks that nobody has."""
    blocks: list[range] = []
    for first in random.sample(_RANGE[::_BLOCK], len(_RANGE) // _BLOCK):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0ports of ustreamer's tests from {first}")
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        blocks.append(range(first, first + _BLOCK))
        yield from blocks[-1]
    assert blocks, f"all of {_RANGE} is claimed by others"
    while True:
        for block in blocks:
            yield from block


_port_source: Final = _own_ports()
_lock: Final = Lock()  # outages are played side by side, in threads


def _free_ports(kind: socket.SocketKind, count: int) -> list[int]:
    found: list[int] = []
    with _lock, ExitStack() as held:  # all at once, or two could be the same
        for _ in range(_TRIALS + count):
            port = next(_port_source)
            trial = held.enter_context(socket.socket(socket.AF_INET, kind))
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise AssertionError(
        f"{_TRIALS + count} ports of {_RANGE} tried, and only {len(found)} of {count} are free"
    )
