# SPDX-License-Identifier: Apache-2.0
"""Attacks of clients without a password, over real sockets. The attacker has one address; others have their own.

Each test is a scaled-down attack that a version before has let succeed.
"""

import itertools
import json
import resource
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from ustreamer_wamp.connections import admission
from ustreamer_wamp.router import WampRouter
from websockets.exceptions import ConnectionClosed

from tests.waiting import DEADLINE_S, wait_until

if TYPE_CHECKING:
    from tests.conftest import HELLO, OPENED, Peer, TlsPeer
    from tests.connections.test_server import Raw, write_certificate
else:
    from plugins.wamp.tests.conftest import HELLO, OPENED, Peer, TlsPeer
    from plugins.wamp.tests.connections.test_server import Raw, write_certificate

Start = Callable[..., WampRouter]
NEVER_S = 3600
OTHER = ("127.0.0.2", 0)
"""Another address of this machine: on Linux the whole network 127 is."""
PING = b"\x89\x80abcd"
RAW_PING = b"\x01\x00\x00\x00"
UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Protocol: wamp.2.json\r\n\r\n"
)


def silent(router: WampRouter, count: int) -> list[socket.socket]:
    """Connections that send nothing."""
    host, port = router.server.urls[0].partition("://")[2].removesuffix("/ws").split(":")
    address = host, int(port)
    return [OPENED.enter_context(socket.create_connection(address, DEADLINE_S)) for _ in range(count)]


def is_open(client: socket.socket) -> bool:
    """Whether the router has not closed the connection, as far as its packets have arrived."""
    client.setblocking(False)
    try:
        return bool(client.recv(1 << 16))
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


def open_count(clients: list[socket.socket]) -> int:
    return sum(map(is_open, clients))


def read_to_end(client: socket.socket) -> bytes:
    """What the router sends until it closes the connection."""
    data = b""
    with suppress(ConnectionResetError):
        while more := client.recv(1 << 16):
            data += more
    return data


# --- connections --------------------------------------------------------------------------------------------


def test_silent_tls_connections_are_counted_at_accept_and_hold_a_bounded_memory(
    start: Start, tmp_path: Path
) -> None:
    files = write_certificate(tmp_path, "car")
    budget = 1 << 20
    router = start(
        "wss://127.0.0.1:0/ws",
        tls=files,
        hello_timeout_s=NEVER_S,
        max_message_bytes=4096,
        max_unfinished_bytes=budget,
    )
    clients = silent(router, 40)
    wait_until(lambda: 0 < open_count(clients) <= 4)
    wait_until(lambda: 0 < router.server.unfinished_bytes <= budget)
    context = ssl.create_default_context(cafile=files["certificate"])
    peer = TlsPeer(router.server.urls[0], context)
    assert peer.request(32, 1, {}, "com.a")[0] == 33
    assert router.counts["evicted"] >= 36


def test_a_tls_handshake_has_a_deadline(start: Start, tmp_path: Path) -> None:
    router = start("wss://127.0.0.1:0/ws", tls=write_certificate(tmp_path, "car"), hello_timeout_s=1)
    (client,) = silent(router, 1)
    assert read_to_end(client) == b""
    wait_until(lambda: router.server.connection_count == 0)
    assert router.server.unfinished_bytes == 0


def test_silent_connections_of_one_address_leave_places_for_others(start: Start) -> None:
    router = start(max_sessions=20, max_sessions_per_address=10, hello_timeout_s=NEVER_S)
    clients = silent(router, 120)
    wait_until(lambda: open_count(clients) <= 10 + 32)  # 32 wait for the reason of their refusal
    Peer(router.server.urls[0], source_address=OTHER).join()
    assert router.counts["refused_too_many"] == 110


def test_addresses_that_fill_all_places_give_one_to_another(start: Start) -> None:
    router = start(max_sessions=6, max_sessions_per_address=3)
    url = router.server.urls[0]
    anonymous = [Peer(url, source_address=(f"127.0.0.{1 + number % 2}", 0)).join() for number in range(5)]
    user = Peer(url, source_address=OTHER).join_publisher()
    newcomer = Peer(url, source_address=("127.0.0.3", 0)).join()
    assert newcomer.request(32, 1, {}, "com.a")[0] == 33
    assert user.request(32, 1, {}, "com.a")[0] == 33
    ended = []
    for each in anonymous:
        try:
            each.request(32, 1, {}, "com.a")
        except ConnectionClosed:
            ended.append(each)
    assert len(ended) == router.counts["evicted"] == 1


def test_an_address_connects_at_a_limited_rate(start: Start) -> None:
    router = start(max_sessions_per_address=5, max_connects_per_s=1)
    host, port = router.server.urls[0].removeprefix("ws://").removesuffix("/ws").split(":")
    for _ in range(40):
        socket.create_connection((host, int(port))).close()
    wait_until(lambda: router.counts["refused_too_many"] >= 20)
    Peer(router.server.urls[0], source_address=OTHER).join()


@contextmanager
def files_left(count: int) -> Iterator[None]:
    """This process may open that many more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(each.name) for each in Path("/proc/self/fd").iterdir()}
    limit, free = 0, 0
    while free < count:
        free += limit not in used
        limit += 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_router_without_file_descriptors_logs_no_traceback_and_recovers(start: Start) -> None:
    """The fixture `no_traceback` checks the log."""
    router = start(hello_timeout_s=NEVER_S)
    host, port = router.server.urls[0].removeprefix("ws://").removesuffix("/ws").split(":")
    clients = [OPENED.enter_context(socket.socket()) for _ in range(10)]
    with files_left(3):
        for each in clients:
            each.connect((host, int(port)))
        wait_until(lambda: router.counts["accept_failures"])
    wait_until(lambda: router.server.connection_count == 10)


# --- allowances ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("framing", ["ws", "rs"])
def test_a_flood_of_control_frames_ends_the_connection(start: Start, framing: str, joined: bool) -> None:
    router = start("ws://127.0.0.1:0/ws" if framing == "ws" else "rs://127.0.0.1:0")
    if framing == "ws":
        (client,) = silent(router, 1)
        client.sendall(UPGRADE)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        hello = json.dumps(HELLO).encode()
        start_of = bytes([0x81, 0x80 | len(hello)]) + bytes(4) + hello
        ping = PING
    else:
        client = Raw(router).socket
        assert client.recv(4)
        hello = msgspec.json.encode(HELLO)
        start_of = struct.pack("!I", len(hello)) + hello
        ping = RAW_PING
    if joined:
        client.sendall(start_of)
        wait_until(lambda: router.realm.sessions)
    with suppress(ConnectionError):
        client.sendall(ping * 20_000)
        read_to_end(client)
    wait_until(lambda: router.server.connection_count == 0)
    assert router.counts["refused_control_frames"] == 1
    assert not router.realm.sessions


@pytest.mark.parametrize("framing", ["ws", "rs"])
def test_a_client_sends_a_limited_number_of_bytes_before_hello(start: Start, framing: str) -> None:
    router = start("ws://127.0.0.1:0/ws" if framing == "ws" else "rs://127.0.0.1:0", hello_timeout_s=NEVER_S)
    client = silent(router, 1)[0] if framing == "ws" else Raw(router).socket
    size = 200_000
    frame = struct.pack("!BBQ", 0x81, 0xFF, size) + bytes(4) if framing == "ws" else struct.pack("!I", size)
    with suppress(ConnectionError):
        client.sendall((UPGRADE if framing == "ws" else b"") + frame + b" " * 100_000)
        read_to_end(client)
    wait_until(lambda: router.server.connection_count == 0)
    assert router.counts["refused_hello_bytes"] == 1


def test_a_flood_of_requests_of_an_anonymous_session_is_read_at_a_limited_share_of_the_cpu(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "CPU_BURST_NS", 1_000_000, raising=False)
    # Each piece of input takes 0.1 s of CPU time, on any machine.
    monkeypatch.setattr(time, "thread_time_ns", itertools.count(0, 100_000_000).__next__)
    router = start("rs://127.0.0.1:0", max_cpu_percent_per_address=100)
    client = Raw(router)
    assert client.exactly(4)
    client.request(*HELLO)
    requests = 100
    message = msgspec.json.encode([34, 1, 4711])
    client.socket.sendall((struct.pack("!I", len(message)) + message) * requests)
    answers = [client.receive()[1] for _ in range(requests)]
    assert all(each.startswith(b"[8,34,1,") for each in answers), "late, but none is lost"
    assert router.counts["input_pauses"] >= 3


# --- messages in progress -----------------------------------------------------------------------------------


def half_message(peer: Peer, size: int) -> None:
    """Send the first fragment of a message and never the last one."""
    with suppress(OSError):
        peer.socket.socket.sendall(struct.pack("!BBQ", 0x01, 0xFF, size) + bytes(4) + b" " * size)


def test_unfinished_messages_share_one_budget_of_memory(start: Start) -> None:
    budget = 1 << 20
    router = start(max_message_bytes=300_000, max_unfinished_bytes=budget, message_timeout_s=NEVER_S)
    other = Peer(router.server.urls[0], source_address=OTHER).join()
    attackers = [Peer(router.server.urls[0]).join() for _ in range(10)]
    for each in attackers:
        half_message(each, 250_000)
    wait_until(lambda: router.counts["evicted"] >= 6 and router.server.unfinished_bytes <= budget)
    half_message(other, 200_000)
    other.socket.socket.sendall(bytes([0x80, 0x80, 0, 0, 0, 0]))
    assert other.receive()[2] == "wamp.error.protocol_violation", "its blanks have arrived as one message"


def test_a_message_has_a_deadline_whatever_else_arrives(start: Start) -> None:
    router = start(message_timeout_s=1)
    peer = Peer(router.server.urls[0]).join()
    half_message(peer, 70_000)

    def ended() -> bool:
        with suppress(OSError):
            peer.socket.socket.sendall(bytes([0x00, 0x81, 0, 0, 0, 0]) + b" ")  # one more byte
        return router.server.connection_count == 0

    wait_until(ended)
    assert router.counts["message_timeouts"] == 1


# --- passwords ----------------------------------------------------------------------------------------------


def test_parallel_guesses_of_a_password_are_limited_like_those_in_a_row(start: Start) -> None:
    router = start()
    details = {"roles": {"publisher": {}}, "authmethods": ["ticket"], "authid": "p"}
    peers = [Peer(router.server.urls[0]) for _ in range(16)]
    assert {peer.request(1, "realm1", details)[0] for peer in peers} == {4}
    answers = [peer.request(5, "guess", {}) for peer in peers[:15]]
    assert [each[0] for each in answers] == [3] * 15
    assert router.counts["authentications_denied"] == 10
    right = peers[15].request(5, "t", {})
    assert (right[0], right[2]) == (3, "wamp.error.authentication_denied")
    assert router.counts["refused_login_limit"] == 6
    Peer(router.server.urls[0], source_address=OTHER).join_publisher()


# --- requests -----------------------------------------------------------------------------------------------


def test_an_anonymous_session_reads_no_subscription_of_others(start: Start) -> None:
    router = start()
    url = router.server.urls[0]
    victim = Peer(url, source_address=OTHER).join()
    held = victim.request(32, 1, {}, "com.secret")[2]
    attacker = Peer(url).join()
    for request, (procedure, arguments) in enumerate(
        (("list", []), ("match", ["com.secret"]), ("get", [held]), ("list_subscribers", [held])), 1
    ):
        answer = attacker.request(48, request, {}, f"wamp.subscription.{procedure}", arguments)
        assert (answer[0], answer[4]) == (8, "wamp.error.not_authorized")
    assert attacker.request(32, 9, {}, "wamp.subscription.on_create")[4] == "wamp.error.not_authorized"
    user = Peer(url, source_address=OTHER).join_publisher()
    assert user.request(48, 1, {}, "wamp.subscription.list")[3][0]["exact"] == [held], "the control"


def test_register_ends_neither_the_session_nor_its_subscriptions(start: Start) -> None:
    router = start()
    peer = Peer(router.server.urls[0]).join()
    subscription = peer.request(32, 1, {}, "com.a")[2]
    refused = peer.request(64, 2, {}, "com.procedure")
    assert (refused[:3], refused[4]) == ([8, 64, 2], "wamp.error.not_authorized")
    publisher = Peer(router.server.urls[0]).join_publisher()
    publisher.send(16, 1, {}, "com.a", ["still there"])
    event = peer.receive()
    assert (event[:2], event[4]) == ([36, subscription], ["still there"])
