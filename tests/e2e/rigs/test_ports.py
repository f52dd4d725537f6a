# SPDX-License-Identifier: Apache-2.0
"""Ports of tests that run side by side: found free now, and used a moment later."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.rigs.ports import tcp_ports, udp_ports


def test_no_port_is_given_twice() -> None:
    given = [*tcp_ports(30), *udp_ports(30), *tcp_ports(30)]
    assert len(set(given)) == len(given)


def test_another_process_is_given_other_ports_though_none_is_in_use() -> None:
    blocks = {port // 100 for port in tcp_ports(120)}
    assert len(blocks) > 1
    send_request = "from tests.e2e.rigs.ports import tcp_ports; print(*tcp_ports(120))"
    done = subprocess.run(
        [sys.executable, "-c", send_request],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert blocks.isdisjoint(int(port) // 100 for port in done.stdout.split())


def test_simultaneous_threads_receive_different_ports() -> None:
    with ThreadPoolExecutor(8) as pool:
        found = [port for ports in pool.map(lambda _: tcp_ports(2), range(100)) for port in ports]
    assert len(found) == 200
    # Blocks that are used up are given again from their beginning, but not within so few.
    assert len(set(found)) == len(found)
