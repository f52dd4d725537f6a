# SPDX-License-Identifier: Apache-2.0
"""Log lines: their JSON fields, their console form, robustness against any field, and a pipe that takes nothing."""

import io
import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, TextIO

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.waiting import wait_until
from ustreamer.host.runtime import logs
from ustreamer.host.runtime.log_stream import MAX_CHARS, LogStream
from ustreamer.host.runtime.logs import Console, JsonLines
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuri import UUri

AT = datetime(2024, 2, 29, 23, 59, 58, 7_000, UTC).timestamp()
LOGGER = logging.getLogger("ustreamer.test")


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """Restores the log configuration of `ustreamer` after a test."""
    root = logging.getLogger("ustreamer")
    before = root.handlers[:], root.level, root.propagate
    yield
    root.handlers[:], root.level, root.propagate = before


def record(
    event: str = "started", level: int = logging.INFO, /, *arguments: object, **extra: Any
) -> logging.LogRecord:
    made = LOGGER.makeRecord(LOGGER.name, level, "file.py", 1, event, arguments, None, extra=extra)
    made.created = AT
    return made


def failed(event: str = "broken") -> logging.LogRecord:
    try:
        raise ValueError("on purpose")
    except ValueError:
        return LOGGER.makeRecord(LOGGER.name, logging.ERROR, "file.py", 1, event, (), sys.exc_info())


def as_json(made: logging.LogRecord) -> dict[str, Any]:
    line = JsonLines().format(made)
    assert "\n" not in line
    read = json.loads(line)
    assert isinstance(read, dict)
    return read


# -------------------------------------------------------------------------------------------------------------- JSON


def test_a_json_line_has_time_level_logger_event_and_only_the_fields_of_the_event() -> None:
    line = as_json(record("egress.unavailable", logging.WARNING, endpoint="backbone", retries=3))
    assert line == {
        "time": "2024-02-29T23:59:58.007+00:00",
        "level": "warning",
        "logger": "ustreamer.test",
        "event": "egress.unavailable",
        "endpoint": "backbone",
        "retries": 3,
    }


def test_the_fields_of_a_json_line_have_a_fixed_order() -> None:
    assert list(as_json(record(zone=1, area=2))) == ["time", "level", "logger", "event", "zone", "area"]


def test_log_arguments_are_formatted_into_the_event() -> None:
    assert as_json(record("answer to %s not sent: %d", logging.INFO, "app", 7))["event"] == (
        "answer to app not sent: 7"
    )


def test_a_traceback_is_a_field_and_the_line_stays_one_line() -> None:
    line = as_json(failed())
    assert line["traceback"].splitlines()[0] == "Traceback (most recent call last):"
    assert line["traceback"].splitlines()[-1] == "ValueError: on purpose"


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError("has no text")

    __repr__ = __str__


def circular() -> list[object]:
    ring: list[object] = []
    ring.append(ring)
    return ring


VALUES: list[tuple[object, object]] = [
    ("two\nlines", "two\nlines"),
    ("ümlaut \ud800 \x00", "ümlaut \ud800 \x00"),
    (b"\xff\x00", "b'\\xff\\x00'"),
    (UUri("vin", 1, 1, 0x8000), "up://vin/1/1/8000"),
    (UCode.UNAVAILABLE, 14),
    ({"left": 1, "ledger": {"received": 2}}, {"left": 1, "ledger": {"received": 2}}),
    ([1, (2, 3)], [1, [2, 3]]),
    (None, None),
    (ValueError("no"), "no"),
    ({1}, "{1}"),
]


@pytest.mark.parametrize(("value", "shown"), VALUES)
def test_a_field_may_be_anything(value: object, shown: object) -> None:
    assert as_json(record(value=value))["value"] == shown


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({UUri("vin", 1, 1, 0x8000): 3}, id="a map by address"),
        pytest.param({("a", 1): 2}, id="a map by tuple"),
        pytest.param({b"key": {None: 1}}, id="a map by bytes"),
        pytest.param(circular(), id="a list in itself"),
        pytest.param(Unspeakable(), id="an object without text"),
        pytest.param(float("nan"), id="no number"),
        pytest.param([float("inf")], id="no finite number"),
    ],
)
@pytest.mark.parametrize("form", [JsonLines, Console])
def test_no_field_can_break_a_line(form: type[logging.Formatter], value: object) -> None:
    line = form().format(record("seen", value=value, other=1))
    assert "seen" in line
    assert "other" in line
    if form is JsonLines:
        # Strictly: NaN and Infinity are not JSON, and a log collector drops the line.
        assert json.loads(line, parse_constant=_refuse)["event"] == "seen"


def _refuse(constant: str) -> float:
    raise AssertionError(f"{constant} is not JSON")


@pytest.mark.parametrize("name", ["time", "level", "logger", "event", "traceback"])
def test_a_field_cannot_replace_a_standard_field(name: str) -> None:
    # An event id of SOME/IP is easily called "event".
    made = failed("seen")
    vars(made)[name] = "taken"
    line = as_json(made)
    assert (line["event"], line["level"], line["logger"]) == ("seen", "error", "ustreamer.test")
    assert line["time"] != "taken"
    assert line["traceback"] != "taken"


# Field names that logging itself refuses.
RESERVED = {*vars(record()), "message", "asctime"}
FIELD_NAMES = st.text(min_size=1).filter(lambda name: name not in RESERVED)
FIELD_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.sets(st.integers()),
    max_leaves=5,
)


@example({"event": 1, "event_": 2, "level": [], "self": {}}, JsonLines)
@settings(max_examples=25)
@given(st.dictionaries(FIELD_NAMES, FIELD_VALUES, max_size=4), st.sampled_from([JsonLines, Console]))
def test_a_line_is_written_for_any_fields(fields: dict[str, Any], form: type[logging.Formatter]) -> None:
    line = form().format(record("seen", **fields))
    if form is JsonLines:
        assert fields.keys() <= json.loads(line).keys()
    else:
        assert line.startswith("23:59:58.007 INFO seen")


# ----------------------------------------------------------------------------------------------------------- console


def test_a_console_line_has_the_time_the_level_the_event_and_its_fields() -> None:
    line = Console().format(record("egress.unavailable", logging.WARNING, endpoint="backbone", left=3))
    assert line == "23:59:58.007 WARNING egress.unavailable endpoint=backbone left=3"


def test_a_console_line_without_fields_ends_with_the_event() -> None:
    assert Console().format(record("stopped %d", logging.INFO, 1)) == "23:59:58.007 INFO stopped 1"


def test_a_traceback_follows_the_console_line() -> None:
    first, second, *_, last = Console().format(failed()).splitlines()
    assert first.endswith("ERROR broken")
    assert (second, last) == ("Traceback (most recent call last):", "ValueError: on purpose")


# --- configuration ---------------------------------------------------------------------------------------------------


def logged(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("form", ["console", "journal", "json"])
def test_log_configuration_writes_to_the_stream_in_the_given_format(form: logs.LogForm) -> None:
    stream = io.StringIO()
    logs.configure_logging(form, stream=stream)
    LOGGER.info("started", extra={"authority": "hpc"})
    [line] = logged(stream)
    if form == "json":
        assert json.loads(line).items() >= {"event": "started", "authority": "hpc"}.items()
    elif form == "journal":
        assert line == "<6>started authority=hpc"
    else:
        assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d\d\d INFO started authority=hpc", line)


@pytest.mark.parametrize(
    ("level", "number"), [("CRITICAL", 2), ("ERROR", 3), ("WARNING", 4), ("INFO", 6), ("DEBUG", 7)]
)
def test_a_journal_reads_the_level_of_each_line(level: str, number: int) -> None:
    stream = io.StringIO()
    logs.configure_logging("journal", "debug", stream)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        LOGGER.log(logging.getLevelNamesMapping()[level], "failed", exc_info=True, extra={"text": "a\nb"})
    first, *traceback = logged(stream)
    assert first == f"<{number}>failed text=a\\nb"
    assert len(traceback) > 2
    assert all(line.startswith(f"<{number}>") for line in traceback)


def test_log_configuration_writes_to_stderr_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure_logging()
    LOGGER.warning("careful")
    logs.wait_written()
    out, err = capsys.readouterr()
    assert out == ""
    assert "WARNING careful" in err


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("INFO", ["info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("Error", ["error"]),
    ],
)
def test_log_configuration_applies_the_level(level: str, expected: list[str]) -> None:
    stream = io.StringIO()
    logs.configure_logging("json", level, stream)
    for name in ("debug", "info", "warning", "error"):
        getattr(LOGGER, name)("x")
    assert [json.loads(line)["level"] for line in logged(stream)] == expected


def test_setting_up_again_does_not_write_lines_twice() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.configure_logging("json", stream=first)
    logs.configure_logging("json", stream=second)
    LOGGER.info("once")
    assert logged(first) == []
    assert len(logged(second)) == 1


def test_streamer_log_lines_do_not_reach_the_root_logger(caplog: pytest.LogCaptureFixture) -> None:
    logs.configure_logging("json", stream=io.StringIO())
    with caplog.at_level("DEBUG"):
        LOGGER.info("ours")
        logging.getLogger("another.component").warning("theirs")
    assert [each.getMessage() for each in caplog.records] == ["theirs"]


def test_on_the_console_a_summary_stands_for_all_other_fields() -> None:
    stopped = record("streamer.stopped", summary="7 received", endpoints={"a": {"sent": 7}})
    assert Console().format(stopped) == "23:59:58.007 INFO streamer.stopped: 7 received"
    assert Console(verbose=True).format(stopped) == (
        "23:59:58.007 INFO streamer.stopped: 7 received endpoints={'a': {'sent': 7}}"
    )


def test_a_json_line_with_a_summary_has_no_nested_fields() -> None:
    fields = {
        "summary": "7 received",
        "unsent": 0,
        "ledger": {"received": 7},
        "endpoints": {"a": {"sent": 7}},
    }
    stopped = record("streamer.stopped", **fields)
    shown = json.loads(logs.JsonLines().format(stopped))
    assert "endpoints" not in shown
    assert (shown["summary"], shown["unsent"], shown["ledger"]) == ("7 received", 0, {"received": 7})
    assert json.loads(logs.JsonLines(verbose=True).format(stopped))["endpoints"] == {"a": {"sent": 7}}


@pytest.mark.parametrize(("level", "shown"), [("INFO", False), ("DEBUG", True)])
def test_the_log_level_debug_shows_the_fields_next_to_a_summary(level: str, shown: bool) -> None:
    stream = io.StringIO()
    logs.configure_logging("console", level, stream)
    LOGGER.info("streamer.stopped", extra={"summary": "7 received", "ledger": {"received": 7}})
    assert ("ledger" in stream.getvalue()) is shown


# ------------------------------------------------------------------------------------- a pipe that is not read

LINE = "x" * 999 + "\n"


class Pipe:
    """A stream to a pipe. Nothing reads it until `read_lines`."""

    def __init__(self) -> None:
        read, write = os.pipe()
        self._output = os.fdopen(read, encoding="utf-8")
        self.input: TextIO = os.fdopen(write, "w", encoding="utf-8")
        self.reports: list[int] = []
        self.stream = LogStream(self.input, self.reports.append)

    def read_lines(self, number: int) -> list[str]:
        return [self._output.readline() for _ in range(number)]

    def close(self) -> None:
        self._output.close()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


def test_lines_are_written_in_order(pipe: Pipe) -> None:
    for number in range(50):
        pipe.stream.write(f"{number}\n")
    assert pipe.stream.wait_written(10.0)
    assert pipe.read_lines(50) == [f"{number}\n" for number in range(50)]


def test_a_pipe_that_is_not_read_stops_no_writer_and_costs_only_the_lines_without_room(pipe: Pipe) -> None:
    written = 3 * MAX_CHARS // len(LINE)
    for number in range(written):
        pipe.stream.write(f"{number:04}{LINE[4:]}")
    left_out = pipe.stream.left_out
    # Of the others the pipe has 64 KB, and the rest waits.
    assert MAX_CHARS // len(LINE) <= written - left_out <= (MAX_CHARS + 80_000) // len(LINE)
    assert not pipe.stream.wait_written(0.01)
    kept = pipe.read_lines(written - left_out)
    assert kept == sorted(kept)
    assert pipe.stream.wait_written(10.0)
    wait_until(lambda: pipe.reports == [left_out])
    pipe.stream.write("again\n")
    assert pipe.read_lines(1) == ["again\n"]


def test_a_closed_pipe_costs_nothing_but_the_lines(pipe: Pipe) -> None:
    pipe.close()
    for _ in range(3):
        pipe.stream.write(LINE)
        assert pipe.stream.wait_written(10.0)


def test_lines_that_stderr_does_not_take_are_counted(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", pipe.input)
    logs.configure_logging()
    assert logs.suppressed_lines() == {}
    for _ in range(2 * MAX_CHARS // len(LINE)):
        LOGGER.warning(LINE)
    assert logs.suppressed_lines()["streamer.log_lines_left_out"] > 0
