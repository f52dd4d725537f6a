# SPDX-License-Identifier: Apache-2.0
"""`ustreamer tap` against a streamer in this process, over its admin socket."""

import argparse
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.host.running_streamer import INSIDE, RunningStreamer
from tests.host.waiting import DEADLINE_S, eventually
from ustreamer.core.base.decoder import Decoder
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.hooks import hookimpl
from ustreamer.host.admin import taps
from ustreamer.host.admin.server import SOCKET, TapRequest, stream_lines
from ustreamer.host.cli import tap_command
from ustreamer.host.cli.arguments import VERDICTS, uuri_pattern
from ustreamer.host.cli.format import format_time, use_colour
from ustreamer.host.cli.main import main
from ustreamer.testing.messages import new_id
from ustreamer.uprotocol.umessage import notification, publish
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

SOURCE: Final = UUri("hpc", 0x1234, 1, 0x8001)
CLOUD: Final = UUri("cloud", 1, 1, 0)

RunCommand = Callable[..., tuple[int, str, str]]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningStreamer]:
    with RunningStreamer(tmp_path) as running:
        yield running


@pytest.fixture
def run_command(running: RunningStreamer, capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Exit code, stdout and stderr of `ustreamer tap`."""

    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            code = main(["tap", *arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capsys.readouterr()

    return run


@contextmanager
def traffic(running: RunningStreamer) -> Iterator[None]:
    """Repeat a publication without subscriber and a notification to the cloud."""
    app, over = running.app(INSIDE, "hpc"), threading.Event()

    def send() -> None:
        while not over.wait(0.002):
            app.send(publish(new_id(), SOURCE, b"speed"))
            app.send(notification(new_id(), SOURCE, CLOUD, b"\x01\x02"))

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join(DEADLINE_S)


def test_verdicts_are_shown_as_they_fall_until_there_are_enough(
    running: RunningStreamer, run_command: RunCommand
) -> None:
    with traffic(running):
        code, out, err = run_command(str(running.path), "--count", "6")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 6
    time_, way = r"20\d\d-\d\d-\d\dT[\d:.]+\+00:00", re.escape(str(SOURCE))
    numbers = r"\d attempts [\d.]+ ms \d bytes [0-9a-f-]{36}"
    decoder_calls = [rf"{time_} no_subscriber PUBLISH {way}  inside -> no receiver  {numbers}"]
    decoder_calls.append(
        rf"{time_} delivered NOTIFICATION {way} to {re.escape(str(CLOUD))}  inside -> outside  {numbers}"
    )
    assert all(any(re.fullmatch(pattern, line) for pattern in decoder_calls) for line in lines), lines
    assert {line.split()[1] for line in lines} == {"no_subscriber", "delivered"}


def test_each_line_is_an_object_for_programs(running: RunningStreamer, run_command: RunCommand) -> None:
    with traffic(running):
        arguments = ("--json", "--count", "2", "--sink", "//cloud/FFFFFFFF/FF/FFFF", "--payload")
        code, out, _ = run_command(str(running.path), *arguments)
    found = [json.loads(line) for line in out.splitlines()]
    assert (code, len(found)) == (0, 2)
    for each in found:
        assert set(each) == {"line", *taps.TapLine.__struct_fields__}
        assert (each["line"], each["verdict"], each["egress"]) == ("verdict", "delivered", "outside")
        assert each["payload"] == "0102"
        assert abs(each["time_ms"] / 1000 - time.time()) < 60


def test_a_tap_can_filter_by_verdict_and_source(running: RunningStreamer, run_command: RunCommand) -> None:
    with traffic(running):
        arguments = (
            "--socket",
            str(running.state_dir / SOCKET),
            "--verdict",
            "no_subscriber",
            "--count",
            "3",
        )
        code, out, _ = run_command(*arguments, "--source", str(SOURCE))
    assert code == 0
    assert [line.split()[1] for line in out.splitlines()] == ["no_subscriber"] * 3


def test_a_tap_can_filter_by_type_and_endpoint_and_has_real_latencies(
    running: RunningStreamer, run_command: RunCommand
) -> None:
    with traffic(running):
        arguments = (str(running.path), "--json", "--count", "3", "--type", "publish", "--at", INSIDE)
        code, out, _ = run_command(*arguments)
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, {(each["type"], each["ingress"]) for each in lines}) == (0, {("PUBLISH", INSIDE)})
    assert all(each["latency_ms"] > 0 for each in lines)


def test_a_line_names_the_first_subscribers_of_a_multicast_target() -> None:
    subscribers = tuple(f"up://cloud/{number}/1/0" for number in range(5))
    text = tap_command._format_line(msgspec.structs.replace(LINE, subscribers=subscribers))
    assert "for up://cloud/0/1/0, up://cloud/1/1/0, up://cloud/2/1/0 and 2 more " in text


def test_a_verdict_has_a_colour_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in tap_command._format_line(LINE)
    assert "\x1b[31mexpired\x1b[0m" in tap_command._format_line(LINE, colour=True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert use_colour()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not use_colour()


PAYLOADS: Final = """
[[plugins.payloads.topics]]
topic = "//hpc/1234/1/8001"
type = "Speed"

[plugins.payloads.types.Speed]
kind = "struct"
members = [{ name = "front", type = "u16" }, { name = "rear", type = "u16" }]
"""


def test_a_payload_is_decoded_by_its_description(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunningStreamer(tmp_path, PAYLOADS) as running, traffic(running):
        arguments = ["tap", str(running.path), "--decode", "--count", "2"]
        assert main([*arguments, "--verdict", "no_subscriber"]) == 0  # b"speed", with one unknown byte
        for line in capsys.readouterr().out.splitlines():
            assert line.endswith('  {"front":29552,"rear":25957}')
        assert main([*arguments, "--verdict", "delivered"]) == 0  # b"\x01\x02"
        for line in capsys.readouterr().out.splitlines():
            assert line.endswith("  not decoded: at byte 2: Speed.rear: needs 2 bytes, 0 are left  0102")
        assert main([*arguments, "--json"]) == 0
        for line in capsys.readouterr().out.splitlines():
            decoder_calls = json.loads(line)
            problem = {"problem": "at byte 2: Speed.rear: needs 2 bytes, 0 are left"}
            value = {"value": {"front": 29552, "rear": 25957}}
            assert decoder_calls["decoded"] == (problem if decoder_calls["verdict"] == "delivered" else value)


class Decoders:
    """A plugin that counts decoder look-ups."""

    def __init__(self) -> None:
        self.asked, self.decoded = 0, 0

    @hookimpl
    def ustreamer_decoders(self, topic: UUri) -> Decoder:
        self.asked += 1
        return self._decode

    def _decode(self, payload: bytes) -> object:
        self.decoded += 1
        return payload.hex()


def test_routing_uses_no_decoder(running: RunningStreamer, run_command: RunCommand) -> None:
    decoders = Decoders()
    running.streamer.plugins.register(decoders)
    received_messages, app = running.listen("outside", "cloud", CLOUD), running.app(INSIDE, "hpc")
    for _ in range(100):
        app.send(publish(new_id(), SOURCE, b"speed"))
        app.send(notification(new_id(), SOURCE, CLOUD, b"\x01\x02"))
    eventually(lambda: len(received_messages) == 100, "what was sent")
    assert (decoders.asked, decoders.decoded) == (0, 0)
    with traffic(running):
        assert run_command(str(running.path), "--count", "2", "--payload")[0] == 0
        assert (decoders.asked, decoders.decoded) == (0, 0)
        assert run_command(str(running.path), "--count", "2", "--decode")[0] == 0
    assert decoders.asked == 1
    assert decoders.decoded >= 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["u.toml", "--source", "nonsense"], "nonsense"),
        (["u.toml", "--verdict", "lost"], "lost"),
        (["u.toml", "--count", "0"], "from 1 on"),
        ([], "required"),
        (["u.toml", "--socket", "x"], "not allowed"),
    ],
)
def test_contradictory_arguments_are_a_usage_error(
    run_command: RunCommand, arguments: list[str], text: str
) -> None:
    code, _, err = run_command(*arguments)
    assert code == 2
    assert text in err


def test_a_pattern_stays_as_written() -> None:
    assert uuri_pattern("//*/FFFFFFFF/FF/8001") == "//*/FFFFFFFF/FF/8001"
    with pytest.raises(argparse.ArgumentTypeError, match="expected three segments"):
        uuri_pattern("//a/1")


def test_times_are_those_of_utc_to_the_millisecond() -> None:
    assert format_time(1) == "1970-01-01T00:00:00.001+00:00"


def test_a_request_without_a_running_streamer_is_unavailable(tmp_path: Path, run_command: RunCommand) -> None:
    code, out, err = run_command("--socket", str(tmp_path / "nowhere" / SOCKET))
    assert (code, out) == (69, "")
    assert "no streamer runs" in err


@pytest.mark.parametrize(
    "asked",
    [
        TapRequest(source="nonsense"),
        TapRequest(sink="//x"),
        TapRequest(verdict="lost"),
        TapRequest(message_type="call"),
        TapRequest(at="moon"),
    ],
)
def test_the_streamer_endpoint_refuses_invalid_messages(running: RunningStreamer, asked: TapRequest) -> None:
    for _ in range(taps.MAX_READERS + 1):
        with pytest.raises(UStatusError) as refused:
            next(stream_lines(running.state_dir / SOCKET, asked))
        assert refused.value.code is UCode.INVALID_ARGUMENT


def tap_count(running: RunningStreamer) -> int:
    return len(running.streamer.dispatcher.ingress(INSIDE).taps)


def connected(running: RunningStreamer) -> socket.socket:
    """A client with an accepted tap request for all messages."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(DEADLINE_S)
    before = tap_count(running)
    connection.connect(str(running.state_dir / SOCKET))
    connection.sendall(msgspec.json.encode(TapRequest()) + b"\n")
    eventually(lambda: tap_count(running) == before + 1, "the tap")
    return connection


def test_the_number_of_tap_commands_is_limited_and_other_requests_work(
    running: RunningStreamer, run_command: RunCommand
) -> None:
    readers = [connected(running) for _ in range(taps.MAX_READERS)]
    code, _, err = run_command(str(running.path))
    assert code == 1
    assert "too many tap readers" in err
    assert main(["routes", str(running.path)]) == 0
    for each in readers:
        each.close()
    eventually(lambda: tap_count(running) == 0, "all to be gone")
    with traffic(running):
        assert run_command(str(running.path), "--count", "1")[0] == 0


def test_a_blocked_tap_delays_neither_messages_nor_a_stop(tmp_path: Path) -> None:
    with RunningStreamer(tmp_path) as running:
        reader = connected(running)
        app = running.app(INSIDE, "hpc")
        for _ in range(5_000):
            app.send(publish(new_id(), SOURCE))
        assert running.streamer.ledger().received >= 5_000
        began = time.monotonic()
    # `running` has checked the ledger at its end, and no reader is left.
    assert time.monotonic() - began < DEADLINE_S / 2
    assert not [each for each in threading.enumerate() if each.name == "admin tap"]
    reader.close()


def test_a_tap_ends_with_its_streamer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    codes: list[int] = []
    with RunningStreamer(tmp_path) as running:
        thread = threading.Thread(target=lambda: codes.append(main(["tap", str(running.path)])))
        thread.start()
        eventually(lambda: tap_count(running) == 1, "the tap")
    thread.join(DEADLINE_S)
    assert codes == [69]
    assert "the streamer has stopped" in capsys.readouterr().err


def test_lost_lines_are_reported(
    running: RunningStreamer, run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taps.TapReader, "wait_lines", lambda *_: [taps.Dropped(7), LINE])
    code, out, err = run_command(str(running.path), "--count", "1")
    assert (code, err) == (0, "7 lines were lost: they were not read in time\n")
    assert len(out.splitlines()) == 1


LINE: Final = taps.TapLine(
    0,
    "id",
    "PUBLISH",
    "up://a/1/1/8000",
    None,
    None,
    INSIDE,
    None,
    "expired",
    "DEADLINE_EXCEEDED",
    "old",
    0,
    0,
    0,
    None,
    None,
)


def test_the_verdicts_of_the_parser_are_those_of_a_delivery() -> None:
    assert tuple(each.name.lower() for each in Verdict if each is not Verdict.QUEUED) == VERDICTS
