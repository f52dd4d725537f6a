# SPDX-License-Identifier: Apache-2.0
"""The admin socket: how commands talk to a running streamer.

`<state_dir>/admin.sock`, for the streamer's own user only. One connection is one request and its answer, each a line of
JSON with its kind in the key `type`. The server is one thread that serves one connection after another: it never keeps
routing waiting, and who is slow is left behind. The owner of the state directory's lock (`StateLock`) owns the socket.
"""

import json
import logging
import os
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import msgspec

from ustreamer.core.base.clock import Clock
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

SOCKET: Final = "admin.sock"
MAX_REQUEST: Final = 1 << 20
MAX_RESPONSE: Final = 1 << 26
_LINE_TIMEOUT_NS: Final = 5_000_000_000  # for one line, in either direction
_RESPONSE_TIMEOUT_S: Final = 600.0  # how long a client waits: to redrive 10 000 letters takes a minute
_STREAM_WRITE_TIMEOUT_S: Final = (
    60.0  # with a reader of a stream that has stopped reading; it keeps a place from others
)
_POLL_S: Final = 0.5
_BACKLOG: Final = 8
_NS_PER_S: Final = 1_000_000_000

log = logging.getLogger("ustreamer.admin")


# --- what is said ---------------------------------------------------------------------------------------------------------


class ReloadRequest(msgspec.Struct, frozen=True, tag="reload", forbid_unknown_fields=True):
    """Go on by the configuration file of this absolute path. Answered with the keys that changed."""

    config: str


class RoutesRequest(msgspec.Struct, frozen=True, tag="routes", forbid_unknown_fields=True):
    """Answered with `ustreamer.host.admin.server.status.Routes`."""


class StatisticsRequest(msgspec.Struct, frozen=True, tag="statistics", forbid_unknown_fields=True):
    """Answered with `ustreamer.host.admin.server.status.Statistics`."""


class PluginsRequest(msgspec.Struct, frozen=True, tag="plugins", forbid_unknown_fields=True):
    """Answered with the names of the plugins that are switched on."""


class RedriveRequest(msgspec.Struct, frozen=True, tag="redrive", forbid_unknown_fields=True):
    """Dispatch dead letters again and delete them: these, or (None) all but requests and responses.

    Answered with `RedriveResult`.
    """

    numbers: tuple[int, ...] | None


class PurgeRequest(msgspec.Struct, frozen=True, tag="purge", forbid_unknown_fields=True):
    """Delete dead letters: these, or (None) all. Answered with how many there were."""

    numbers: tuple[int, ...] | None


class TapRequest(msgspec.Struct, frozen=True, tag="tap", forbid_unknown_fields=True):
    """Tell verdicts from now on: of all messages, or of those whose source and sink (patterns) and verdict are these.

    Answered with nothing, and then with lines of `ustreamer.host.admin.taps` for as long as the connection stands.
    """

    source: str | None = None
    sink: str | None = None
    verdict: str | None = None
    payload: bool = False
    decode: bool = False


AdminRequest: TypeAlias = (
    ReloadRequest
    | RoutesRequest
    | StatisticsRequest
    | PluginsRequest
    | RedriveRequest
    | PurgeRequest
    | TapRequest
)


class AdminResult(msgspec.Struct, frozen=True, tag="done"):
    """The answer to a request that worked."""

    result: Any = None


class AdminFailure(msgspec.Struct, frozen=True, tag="failed"):
    """The answer to one that did not: a UCode, and why in words; `problems` are those of a configuration."""

    code: int
    message: str
    problems: tuple[str, ...] = ()


AdminResponse: TypeAlias = AdminResult | AdminFailure


class AdminError(UStatusError):
    """A request that did not work; `problems` are those of a configuration, if it was about one."""

    def __init__(self, code: UCode, message: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(code, message)
        self.problems: Final = problems

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *self.problems])


def to_json_value(value: object) -> Any:
    """A value as JSON has it; addresses as text."""
    return json.loads(msgspec.json.encode(_with_text_addresses(value)))


def _with_text_addresses(value: object) -> object:
    match value:
        case UUri():
            return str(value)
        case msgspec.Struct():
            return {name: _with_text_addresses(getattr(value, name)) for name in value.__struct_fields__}
        case dict():
            return {str(key): _with_text_addresses(each) for key, each in value.items()}
        case list() | tuple():
            return [_with_text_addresses(each) for each in value]
    return value


def parse_request(line: bytes) -> AdminRequest:
    """The request in a line. Raises UStatusError(INVALID_ARGUMENT)."""
    try:
        request: AdminRequest = msgspec.json.decode(line, type=AdminRequest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UStatusError(UCode.INVALID_ARGUMENT, f"request of {len(line)} bytes: {error}") from error
    return request


def encode_response(response: AdminResponse) -> bytes:
    """An answer as a line; one that is too long says so instead."""
    line = msgspec.json.encode(response)
    if len(line) >= MAX_RESPONSE:
        text = f"the answer takes {len(line)} bytes, and {MAX_RESPONSE} are the limit"
        line = msgspec.json.encode(AdminFailure(int(UCode.RESOURCE_EXHAUSTED), text))
    return line + b"\n"


def response_to(line: bytes, handle: Callable[[AdminRequest], object]) -> AdminResponse:
    """What to answer to a line: what `handle` returns, or the UStatusError it raises."""
    try:
        return AdminResult(to_json_value(handle(parse_request(line))))
    except AdminError as error:
        return AdminFailure(int(error.code), error.message, error.problems)
    except UStatusError as error:
        return AdminFailure(int(error.code), error.message)
    except (
        Exception
    ) as error:  # a mistake of ours must not leave a command without an answer, nor the next one
        log.exception("admin.failed")
        return AdminFailure(int(UCode.INTERNAL), f"{type(error).__name__}: {error}")


@runtime_checkable
class LineStream(Protocol):
    """What is answered by and by, on a thread of its own."""

    def wait_lines(self, timeout_s: float) -> Sequence[msgspec.Struct]:
        """Wait for something to say; nothing when that takes longer, or after `close`."""
        ...

    def close(self) -> None:
        """Say nothing more. May be repeated."""
        ...


# --- the server -----------------------------------------------------------------------------------------------------------


class AdminServer:
    """Answers requests with what `handle` returns for them. `open` before anybody else may come, then `start`."""

    def __init__(self, state_dir: Path, handle: Callable[[AdminRequest], object], clock: Clock) -> None:
        """Whoever calls `open` holds the lock of `state_dir`."""
        self._path = state_dir / SOCKET
        self._handle = handle
        self._monotonic_ns = clock.monotonic_ns
        self._listener: socket.socket | None = None
        self._closing = False
        self._streams: dict[Thread, tuple[LineStream, socket.socket]] = {}
        self._thread = Thread(target=self._run, name="admin", daemon=True)

    def open(self) -> None:
        """Bind the socket, in place of one that a dead streamer left. Raises UStatusError(UNAVAILABLE)."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._path.unlink(missing_ok=True)
            with _short_path(self._path) as path:
                listener.bind(path)
            self._path.chmod(0o600)  # nobody can connect before `listen`
        except OSError as error:
            listener.close()
            raise UStatusError(UCode.UNAVAILABLE, f"admin socket {self._path}: {error}") from error
        self._listener = listener

    def start(self) -> None:
        assert self._listener is not None
        self._listener.listen(_BACKLOG)
        self._thread.start()

    def _run(self) -> None:
        assert self._listener is not None
        while not self._closing:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if not self._closing:  # out of file descriptors, for one: the streamer can do without us
                    log.exception("admin.server_ended")
                return
            stream = self._serve(connection)
            if stream is None:
                connection.close()
            else:
                self._start_stream(stream, connection)

    def _serve(self, connection: socket.socket) -> LineStream | None:
        """Answer a request; what there is to be said after that, and the connection is needed for."""
        streams: list[LineStream] = []

        def handle(request: AdminRequest) -> object:
            result = self._handle(request)
            if not isinstance(result, LineStream):
                return result
            streams.append(result)
            return None

        try:
            line = self._read_request_line(connection)
            if line is None:
                return None
            connection.settimeout(_LINE_TIMEOUT_NS / _NS_PER_S)
            connection.sendall(encode_response(response_to(line, handle)))
        except OSError as error:  # the client went away, or takes too long
            log.info("admin.client_lost", extra={"reason": str(error)})
            for each in streams:
                each.close()
            return None
        return streams[0] if streams else None

    # --- what is answered by and by ---------------------------------------------------------------------------------------

    def _start_stream(self, stream: LineStream, connection: socket.socket) -> None:
        thread = Thread(target=self._send_lines, args=(stream, connection), name="admin tap", daemon=True)
        self._streams = {each: ends for each, ends in self._streams.items() if each.is_alive()} | {
            thread: (stream, connection)
        }
        thread.start()

    def _send_lines(self, stream: LineStream, connection: socket.socket) -> None:
        with closing(connection), closing(stream):
            connection.settimeout(_STREAM_WRITE_TIMEOUT_S)
            try:
                while not self._closing and not _is_disconnected(connection):
                    lines = stream.wait_lines(_POLL_S)
                    connection.sendall(b"".join(msgspec.json.encode(each) + b"\n" for each in lines))
            except OSError as error:
                log.info("admin.client_lost", extra={"reason": str(error)})

    def _end_streams(self, timeout_s: float) -> None:
        for stream, _ in self._streams.values():
            stream.close()
        for thread, (_, connection) in self._streams.items():
            thread.join(_POLL_S)
            with suppress(OSError):  # it is closed by now, unless its reader does not read
                connection.shutdown(socket.SHUT_RDWR)
            thread.join(timeout_s)

    def _read_request_line(self, connection: socket.socket) -> bytes | None:
        """What a client says up to the first newline; None if it ends before that. Raises TimeoutError."""
        line = bytearray()
        until_ns = self._monotonic_ns() + _LINE_TIMEOUT_NS
        while b"\n" not in line:
            left_ns = until_ns - self._monotonic_ns()
            if left_ns <= 0:
                raise TimeoutError("no whole request in time")
            connection.settimeout(left_ns / _NS_PER_S)
            received = connection.recv(65_536)
            if not received:
                return None
            line += received
            if len(line) > MAX_REQUEST:
                connection.sendall(
                    encode_response(
                        AdminFailure(
                            int(UCode.INVALID_ARGUMENT), f"a request has at most {MAX_REQUEST} bytes"
                        )
                    )
                )
                return None
        return bytes(line.partition(b"\n")[0])

    def close(self, timeout_s: float) -> None:
        """Answer what is being answered, take nothing more, and remove the socket. May be repeated."""
        self._closing = True
        if self._listener is None:
            return
        with suppress(OSError):  # it may not listen yet
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._end_streams(timeout_s)
        self._listener.close()
        self._listener = None
        self._path.unlink(missing_ok=True)


def _is_disconnected(connection: socket.socket) -> bool:
    """Whether the client has ended the connection; it says nothing after its request."""
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable) and not connection.recv(4096)


@contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """Another name of a path within a `with` block: that of a socket has 107 bytes at most."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


# --- the client -----------------------------------------------------------------------------------------------------------


def send_request(state_dir: Path, request: AdminRequest) -> Any:
    """Ask the streamer that runs on `state_dir`; the result as JSON has it.

    Raises UStatusError: UNAVAILABLE if none runs there, PERMISSION_DENIED if it is another user's; AdminError as it says.
    """
    path = state_dir / SOCKET
    with _open_request(path, request) as connection:
        line = _read_all(connection)
    return _decode_result(line, path)


def stream_lines(path: Path, request: AdminRequest) -> Iterator[bytes]:
    """Ask at the admin socket `path`, and then each line that is said, until there are no more. Raises as `ask`."""
    with _open_request(path, request) as connection, connection.makefile("rb") as lines:
        _decode_result(lines.readline(), path)
        connection.settimeout(None)
        yield from lines


@contextmanager
def _open_request(path: Path, request: AdminRequest) -> Iterator[socket.socket]:
    """A connection to the streamer whose socket is `path`, with the request on its way."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_RESPONSE_TIMEOUT_S)
        try:
            with _short_path(path) as short:
                connection.connect(short)
            connection.sendall(msgspec.json.encode(request) + b"\n")
            yield connection
        except PermissionError as error:
            text = f"{path}: expected to be the user of the streamer, or root"
            raise UStatusError(UCode.PERMISSION_DENIED, text) from error
        except (FileNotFoundError, NotADirectoryError, ConnectionError) as error:
            text = f"no streamer runs on state_dir {path.parent}: {error.strerror or error}"
            raise UStatusError(UCode.UNAVAILABLE, text) from error
        except OSError as error:
            raise UStatusError(UCode.UNAVAILABLE, f"{path}: no answer: {error}") from error


def _read_all(connection: socket.socket) -> bytes:
    line = bytearray()
    while len(line) <= MAX_RESPONSE and (received := connection.recv(1 << 20)):
        line += received
    return bytes(line)


def _decode_result(line: bytes, path: Path) -> Any:
    try:
        response = msgspec.json.decode(line, type=AdminResponse)
    except msgspec.DecodeError as error:
        text = f"{path}: an answer of {len(line)} bytes that is none; it may be ending, or of another version"
        raise UStatusError(UCode.UNAVAILABLE, text) from error
    if isinstance(response, AdminFailure):
        raise AdminError(UCode.from_number(response.code), response.message, response.problems)
    return response.result
