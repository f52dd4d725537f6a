# SPDX-License-Identifier: Apache-2.0
"""WAMP over WebSocket: the handshake and the frames by the Sans-I/O protocol of the package websockets.

Outgoing frames are built here, unmasked and unfragmented, so that one frame serves all subscribers.
"""

import asyncio
import logging
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final, Unpack
from urllib.parse import urlsplit

from websockets.datastructures import Headers
from websockets.exceptions import NegotiationError
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from ustreamer_wamp.codec import SERIALIZERS
from ustreamer_wamp.connections.connection import Connection, ConnectionContext, ConnectionOptions
from ustreamer_wamp.events import WireFormat

# Errors that websockets logs are sent to the client or counted here.
_log = logging.getLogger("ustreamer.wamp.websocket")
_log.setLevel(logging.CRITICAL)

_BY_NAME: Final = {serializer.subprotocol: serializer for serializer in SERIALIZERS}
_FIN: Final = 0x80
_HEAD_END: Final = b"\r\n\r\n"


def _framer(opcode: Opcode) -> Callable[[bytes], bytes]:
    first = bytes([_FIN | opcode])
    medium, long = struct.Struct("!cBH"), struct.Struct("!cBQ")

    def frame(payload: bytes) -> bytes:
        size = len(payload)
        if size < 126:
            return b"%b%c%b" % (first, size, payload)
        if size < 65_536:
            return medium.pack(first, 126, size) + payload
        return long.pack(first, 127, size) + payload

    return frame


WIRE_FORMATS: Final[Mapping[str, WireFormat]] = {
    each.subprotocol: WireFormat(
        f"websocket {each.name}", each, _framer(Opcode.TEXT if each.is_text else Opcode.BINARY)
    )
    for each in SERIALIZERS
}


class HttpGate:
    """The rules for handshakes: path, allowed origins, and the pages for a plain GET."""

    def __init__(
        self,
        path: str,
        origins: Sequence[str],
        pages: Mapping[str, Callable[[], tuple[str, bytes]]] | None = None,
    ) -> None:
        """`path` "" is any. `pages` by path: media type and body."""
        self._path = path
        self._origins = frozenset(origins)
        self._pages = pages or {}

    def page(self, request: Request) -> tuple[str, bytes] | None:
        """The response to a GET that is not a handshake; None if none is configured."""
        make_page = self._pages.get(urlsplit(request.path).path)
        return None if make_page is None else make_page()

    def handshake_refusal(self, request: Request) -> tuple[HTTPStatus, str] | None:
        """The response that refuses a handshake; None if it is accepted."""
        path = urlsplit(request.path).path
        if self._path and path != self._path:
            return HTTPStatus.NOT_FOUND, f"there is no {path[:100]!r}: WAMP is at {self._path!r}"
        origins = request.headers.get_all("Origin")
        if len(origins) > 1:
            return HTTPStatus.BAD_REQUEST, "more than one Origin"
        if origins and not self._is_origin_allowed(origins[0], request.headers):
            return HTTPStatus.FORBIDDEN, f"origin {origins[0][:200]!r} is not among `origins`"
        return None

    def _is_origin_allowed(self, origin: str, headers: Headers) -> bool:
        # A client without Origin is not a browser and needs no protection from foreign pages.
        if origin in self._origins:
            return True
        return bool(self._pages) and origin != "null" and _is_same_origin(origin, headers)


def _is_same_origin(origin: str, headers: Headers) -> bool:
    """Whether a page has the origin of this listener: the same host and port, with an address and not a name as host.

    The owner of a name can point it here, and serve pages under it (DNS rebinding).
    """
    hosts = headers.get_all("Host")
    if len(hosts) != 1 or origin not in (f"http://{hosts[0]}", f"https://{hosts[0]}"):
        return False
    name = urlsplit(origin).hostname or ""
    if name == "localhost":
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


class WebSocketConnection(Connection):
    """A WebSocket with one of WAMP's subprotocols."""

    framing = "websocket"

    def __init__(
        self,
        context: ConnectionContext,
        loop: asyncio.AbstractEventLoop,
        on_connected: Callable[[Connection], None],
        on_closed: Callable[[Connection], None],
        http_gate: HttpGate,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        super().__init__(context, loop, on_connected, on_closed, **options)
        self._http_gate = http_gate
        self._protocol = ServerProtocol(
            select_subprotocol=_select, max_size=context.max_message_bytes, logger=_log
        )
        self._handshake_received = False  # the handshake is whole
        self._handshake_tail = b""  # its last bytes so far
        self._message = bytearray()  # the fragments so far of a message
        self._is_text = False
        self._expects_text = False

    # --- reading --------------------------------------------------------------------------------------------

    def _on_data(self, data: bytes) -> None:
        if self._handshake_received:
            self._feed(data)
            return
        # Bytes after a handshake wait for its response. The protocol would read on, and a connection that has failed
        # or was refused must not get a second response.
        known = self._handshake_tail + data
        end = known.find(_HEAD_END)
        if end < 0:
            self._handshake_tail = known[-len(_HEAD_END) + 1 :]
            self._feed(data)
            return
        self._handshake_received = True
        rest = known[end + len(_HEAD_END) :]
        self._feed(data[: len(data) - len(rest)])
        if rest and self.session is not None:
            self._feed(rest)

    def _feed(self, data: bytes) -> None:
        protocol = self._protocol
        if protocol.reader.eof:
            return
        protocol.receive_data(data)
        for event in protocol.events_received():
            if self._is_ending:
                return
            if isinstance(event, Request):
                self._on_request(event)
            elif isinstance(event, Frame):
                self._on_frame(event)
        self._send_pending()
        if protocol.handshake_exc is not None and self.session is None:
            self._count_refusal("refused_handshake")
            self._close_after_write()
        elif protocol.parser_exc is not None and self.session is not None:
            self._count_refusal("refused_frame")
            self.session.on_connection_lost()
            self._close_after_write()

    def _on_request(self, request: Request) -> None:
        protocol = self._protocol
        upgrades = any("websocket" in each.lower() for each in request.headers.get_all("Upgrade"))
        page = None if upgrades else self._http_gate.page(request)
        if page is not None:
            protocol.send_response(_page_response(*page))
            return
        refusal = self._http_gate.handshake_refusal(request)
        if self.refusal_reason:
            refusal = HTTPStatus.SERVICE_UNAVAILABLE, self.refusal_reason
        if refusal is not None:
            self._count_refusal("refused_handshake")
            protocol.send_response(protocol.reject(refusal[0], f"{refusal[1]}\n"))
            return
        response = protocol.accept(request)
        protocol.send_response(response)
        if response.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
            self._send_pending()  # before any message of the session
            assert protocol.subprotocol is not None  # `_select` has seen to it
            serializer = _BY_NAME[protocol.subprotocol]
            self._expects_text = serializer.is_text
            self._start_session(WIRE_FORMATS[serializer.subprotocol], serializer)

    def _on_frame(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._is_text = frame.opcode is Opcode.TEXT
        elif frame.opcode is Opcode.CLOSE:
            self._end_session()
            return
        elif frame.opcode is not Opcode.CONT:
            self._count_control_frame()
            return
        if self.session is None:
            return
        if not frame.fin:
            self._message += frame.data
            return
        data = bytes(frame.data)
        if self._message:
            data, self._message = bytes(self._message + data), bytearray()
        self._message_since_ns = self._last_received_ns
        if self._is_text is self._expects_text:
            self.session.on_message(data)
        else:
            got, expected = ("text", "binary") if self._is_text else ("binary", "text")
            self.session.abort_protocol_violation(
                f"a {got} frame: {self._protocol.subprotocol} has {expected} frames"
            )

    def _unfinished_bytes(self) -> int:
        # Twice: the parser keeps the last fragment until the next one.
        return len(self._protocol.reader.buffer) + 2 * len(self._message)

    def _drop_unfinished(self) -> None:
        self._protocol.reader.discard()
        self._protocol.parser.close()  # with the last fragment
        self._message = bytearray()

    # --- writing --------------------------------------------------------------------------------------------

    def _send_pending(self) -> None:
        """Send pending bytes of the protocol after the frames of the session, so that no frame is split."""
        for data in self._protocol.data_to_send():
            if not data:
                if self._outbox is not None:
                    self._outbox.flush()
                self._close_after_write()
            elif self._outbox is None:
                self._write(data)
            else:
                self._outbox.enqueue_frame(data)

    def _send_ping(self) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_ping(b"")
            self._send_pending()

    def _send_close(self, code: int, reason: str) -> None:
        if self._protocol.state is not State.OPEN:
            self._close_after_write()
            return
        self._protocol.send_close(code, reason.encode()[:120].decode(errors="ignore"))
        for data in self._protocol.data_to_send():
            self._write(data)
        # The client closes its side, or the deadline expires.


def _select(protocol: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol:
    """The first supported subprotocol of the client."""
    for each in offered:
        if each in _BY_NAME:
            return each
    raise NegotiationError(f"expected one of the subprotocols {', '.join(_BY_NAME)}")


_TOKEN: Final = re.compile(r"[\w/+.;= -]+")


def _page_response(media_type: str, body: bytes) -> Response:
    assert _TOKEN.fullmatch(media_type)  # ours, and no way to inject a header
    headers = Headers(
        [
            ("Content-Type", media_type),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
            ("Cache-Control", "no-cache"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Content-Security-Policy", "default-src 'self' 'unsafe-inline'; connect-src 'self' ws: wss:"),
        ]
    )
    return Response(int(HTTPStatus.OK), "OK", headers, body)
