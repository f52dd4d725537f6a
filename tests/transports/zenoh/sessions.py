# SPDX-License-Identifier: Apache-2.0
"""Rig: Zenoh sessions over the loopback interface, without scouting, on ports reserved for the test."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import zenoh

from tests.e2e.rigs.ports import tcp_ports
from tests.waiting import wait_until
from ustreamer.core.base.clock import Clock
from ustreamer.transport_port import EndpointContext
from ustreamer.transports.zenoh.config import ZenohEndpoint
from ustreamer.transports.zenoh.transport import ZenohTransport

CLOCK = Clock(time.monotonic_ns, lambda: time.time_ns() // 1_000_000)


def free_locator() -> str:
    [port] = tcp_ports(1)
    return f"tcp/127.0.0.1:{port}"


def endpoint(authority: str, name: str = "backbone", **keys: object) -> ZenohTransport:
    """A transport for `authority`, not yet open."""
    config = ZenohEndpoint(transport="zenoh", authorities=(authority,), **keys)  # type: ignore[arg-type]
    return ZenohTransport(config, EndpointContext(name, authority, CLOCK))


def wait_for_link(*transports: ZenohTransport) -> None:
    """Wait until each can send: the counter `links` is set a moment before."""
    wait_until(lambda: all(each._link_monitor.up for each in transports), "the link")


@contextmanager
def plain_session(
    mode: str = "peer",
    listen: Sequence[str] = (),
    connect: Sequence[str] = (),
    lease_ms: int = 10_000,
    wait_before_close_ms: int = 5_000,
) -> Iterator[zenoh.Session]:
    """A plain Zenoh session of a node that is not a streamer. It sends a keep-alive every quarter of its lease.

    A put that waits for `wait_before_close_ms` closes the link.
    """
    config = zenoh.Config()
    for path, value in {
        "mode": mode,
        "listen/endpoints": list(listen),
        "connect/endpoints": list(connect),
        "scouting/multicast/enabled": False,
        "transport/link/tx/lease": lease_ms,
        "transport/link/tx/queue/congestion_control/block/wait_before_close": wait_before_close_ms * 1_000,
        "scouting/delay": 0,  # a router waits half a second for others otherwise
    }.items():
        config.insert_json5(path, json.dumps(value))
    session = zenoh.open(config)
    try:
        yield session
    finally:
        session.close()  # type: ignore[no-untyped-call]
