# SPDX-License-Identifier: Apache-2.0
"""A key or a signal ends a block, and the terminal has its settings again."""

import os
import pty
import signal
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from ustreamer.host.cli.keyboard import ended_by

DEADLINE_S = 10


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """A terminal as stdin, in the foreground: the end that a person uses, and the other one."""
    person, own = pty.openpty()
    with open(own, closefd=False) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp())
        yield person, own
    os.close(person)
    os.close(own)


def type_and_wait(person: int, keys: str) -> None:
    os.write(person, keys.encode())
    signal.sigtimedwait([], DEADLINE_S)  # until the handler of SIGINT raises


@pytest.mark.parametrize("keys", ["q", "xyq"])
def test_a_key_ends_the_block(terminal: tuple[int, int], keys: str) -> None:
    person, own = terminal
    before = termios.tcgetattr(own)
    with pytest.raises(KeyboardInterrupt), ended_by("q"):
        type_and_wait(person, keys)
    assert termios.tcgetattr(own) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_block(terminal: tuple[int, int], number: signal.Signals) -> None:
    before = termios.tcgetattr(terminal[1]), signal.getsignal(number)
    with pytest.raises(SystemExit) as ended, ended_by("q"):
        signal.raise_signal(number)
    assert ended.value.code == 128 + number
    assert (termios.tcgetattr(terminal[1]), signal.getsignal(number)) == before


def test_without_a_terminal_no_key_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "input").write_text("q")
    with (tmp_path / "input").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        with ended_by("q"):
            assert stdin.read() == "q"
