# SPDX-License-Identifier: Apache-2.0
"""The admin socket: one request and one response per connection, with bounded waits."""

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.host.waiting import eventually
from ustreamer.host.admin import server
from ustreamer.host.admin.server import (
    SOCKET,
    AdminError,
    AdminFailure,
    AdminRequest,
    AdminResult,
    AdminServer,
    NoAnswerError,
    PluginsRequest,
    PurgeRequest,
    RedriveRequest,
    ReloadRequest,
    RoutesRequest,
    encode_response,
    parse_request,
    response_to,
    send_request,
    to_json_value,
)
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.host.storage.state_lock import StateLock
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

DEADLINE_S: Final = 30.0
REQUESTS: list[AdminRequest] = [
    ReloadRequest("/etc/u.toml"),
    RoutesRequest(),
    RedriveRequest(None),
    RedriveRequest((1, 2)),
    PurgeRequest((3,)),
]


class Nested(msgspec.Struct):
    topic: UUri
    each: dict[str, tuple[UUri | None, ...]]


# --- requests and responses as lines ---------------------------------------------------------------------------------


@pytest.mark.parametrize("request_", REQUESTS, ids=repr)
def test_a_request_survives_the_line_it_is_written_on(request_: AdminRequest) -> None:
    assert parse_request(msgspec.json.encode(request_)) == request_


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"nonsense",
        b"\xff",
        b'{"type":"explode"}',
        b'{"type":"reload"}',
        b'{"type":"routes","x":1}',
    ],
)
def test_an_invalid_request_is_refused_with_the_reason(line: bytes) -> None:
    with pytest.raises(UStatusError, match=f"request of {len(line)} bytes: ") as refused:
        parse_request(line)
    assert refused.value.code is UCode.INVALID_ARGUMENT


def test_addresses_in_an_answer_are_text() -> None:
    topic = UUri("hpc", 1, 1, 0x8001)
    assert to_json_value(Nested(topic, {"a": (topic, None)})) == {
        "topic": "up://hpc/1/1/8001",
        "each": {"a": ["up://hpc/1/1/8001", None]},
    }


def failing(error: Exception) -> Callable[[AdminRequest], object]:
    def handle(_: AdminRequest) -> object:
        raise error

    return handle


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (UStatusError(UCode.NOT_FOUND, "no such"), AdminFailure(5, "no such")),
        (
            AdminError(UCode.INVALID_ARGUMENT, "bad file", ("line 1",)),
            AdminFailure(3, "bad file", ("line 1",)),
        ),
        (ZeroDivisionError("by zero"), AdminFailure(13, "ZeroDivisionError: by zero")),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_failed_request_gets_the_reason(error: Exception, answer: AdminFailure) -> None:
    assert response_to(b'{"type":"routes"}', failing(error)) == answer


def test_a_response_beyond_the_limit_becomes_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_RESPONSE", 100)
    assert json.loads(encode_response(AdminResult("x" * 20)))["result"] == "x" * 20
    assert json.loads(encode_response(AdminResult("x" * 200)))["code"] == UCode.RESOURCE_EXHAUSTED


# ------------------------------------------------------------------------------------------------------- the socket


class Bench:
    """A server that responds with the result of `answer`."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.asked: list[AdminRequest] = []
        self.answer: Callable[[AdminRequest], object] = lambda _: {"here": 1}
        self.server = AdminServer(state_dir, self._handle, SYSTEM_CLOCK)

    def _handle(self, request: AdminRequest) -> object:
        self.asked.append(request)
        return self.answer(request)

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(DEADLINE_S)
        directory = os.open(self.state_dir, os.O_RDONLY)
        connection.connect(f"/proc/self/fd/{directory}/{server.SOCKET}")
        os.close(directory)
        return connection


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    bench.server.open()
    bench.server.start()
    yield bench
    bench.server.close(DEADLINE_S)


def test_a_request_is_answered(bench: Bench) -> None:
    assert send_request(bench.state_dir, RedriveRequest((7,))) == {"here": 1}
    assert bench.asked == [RedriveRequest((7,))]


def test_a_failed_request_raises_at_the_client(bench: Bench) -> None:
    bench.answer = failing(AdminError(UCode.FAILED_PRECONDITION, "not so", ("a", "b")))
    with pytest.raises(AdminError, match="not so\na\nb") as refused:
        send_request(bench.state_dir, PluginsRequest())
    assert (refused.value.code, refused.value.problems) == (UCode.FAILED_PRECONDITION, ("a", "b"))


def test_only_the_user_of_the_streamer_may_connect(bench: Bench) -> None:
    assert (bench.state_dir / server.SOCKET).stat().st_mode & 0o777 == 0o600


def test_the_path_of_a_state_directory_may_be_long(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    other = Bench(long)
    other.server.open()
    other.server.start()
    try:
        assert send_request(long, RoutesRequest()) == {"here": 1}
    finally:
        other.server.close(DEADLINE_S)


def test_a_socket_that_a_dead_streamer_left_is_replaced_and_removed_at_the_end(tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    directory = os.open(tmp_path, os.O_RDONLY)
    left.bind(f"/proc/self/fd/{directory}/{server.SOCKET}")
    os.close(directory)
    left.close()
    with pytest.raises(UStatusError, match="no streamer runs") as refused:
        send_request(tmp_path, RoutesRequest())
    assert refused.value.code is UCode.UNAVAILABLE
    bench = Bench(tmp_path)
    bench.server.open()
    bench.server.start()
    assert send_request(tmp_path, RoutesRequest()) == {"here": 1}
    bench.server.close(DEADLINE_S)
    bench.server.close(DEADLINE_S)
    assert not (tmp_path / server.SOCKET).exists()
    with pytest.raises(UStatusError, match="no streamer runs"):
        send_request(tmp_path, RoutesRequest())


def test_where_there_is_no_state_directory_no_streamer_runs(tmp_path: Path) -> None:
    with pytest.raises(UStatusError, match="no streamer runs on state_dir") as refused:
        send_request(tmp_path / "nothing", RoutesRequest())
    assert refused.value.code is UCode.UNAVAILABLE


def test_a_streamer_that_starts_or_stops_has_no_socket_and_is_named(tmp_path: Path) -> None:
    with (
        StateLock(tmp_path),
        pytest.raises(NoAnswerError, match=f"process {os.getpid()} is starting or stop"),
    ):
        send_request(tmp_path, RoutesRequest())
    with pytest.raises(UStatusError, match="no streamer runs"):
        send_request(tmp_path, RoutesRequest())


def test_a_socket_that_cannot_be_bound_is_named(tmp_path: Path) -> None:
    with pytest.raises(UStatusError, match=r"admin socket .*admin\.sock: ") as refused:
        AdminServer(tmp_path / "nothing", lambda _: None, SYSTEM_CLOCK).open()
    assert refused.value.code is UCode.UNAVAILABLE


def test_a_silent_client_delays_others_for_a_limited_time_only(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_LINE_TIMEOUT_NS", 50_000_000)
    with bench.connect() as silent, bench.connect() as halting:
        halting.sendall(b'{"type":')
        assert send_request(bench.state_dir, RoutesRequest()) == {"here": 1}
        assert silent.recv(1) == b""
        assert halting.recv(1) == b""


def test_a_client_that_disconnects_early_causes_no_error(bench: Bench) -> None:
    bench.answer = lambda _: "x" * 5_000_000
    for _ in range(3):
        with bench.connect() as leaving:
            leaving.sendall(b'{"type":"routes"}\n')
    assert len(send_request(bench.state_dir, RoutesRequest())) == 5_000_000


def test_a_request_without_end_is_cut_off(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_REQUEST", 1000)
    with bench.connect() as talker:
        talker.sendall(b"x" * 2000)
        answer = json.loads(talker.makefile("rb").readline())
    assert (answer["type"], answer["code"]) == ("failed", UCode.INVALID_ARGUMENT)
    assert bench.asked == []


def test_a_close_waits_for_the_response_in_progress(bench: Bench) -> None:
    asked, go_on = threading.Event(), threading.Event()
    answers: list[Any] = []

    def slow(_: AdminRequest) -> object:
        asked.set()
        assert go_on.wait(DEADLINE_S)
        return "done"

    bench.answer = slow
    client = threading.Thread(target=lambda: answers.append(send_request(bench.state_dir, RoutesRequest())))
    client.start()
    assert asked.wait(DEADLINE_S)
    closing = threading.Thread(target=lambda: bench.server.close(DEADLINE_S))
    closing.start()
    go_on.set()
    closing.join(DEADLINE_S)
    client.join(DEADLINE_S)
    assert answers == ["done"]


def test_a_streamer_that_accepts_no_more_connections_gives_no_answer(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / server.SOCKET))
        listener.listen(0)
        waiting = []
        for _ in range(2):  # those that wait to be accepted
            each = socket.socket(socket.AF_UNIX)
            each.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                each.connect(str(tmp_path / server.SOCKET))
            waiting.append(each)
        with pytest.raises(server.NoAnswerError, match="no answer in 0.2 s: it hangs"):
            send_request(tmp_path, RoutesRequest(), 0.2)
        for each in waiting:
            each.close()


def test_commands_are_accepted_again_after_the_process_had_no_file_descriptor_left(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(DEADLINE_S)
        directory = os.open(bench.state_dir, os.O_RDONLY)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            connection.connect(f"/proc/self/fd/{directory}/{server.SOCKET}")
            eventually(lambda: "admin.not_accepted" in caplog.messages, "the log line")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            os.close(directory)
    assert send_request(bench.state_dir, RoutesRequest()) == {"here": 1}


def test_a_change_does_not_wait_for_a_process_that_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_RESPONSE_TIMEOUT_S", 0.05)
    program = """
import os, signal, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("READY", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""
    command = [sys.executable, "-c", program, str(tmp_path / SOCKET)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "READY\n"
            text = f"process {process.pid} is stopped by a signal or a debugger"
            with pytest.raises(NoAnswerError, match=text):  # or the test times out
                send_request(tmp_path, ReloadRequest("configuration"))
        finally:
            process.kill()
