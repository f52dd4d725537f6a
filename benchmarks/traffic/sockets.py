# SPDX-License-Identifier: Apache-2.0
"""Plain sockets and Zenoh sessions with the same settings for generators, sinks and bare forwarders."""

import json
import os
import socket
import threading
from collections.abc import Callable
from typing import Final

import zenoh

LOOPBACK: Final = "127.0.0.1"
_BUFFER_BYTES: Final = 4 << 20  # the kernel caps it at net.core.rmem_max


def udp_socket(port: int, connect_port: int | None = None, host: str = LOOPBACK) -> socket.socket:
    """A UDP socket bound to `port` of `host` (port 0: any free one), and connected to `connect_port` if given."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    opened.bind((host, port))
    if connect_port is not None:
        opened.connect((LOOPBACK, connect_port))
    return opened


def zenoh_peer(port: int) -> zenoh.Session:
    """A listening session."""
    return _session(mode="peer", listen={"endpoints": [f"tcp/{LOOPBACK}:{port}"]})


def zenoh_client(port: int) -> zenoh.Session:
    """A session connected to a peer."""
    return _session(mode="client", connect={"endpoints": [f"tcp/{LOOPBACK}:{port}"]})


def _session(**sections: object) -> zenoh.Session:
    config = zenoh.Config()
    config.insert_json5("scouting/multicast/enabled", "false")
    for section, value in sections.items():
        config.insert_json5(section, json.dumps(value))
    return zenoh.open(config)


def blocking_publisher(session: zenoh.Session, key: str) -> zenoh.Publisher:
    """A publisher that waits rather than drops, with the Zenoh priority of uProtocol's CS1."""
    return session.declare_publisher(
        key, priority=zenoh.Priority.DATA_LOW, congestion_control=zenoh.CongestionControl.BLOCK
    )


def print_ready() -> None:
    """Report to the measuring process that everything is open."""
    print("READY", flush=True)


def exit_with_parent(report: Callable[[], object] | None = None) -> None:
    """End this process when its stdin closes, so that no child outlives the benchmark.

    Each line of stdin requests a line of JSON with the result of `report`.
    """

    def wait() -> None:
        while data := os.read(0, 4_096):  # not sys.stdin: its lock would be held when the interpreter ends
            for _ in range(data.count(b"\n") if report else 0):
                print(json.dumps(report and report()), flush=True)
        exit_now()

    threading.Thread(target=wait, daemon=True).start()


def exit_now() -> None:
    """End this process at once; an open Zenoh session or a blocked receive would delay it."""
    os._exit(0)
