# SPDX-License-Identifier: Apache-2.0
"""Each border takes its kept inputs and mutations of them: accepted or refused, and never slowly."""

import re
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from tests.fuzz import __main__ as command
from tests.fuzz import borders
from tests.fuzz.border import Take, join_pieces, split_pieces
from tests.fuzz.borders import BORDERS, CORPUS, DEFECTS, keep_inputs, kept_inputs
from tests.fuzz.mutations import Mutations
from tests.fuzz.someip import take_datagram

MUTATED: Final = 400
SLOW_NS: Final = 100_000_000
SOAK_INPUTS: Final = 10_000_000


def cpu_ns(take: Take, data: bytes) -> int:
    """The CPU time of one input; a collection of the whole process may be in it."""
    began_ns = time.thread_time_ns()
    take(data)
    return time.thread_time_ns() - began_ns


@pytest.mark.parametrize("name", BORDERS)
def test_no_kept_or_mutated_input_raises_or_takes_long(name: str, tmp_path: Path) -> None:
    border = BORDERS[name]
    take, good = border.make(tmp_path), [*border.seeds, *kept_inputs(name)]
    mutations = Mutations(1, good)
    for each in (*good, *(mutations.next() for _ in range(MUTATED))):
        assert min(cpu_ns(take, each), cpu_ns(take, each)) < SLOW_NS, f"{len(each)} bytes: {each[:200]!r}"


def test_each_border_has_kept_inputs_and_no_other_file_is_there() -> None:
    assert {file.stem for file in CORPUS.iterdir()} == set(BORDERS)
    assert {file.stem for file in DEFECTS.iterdir()} <= set(BORDERS)


def test_all_defects_and_the_shortest_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(borders, "CORPUS", tmp_path / "corpus")
    monkeypatch.setattr(borders, "DEFECTS", tmp_path / "defects")
    keep_inputs("admin", [bytes(20_000)], [b"long" * 4_000, b"short"])
    keep_inputs("admin", [b"second"], [b"other"])
    assert kept_inputs("admin") == [bytes(20_000), b"second", b"other", b"short"]


def test_pieces_are_split_as_they_were_joined() -> None:
    joined = join_pieces(b"abc", b"", kind=2)
    assert [*split_pieces(joined)] == [(2, b"abc"), (2, b"")]
    assert [*split_pieces(joined[:-4])] == [(2, b"ab")]


def test_an_untyped_error_of_a_border_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*arguments: object) -> object:
        raise IndexError

    monkeypatch.setattr("tests.fuzz.someip.split", raises)
    with pytest.raises(IndexError):
        take_datagram(b"x")


def test_one_input_is_repeated_without_atheris(tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_bytes(BORDERS["admin"].seeds[0])
    assert command.main(["admin", "--input", str(file)]) == 0


def test_an_unknown_border_is_refused_with_the_names_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["smtp"])
    assert re.search(r"no border smtp \(have: someip-datagram, ", capsys.readouterr().err)


@pytest.mark.soak
def test_ten_million_inputs_for_each_border() -> None:
    pytest.importorskip("atheris", reason="needs ustreamer[fuzz]")
    assert command.main(["--inputs", str(SOAK_INPUTS), "--jobs", "2"]) == 0, sys.argv
