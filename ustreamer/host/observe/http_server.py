# SPDX-License-Identifier: Apache-2.0
"""A bounded HTTP server on one thread. Requests in, the responses of `respond` and of the page out.

The standard library's `http.server` serves one client after the other, or starts a thread for each; its time-out is per
read, so a client that sends a byte per second holds it. Here each connection carries one request and has a deadline. At
the limit of connections the oldest one is closed, so slow clients cannot keep a new one out. A stream of the page
does not count there: the page bounds its viewers.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from threading import Thread
from typing import Final, NamedTuple, Protocol
from urllib.parse import parse_qsl, urlsplit

from ustreamer.core.base.log_limit import limited
from ustreamer.uprotocol.ustatus import UCode, UStatusError

MAX_CONNECTIONS: Final = 16
MAX_REQUEST_BYTES: Final = 8_192
REQUEST_TIMEOUT_S: Final = 2.0
"""For the whole request."""
RESPONSE_TIMEOUT_S: Final = 5.0
"""For a client that does not read."""
_MAX_FIELDS: Final = 16
_MAX_LENGTH_DIGITS: Final = 8  # Python refuses to convert thousands of digits
_END: Final = b"\r\n\r\n"
_TEXT: Final = "text/plain; charset=utf-8"

log = logging.getLogger("ustreamer.observe")


class HttpResponse(NamedTuple):
    """A response. `headers` are added to those of every response."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class HttpRequest(NamedTuple):
    """A request to the page. Names of headers are in lower case; of repeated ones the last counts."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


class HttpStream(NamedTuple):
    """A response without an end: each chunk is sent at once. `chunks` is closed with the connection."""

    content_type: str
    chunks: AsyncGenerator[bytes, None]


class HttpPage(Protocol):
    """Answers the requests to some paths, on the loop of the server."""

    def has_path(self, path: str) -> bool: ...

    async def respond(self, request: HttpRequest) -> HttpResponse | HttpStream:
        """The response, also to a method or a path that it does not know. Never waits for long."""
        ...


Respond = Callable[[str], HttpResponse | None]
"""The response for a path; None: there is no such path. Called on the thread of the server; must be quick."""


class HttpServer:
    """Serves `respond` at one address. Call `open`, `start`, `close`; `close` may be repeated."""

    def __init__(self, host: str, port: int, respond: Respond, page: HttpPage | None = None) -> None:
        self._host, self._port = host, port
        self._respond = respond
        self._page = page
        self._socket: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connections: dict[asyncio.StreamWriter, None] = {}
        """Oldest first."""
        self._thread: Thread | None = None

    def open(self) -> None:
        """Bind the address. Raises UStatusError(UNAVAILABLE)."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            self._socket = socket.create_server(
                (self._host, self._port), family=family, backlog=MAX_CONNECTIONS
            )
        except OSError as error:
            text = f"observe.listen {self._host}:{self._port}: {error.strerror or error}"
            raise UStatusError(UCode.UNAVAILABLE, text) from error

    @property
    def port(self) -> int:
        """The bound port."""
        assert self._socket is not None  # `open` comes first
        port: int = self._socket.getsockname()[1]
        return port

    def start(self) -> None:
        """Serve from now on; clients that have connected since `open` are served first."""
        self._loop = loop = asyncio.new_event_loop()
        server = loop.run_until_complete(
            asyncio.start_server(
                self._serve, sock=self._socket, limit=MAX_REQUEST_BYTES, backlog=MAX_CONNECTIONS
            )
        )
        self._thread = Thread(target=_run, args=(loop, server), name="observe", daemon=True)
        self._thread.start()
        log.info("observe.listening", extra={"host": self._host, "port": self.port})

    def close(self, timeout_s: float) -> None:
        """Close the address and all connections, and end the thread."""
        if self._thread is not None and self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout_s)
            self._thread = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # --- the thread of the server ------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: one request, one response. Nothing is raised: a bad client affects its own connection only."""
        if len(self._connections) >= MAX_CONNECTIONS:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.transport.abort()
        self._connections[writer] = None
        try:
            response, sends_body = await self._handle(reader)
            if isinstance(response, HttpStream):
                await self._send_stream(writer, response)
                return
            writer.write(_encode(response, sends_body=sends_body))
            writer.close()
            async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError):  # the client has closed, or it does not read
            pass
        finally:
            writer.transport.abort()
            self._connections.pop(writer, None)

    async def _send_stream(self, writer: asyncio.StreamWriter, stream: HttpStream) -> None:
        """Send until the client closes, or until it has not read for a while."""
        self._connections.pop(writer, None)
        try:
            writer.write(_head(HTTPStatus.OK, stream.content_type))
            async for chunk in stream.chunks:
                writer.write(chunk)
                async with asyncio.timeout(RESPONSE_TIMEOUT_S):
                    await writer.drain()
        finally:
            await stream.chunks.aclose()

    async def _handle(self, reader: asyncio.StreamReader) -> tuple[HttpResponse | HttpStream, bool]:
        """The response to the request of a connection, and whether its body is sent. Raises EOFError without one."""
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                head = await reader.readuntil(_END)
        except asyncio.LimitOverrunError:
            return _problem(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), True
        except TimeoutError:
            return _problem(HTTPStatus.REQUEST_TIMEOUT), True
        method, path = parse_request_line(head)
        if not method:
            return _problem(HTTPStatus.BAD_REQUEST), True
        if self._page is not None and self._page.has_path(path):
            return await self._respond_page(self._page, reader, method, head), True
        if method not in {"GET", "HEAD"}:
            return _problem(HTTPStatus.METHOD_NOT_ALLOWED, ("Allow", "GET, HEAD")), True
        try:
            response = self._respond(path)
        except Exception:
            # A defect in a metric must end neither the server nor the streamer. The log has its traceback.
            log.exception("observe.failed", extra={"path": path, **limited()})
            response = _problem(HTTPStatus.INTERNAL_SERVER_ERROR)
        return response or _problem(HTTPStatus.NOT_FOUND), method == "GET"

    async def _respond_page(
        self, page: HttpPage, reader: asyncio.StreamReader, method: str, head: bytes
    ) -> HttpResponse | HttpStream:
        headers = parse_headers(head)
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal()) or "transfer-encoding" in headers:
            return _problem(HTTPStatus.BAD_REQUEST)
        if len(length) > _MAX_LENGTH_DIGITS or int(length) > MAX_REQUEST_BYTES:
            return _problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                body = await reader.readexactly(int(length))
        except TimeoutError:
            return _problem(HTTPStatus.REQUEST_TIMEOUT)
        target = urlsplit(head.partition(b"\r\n")[0].decode("ascii").split(" ")[1])
        try:
            query = dict(parse_qsl(target.query, max_num_fields=_MAX_FIELDS)) if target.query else {}
        except ValueError:  # more fields
            return _problem(HTTPStatus.BAD_REQUEST)
        try:
            return await page.respond(HttpRequest(method, target.path, query, headers, body))
        except Exception:
            # As in `_handle`.
            log.exception("observe.failed", extra={"path": target.path, **limited()})
            return _problem(HTTPStatus.INTERNAL_SERVER_ERROR)


def _run(loop: asyncio.AbstractEventLoop, server: asyncio.Server) -> None:
    """Run until `loop.stop`, then close everything that is open."""
    loop.run_forever()
    server.close()
    connections = asyncio.all_tasks(loop)
    for each in connections:
        each.cancel()
    loop.run_until_complete(_wait_ended(connections))
    loop.close()


async def _wait_ended(connections: Iterable[asyncio.Task[object]]) -> None:
    await asyncio.gather(*connections, return_exceptions=True)
    await asyncio.sleep(0)  # closes the transports that were aborted just now


def parse_request_line(head: bytes) -> tuple[str, str]:
    """Method and path, without the query, of a request; two empty texts if it is not HTTP/1."""
    line = head.partition(b"\r\n")[0]
    try:
        method, target, version = line.decode("ascii").split(" ")
    except ValueError:  # not three words, or not ASCII
        return "", ""
    if not version.startswith("HTTP/1.") or not target.startswith("/") or not method.isalpha():
        return "", ""
    return method, target.partition("?")[0]


def parse_headers(head: bytes) -> dict[str, str]:
    """The headers of a request. Lines that are none are left out."""
    found = {}
    for line in head.decode("latin-1").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon and name == name.strip():
            found[name.lower()] = value.strip()
    return found


def _problem(status: HTTPStatus, *headers: tuple[str, str]) -> HttpResponse:
    return HttpResponse(status, _TEXT, f"{status.phrase}\n".encode(), headers)


def _encode(response: HttpResponse, *, sends_body: bool) -> bytes:
    length = ("Content-Length", str(len(response.body)))
    head = _head(response.status, response.content_type, length, *response.headers)
    return head + (response.body if sends_body else b"")


def _head(status: HTTPStatus, content_type: str, *headers: tuple[str, str]) -> bytes:
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {content_type}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers),
    ]
    return "\r\n".join(lines).encode("ascii") + _END
