# SPDX-License-Identifier: Apache-2.0
"""The logs of senders and receivers: what is read, and the error for every wrong line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ustreamer_recorder.message_logs import Life, read_receiver_log, read_sender_log

from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

ID = UUID((1_700_000_000_000 << 16) | 0x7000, 0b10 << 62)
START = {
    "receiver": "dash",
    "endpoint": "backbone",
    "expects": ["//chassis/1234/1/8001"],
    "time_ms": 1_000,
}
MESSAGE = {"id": str(ID), "topic": "//chassis/1234/1/8001", "time_ms": 1_100}
END = {"end": True, "time_ms": 1_200}

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(*lines: "dict[str, Any] | str", tail: str = "\n") -> Path:
        path = tmp_path / "dash.log"
        texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
        path.write_text("\n".join(texts) + tail)
        return path

    return write


def test_a_log_has_the_messages_and_the_lives_of_its_receiver(write: Write) -> None:
    log = read_receiver_log(write(START, MESSAGE, "", MESSAGE, END, START | {"time_ms": 2_000}))
    assert (log.name, log.endpoint, log.expects) == (
        "dash",
        "backbone",
        (UUri("chassis", 0x1234, 1, 0x8001),),
    )
    assert (log.copies[ID], log.times_ms[ID]) == (2, 1_100)
    assert log.lives == [Life(1_000, 1_200, 1_200), Life(2_000, 2_000, None)]


@pytest.mark.parametrize(
    ("time_ms", "ready", "outside"),
    [
        (999, False, True),
        (1_000, True, False),
        (1_100, True, False),
        (1_101, False, False),
        (1_999, False, False),
        (2_000, True, False),
        (9_999, True, False),
    ],
)
def test_a_life_without_end_lasts_until_its_last_line_and_the_last_life_goes_on(
    write: Write, time_ms: int, ready: bool, outside: bool
) -> None:
    log = read_receiver_log(write(START, MESSAGE, START | {"time_ms": 2_000}))
    assert [life.was_killed for life in log.lives] == [True, False]
    assert (log.is_ready(time_ms), log.is_before_or_after(time_ms)) == (ready, outside)


def test_a_receiver_is_not_ready_while_it_was_away(write: Write) -> None:
    log = read_receiver_log(write(START, {"away_ms": 300, "time_ms": 2_000}))
    assert [log.is_ready(each) for each in (1_699, 1_700, 2_000, 2_001)] == [True, False, False, True]


def test_after_its_last_end_a_receiver_expects_nothing(write: Write) -> None:
    log = read_receiver_log(write(START, END))
    assert (log.is_before_or_after(1_200), log.is_before_or_after(1_201)) == (False, True)


@pytest.mark.parametrize("torn", ['{"id": "018b', '{"id"', "{"])
def test_half_a_line_of_a_killed_receiver_is_left_out(write: Write, torn: str) -> None:
    assert read_receiver_log(write(START, MESSAGE, torn, tail="")).copies == {ID: 1}
    assert read_receiver_log(write(START, torn, START, MESSAGE)).copies == {ID: 1}


WRONG: "dict[str, tuple[list[dict[str, Any] | str], str]]" = {
    "no line": ([], 'dash.log: has no line: expected a start, {"receiver": '),
    "no start": ([MESSAGE], 'dash.log, line 1: a line before the first start: expected {"receiver": '),
    "no JSON": ([START, "hello", MESSAGE], "line 2: 'hello': JSON is malformed"),
    "no JSON at the end": ([START, "hello"], "line 2: 'hello': JSON is malformed"),
    "no object": ([START, "17", MESSAGE], "line 2: '17': Expected `object`, got `int`"),
    "no time": ([START, {"id": str(ID)}, MESSAGE], "expected a JSON object with time_ms in ms since 1970"),
    "a time of another type": ([START, MESSAGE | {"time_ms": "now"}, MESSAGE], "Expected `int`, got `str`"),
    "no kind": ([START, {"time_ms": 1}], 'line 2: of no kind: expected "id", "away_ms", "end": true'),
    "a wrong id": ([START, MESSAGE | {"id": "17"}], "line 2: id: UUID '17': expected 8-4-4-4-12 hex digits"),
    "after the end": ([START, END, MESSAGE], "line 3: a line after the end: expected a start"),
    "a wrong topic": (
        [START | {"expects": ["chassis"]}],
        "line 1: expects: UUri 'chassis': expected up:",
    ),
    "no endpoint": (
        [{"receiver": "dash", "time_ms": 1}],
        "line 1: start of 'dash' without endpoint or expects",
    ),
    "two receivers": (
        [START, START | {"receiver": "b"}],
        "line 2: start of 'b': expected the same as the first",
    ),
    "a sender": ([{"sender": "app", "time_ms": 1}], 'line 1: is of another role: expected {"receiver"'),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_line_gets_an_error_with_place_value_and_what_is_right(write: Write, name: str) -> None:
    lines, expected = WRONG[name]
    with pytest.raises(UStatusError) as found:
        read_receiver_log(write(*lines))
    assert found.value.code is UCode.INVALID_ARGUMENT
    assert expected in found.value.message
    assert "dash.log" in found.value.message


def test_bytes_that_are_no_text_get_an_error(tmp_path: Path) -> None:
    path = tmp_path / "dash.log"
    path.write_bytes(b'\xff\xfe{"a"}\n' * 3)
    with pytest.raises(UStatusError, match=r"dash.log, line 1: '\\xff\\xfe"):
        read_receiver_log(path)


def test_a_missing_file_gets_an_error(tmp_path: Path) -> None:
    with pytest.raises(UStatusError, match="none.log: No such file or directory: expected a log of a sender"):
        read_sender_log(tmp_path / "none.log")


def test_a_sender_names_the_address_of_each_message(write: Write) -> None:
    log = read_sender_log(write({"sender": "app", "time_ms": 1}, MESSAGE))
    assert log.addresses == {ID: UUri("chassis", 0x1234, 1, 0x8001)}
    with pytest.raises(UStatusError, match="line 2: no topic: expected the topic, or the sink"):
        read_sender_log(write({"sender": "app", "time_ms": 1}, {"id": str(ID), "time_ms": 2}))
