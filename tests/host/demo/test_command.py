# SPDX-License-Identifier: Apache-2.0
"""`ustreamer demo` around a stub vehicle that only reports results."""

import io
import json
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import pytest
from rich.console import Console

from ustreamer.core.delivery.ledger import LedgerSnapshot
from ustreamer.host.cli.main import parser
from ustreamer.host.demo import command
from ustreamer.host.demo.vehicle import DemoOutcome, RpcRow, TargetRow

REPO = Path(__file__).parents[3]
BOOKS = LedgerSnapshot(
    received=100,
    delivered=60,
    throttled=40,
    expired=0,
    dead_lettered=0,
    denied=0,
    no_subscriber=0,
    queued=0,
)
ROWS = (
    TargetRow("up://chassis/1234/1/8001", "up://hpc.vin1/10A1/1/0", 100.0, None, 100.0),
    TargetRow("up://chassis/1234/1/8001", "up://cloud/20B1/1/0", 100.0, 10.0, 10.0),
)
GOOD = DemoOutcome(BOOKS, 0, ROWS, RpcRow(5, 5), {"chassis": {"sent": 5}})
BAD = DemoOutcome(BOOKS, 2, ROWS, RpcRow(5, 4), {})
SLOW = DemoOutcome(BOOKS, 0, ROWS, RpcRow(5, 4), {})


class StubStreamer:
    def ledger(self) -> LedgerSnapshot:
        return BOOKS


class StubVehicle:
    """Notes its entry, finish and exit."""

    notes: ClassVar[list[str]] = []
    outcome: ClassVar[DemoOutcome] = GOOD
    streamer = StubStreamer()

    def __init__(self, recordings: Path | None, web: int | None = None, metrics: int | None = None) -> None:
        self.metrics_page = None if metrics is None else f"http://127.0.0.1:{metrics}/"
        self.page = None if web is None else f"http://127.0.0.1:{web}/"
        if recordings is not None:
            self.notes.append(str(recordings))

    def __enter__(self) -> Self:
        self.notes.append("entered")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.notes.append("left")

    def rows(self) -> tuple[TargetRow, ...]:
        return ROWS

    def finish(self) -> DemoOutcome:
        self.notes.append("finished")
        return self.outcome


@pytest.fixture(autouse=True)
def vehicle(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Installs the stub vehicle, and restores the log configuration."""
    monkeypatch.setattr(command, "DemoVehicle", StubVehicle)
    monkeypatch.setattr(StubVehicle, "notes", [])
    log = logging.getLogger("ustreamer")
    before = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:], log.level, log.propagate = before


Output = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("outcome", "strict", "code"),
    [(GOOD, True, 0), (BAD, True, 1), (SLOW, True, 1), (GOOD, False, 0), (BAD, False, 1), (SLOW, False, 0)],
)
@pytest.mark.parametrize("as_json", [True, False])
def test_the_demo_fails_for_a_defect_and_if_strict_for_a_wrong_rate(
    monkeypatch: pytest.MonkeyPatch, outcome: DemoOutcome, strict: bool, code: int, as_json: bool
) -> None:
    monkeypatch.setattr(StubVehicle, "outcome", outcome)
    assert command.run(seconds=0.01, as_json=as_json, strict=strict) == code
    assert StubVehicle.notes == ["entered", "finished", "left"]


def test_the_demo_prints_the_recording_directory_if_it_is_kept(capsys: Output) -> None:
    command.run(seconds=0.0, as_json=False, recordings=Path("there"))
    assert "recorded in there\n" in capsys.readouterr().out
    assert StubVehicle.notes == ["there", "entered", "finished", "left"]


def test_as_json_the_outcome_is_all_that_is_printed(capsys: Output) -> None:
    command.run(seconds=0.01, as_json=True)
    out, err = capsys.readouterr()
    read = json.loads(out)
    assert read.keys() == {"ledger", "unaccounted", "targets", "rpc", "endpoints"}
    assert [target["delivered_hz"] for target in read["targets"]] == [100.0, 10.0]
    assert err == ""


def test_the_demo_prints_the_address_of_its_page(capsys: Output) -> None:
    command.run(seconds=0.01, as_json=True, web=8081)
    out, err = capsys.readouterr()
    assert json.loads(out)
    assert err == "live values: http://127.0.0.1:8081/\n"


def test_the_summary_has_a_line_per_target_the_calls_and_the_ledger(capsys: Output) -> None:
    command.run(seconds=0.0, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["topic", "subscriber", "published", "requested", "delivered", "Hz"]
    assert lines[1].split() == [
        "up://chassis/1234/1/8001",
        "up://hpc.vin1/10A1/1/0",
        "100.00",
        "all",
        "100.00",
    ]
    assert lines[2].split() == ["up://chassis/1234/1/8001", "up://cloud/20B1/1/0", "100.00", "10", "10.00"]
    assert lines[4:7] == [
        "calls of the climate method: 5 sent, 5 answered",
        "ledger: received=100 delivered=60 throttled=40 expired=0 dead_lettered=0 denied=0 no_subscriber=0 queued=0",
        "unaccounted: 0",
    ]


def test_the_summary_ends_with_the_failed_checks(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setattr(StubVehicle, "outcome", BAD)
    command.run(seconds=0.0, as_json=False)
    command.run(seconds=0.0, as_json=False, strict=True)
    lines = capsys.readouterr().out.splitlines()
    defect = "WRONG: 2 deliveries are unaccounted for"
    assert [line for line in lines if "5 calls" in line or line == defect] == [
        defect,
        "on a busy machine: 5 calls sent, 4 answered",
        defect,
        "WRONG: 5 calls sent, 4 answered",
    ]


def test_the_demo_ends_with_three_lines_about_what_to_try_next(
    monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setattr(sys, "argv", [".venv/bin/ustreamer", "demo"])
    monkeypatch.chdir(REPO)
    command.run(seconds=0.0, as_json=False)
    title, *lines = capsys.readouterr().out.splitlines()[-4:]
    assert title == "try next:"
    assert [line.split()[:2] for line in lines] == [
        [".venv/bin/ustreamer", each] for each in ("demo", "check", "run")
    ]
    for line in lines:
        words = line.split("#")[0].split()[1:]
        parser().parse_args(words)
        assert all((REPO / word).exists() for word in words if word.endswith(".toml"))


def test_without_a_checkout_no_command_names_a_file_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: Output, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    command.run(seconds=0.0, as_json=False)
    *_, title, line = capsys.readouterr().out.splitlines()
    assert (title, line.split()[1]) == ("try next:", "demo")


def test_without_a_terminal_a_line_is_printed_now_and_then(capsys: Output) -> None:
    command.run(seconds=0.02, as_json=False)
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "  0.0 s left  Hz delivered/requested  100.0/all    10.0/10  received 100"


@pytest.mark.parametrize(("seconds", "every", "calls"), [(0.03, 0.01, 3), (0.01, 1.0, 1), (0.0, 1.0, 0)])
def test_the_demo_wait_lasts_as_requested_and_reports_the_rest(
    seconds: float, every: float, calls: int
) -> None:
    notified: list[float] = []
    began = time.monotonic()
    command._wait(seconds, notified.append, every=every)
    assert time.monotonic() - began >= seconds
    assert 0 <= len(notified) <= calls  # fewer on a busy machine
    assert bool(notified) is (calls > 0)
    assert notified == sorted(notified, reverse=True)
    assert all(0.0 <= left <= seconds for left in notified)
    assert not notified or notified[-1] == 0.0


def test_on_a_terminal_a_table_shows_the_rates() -> None:
    screen = io.StringIO()
    Console(file=screen, width=140).print(command._table(ROWS, 7.4))
    text = screen.getvalue()
    assert "7 s left" in text
    for row in ROWS:
        [line] = [line for line in text.splitlines() if row.subscriber in line]
        cells = [cell.strip() for cell in line.strip("│┃ ").split("│")]
        assert cells == [
            row.topic,
            row.subscriber,
            "100.0",
            command._format_requested_rate(row),
            f"{row.delivered_hz:.1f}",
        ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_summary_replaces_the_live_table(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    assert command.run(seconds=0.02, as_json=False) == 0
    assert "unaccounted: 0" in screen.getvalue()
    assert "delivered/requested" not in screen.getvalue()  # the form without a terminal


def test_without_the_terminal_library_the_demo_prints_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setitem(sys.modules, "rich.live", None)  # as if it were not installed
    assert command.run(seconds=0.02, as_json=False) == 0
    assert "delivered/requested" in screen.getvalue()
