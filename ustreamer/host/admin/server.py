# SPDX-License-Identifier: Apache-2.0
"""The admin socket: local commands send requests to a running streamer.

`<state_dir>/admin.sock`, for the streamer's own user only. One connection carries one request and its response. Each
is a line of JSON with its kind in the key `type`. One thread serves one connection after another: it never delays
routing, and a slow client times out. The owner of the state directory's lock (`StateLock`) owns the socket.
"""

import logging
import os
import select
import socket
import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Annotated, Any, Final, Protocol, TypeAlias, runtime_checkable

import msgspec

from ustreamer.core.base.clock import Clock
from ustreamer.core.base.log_limit import limited
from ustreamer.core.storage.file_lock import lock_holder
from ustreamer.host.storage.state_lock import LOCK
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

SOCKET: Final = "admin.sock"
MAX_REQUEST: Final = 1 << 20
MAX_RESPONSE: Final = 1 << 26
_LINE_TIMEOUT_NS: Final = 5_000_000_000  # for one line, in either direction
_RESPONSE_TIMEOUT_S: Final = 10.0  # how long a client waits for an answer
_CHANGE_TIMEOUT_S: Final = 600.0  # the same for a change: redriving 10 000 dead letters takes a minute
_PEER_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
# For a stream reader that stopped reading: it occupies one of few slots.
_STREAM_WRITE_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.5
_ACCEPT_RETRY_S: Final = 1.0
_TIMEVAL: Final = struct.Struct("@ll")
_BACKLOG: Final = 8
_NS_PER_S: Final = 1_000_000_000

log = logging.getLogger("ustreamer.admin")


# --- requests and responses ------------------------------------------------------------------------------------------


class ReloadRequest(msgspec.Struct, frozen=True, tag="reload", forbid_unknown_fields=True):
    """Apply the configuration file with this absolute path. The result lists the changed keys."""

    config: str


class RoutesRequest(msgspec.Struct, frozen=True, tag="routes", forbid_unknown_fields=True):
    """The result is `ustreamer.host.admin.status.StreamerRoutes`."""


class StatisticsRequest(msgspec.Struct, frozen=True, tag="statistics", forbid_unknown_fields=True):
    """The result is `ustreamer.host.admin.status.StreamerStatistics`."""


class AddressesRequest(msgspec.Struct, frozen=True, tag="addresses", forbid_unknown_fields=True):
    """The result lists the addresses that the streamer binds, each a `ustreamer.transport_port.BoundAddress`."""


class PluginsRequest(msgspec.Struct, frozen=True, tag="plugins", forbid_unknown_fields=True):
    """The result lists the names of the enabled plugins."""


class RedriveRequest(msgspec.Struct, frozen=True, tag="redrive", forbid_unknown_fields=True):
    """Dispatch dead letters again and delete them: the given ones, or (None) all except requests and responses.

    The result is `RedriveResult`.
    """

    numbers: tuple[int, ...] | None


class PurgeRequest(msgspec.Struct, frozen=True, tag="purge", forbid_unknown_fields=True):
    """Delete dead letters: the given ones, or (None) all. The result is the number deleted."""

    numbers: tuple[int, ...] | None


class TapRequest(msgspec.Struct, frozen=True, tag="tap", forbid_unknown_fields=True):
    """Send verdicts from now on: of all messages, or of those with matching source, sink and verdict.

    `source` and `sink` are patterns; `message_type` is one type, `at` the endpoint where the messages came in. The result
    is empty; lines of `ustreamer.host.admin.taps` follow until the
    connection closes.
    """

    source: str | None = None
    sink: str | None = None
    verdict: str | None = None
    payload: bool = False
    decode: bool = False
    message_type: str | None = None
    at: str | None = None


class WhyRequest(msgspec.Struct, frozen=True, tag="why", forbid_unknown_fields=True):
    """Diagnose a topic, a method or a subscriber. The result is `ustreamer.host.diagnosis.diagnosis.Diagnosis`.

    `source` is the caller of a method. `config` is the absolute path of a file to compare with the running
    configuration. Counters are read twice, `sample_s` apart.
    """

    subject: str
    source: str | None = None
    config: str | None = None
    sample_s: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.3


class TopRequest(msgspec.Struct, frozen=True, tag="top", forbid_unknown_fields=True):
    """Send a `ustreamer.host.admin.top_frame.TopFrame` now and after each interval, until the connection closes."""

    interval_s: Annotated[float, msgspec.Meta(ge=0.1, le=60)] = 1.0


class PluginRequest(msgspec.Struct, frozen=True, tag="plugin", forbid_unknown_fields=True):
    """Call `handle_request(request)` of an enabled plugin. The result is that of the plugin."""

    plugin: str
    request: dict[str, Any]


AdminRequest: TypeAlias = (
    ReloadRequest
    | RoutesRequest
    | StatisticsRequest
    | AddressesRequest
    | PluginsRequest
    | PluginRequest
    | RedriveRequest
    | PurgeRequest
    | TapRequest
    | TopRequest
    | WhyRequest
)


class AdminResult(msgspec.Struct, frozen=True, tag="done"):
    """The response to a successful request."""

    result: Any = None


class AdminFailure(msgspec.Struct, frozen=True, tag="failed"):
    """The response to a failed request: a UCode and the reason. `problems` are those of a configuration."""

    code: int
    message: str
    problems: tuple[str, ...] = ()


AdminResponse: TypeAlias = AdminResult | AdminFailure


class AdminError(UStatusError):
    """A failed request. `problems` are those of a configuration, if the request was about one."""

    def __init__(self, code: UCode, message: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(code, message)
        self.problems: Final = problems

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *self.problems])


def to_json_value(value: object) -> Any:
    """A value as JSON, with addresses as text."""
    return msgspec.json.decode(msgspec.json.encode(_with_text_addresses(value)))


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
    """A response as a line. A response beyond the limit becomes a failure."""
    line = msgspec.json.encode(response)
    if len(line) >= MAX_RESPONSE:
        text = f"the response takes {len(line)} bytes, more than {MAX_RESPONSE}"
        line = msgspec.json.encode(AdminFailure(int(UCode.RESOURCE_EXHAUSTED), text))
    return line + b"\n"


def response_to(line: bytes, handle: Callable[[AdminRequest], object]) -> AdminResponse:
    """The response to a line: the result of `handle`, or the UStatusError it raises."""
    try:
        return AdminResult(to_json_value(handle(parse_request(line))))
    except AdminError as error:
        return AdminFailure(int(error.code), error.message, error.problems)
    except UStatusError as error:
        return AdminFailure(int(error.code), error.message)
    except Exception as error:
        # An internal defect must not leave this command or the next one without a response.
        log.exception("admin.failed")
        return AdminFailure(int(UCode.INTERNAL), f"{type(error).__name__}: {error}")


@runtime_checkable
class LineStream(Protocol):
    """A result that arrives in parts. Each stream has its own thread."""

    def wait_lines(self, timeout_s: float) -> Sequence[msgspec.Struct]:
        """Wait for lines; empty after the timeout or after `close`."""
        ...

    def close(self) -> None:
        """End the stream. May be repeated."""
        ...


# --- the server ------------------------------------------------------------------------------------------------------


class AdminServer:
    """Responds to requests with the results of `handle`. Call `open` before clients connect, then `start`."""

    def __init__(self, state_dir: Path, handle: Callable[[AdminRequest], object], clock: Clock) -> None:
        """The caller of `open` holds the lock of `state_dir`."""
        self._path = state_dir / SOCKET
        self._handle = handle
        self._monotonic_ns = clock.monotonic_ns
        self._listener: socket.socket | None = None
        self._closing = Event()
        self._streams: dict[Thread, tuple[LineStream, socket.socket]] = {}
        self._thread = Thread(target=self._run, name="admin", daemon=True)

    def open(self) -> None:
        """Bind the socket and replace one that a dead streamer left. Raises UStatusError(UNAVAILABLE)."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._path.unlink(missing_ok=True)
            with _short_path(self._path) as path:
                listener.bind(path)
            self._path.chmod(0o600)  # no client can connect before `listen`
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
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError as error:  # for example out of file descriptors
                if not self._closing.is_set():
                    log.error("admin.not_accepted", extra={"reason": str(error), **limited("admin")})  # noqa: TRY400
                    self._closing.wait(_ACCEPT_RETRY_S)
                continue
            stream = self._serve(connection)
            if stream is None:
                connection.close()
            else:
                self._start_stream(stream, connection)

    def _serve(self, connection: socket.socket) -> LineStream | None:
        """Respond to a request; returns the stream that needs the connection further, if any."""
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
        except OSError as error:  # the client disconnected or timed out
            log.info("admin.client_lost", extra={"reason": str(error)})
            for each in streams:
                each.close()
            return None
        return streams[0] if streams else None

    # --- streams -----------------------------------------------------------------------------------------------------

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
                while not self._closing.is_set() and not _is_disconnected(connection):
                    lines = stream.wait_lines(_POLL_S)
                    connection.sendall(b"".join(msgspec.json.encode(each) + b"\n" for each in lines))
            except OSError as error:
                log.info("admin.client_lost", extra={"reason": str(error)})

    def _end_streams(self, timeout_s: float) -> None:
        for stream, _ in self._streams.values():
            stream.close()
        for thread, (_, connection) in self._streams.items():
            thread.join(_POLL_S)
            with suppress(OSError):  # closed by now, unless its reader does not read
                connection.shutdown(socket.SHUT_RDWR)
            thread.join(timeout_s)

    def _read_request_line(self, connection: socket.socket) -> bytes | None:
        """The client's bytes up to the first newline; None if the connection ends before. Raises TimeoutError."""
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
        """Complete the response in progress, accept no further request, and remove the socket. May be repeated."""
        self._closing.set()
        if self._listener is None:
            return
        with suppress(OSError):  # not listening yet
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._end_streams(timeout_s)
        self._listener.close()
        self._listener = None
        with suppress(OSError):  # a read-only file system keeps it; the next start replaces it
            self._path.unlink(missing_ok=True)


def _is_disconnected(connection: socket.socket) -> bool:
    """Whether the client has closed the connection. A client sends nothing after its request."""
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable) and not connection.recv(4096)


@contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """A short name of a path within a `with` block: a socket path has at most 107 bytes."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


# --- the client ------------------------------------------------------------------------------------------------------


class NoAnswerError(UStatusError):
    """UNAVAILABLE: a streamer runs, and does not answer. `state` names its process and says what it does."""

    def __init__(self, path: Path, timeout_s: float, state: str) -> None:
        super().__init__(UCode.UNAVAILABLE, f"{path}: no answer in {timeout_s:g} s: {state}")
        self.state = state


def send_request(state_dir: Path, request: AdminRequest, timeout_s: float | None = None) -> Any:
    """Send a request to the streamer that runs on `state_dir`; returns the result as JSON.

    `timeout_s` is how long to wait for the answer; None: 10 s, or 10 minutes for a change. A process that a signal has
    stopped gets 10 s at most. Raises UStatusError: UNAVAILABLE if no streamer runs there, PERMISSION_DENIED if it belongs
    to another user; NoAnswerError, also for one that starts or stops; AdminError for a failed request.
    """
    path = state_dir / SOCKET
    with _open_request(path, request, timeout_s) as connection:
        line = _read_all(connection)
    return _decode_result(line, path)


def stream_lines(path: Path, request: AdminRequest) -> Generator[bytes, None, None]:
    """Send a request to the admin socket `path`, then yield each line of the stream until its end. Raises as `send_request`."""
    with _open_request(path, request) as connection, connection.makefile("rb") as lines:
        _decode_result(lines.readline(), path)
        connection.settimeout(None)
        yield from lines


@contextmanager
def _open_request(
    path: Path, request: AdminRequest, timeout_s: float | None = None
) -> Iterator[socket.socket]:
    """A connection to the admin socket `path`, with the request sent."""
    changes = isinstance(request, ReloadRequest | RedriveRequest | PurgeRequest | PluginRequest)
    timeout_s = timeout_s or (_CHANGE_TIMEOUT_S if changes else _RESPONSE_TIMEOUT_S)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        # Without a timeout of Python: its connect fails at once while many other commands wait.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout_s))
        try:
            with _short_path(path) as short:
                connection.connect(short)
            connection.settimeout(timeout_s)
            connection.sendall(msgspec.json.encode(request) + b"\n")
            _wait_answer(connection, path, timeout_s)
            yield connection
        except (TimeoutError, BlockingIOError) as error:
            raise NoAnswerError(path, timeout_s, _listener_state(connection)) from error
        except PermissionError as error:
            text = f"{path}: expected to be the user of the streamer, or root"
            raise UStatusError(UCode.PERMISSION_DENIED, text) from error
        except (FileNotFoundError, NotADirectoryError, ConnectionError) as error:
            pid = lock_holder(path.with_name(LOCK))
            if pid is not None:
                raise NoAnswerError(path, 0, f"process {pid} is starting or stopping") from error
            text = f"no streamer runs on state_dir {path.parent}: {error.strerror or error}"
            raise UStatusError(UCode.UNAVAILABLE, text) from error
        except OSError as error:
            raise UStatusError(UCode.UNAVAILABLE, f"{path}: no answer: {error}") from error


def _wait_answer(connection: socket.socket, path: Path, timeout_s: float) -> None:
    """Wait until the answer begins. NoAnswerError if it does not; for a stopped process after 10 s."""
    waited_s, is_stopped = 0.0, False
    while waited_s < timeout_s and not is_stopped:
        step_s = min(_RESPONSE_TIMEOUT_S, timeout_s - waited_s)
        connection.settimeout(step_s)
        try:
            connection.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            waited_s += step_s
            is_stopped = _is_stopped(_listener_pid(connection))
        else:
            connection.settimeout(timeout_s)
            return
    raise NoAnswerError(path, waited_s, _listener_state(connection))


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return _TIMEVAL.pack(whole, int((seconds - whole) * 1_000_000))


def _listener_state(connection: socket.socket) -> str:
    """What the process at the other end does, as far as the kernel knows."""
    pid = _listener_pid(connection)
    process = f"process {pid}" if pid else "it"
    if _is_stopped(pid):
        return f"{process} is stopped by a signal or a debugger"
    return f"{process} hangs, has no CPU time, or executes a long command"


def _listener_pid(connection: socket.socket) -> int:
    """The process at the other end; 0 if it is not known."""
    with suppress(OSError):
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
        return int(_PEER_CREDENTIALS.unpack(credentials)[0])
    return 0


def _is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped the process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return text.rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False


def _read_all(connection: socket.socket) -> bytes:
    line = bytearray()
    while len(line) <= MAX_RESPONSE and (received := connection.recv(1 << 20)):
        line += received
    return bytes(line)


def _decode_result(line: bytes, path: Path) -> Any:
    try:
        response = msgspec.json.decode(line, type=AdminResponse)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        text = f"{path}: the answer of {len(line)} bytes is not valid; the streamer may be ending, or of another version"
        raise UStatusError(UCode.UNAVAILABLE, text) from error
    if isinstance(response, AdminFailure):
        raise AdminError(UCode.from_number(response.code), response.message, response.problems)
    return response.result
