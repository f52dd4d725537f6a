# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of `[observe]`: what it answers, and what a bad client can cost."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPResponse

import pytest

from tests.host.waiting import DEADLINE_S, eventually
from ustreamer.host.observe import http_server
from ustreamer.host.observe.http_server import HttpResponse, HttpServer, parse_request_line
from ustreamer.uprotocol.ustatus import UCode, UStatusError

LOOPBACK = "127.0.0.1"
BODY = b"x" * 8_000_000  # more than the kernel buffers for a client that does not read


def respond(path: str) -> HttpResponse | None:
    match path:
        case "/metrics":
            return HttpResponse(HTTPStatus.OK, "text/plain", b"a_metric 1\n")
        case "/large":
            return HttpResponse(HTTPStatus.OK, "text/plain", BODY)
        case "/defect":
            raise RuntimeError("a defect of a metric")
    return None


@pytest.fixture
def server() -> Iterator[HttpServer]:
    server = HttpServer(LOOPBACK, 0, respond)
    server.open()
    server.start()
    yield server
    server.close(DEADLINE_S)


def fetch(server: HttpServer, path: str, method: str = "GET") -> tuple[int, bytes, HTTPResponse]:
    connection = HTTPConnection(LOOPBACK, server.port, timeout=DEADLINE_S)
    connection.request(method, path)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, body, response


def connect(server: HttpServer) -> socket.socket:
    return socket.create_connection((LOOPBACK, server.port), timeout=DEADLINE_S)


def answer_to(server: HttpServer, request: bytes) -> bytes:
    """All that the server sends for these bytes, until it closes."""
    with connect(server) as client:
        received = b""
        with suppress(ConnectionError):  # a server that closes with unread input resets the connection
            client.sendall(request)
            while part := client.recv(65_536):
                received += part
        return received


def test_a_path_is_answered_with_its_type_and_length(server: HttpServer) -> None:
    status, body, response = fetch(server, "/metrics?name=a_metric")
    assert (status, body) == (200, b"a_metric 1\n")
    assert response.getheader("Content-Type") == "text/plain"
    assert response.getheader("Content-Length") == "11"
    assert fetch(server, "/metrics", "HEAD")[:2] == (200, b"")


def test_other_paths_and_methods_are_refused(server: HttpServer) -> None:
    assert fetch(server, "/")[0] == 404
    status, _, response = fetch(server, "/metrics", "POST")
    assert (status, response.getheader("Allow")) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /metrics\r\n\r\n",
        b"GET metrics HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/2.0\r\n\r\n",
        b"G\xc3\x84T /metrics HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n",  # the begin of TLS
        b"GET /metrics extra HTTP/1.1\r\n\r\n",
    ],
)
def test_a_malformed_request_is_answered_400(server: HttpServer, request_bytes: bytes) -> None:
    assert answer_to(server, request_bytes).startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert fetch(server, "/metrics")[0] == 200


def test_a_request_without_an_end_is_bounded_in_bytes(server: HttpServer) -> None:
    request = b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 4_000
    received = answer_to(server, request)
    assert received == b"" or received.startswith(b"HTTP/1.1 431 ")
    assert fetch(server, "/metrics")[0] == 200


def test_a_request_without_an_end_is_bounded_in_time(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_TIMEOUT_S", 0.05)
    assert answer_to(server, b"GET /metrics HTTP/1.1\r\n").startswith(b"HTTP/1.1 408 ")


def test_slow_clients_do_not_keep_a_scrape_out(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        http_server, "REQUEST_TIMEOUT_S", 2 * DEADLINE_S
    )  # so only the limit closes connections
    with ExitStack() as held:
        slow = [held.enter_context(connect(server)) for _ in range(3 * http_server.MAX_CONNECTIONS)]
        for each in slow:
            with suppress(ConnectionError):  # closed by now, as one of the oldest
                each.sendall(b"GET /metrics HTTP/1.1\r\nX:")
        assert fetch(server, "/metrics")[0] == 200
        eventually(lambda: len(server._connections) <= http_server.MAX_CONNECTIONS, "the limit")


def test_a_client_that_does_not_read_does_not_keep_a_scrape_out(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "RESPONSE_TIMEOUT_S", 0.05)
    with connect(server) as client:
        client.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        assert client.recv(4).startswith(b"HTTP")
        assert fetch(server, "/metrics")[0] == 200
        eventually(lambda: not server._connections, "the end of its connection")


def test_a_client_that_leaves_early_disturbs_no_other(server: HttpServer) -> None:
    for request in (b"", b"GET /met", b"GET /large HTTP/1.1\r\n\r\n"):
        connect(server).close()
        with connect(server) as client:
            client.sendall(request)
    eventually(lambda: not server._connections, "the end of the connections")
    assert fetch(server, "/metrics")[0] == 200


def test_a_defect_of_a_metric_is_answered_500_and_logged(
    server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert fetch(server, "/defect")[0] == 500
    assert fetch(server, "/metrics")[0] == 200
    assert [each.message for each in caplog.records if each.exc_info] == ["observe.failed"]


def test_an_address_in_use_is_unavailable(server: HttpServer) -> None:
    with pytest.raises(UStatusError, match=f"observe.listen {LOOPBACK}:{server.port}") as refused:
        HttpServer(LOOPBACK, server.port, respond).open()
    assert refused.value.code is UCode.UNAVAILABLE


def test_close_ends_open_connections_and_releases_the_address(server: HttpServer) -> None:
    port = server.port
    with connect(server) as client:
        client.sendall(b"GET /met")
        eventually(lambda: len(server._connections) == 1, "the connection")
        server.close(DEADLINE_S)
        server.close(DEADLINE_S)
        with suppress(ConnectionError):
            assert client.recv(100) == b""
    again = HttpServer(LOOPBACK, port, respond)
    again.open()
    again.close(DEADLINE_S)


def test_the_query_is_no_part_of_the_path() -> None:
    assert parse_request_line(b"GET /metrics?a=/b HTTP/1.1\r\nHost: x\r\n\r\n") == ("GET", "/metrics")
