# SPDX-License-Identifier: Apache-2.0
"""The operator's page: page.html, the events that keep it current, and its questions. Requests in, responses out.

    GET  /                         page.html: one file, which needs nothing else
    GET  /page/events              a frame per second, as server-sent events
    GET  /page/dead-letters        the newest dead letters
    GET  /page/why?subject=        as `ustreamer why`
    GET  /page/explain?source=&sink=   as `ustreamer explain`
    POST /page/redrive             {"numbers": [1, 2]}, or null for all: as `ustreamer dead-letters redrive`

With a token, all of them but the file need `Authorization: Bearer <token>`. The browser sends that header only by the
code of the page, so no other site can act for the operator. Without a token nothing can be changed, and the address must
be a loopback address: a name in Host is refused, because a name of another site can point here (DNS rebinding).
"""

import asyncio
import base64
import hashlib
import hmac
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from importlib.resources import files
from ipaddress import ip_address
from typing import Final, Protocol

import msgspec

from ustreamer.host.observe.http_server import HttpRequest, HttpResponse, HttpStream
from ustreamer.uprotocol.ustatus import UStatusError

MAX_VIEWERS: Final = 4
MAX_WAITING: Final = 8
"""Questions that wait for an answer."""
INTERVAL_S: Final = 1.0
_JSON: Final = "application/json"
_HTML: Final = "text/html; charset=utf-8"
_EVENTS: Final = "text/event-stream"
_PREFIX: Final = "/page/"


class RedriveNumbers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a redrive: numbers of dead letters; None: all except requests and responses."""

    numbers: tuple[int, ...] | None


class PageSource(Protocol):
    """What the page shows. Called on one thread, which may wait. Values are those of JSON. Raises UStatusError."""

    def open(self) -> None:
        """The first viewer has come."""

    def close(self) -> None:
        """The last viewer has gone. May be repeated."""

    def frame(self) -> object:
        """The present state."""

    def dead_letters(self) -> object: ...

    def why(self, subject: str) -> object: ...

    def explain(self, source: str, sink: str) -> object: ...

    def redrive(self, numbers: tuple[int, ...] | None) -> object: ...


class OperatorPage:
    """An `HttpPage` for one streamer. All calls come from the loop of the server."""

    def __init__(self, source: PageSource, token: str | None) -> None:
        self._source = source
        self._token = None if token is None else token.encode()
        self._html = files(__package__).joinpath("page.html").read_bytes()
        self._headers = (
            ("Content-Security-Policy", _content_security_policy(self._html.decode())),
            ("Referrer-Policy", "no-referrer"),
            ("X-Frame-Options", "DENY"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        )
        self._worker = ThreadPoolExecutor(1, "observe page")
        self._waiting = self._viewers = 0
        self._frame = b""
        self._frame_due_s = 0.0
        self._frame_lock = asyncio.Lock()
        self._questions: Mapping[str, Callable[[HttpRequest], Callable[[], object]]] = {
            "dead-letters": lambda request: self._source.dead_letters,
            "why": lambda request: lambda: self._source.why(request.query.get("subject", "")),
            "explain": lambda request: (
                lambda: self._source.explain(request.query.get("source", ""), request.query.get("sink", ""))
            ),
        }

    def has_path(self, path: str) -> bool:
        return path == "/" or path.startswith(_PREFIX)

    async def respond(self, request: HttpRequest) -> HttpResponse | HttpStream:
        if self._token is None and not _names_this_machine(request.headers.get("host", "")):
            return self._problem(HTTPStatus.FORBIDDEN, "Host: expected an IP address or localhost")
        if request.path == "/":
            if request.method not in {"GET", "HEAD"}:
                return self._problem(HTTPStatus.METHOD_NOT_ALLOWED, "expected GET")
            return HttpResponse(HTTPStatus.OK, _HTML, self._html, self._headers)
        if not self._is_authorized(request):
            return self._problem(HTTPStatus.UNAUTHORIZED, "the token is missing or wrong")
        name = request.path.removeprefix(_PREFIX)
        if name == "redrive":
            return await self._redrive(request)
        if request.method != "GET":
            return self._problem(HTTPStatus.METHOD_NOT_ALLOWED, "expected GET")
        if name == "events":
            return await self._open_events()
        if name in self._questions:
            return await self._answer(self._questions[name](request))
        return self._problem(HTTPStatus.NOT_FOUND, "no such path")

    def _is_authorized(self, request: HttpRequest) -> bool:
        if self._token is None:
            return True
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(given.strip().encode(), self._token)
        return is_right and scheme.lower() == "bearer"

    # --- questions ----------------------------------------------------------------------------------------------------

    async def _redrive(self, request: HttpRequest) -> HttpResponse:
        if request.method != "POST":
            return self._problem(HTTPStatus.METHOD_NOT_ALLOWED, "expected POST")
        if self._token is None:
            return self._problem(HTTPStatus.FORBIDDEN, "a redrive needs observe.token")
        if not _is_of_same_origin(request.headers):
            return self._problem(HTTPStatus.FORBIDDEN, "expected a request of the page itself")
        try:
            body = msgspec.json.decode(request.body, type=RedriveNumbers)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return self._problem(HTTPStatus.BAD_REQUEST, str(error))
        return await self._answer(lambda: self._source.redrive(body.numbers))

    async def _answer(self, ask: Callable[[], object]) -> HttpResponse:
        if self._waiting >= MAX_WAITING:
            return self._problem(HTTPStatus.SERVICE_UNAVAILABLE, "too many questions wait for an answer")
        self._waiting += 1
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._worker, ask)
        except UStatusError as error:
            return self._problem(HTTPStatus.BAD_REQUEST, error.message)
        finally:
            self._waiting -= 1
        return HttpResponse(HTTPStatus.OK, _JSON, msgspec.json.encode(found), self._headers)

    def _problem(self, status: HTTPStatus, text: str) -> HttpResponse:
        challenge = (("WWW-Authenticate", "Bearer"),) if status is HTTPStatus.UNAUTHORIZED else ()
        return HttpResponse(status, _JSON, msgspec.json.encode({"error": text}), (*self._headers, *challenge))

    # --- events -------------------------------------------------------------------------------------------------------

    async def _open_events(self) -> HttpResponse | HttpStream:
        if self._viewers >= MAX_VIEWERS:
            text = f"{MAX_VIEWERS} viewers are the most at a time"
            return self._problem(HTTPStatus.SERVICE_UNAVAILABLE, text)
        self._viewers += 1
        try:
            if self._viewers == 1:
                await asyncio.get_running_loop().run_in_executor(self._worker, self._source.open)
            await self._renew_frame()
        except BaseException as error:
            self._end_viewer()
            if isinstance(error, UStatusError):
                return self._problem(HTTPStatus.SERVICE_UNAVAILABLE, error.message)
            raise
        return HttpStream(_EVENTS, self._events())

    async def _events(self) -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"event: frame\ndata: " + self._frame + b"\n\n"
                await asyncio.sleep(INTERVAL_S)
                await self._renew_frame()
        finally:
            self._end_viewer()

    async def _renew_frame(self) -> None:
        """One frame serves all viewers."""
        loop = asyncio.get_running_loop()
        async with self._frame_lock:
            if loop.time() < self._frame_due_s:
                return
            found = await loop.run_in_executor(self._worker, self._source.frame)
            self._frame = msgspec.json.encode(found)
            self._frame_due_s = loop.time() + INTERVAL_S * 0.9

    def _end_viewer(self) -> None:
        self._viewers -= 1
        if not self._viewers:
            self._frame_due_s = 0.0
            self._worker.submit(self._source.close)


def _content_security_policy(html: str) -> str:
    """Only the script and the style in the page itself run; it connects to this server alone."""

    def hashes(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digests = (base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in found)
        return " ".join(f"'sha256-{each}'" for each in digests)

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _names_this_machine(host: str) -> bool:
    """Whether a Host header has an address, or localhost, and no other name."""
    name = host.rpartition(":")[0] if re.fullmatch(r".*:\d+", host) else host
    if name == "localhost":
        return True
    try:
        ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _is_of_same_origin(headers: Mapping[str, str]) -> bool:
    host = headers.get("host", "")
    return (
        headers.get("origin") in {f"http://{host}", f"https://{host}"}
        and headers.get("sec-fetch-site", "same-origin") == "same-origin"
        and headers.get("content-type", "").partition(";")[0].strip() == _JSON
    )
