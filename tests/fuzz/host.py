# SPDX-License-Identifier: Apache-2.0
"""Borders of the host: the HTTP server, the admin socket and the configuration file."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Final

import msgspec

from tests.fuzz.border import Border, Take, pure
from ustreamer.host.admin.server import (
    AdminResponse,
    PluginRequest,
    PurgeRequest,
    ReloadRequest,
    TapRequest,
    TopRequest,
    WhyRequest,
    encode_response,
    response_to,
)
from ustreamer.host.config import config as configuration
from ustreamer.host.config.document import ConfigError
from ustreamer.host.observe.http_server import HttpRequest, HttpResponse, HttpServer
from ustreamer.host.runtime import plugins

_OK: Final = HttpResponse(HTTPStatus.OK, "text/plain", b"ok")


class EchoPage:
    """A page below /page that accepts each request."""

    def has_path(self, path: str) -> bool:
        return path.startswith("/page")

    async def respond(self, request: HttpRequest) -> HttpResponse:
        return _OK


def takes_http() -> Take:
    """Takes the bytes of a connection to the metrics and to a page; the client then closes."""
    server = HttpServer("127.0.0.1", 0, lambda path: _OK if path == "/metrics" else None, EchoPage())

    async def handle(data: bytes) -> None:
        reader = asyncio.StreamReader(limit=8_192)
        reader.feed_data(data)
        reader.feed_eof()
        with suppress(EOFError):
            response, _ = await server._handle(reader)
            assert isinstance(response, HttpResponse)

    return lambda data: asyncio.run(handle(data))


def take_admin_line(data: bytes) -> None:
    response = response_to(data, lambda request: request)
    msgspec.json.decode(encode_response(response), type=AdminResponse)


def takes_configuration(directory: Path) -> Take:
    """Takes the text of a file; it is checked with the installed transports and plugins."""
    classes = {name: plugins.plugin_class(entry) for name, entry in plugins.installed_plugins().items()}
    kinds = plugins.transport_kinds(plugins.class_plugin_manager(classes))
    configs = {name: each.Config for name, each in classes.items()}
    file = directory / "ustreamer.toml"

    def take(data: bytes) -> None:
        file.write_bytes(data)
        with suppress(ConfigError):
            configuration.load(file, kinds, configs)

    return take


_REPO: Final = Path(__file__).resolve().parents[2]
_GET: Final = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_POST: Final = (
    b"POST /page/why?subject=//car/1/1/8001&at=1 HTTP/1.1\r\nHost: 127.0.0.1:9464\r\n"
    b"Origin: http://127.0.0.1:9464\r\nContent-Length: 2\r\n\r\n{}"
)
_HTTP_REFUSED: Final = (
    b"POST /page HTTP/1.1\r\nContent-Length: %b\r\n\r\n" % (b"9" * 5_000),  # Python refuses to convert it
    b"GET /page?%b HTTP/1.1\r\n\r\n" % b"&".join(b"a=1" for _ in range(40)),
)
_REQUESTS: Final = (
    ReloadRequest("/etc/ustreamer.toml"),
    PurgeRequest((1, 2)),
    TapRequest("//car/1/1/8001", None, "delivered", payload=True),
    WhyRequest("//car/1/1/8001"),
    TopRequest(0.5),
    PluginRequest("recorder", {"action": "rotate"}),
)

BORDERS: Final[Mapping[str, Border]] = {
    "http": Border(lambda _: takes_http(), [_GET, _POST, *_HTTP_REFUSED], max_length=9_000),
    "admin": Border(pure(take_admin_line), [msgspec.json.encode(each) for each in _REQUESTS]),
    "configuration": Border(
        takes_configuration,
        [file.read_bytes() for file in sorted((_REPO / "configs").glob("*.toml"))],
        max_length=16_384,
    ),
}
