# SPDX-License-Identifier: Apache-2.0
"""The listeners over real sockets.

A third-party library is the WebSocket client; the RawSocket client is handwritten.
"""

import datetime as dt
import ipaddress
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from ustreamer_wamp.codec import SERIALIZERS
from ustreamer_wamp.router import WampRouter
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import connect

from tests.waiting import wait_until
from ustreamer.transport_port import is_loopback
from ustreamer.uprotocol.ustatus import UCode, UStatusError

HELLO = [1, "realm1", {"roles": {"subscriber": {}}}]
BY_NAME = {each.name: each for each in SERIALIZERS}
DEADLINE_S = 30.0

if TYPE_CHECKING:
    from tests.conftest import OPENED, Peer, TlsPeer
else:
    from plugins.wamp.tests.conftest import OPENED, Peer, TlsPeer

Start = Callable[..., WampRouter]


class Raw:
    """A RawSocket client, byte by byte."""

    def __init__(self, router: WampRouter, handshake: bytes = b"\x7f\xf1\x00\x00", url: int = 0) -> None:
        where = router.server.urls[url]
        if "unix" in where:
            self.socket = OPENED.enter_context(socket.socket(socket.AF_UNIX))
            self.socket.connect(where.partition("://")[2])
        else:
            host, port = where.partition("://")[2].rsplit(":", 1)
            self.socket = OPENED.enter_context(socket.socket())
            # The kernel here would take 33 MB for a client that does not read.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            self.socket.connect((host, int(port)))
        self.socket.settimeout(DEADLINE_S)
        self.socket.sendall(handshake)

    def exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise EOFError(data)
            data += more
        return data

    def send(self, *message: Any) -> None:
        payload = msgspec.json.encode(message)
        self.socket.sendall(struct.pack("!I", len(payload)) + payload)

    def receive(self) -> tuple[int, bytes]:
        (header,) = struct.unpack("!I", self.exactly(4))
        return header >> 24, self.exactly(header & 0xFF_FFFF)

    def request(self, *message: Any) -> Any:
        self.send(*message)
        kind, payload = self.receive()
        assert kind == 0
        return msgspec.json.decode(payload)


# --- WebSocket ----------------------------------------------------------------------------------------------


def test_events_go_to_every_serializer(start: Start) -> None:
    router = start()
    peers = [Peer(router.server.urls[0], name).join() for name in ("json", "msgpack", "cbor")]
    ids = [peer.request(32, 1, {}, "com.a")[2] for peer in peers]
    assert len(set(ids)) == 1
    publisher = Peer(router.server.urls[0], "cbor").join_publisher()
    for value in ("short", "x" * 200, "x" * 70_000):  # each form of a frame's length
        publisher.send(16, 1, {}, "com.a", [value, b"\x00\xff"])
        received = [peer.receive() for peer in peers]
        assert [each[4][0] for each in received] == [value] * 3
        assert [each[4][1] for each in received] == [b"\x00\xff"] * 3


def test_a_frame_is_built_once_for_all(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from ustreamer_wamp.connections import websocket
    from ustreamer_wamp.events import WampEvent

    router = start()
    peers = [Peer(router.server.urls[0], name).join() for name in ("json",) * 5 + ("msgpack",) * 5]
    for peer in peers:
        peer.request(32, 1, {}, "com.a")
    publisher = Peer(router.server.urls[0], "msgpack").join_publisher()
    built: list[Any] = []
    really = WampEvent._build_frame

    def counted(self: WampEvent, wire: Any, more: Any) -> bytes:
        built.append(wire)
        return really(self, wire, more)

    monkeypatch.setattr(WampEvent, "_build_frame", counted)
    publisher.send(16, 1, {}, "com.a", [1])
    assert [peer.receive()[4] for peer in peers] == [[1]] * 10
    assert sorted(map(repr, built)) == sorted(
        repr(websocket.WIRE_FORMATS[name]) for name in ("wamp.2.json", "wamp.2.msgpack")
    )


@pytest.mark.parametrize(
    ("path", "headers", "subprotocols", "status"),
    [
        ("/other", {}, ["wamp.2.json"], 404),
        ("/ws", {}, None, 400),
        ("/ws", {}, ["wamp.1"], 400),
        ("/ws", {"Origin": "https://evil.example"}, ["wamp.2.json"], 403),
        ("/ws", {"Origin": "null"}, ["wamp.2.json"], 403),
        ("/ws", {"Origin": "https://good.example.evil"}, ["wamp.2.json"], 403),
    ],
)
def test_a_handshake_is_refused_with_a_reason(
    start: Start, path: str, headers: dict[str, str], subprotocols: Any, status: int
) -> None:
    router = start(origins=["https://good.example"])
    url = router.server.urls[0].removesuffix("/ws") + path
    with (
        pytest.raises(InvalidStatus) as caught,
        connect(url, subprotocols=subprotocols, additional_headers=headers),
    ):
        pass
    assert caught.value.response.status_code == status
    assert caught.value.response.body
    wait_until(lambda: router.counts["refused_handshake"] == 1)
    wait_until(lambda: router.server.connection_count == 0)


def test_a_configured_origin_may_connect(start: Start) -> None:
    router = start(origins=["https://good.example", "null"])
    for origin in ("https://good.example", "null"):
        Peer(router.server.urls[0], additional_headers={"Origin": origin}).join()
    assert router.counts["refused_handshake"] == 0


def test_the_first_subprotocol_of_the_client_that_is_known_is_taken(start: Start) -> None:
    router = start()
    offered: Any = ["wamp.2.flatbuffers", "wamp.2.json", "wamp.2.cbor"]
    with connect(router.server.urls[0], subprotocols=offered) as client:
        assert client.subprotocol == "wamp.2.json"


def test_a_frame_of_the_wrong_kind_is_a_violation(start: Start) -> None:
    router = start()
    peer = Peer(router.server.urls[0]).join()
    peer.socket.send(b'[32,1,{},"com.a"]')
    answer = peer.receive()
    assert (answer[0], answer[2]) == (3, "wamp.error.protocol_violation")
    assert peer.close_code() == 1002
    wait_until(lambda: not router.realm.sessions)


def test_messages_may_be_fragmented_and_pings_are_answered(start: Start) -> None:
    peer = Peer(start().server.urls[0]).join()
    peer.socket.send(["[32,1", ",{},", '"com.a"]'])
    assert peer.receive()[0] == 33
    assert peer.socket.ping().wait(DEADLINE_S)


def test_each_end_has_its_code(start: Start) -> None:
    router = start(users=[], anonymous=True)
    peer = Peer(router.server.urls[0]).join()
    assert peer.request(6, {}, "wamp.close.normal") == [6, {}, "wamp.close.goodbye_and_out"]
    assert peer.close_code() == 1000
    peer = Peer(router.server.urls[0])
    assert peer.request(1, "nowhere", HELLO[2])[2] == "wamp.error.no_such_realm"
    assert peer.close_code() == 1008
    peer = Peer(router.server.urls[0]).join()
    peer.socket.close(1000)
    wait_until(lambda: not router.realm.sessions)
    wait_until(lambda: router.server.connection_count == 0)


def test_a_message_that_is_too_long_ends_the_connection(start: Start) -> None:
    peer = Peer(start(max_message_bytes=1000).server.urls[0]).join()
    peer.send(32, 1, {}, "x" * 2000)
    assert peer.close_code() == 1009


@pytest.mark.parametrize(
    "garbage",
    [b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n", b"POST /ws HTTP/1.1\r\n\r\n", b"\0" * 99 + b"\r\n"],
)
def test_an_invalid_handshake_closes_the_connection(start: Start, garbage: bytes) -> None:
    router = start(hello_timeout_s=1)
    host, port = router.server.urls[0].removeprefix("ws://").removesuffix("/ws").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.settimeout(DEADLINE_S)
        client.sendall(garbage)
        with suppress(ConnectionResetError):
            while client.recv(4096):
                pass
    wait_until(lambda: router.server.connection_count == 0)


UPGRADE = b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
KEY = b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
CLOSE = b"\x88\x80abcd"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        # bytes sent at once could be parsed as frames of the rejected message
        (UPGRADE + b"\r\n" + CLOSE, b"400"),
        (UPGRADE + b"\r\n\xff\xff\xff\xff", b"400"),
        (UPGRADE + KEY + b"Upgrade: websocket\r\n\r\n", b"426"),
        (UPGRADE + KEY + b"Sec-WebSocket-Protocol: wamp.2.json\r\n\r\n" + CLOSE, b"101"),
    ],
)
def test_a_handshake_is_answered_despite_appended_bytes(start: Start, sent: bytes, status: bytes) -> None:
    router = start()
    host, port = router.server.urls[0].removeprefix("ws://").removesuffix("/ws").split(":")
    for pieces in ([sent], [sent[:-9], sent[-9:-7], sent[-7:-5], sent[-5:]]):
        with socket.create_connection((host, int(port))) as client:
            client.settimeout(DEADLINE_S)
            answer = b""
            for each in pieces:
                client.sendall(each)
            with suppress(ConnectionResetError):
                while more := client.recv(4096):
                    answer += more
        assert answer.split(b" ")[1] == status
    wait_until(lambda: router.server.connection_count == 0)


def test_an_exception_that_reaches_asyncio_is_found(start: Start, no_traceback: list[str]) -> None:
    router, done = start(), threading.Event()

    def fail() -> None:
        done.set()
        raise ValueError("planted")

    router.server.run_on_loop(fail)
    assert done.wait(DEADLINE_S)
    assert "planted" in wait_until(lambda: no_traceback)[0]
    no_traceback.clear()


# --- absent clients -----------------------------------------------------------------------------------------


def test_a_silent_client_is_disconnected(start: Start) -> None:
    router = start(["rs://127.0.0.1:0", "ws://127.0.0.1:0/ws"], hello_timeout_s=1)
    silent = Raw(router, b"")
    with pytest.raises((EOFError, ConnectionResetError)):
        silent.exactly(1)
    without_hello = Raw(router)
    without_hello.exactly(4)
    assert msgspec.json.decode(without_hello.receive()[1])[2] == "wamp.error.protocol_violation"
    with pytest.raises(EOFError):
        without_hello.exactly(1)
    wait_until(lambda: router.server.connection_count == 0)


def test_a_client_that_vanishes_without_close_is_detected(start: Start) -> None:
    """A pulled cable sends nothing. This client also sends nothing: it answers no ping."""
    router = start("rs://127.0.0.1:0", ping_interval_s=1, pong_timeout_s=1)
    client = Raw(router)
    client.exactly(4)
    client.request(*HELLO)
    client.request(32, 1, {}, "com.a")
    assert client.receive() == (1, b"")  # the ping
    wait_until(lambda: not router.realm.sessions and not len(router.realm.broker))
    assert router.counts["ping_timeouts"] == 1


def test_a_client_that_answers_pings_stays_connected(start: Start) -> None:
    router = start(ping_interval_s=1, pong_timeout_s=2)  # a busy machine may need more than one for a pong
    peer = Peer(router.server.urls[0]).join()
    raw = peer.socket
    seen = time.monotonic()
    while time.monotonic() < seen + 4:
        with suppress(TimeoutError):
            raw.recv(timeout=0.1)
    assert peer.request(32, 1, {}, "com.a")[0] == 33


# --- RawSocket ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_rawsocket_carries_a_session(start: Start, tmp_path: Path, kind: str) -> None:
    router = start("rs://127.0.0.1:0" if kind == "tcp" else f"rs+unix://{tmp_path}/wamp.sock")
    client = Raw(router)
    assert client.exactly(4) == b"\x7f\xb1\x00\x00"  # 2^(9+11) is 1 MiB
    assert client.request(*HELLO)[0] == 2
    assert client.request(32, 1, {}, "com.a")[:2] == [33, 1]
    client.socket.sendall(b"\x01\x00\x00\x03abc")
    assert client.receive() == (2, b"abc")
    assert client.request(6, {}, "wamp.close.normal")[0] == 6
    with pytest.raises(EOFError):
        client.exactly(1)


@pytest.mark.parametrize(
    ("handshake", "answer"),
    [
        (b"\x7f\xf4\x00\x00", b"\x7f\x10\x00\x00"),
        (b"\x7f\xf0\x00\x00", b"\x7f\x10\x00\x00"),
        (b"\x7f\xf1\x01\x00", b"\x7f\x30\x00\x00"),
        (b"GET ", b""),
    ],
)
def test_a_handshake_that_cannot_be_is_answered_with_an_error(
    start: Start, handshake: bytes, answer: bytes
) -> None:
    client = Raw(start("rs://127.0.0.1:0"), handshake)
    assert client.exactly(len(answer)) == answer
    with pytest.raises((EOFError, ConnectionResetError)):
        client.exactly(1)


@pytest.mark.parametrize(
    "frame", [b"\x03\x00\x00\x00", b"\x10\x00\x00\x00", b"\x00\xff\xff\xff", b"\x08\x00\x00\x01"]
)
def test_a_frame_that_cannot_be_is_a_violation(start: Start, frame: bytes) -> None:
    client = Raw(start("rs://127.0.0.1:0"))
    client.exactly(4)
    client.request(*HELLO)
    client.socket.sendall(frame)
    assert msgspec.json.decode(client.receive()[1])[2] == "wamp.error.protocol_violation"
    with pytest.raises((EOFError, ConnectionResetError)):
        client.exactly(1)


def test_bytes_may_arrive_one_by_one_and_all_at_once(start: Start) -> None:
    client = Raw(start("rs://127.0.0.1:0"), b"")
    hello, subscribe = msgspec.json.encode(HELLO), b'[32,1,{},"com.a"]'
    data = b"\x7f\xf1\x00\x00" + b"".join(
        struct.pack("!I", len(each)) + each for each in (hello, subscribe, subscribe)
    )
    for at in range(20):
        client.socket.sendall(data[at : at + 1])
    client.socket.sendall(data[20:])
    client.exactly(4)
    codes = [msgspec.json.decode(client.receive()[1])[0] for _ in range(3)]
    assert codes == [2, 33, 33]


def test_a_client_with_a_short_message_limit_receives_no_long_message(start: Start) -> None:
    router = start(["rs://127.0.0.1:0", "ws://127.0.0.1:0/ws"])
    client = Raw(router, b"\x7f\x01\x00\x00")  # 512 bytes
    client.exactly(4)
    client.request(*HELLO)
    client.request(32, 1, {}, "com.a")
    router.server.urls.reverse()
    publisher = Peer(router.server.urls[0]).join_publisher()
    for value in ("x" * 600, "short"):
        publisher.send(16, 1, {}, "com.a", [value])
    assert msgspec.json.decode(client.receive()[1])[4] == ["short"]
    assert router.counts["events_too_long"] == 1


# --- bounds -------------------------------------------------------------------------------------------------


def test_a_client_over_the_limit_receives_the_reason(start: Start) -> None:
    router = start(max_sessions=2)
    peers = [Peer(router.server.urls[0]).join() for _ in range(2)]
    with pytest.raises(InvalidStatus) as caught:
        Peer(router.server.urls[0])
    assert caught.value.response.status_code == 503
    assert b"max_sessions" in (caught.value.response.body or b"")
    peers.pop().socket.close()
    wait_until(lambda: router.server.connection_count == 1)
    Peer(router.server.urls[0]).join()


def test_one_address_does_not_take_all(start: Start) -> None:
    router = start("rs://127.0.0.1:0", max_sessions_per_address=1)
    Raw(router).exactly(4)
    assert Raw(router).exactly(4) == b"\x7f\x40\x00\x00"
    assert router.counts["refused_too_many"] == 1


def test_the_router_stops_reading_from_a_client_that_does_not_read_and_loses_no_response(
    start: Start,
) -> None:
    router = start("rs://127.0.0.1:0")
    client = Raw(router)
    client.exactly(4)
    client.request(*HELLO)
    sent_request = 20_000
    message = msgspec.json.encode([32, 5, {}, "no uri " * 140])
    data = (struct.pack("!I", len(message)) + message) * sent_request
    sender = threading.Thread(target=client.socket.sendall, args=(data,))
    sender.start()
    (connection,) = router.server._connections
    transport = connection._transport
    assert connection._outbox is not None
    assert transport is not None
    wait_until(lambda: not connection._reading and not transport.is_reading())
    waiting = len(connection._outbox._waiting)
    for _ in range(sent_request):
        assert client.receive()[1].startswith(b"[8,32,5,")
    sender.join(DEADLINE_S)
    # Requests in the last block read (256 KiB in asyncio) are answered, too.
    assert 64 <= waiting < 64 + 262_144 // len(message) + 2
    assert connection._reading


def test_a_router_that_stops_sends_goodbye(start: Start) -> None:
    router = start()
    peer = Peer(router.server.urls[0]).join()
    silent = Peer(router.server.urls[0]).join()
    router.server.stop_accepting()

    def refused() -> bool:
        try:
            Peer(router.server.urls[0]).socket.close()
        except (OSError, EOFError, WebSocketException):
            return True
        return False

    wait_until(refused)
    assert peer.request(32, 1, {}, "com.a")[0] == 33, "sessions go on"
    closing = threading.Thread(target=router.server.close)
    closing.start()
    assert peer.receive() == [6, {}, "wamp.close.system_shutdown"]
    peer.send(6, {}, "wamp.close.goodbye_and_out")
    assert peer.close_code() == 1000
    closing.join(DEADLINE_S)
    assert not closing.is_alive()
    assert silent.receive()[0] == 6
    router.server.close()  # once more changes nothing
    assert not router.server.run_on_loop(lambda: None)


def test_an_address_in_use_is_named(start: Start, tmp_path: Path) -> None:
    first = start(["ws://127.0.0.1:0/ws", f"rs+unix://{tmp_path}/a.sock"])
    port = first.server.urls[0].rsplit(":", 1)[1].removesuffix("/ws")
    for taken in (f"ws://127.0.0.1:{port}/ws", f"rs+unix://{tmp_path}/a.sock"):
        with pytest.raises(UStatusError) as caught:
            start(["ws://127.0.0.1:0", taken])
        assert caught.value.code is UCode.UNAVAILABLE
        assert taken in caught.value.message


def test_a_socket_that_was_left_behind_is_no_obstacle(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "wamp.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    router = start(f"rs+unix://{path}")
    Raw(router).exactly(4)
    router.server.close()
    assert not path.exists()
    path.write_text("precious")
    with pytest.raises(UStatusError):
        start(f"rs+unix://{path}")
    assert path.read_text() == "precious"


def test_a_check_of_deadlines_that_raises_stops_no_other(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = start(hello_timeout_s=1)
    first = Peer(router.server.urls[0]).join()

    def fail(now_ns: int) -> None:
        raise KeyError("a defect")

    (broken,) = router.server._connections
    monkeypatch.setattr(broken, "tick", fail)
    assert Peer(router.server.urls[0]).receive()[0] == 3, "ABORT at the deadline of its login"
    assert router.counts["tick_errors"] > 1
    assert first.request(32, 1, {}, "com.a")[0] == 33


# --- TLS ----------------------------------------------------------------------------------------------------


def write_certificate(directory: Path, name: str, password: bytes = b"") -> dict[str, str]:
    """A self-signed certificate and its key, as files. The key is encrypted if there is a password."""
    directory.mkdir(exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    (directory / "new.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    encryption: serialization.KeySerializationEncryption = (
        serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    )
    (directory / "new.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    )
    for suffix in ("crt", "key"):
        (directory / f"new.{suffix}").rename(directory / f"wamp.{suffix}")
    return {"certificate": str(directory / "wamp.crt"), "key": str(directory / "wamp.key")}


def common_name(router: WampRouter) -> str:
    host, port = router.server.urls[0].removeprefix("wss://").removesuffix("/ws").split(":")
    pem = ssl.get_server_certificate((host, int(port)))
    found = x509.load_pem_x509_certificate(pem.encode()).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value)


def test_tls_with_a_certificate_that_is_replaced_while_it_runs(start: Start, tmp_path: Path) -> None:
    files = write_certificate(tmp_path, "first")
    router = start("wss://127.0.0.1:0/ws", tls=files)
    context = ssl.create_default_context(cafile=files["certificate"])
    peer = TlsPeer(router.server.urls[0], context)
    assert common_name(router) == "first"
    write_certificate(tmp_path, "second")
    wait_until(lambda: common_name(router) == "second")
    assert peer.request(32, 1, {}, "com.a")[0] == 33, "who was there stays"
    (tmp_path / "wamp.key").write_text("no key at all")
    seen = time.monotonic()
    while time.monotonic() < seen + 2.5:
        assert common_name(router) == "second"
        time.sleep(0.2)


def test_certificates_that_cannot_be_read_are_named(start: Start, tmp_path: Path) -> None:
    missing = {"certificate": str(tmp_path / "none.crt"), "key": str(tmp_path / "none.key")}
    with pytest.raises(UStatusError, match="none.crt"):
        start("wss://127.0.0.1:0/ws", tls=missing)


def test_an_encrypted_key_is_refused_without_a_question_on_the_terminal(start: Start, tmp_path: Path) -> None:
    with pytest.raises(UStatusError, match=r"wamp\.key: the key is encrypted"):
        start("wss://127.0.0.1:0/ws", tls=write_certificate(tmp_path, "car", b"secret"))


def test_certificates_of_clients_are_those_of_the_last_client_ca(start: Start, tmp_path: Path) -> None:
    server, old, new = (write_certificate(tmp_path / name, name) for name in ("server", "old", "new"))
    client_ca = tmp_path / "client_ca.crt"
    client_ca.write_bytes(Path(old["certificate"]).read_bytes())
    router = start("wss://127.0.0.1:0/ws", tls={**server, "client_ca": str(client_ca)})

    def is_accepted(client: dict[str, str]) -> bool:
        context = ssl.create_default_context(cafile=server["certificate"])
        context.load_cert_chain(client["certificate"], client["key"])
        try:
            TlsPeer(router.server.urls[0], context)
        except (ssl.SSLError, OSError, EOFError, WebSocketException):
            return False
        return True

    assert (is_accepted(old), is_accepted(new)) == (True, False)
    client_ca.write_bytes(Path(new["certificate"]).read_bytes())
    wait_until(lambda: is_accepted(new))
    assert not is_accepted(old)


def test_local_clients_are_identified() -> None:
    assert [is_loopback(each) for each in ("127.0.0.1", "::1", "192.0.2.1", "")] == [True, True, False, False]
