# SPDX-License-Identifier: Apache-2.0
"""The screen of `ustreamer top`: rates of two frames, order, slow subscribers, problems."""

import os
import pty
import re
import select
import signal
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from rich.console import Console

from tests.host.running_streamer import RunningStreamer
from ustreamer.host.admin.top_frame import TopEndpoint, TopFrame, TopProblem, TopQueue, TopTarget
from ustreamer.host.cli.arguments import TOP_ORDERS
from ustreamer.host.cli.main import main
from ustreamer.host.cli.top_command import SORT_KEYS, screen_of, show_frames, slow_receivers, target_rows

NOW_MS: Final = 1_700_000_000_000


def target(number: int, received: int, throttled: int = 0, **changes: Any) -> TopTarget:
    delivered = received - throttled
    found = TopTarget(
        f"up://hpc/{number}/1/8001", "inside", "outside", None, ("up://cloud/1/1/0", "up://cloud/2/1/0"), 0,
        received, delivered, throttled, 0.25, 1.5,
    )  # fmt: skip
    return msgspec.structs.replace(found, **changes)


def endpoint(name: str = "outside", **changes: Any) -> TopEndpoint:
    found = TopEndpoint(name, "zenoh", True, None, 1, 100, 50, 0, 0, 0, 0, ())
    return msgspec.structs.replace(found, **changes)


def frame(time_s: float, *targets: TopTarget, endpoints: Any = (), problems: Any = ()) -> TopFrame:
    return TopFrame(
        NOW_MS + round(time_s * 1000), NOW_MS - 60_000, 0, tuple(endpoints), targets, tuple(problems)
    )


def text_of(now: TopFrame, before: TopFrame | None = None, *, width: int = 200, height: int = 40) -> str:
    console = Console(file=StringIO(), width=width, height=height)
    console.print(screen_of(now, before, "rate", width, height))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_rates_are_the_difference_of_two_frames_per_second() -> None:
    before = frame(0, target(1, 100, 40))
    now = frame(2, target(1, 300, 140, period_ns=10_000_000))
    [row] = target_rows(now, before, "rate")
    assert (row.received_hz, row.delivered_hz, row.throttled_hz, row.asked_hz) == (100, 50, 50, 100)
    [first] = target_rows(before, None, "rate")
    assert (first.received_hz, first.asked_hz) == (0, None)


def test_a_target_that_counts_from_zero_again_has_no_negative_rate() -> None:
    [row] = target_rows(frame(1, target(1, 5)), frame(0, target(1, 1_000)), "rate")
    assert row.received_hz == 0


@pytest.mark.parametrize(
    ("sort", "order"),
    [("rate", [2, 3, 1]), ("throttled", [3, 1, 2]), ("p99", [1, 2, 3]), ("topic", [1, 2, 3])],
)
def test_targets_are_sorted_by_the_key(sort: str, order: list[int]) -> None:
    before = frame(0, *(target(number, 0) for number in (1, 2, 3)))
    now = frame(1, target(1, 10, p99_ms=9.0), target(2, 30, p99_ms=2.0), target(3, 20, 20, p99_ms=None))
    assert [row.target.topic[9:10] for row in target_rows(now, before, sort)] == [str(each) for each in order]


def test_the_orders_of_the_parser_are_those_of_the_screen() -> None:
    assert tuple(SORT_KEYS) == TOP_ORDERS


def test_unreachable_stalled_and_slow_receivers_are_named() -> None:
    queues = (
        TopQueue("up://chassis/1/1/0", 7, 0, 3),
        TopQueue("up://chassis/2/1/0", 5, 0, 0),
        TopQueue("up://chassis/3/1/0", 4, 4, 0),
    )
    now = frame(1, endpoints=[endpoint(queues=queues), endpoint("far", queued=9, oldest_age_ms=2_500)])
    assert slow_receivers(now, None) == [
        "unreachable  up://chassis/1/1/0 at outside: 7 messages wait, 3 sends refused in a row",
        "slow         up://chassis/2/1/0 at outside: 5 messages wait",
        "unreachable  up://chassis/3/1/0 at outside: 4 messages wait, 4 of them for a closed route",
        "slow         receivers behind far: 9 messages wait, the oldest for 2.5 s",
    ]
    assert slow_receivers(now, now)[-1].startswith("stalled      receivers behind far")


def test_the_screen_shows_links_targets_and_the_last_problems() -> None:
    before = frame(0, target(1, 0), endpoints=[endpoint()])
    down = endpoint(up=False, link_ms=NOW_MS, received=150)
    now = frame(1, target(1, 80), endpoints=[down], problems=[TopProblem(NOW_MS, "warning zenoh.lost [x]")])
    text = text_of(now, before)
    assert "down since 22:13:20" in text
    assert "up://hpc/1/1/8001" in text
    assert "up://cloud/1/1/0 +1" in text
    assert "80.0" in text
    assert "0.250" in text
    assert "warning zenoh.lost [x]" in text
    assert "unaccounted 0" in text


def test_only_as_many_targets_as_fit_are_shown_and_the_rest_is_counted() -> None:
    text = text_of(frame(0, *(target(number, 0) for number in range(100, 160))), height=30)
    assert text.count("up://hpc/1") == 30 - 4
    assert "34 more not shown" in text
    assert len(text.splitlines()) <= 30


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_a_figure_is_whole_at_every_width_and_an_address_is_cut_at_its_start(width: int) -> None:
    far = "up://chassis-controller.vehicle-1234.example/1234/1/8001"
    now = frame(
        1, target(1, 190_123, topic=far, p99_ms=1_234.567), endpoints=[endpoint("back-bone", queued=7)]
    )
    queue = TopQueue("up://a-subscriber.with.a.long.name/1234/1/0", 1_234, 0, 0)
    slow = endpoint(
        "far-away-backbone", received=250_000, link_ms=NOW_MS, up=False, link_problem="x", queues=(queue,)
    )
    text = text_of(
        msgspec.structs.replace(now, endpoints=(*now.endpoints, slow), unaccounted=31),
        frame(0, target(1, 0, topic=far)),
        width=width,
    )
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert "190123.0" in text
    assert "…" not in "".join(re.findall(r"\S*[0-9.]…|\d…", text))
    assert re.search(r"/1234/1/8001\b", text)
    assert "unaccounted 31" in lines[0]
    assert lines[0].endswith("q ends")
    assert "1234 messages" in " ".join(text.split())
    if width >= 80:
        assert all(
            each in text for each in ("out/s", "p99 ms", "1234.567", "receiver stalled since 22:13:20")
        )


def run_top(running: RunningStreamer, end: Callable[[int, int], None]) -> tuple[int, str]:
    """The wait status of `top` on a terminal of its own, ended by `end(pid, terminal)`, and its output."""
    command = [
        sys.executable,
        "-c",
        "from ustreamer.host.cli.main import main; raise SystemExit(main())",
        *("top", str(running.path), "--interval", "0.1"),
    ]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(command[0], command, {**os.environ, "TERM": "xterm-256color"})
    found = b""
    ended = False
    while select.select([terminal], [], [], 30)[0]:
        try:
            found += os.read(terminal, 65_536)
        except OSError:  # Linux reports the end of a terminal so
            break
        if b"q ends" in found and not ended:
            end(pid, terminal)
            ended = True
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), found.decode()


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda _, terminal: os.write(terminal, b"q"), 0),
        (lambda _, terminal: os.write(terminal, b"\x03"), 0),
        (lambda pid, _: os.kill(pid, signal.SIGTERM), 128 + signal.SIGTERM),
    ],
    ids=["q", "Ctrl-C", "SIGTERM"],
)
def test_the_terminal_is_restored_whatever_ends_the_screen(
    tmp_path: Path, end: Callable[[int, int], None], code: int
) -> None:
    with RunningStreamer(tmp_path) as running:
        ended, text = run_top(running, end)
    assert ended == code, text[-300:]
    assert text.rindex("\x1b[?1049l") > text.rindex("\x1b[?1049h")
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert "Traceback" not in text


def test_the_live_screen_ends_after_its_number_of_frames() -> None:
    console = Console(file=StringIO(), force_terminal=True, width=120, height=30)
    show_frames(iter([frame(0, target(1, 0)), frame(1, target(1, 50)), frame(2)]), console, "rate", 2)
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert "\x1b[?1049h" in text  # the alternate screen
    assert "50.0" in text


def test_top_is_live_on_a_terminal_and_once_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunningStreamer(tmp_path) as running:
        assert main(["top", str(running.path)]) == 0
        assert capsys.readouterr().out.startswith("since ")
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        assert main(["top", str(running.path), "--once"]) == 0
        assert capsys.readouterr().out.startswith("since ")
        assert main(["top", str(running.path), "--count", "2", "--interval", "0.1"]) == 0
        out = capsys.readouterr().out
    assert "unaccounted 0" in out
    assert "inside" in out


def test_an_interval_has_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["top", "u.toml", "--interval", "0"])
    assert "0.1 to 60" in capsys.readouterr().err
