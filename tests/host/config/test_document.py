# SPDX-License-Identifier: Apache-2.0
"""Reading a file, and the texts of problems."""

import datetime as dt
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ustreamer.host.config.document import (
    LIMIT_BYTES,
    ConfigError,
    Problem,
    TomlDocument,
    closest_name,
    did_you_mean,
    format_path,
    format_value,
    read,
    value_at,
)


def refusal(file: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read(file)
    (problem,) = caught.value.problems
    return str(problem).replace(str(file), "FILE")


def holding(tmp_path: Path, content: bytes) -> Path:
    file = tmp_path / "vehicle.toml"
    file.write_bytes(content)
    return file


# ----------------------------------------------------------------------------------------------------------- reading


def test_a_file_is_read_with_its_lines(tmp_path: Path) -> None:
    document = read(holding(tmp_path, "\r\n[t]\r\na = 'é'\r\n".encode()))
    assert document.data == {"t": {"a": "é"}}
    assert document.positions.line_of(("t", "a")) == 3
    assert document.base == tmp_path


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    assert read(holding(tmp_path, b"\xef\xbb\xbfa = 1")).data == {"a": 1}


def test_the_base_of_a_relative_file_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    holding(tmp_path / "etc", b"")
    monkeypatch.chdir(tmp_path)
    assert read(Path("etc/vehicle.toml")).base == tmp_path / "etc"


def test_a_file_that_is_not_there_is_refused_with_one_that_is(tmp_path: Path) -> None:
    holding(tmp_path, b"")
    assert refusal(tmp_path / "vehicel.toml") == (
        "FILE: cannot be read: No such file or directory; did you mean 'vehicle.toml'?"
    )
    assert refusal(tmp_path / "no" / "x.toml") == "FILE: cannot be read: No such file or directory"


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path) == "FILE: cannot be read: Is a directory"


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    file = holding(tmp_path, b"")
    file.chmod(0)
    before = os.geteuid()
    if before == 0:  # root may read everything
        os.seteuid(65_534)
    try:
        assert refusal(file) == "FILE: cannot be read: Permission denied"
    finally:
        os.seteuid(before)


def test_invalid_utf8_is_refused_on_its_line(tmp_path: Path) -> None:
    assert refusal(holding(tmp_path, b"a = 1\nb = '\xe9'\n")) == (
        "FILE:2:6: byte 0xe9 is not UTF-8; save the file as UTF-8"
    )
    assert refusal(holding(tmp_path, "a = 1".encode("utf-16"))).startswith("FILE:1:1: byte 0xff is not UTF-8")


def test_a_file_of_a_megabyte_is_read_and_a_larger_one_refused(tmp_path: Path) -> None:
    assert read(holding(tmp_path, b"a = 1\n".ljust(LIMIT_BYTES, b"\n"))).data == {"a": 1}
    assert refusal(holding(tmp_path, b"\n" * (LIMIT_BYTES + 1))) == "FILE: is larger than 1000000 bytes"


def test_invalid_toml_is_refused_with_line_and_suggestion(tmp_path: Path) -> None:
    assert (
        refusal(holding(tmp_path, b"a = 1\r\n\r\nb = x\r\n"))
        == 'FILE:3:5: Invalid value; write "x" in quotes'
    )
    assert refusal(holding(tmp_path, b"[t]\na = 1\na = 2\n")) == (
        "FILE:3:1: t.a: is defined twice; leave this one out: the first is on line 2"
    )


@settings(max_examples=40)
@given(st.binary(max_size=40))
def test_whatever_the_bytes_they_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_bytes(content)
    try:
        problems: tuple[Problem, ...] = ()
        read(file)
    except ConfigError as error:
        problems = error.problems
    assert all(len(str(problem).splitlines()) == 1 for problem in problems)


# ---------------------------------------------------------------------------------------------------------- problems

DOCUMENT = TomlDocument(Path("v.toml"), "[t]\nid = 0x8001\nn = 5\ns = 'a\\nb'\nl = [\n1]\n['a b'.'é']\n")


@pytest.mark.parametrize(
    ("problem", "line", "value", "sentence"),
    [
        (DOCUMENT.problem(("t", "n"), "is odd", "write 6"), 3, "5", "v.toml:3:1: t.n: is odd; write 6"),
        (DOCUMENT.problem(("t", "n"), "is odd"), 3, "5", "v.toml:3:1: t.n: is odd"),
        (DOCUMENT.problem(("t", "id"), "x"), 2, "0x8001", "v.toml:2:1: t.id: x"),
        (DOCUMENT.problem(("t", "s"), "two\n lines"), 4, "'a\\\\nb'", "v.toml:4:1: t.s: two lines"),
        (DOCUMENT.problem(("t", "l", 0), "x"), 6, "1", "v.toml:6:1: t.l[0]: x"),
        (DOCUMENT.problem(("t", "new"), "x"), 1, "", "v.toml:1:1: t.new: x"),
        (DOCUMENT.problem(("a b", "é"), "x"), 7, "a table", 'v.toml:7:1: "a b"."é": x'),
        (Problem("v.toml", 0, "", "", "is empty"), 0, "", "v.toml: is empty"),
    ],
)
def test_a_problem_names_file_line_path_and_value(
    problem: Problem, line: int, value: str, sentence: str
) -> None:
    assert (problem.line, problem.value, str(problem)) == (line, value, sentence)


def test_an_error_lists_at_most_a_hundred_problems_in_line_order() -> None:
    error = ConfigError(Problem("f", line, "", "", "x") for line in range(150, 0, -1))
    lines = str(error).splitlines()
    assert lines[0] == "f:1: x"
    assert lines[99:] == ["f:100: x", "and 50 more"]
    assert len(error.problems) == 150


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "'a'"),
        ("a\n\x1b[31m", "'a\\n\\x1b[31m'"),
        ("x" * 1000, "'" + "x" * 59 + "..."),
        (True, "true"),
        (0x8001, "32769"),
        (10**4000, "10" + "0" * 58 + "..."),
        (0.5, "0.5"),
        ({"a": 1}, "a table"),
        ([1], "an array"),
        (dt.date(1979, 5, 27), "1979-05-27"),
        (dt.time(7, 32), "07:32:00"),
    ],
)
def test_a_value_is_shown_on_one_short_line(value: object, text: str) -> None:
    assert format_value(value) == text


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), ""),
        (("endpoints", "chassis", "services", 0, "major"), "endpoints.chassis.services[0].major"),
        (("a.b", ""), '"a.b".""'),
        (("a\n\x9b",), '"a\\n\\u009b"'),
    ],
)
def test_a_path_is_written_as_toml_does(path: tuple[str | int, ...], text: str) -> None:
    assert format_path(path) == text


NAMES = ["zenoh", "someip", "queue_messages", "queue_bytes", "directory", "retry.first_ms"]


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("zenho", "zenoh"),
        ("Zenoh", "zenoh"),
        ("SOME/IP", "someip"),
        ("queue-messages", "queue_messages"),
        ("queueMessages", "queue_messages"),
        ("dir", "directory"),
        ("que", None),  # one of two
        ("retry_first_ms", "retry.first_ms"),
        ("mqtt", None),
        ("", None),
        ("z" * 100_000, None),
    ],
)
def test_the_nearest_name_is_the_one_that_was_meant(word: str, name: str | None) -> None:
    assert closest_name(word, NAMES) == name
    assert did_you_mean(word, NAMES) == (f"did you mean {name!r}?" if name else "")


def test_a_value_is_found_by_its_path() -> None:
    tree = {"a": [{"b": 1}]}
    assert value_at(tree, ()) is tree
    assert value_at(tree, ("a", 0, "b")) == 1
    assert [value_at(tree, path) for path in (("b",), ("a", 1), ("a", "b"), ("a", 0, "b", "c"))] == [None] * 4
