# SPDX-License-Identifier: Apache-2.0
"""Ports on loopback that nobody uses now, below those that the kernel gives to outgoing connections meanwhile."""

import random
import socket
from contextlib import ExitStack

_RANGE = range(20_000, 32_000)
_TRIALS = 100


def tcp_ports(count: int) -> list[int]:
    """So many different ones."""
    return _free(socket.SOCK_STREAM, count)


def udp_ports(count: int) -> list[int]:
    """So many different ones."""
    return _free(socket.SOCK_DGRAM, count)


def _free(kind: socket.SocketKind, count: int) -> list[int]:
    found: list[int] = []
    with ExitStack() as held:  # all at once, or two could be the same
        for port in random.sample(_RANGE, _TRIALS + count):
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
