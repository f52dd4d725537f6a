# SPDX-License-Identifier: Apache-2.0
"""An endpoint with IPv6 addresses: UDP one by one and in batches, TCP, ICMPv6, and service discovery."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.rigs.cable import in_own_namespace, unsupported_reason
from tests.transports.someip.endpoint_rig import (
    APP,
    DOOR,
    EVENT,
    METHOD,
    OPEN_DOOR,
    RESPONSE,
    WITHIN_S,
    Bench,
    BlockingListener,
)
from tests.waiting import wait_until
from ustreamer.transports.someip.protocol.codec import HEADER_LENGTH, split
from ustreamer.uprotocol.umessage import response
from ustreamer.uprotocol.uuri import ANY


@pytest.fixture(autouse=True)
def _ipv6() -> None:
    """Skip on a machine without IPv6, as many containers are."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError as error:
            pytest.skip(f"no IPv6 on this machine: {error.strerror}")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def test_events_and_calls_in_both_directions(stack: ExitStack) -> None:
    bench = Bench(stack, "::1")
    bench.endpoint.open()
    bench.ecu.send(bench.endpoint, EVENT)
    assert bench.listener.next().payload == b"hello"
    bench.endpoint.send(bench.event(DOOR, b"ajar"))
    assert {bench.ecu.receive()[HEADER_LENGTH:], bench.second.receive()[HEADER_LENGTH:]} == {b"ajar"}

    bench.endpoint.send(bench.request())
    request_id = bench.ecu.receive()[8:12]
    bench.ecu.send(bench.endpoint, RESPONSE[:8] + request_id + RESPONSE[12:])
    answer = bench.listener.next()
    assert (answer.attributes.source, answer.attributes.sink, answer.payload) == (METHOD, APP, b"ok")

    bench.ecu.send(bench.endpoint, OPEN_DOOR)
    call = bench.listener.next()
    bench.endpoint.send(response(bench.ids.next(), call, b"done"))
    ((reply,), _) = split(bench.ecu.receive())
    assert (reply.client, reply.session, reply.payload) == (0x12, 9, b"done")


def test_batches_of_two_senders(stack: ExitStack) -> None:
    """Many datagrams are read in one system call: each keeps its sender."""
    bench = Bench(stack, "::1")
    blocking = BlockingListener()
    bench.endpoint.register_listener(ANY, None, blocking)
    bench.endpoint.open()
    client = bench.peer("::1")
    bench.ecu.send(bench.endpoint, EVENT)
    assert blocking.entered.wait(WITHIN_S)
    for number in range(40):
        bench.ecu.send(bench.endpoint, EVENT[:-1] + b"%c" % number)
        client.send(bench.endpoint, OPEN_DOOR)
    blocking.go.set()
    assert [bench.listener.next() for _ in range(81)]
    wait_until(lambda: bench.count("received") == 81)
    assert bench.count("requests_open") == 40


def test_events_over_tcp(stack: ExitStack) -> None:
    with ExitStack() as made:
        listener = made.enter_context(socket.create_server(("::1", 0), family=socket.AF_INET6))
        listener.settimeout(WITHIN_S)
        address = f"[::1]:{listener.getsockname()[1]}"
        event = {"id": 0x80CD, "protocol": "tcp"}
        service = {"service": 0x10AB, "major": 3, "events": [event], "remote_tcp": address}
        bench = Bench(stack, "::1", services=[service])
        bench.endpoint.open()
        opened, peer = listener.accept()
        made.callback(opened.close)
        assert peer[0] == "::1"
        opened.sendall(EVENT)
        assert bench.listener.next().payload == b"hello"


def test_icmpv6_reports_that_nothing_listens(stack: ExitStack) -> None:
    bench = Bench(stack, "::1")
    bench.endpoint.open()
    bench.second.socket.close()
    bench.endpoint.send(bench.event())
    wait_until(lambda: bench.count("unreachable") == 1)


# [utest->SD-757]
def test_service_discovery_and_multicast_events() -> None:
    if why := unsupported_reason():
        pytest.skip(f"no network namespaces on this machine: {why}")
    done = subprocess.run(
        in_own_namespace("tests.transports.someip.endpoint.ipv6_discovery"),
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
