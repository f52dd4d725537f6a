# SPDX-License-Identifier: Apache-2.0
"""The operator's page over HTTP: its paths, its token, its bounds.

tests/e2e/operations/test_page.py looks at it with a browser.
"""

import base64
import hashlib
import json
import logging
import re
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from importlib.resources import files
from threading import Event

import pytest

from tests.host.waiting import DEADLINE_S, eventually
from ustreamer.host.observe import page as page_module
from ustreamer.host.observe.http_server import HttpServer, parse_headers
from ustreamer.host.observe.page import MAX_VIEWERS, MAX_WAITING, OperatorPage
from ustreamer.uprotocol.ustatus import UCode, UStatusError

TOKEN = "0123456789abcdef-secret"
MAX_BYTES = 150_000
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


class Source:
    """A source of frames that counts what it is asked."""

    def __init__(self) -> None:
        self.page: OperatorPage | None = None
        self.opened = self.closed = 0
        self.redriven: list[tuple[int, ...] | None] = []
        self.gate = Event()
        self.gate.set()

    def open(self) -> None:
        self.opened += 1

    def close(self) -> None:
        self.closed += 1

    def frame(self) -> object:
        return {"authority": "<b>hpc</b>"}

    def dead_letters(self) -> object:
        self.gate.wait(DEADLINE_S)
        return [{"number": 1}]

    def why(self, subject: str) -> object:
        if not subject:
            raise UStatusError(UCode.INVALID_ARGUMENT, "subject: expected an address")
        return {"subject": subject}

    def explain(self, source: str, sink: str) -> object:
        return [source, sink]

    def redrive(self, numbers: tuple[int, ...] | None) -> object:
        self.redriven.append(numbers)
        return {"redriven": 1}


@pytest.fixture
def source() -> Source:
    return Source()


def serving(source: Source, token: str | None) -> HttpServer:
    source.page = OperatorPage(source, token)
    server = HttpServer("127.0.0.1", 0, lambda path: None, source.page)
    server.open()
    server.start()
    return server


@pytest.fixture
def server(source: Source) -> Iterator[HttpServer]:
    server = serving(source, TOKEN)
    yield server
    source.gate.set()
    server.close(DEADLINE_S)


@pytest.fixture
def open_server(source: Source) -> Iterator[HttpServer]:
    """Without a token."""
    server = serving(source, None)
    yield server
    server.close(DEADLINE_S)


def fetch(
    server: HttpServer,
    path: str,
    headers: dict[str, str] | None = None,
    method: str = "GET",
    body: bytes | None = None,
) -> tuple[int, bytes, HTTPResponse]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    connection.request(method, path, body, AUTHORIZED if headers is None else headers)
    response = connection.getresponse()
    found = response.status, response.read(), response
    connection.close()
    return found


def watch(server: HttpServer) -> tuple[int, HTTPConnection, HTTPResponse]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
    connection.request("GET", "/page/events", headers=AUTHORIZED)
    response = connection.getresponse()
    return response.status, connection, response


def test_the_page_is_one_small_file_that_needs_nothing_else(server: HttpServer) -> None:
    status, body, response = fetch(server, "/", {})
    text = body.decode()
    assert status == 200
    assert len(body) <= MAX_BYTES
    assert body == files(page_module.__package__).joinpath("page.html").read_bytes()
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]  # a name, not an address
    assert not re.findall(r"\b(?:src|href|innerHTML|outerHTML|insertAdjacentHTML|eval)\b", text)
    policy = response.headers["Content-Security-Policy"]
    for tag in ("script", "style"):
        [content] = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert response.headers["Access-Control-Allow-Origin"] is None


@pytest.mark.parametrize(
    "path", ["/page/events", "/page/dead-letters", "/page/why?subject=a", "/page/redrive", "/page/none"]
)
@pytest.mark.parametrize(
    "header", [None, "", "Bearer", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer é"]
)
def test_without_the_token_nothing_is_answered(
    server: HttpServer, source: Source, path: str, header: str | None
) -> None:
    headers = {} if header is None else {"Authorization": header}
    status, body, response = fetch(server, path, headers)
    assert (status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert TOKEN.encode() not in body
    assert source.opened == 0


def test_questions_are_answered(server: HttpServer) -> None:
    assert json.loads(fetch(server, "/page/dead-letters")[1]) == [{"number": 1}]
    assert json.loads(fetch(server, "/page/why?subject=%2F%2Fcar%2F1")[1]) == {"subject": "//car/1"}
    assert json.loads(fetch(server, "/page/explain?source=a&sink=b")[1]) == ["a", "b"]
    status, body, _ = fetch(server, "/page/why")
    assert (status, json.loads(body)) == (400, {"error": "subject: expected an address"})
    assert fetch(server, "/page/none")[0] == 404
    assert fetch(server, "/page/why", method="DELETE")[0] == 405
    assert fetch(server, "/", method="POST")[0] == 405
    assert fetch(server, "/none")[0] == 404


def test_a_redrive_is_a_request_of_the_page_itself(server: HttpServer, source: Source) -> None:
    host = f"127.0.0.1:{server.port}"
    good = AUTHORIZED | {"Origin": f"http://{host}", "Content-Type": "application/json"}

    def post(headers: dict[str, str], body: bytes = b'{"numbers": [1, 2]}') -> int:
        return fetch(server, "/page/redrive", headers, "POST", body)[0]

    assert fetch(server, "/page/redrive")[0] == 405
    for name, value in (
        ("Origin", "http://evil.example"),
        ("Origin", "null"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Content-Type", "text/plain"),
    ):
        assert post(good | {name: value}) == 403, name
    assert post({each: good[each] for each in good if each != "Origin"}) == 403
    for body in (b"", b"[]", b'{"numbers": "all"}', b'{"numbers": [1], "more": 1}', b"\xff"):
        assert post(good, body) == 400, body
    assert post(good, b"x" * 10_000) == 413
    assert post(good | {"Content-Length": "-1"}) == 400
    assert source.redriven == []
    assert post(good) == 200
    assert post(good, b'{"numbers": null}') == 200
    assert source.redriven == [(1, 2), None]


def test_without_a_token_nothing_can_be_changed_and_other_sites_read_nothing(
    open_server: HttpServer, source: Source
) -> None:
    assert fetch(open_server, "/page/dead-letters", {})[0] == 200
    headers = {"Origin": f"http://127.0.0.1:{open_server.port}", "Content-Type": "application/json"}
    status, body, _ = fetch(open_server, "/page/redrive", headers, "POST", b'{"numbers": null}')
    assert (status, json.loads(body)) == (403, {"error": "a redrive needs observe.token"})
    assert source.redriven == []
    for host, code in (
        ("localhost:80", 200),
        ("127.0.0.1", 200),
        ("[::1]:9464", 200),
        ("evil.example", 403),
        ("evil.example:9464", 403),
        ("localhost.evil.example", 403),
        ("", 403),
    ):
        assert fetch(open_server, "/page/dead-letters", {"Host": host})[0] == code, host


def test_viewers_are_bounded_and_share_one_source(server: HttpServer, source: Source) -> None:
    viewers = [watch(server) for _ in range(MAX_VIEWERS)]
    for status, _, response in viewers:
        assert status == 200
        assert response.headers["Content-Type"] == "text/event-stream"
        assert response.readline() == b"event: frame\n"
        assert json.loads(response.readline().removeprefix(b"data: ")) == {"authority": "<b>hpc</b>"}
    assert fetch(server, "/page/events")[0] == 503
    assert fetch(server, "/page/dead-letters")[0] == 200  # the streams take no place of a request
    assert (source.opened, source.closed) == (1, 0)
    for _, connection, response in viewers:
        response.close()
        connection.close()
    eventually(lambda: source.closed == 1, "the last viewer to leave")
    status, connection, response = watch(server)
    assert status == 200
    assert source.opened == 2
    response.close()
    connection.close()


def test_questions_that_wait_are_bounded(server: HttpServer, source: Source) -> None:
    source.gate.clear()
    waiting = []
    for _ in range(MAX_WAITING):
        connection = HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_S)
        connection.request("GET", "/page/dead-letters", headers=AUTHORIZED)
        waiting.append(connection)
    page = source.page
    assert page is not None
    eventually(lambda: page._waiting == MAX_WAITING, "all questions to wait")
    assert fetch(server, "/page/why?subject=a")[0] == 503
    source.gate.set()
    assert [each.getresponse().status for each in waiting] == [200] * MAX_WAITING
    for each in waiting:
        each.close()


def test_the_token_is_in_no_log(server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for headers in (AUTHORIZED, {"Authorization": f"Bearer {TOKEN}x"}):
        fetch(server, "/page/why", headers)
    assert TOKEN not in caplog.text


def test_a_header_line_without_a_colon_is_left_out() -> None:
    head = b"GET / HTTP/1.1\r\nHost: a\r\nwithout\r\n X: y\r\nA: b\r\na: c\r\n\r\n"
    assert parse_headers(head) == {"host": "a", "a": "c"}
