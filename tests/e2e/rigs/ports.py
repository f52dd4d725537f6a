# SPDX-License-Identifier: Apache-2.0
"""Free loopback ports below the range that the kernel uses for outgoing connections.

A port is used shortly after it was found free, and tests run in parallel. Each process therefore reserves blocks and
returns no port twice. The ports of SOME/IP and of configs/ are above.
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
"""One socket per reserved block. A name of the abstract namespace is bound once and released with its process."""


def tcp_ports(count: int) -> list[int]:
    """`count` different ports."""
    return _free_ports(socket.SOCK_STREAM, count)


def udp_ports(count: int) -> list[int]:
    """`count` different ports."""
    return _free_ports(socket.SOCK_DGRAM, count)


def _own_ports() -> Iterator[int]:
    """Ports of the reserved blocks, each once while unreserved blocks are left."""
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
_lock: Final = Lock()  # outages run in parallel threads


def _free_ports(kind: socket.SocketKind, count: int) -> list[int]:
    found: list[int] = []
    with _lock, ExitStack() as held:  # all at once, otherwise two could be equal
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
