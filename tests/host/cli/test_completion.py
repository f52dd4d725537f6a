# SPDX-License-Identifier: Apache-2.0
"""The completion scripts in a real bash and a real zsh, and the manual page."""

import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.waiting import wait_until
from ustreamer.host.cli.completion import bash_script, manual_page, parsers_below, zsh_script
from ustreamer.host.cli.main import parser

_TRIES: Final = 15
_TRY_S: Final = 4.0
_COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_ustreamer
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "ustreamer"
    file.write_text(bash_script(parser()), encoding="utf-8")
    return file


CASES: Final[list[tuple[list[str], set[str], set[str]]]] = [
    (["re"], {"reload", "recordings"}, {"run", "top"}),
    (["recordings", ""], {"ls", "show", "check", "prove", "replay"}, {"run"}),
    (["recordings", "replay", "--"], {"--into", "--speed", "--json"}, {"--received"}),
    (["run", "vehicle.toml", "--"], {"--drain", "--log-format"}, {"--json"}),
    (["test", "run", "--"], {"--recording"}, {"--drain"}),  # a file with the name of a command
    (["completion", ""], {"bash", "zsh", "man"}, set()),
    (["check", "vehicle"], set(), {"run"}),
    (["run", "--log-format", ""], {"console", "journal", "json"}, {"--drain", "debug"}),
    (["run", "vehicle.toml", "--log-level", "d"], {"debug"}, {"json"}),
    (["run", "--log-format", "json", "--"], {"--drain"}, {"console"}),
    (["top", "vehicle.toml", "--sort", ""], {"rate", "p99"}, {"--sort"}),
    (["run", "--audit", ""], set(), {"--drain"}),
]


@pytest.mark.parametrize(("words", "expected", "absent"), CASES)
def test_bash_completes_commands_and_options(
    script: Path, words: list[str], expected: set[str], absent: set[str]
) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    command = [bash, "-c", _COMPLETE, "bash", str(script), "ustreamer", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = set(done.stdout.split())
    assert expected <= found, done.stderr
    assert not absent & found


@pytest.mark.parametrize("value", [[], ["j"]])
def test_bash_completes_a_value_behind_an_equals_sign(script: Path, value: list[str]) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    words = ["ustreamer", "run", "--log-format", "=", *value]  # as bash splits them
    done = subprocess.run(
        [bash, "-c", _COMPLETE, "bash", str(script), *words], capture_output=True, text=True, check=True
    )
    found = set(done.stdout.split())
    assert found == ({"journal", "json"} if value else {"console", "journal", "json"})


class Zsh:
    """An interactive zsh at a terminal, with the script sourced after compinit."""

    def __init__(self, program: str, directory: Path) -> None:
        script = directory / "_ustreamer"
        script.write_text(zsh_script(parser()), encoding="utf-8")
        self._terminal, other = os.openpty()
        # Wide, so that no candidate is wrapped; no file is in the directory, so files are no candidates.
        (directory / "empty").mkdir()
        self._process = subprocess.Popen(
            [program, "-f", "-i"],
            stdin=other,
            stdout=other,
            stderr=other,
            cwd=directory / "empty",
            env={"PATH": os.environ["PATH"], "TERM": "dumb", "HOME": str(directory), "LC_ALL": "C"},
            start_new_session=True,
        )
        os.close(other)
        self._seen = ""
        self._answers = 0
        setup = f"PS1=; stty cols 4000 rows 200; autoload -Uz compinit; compinit -u -D; source {script}; unsetopt beep"
        self.answer_to(f"{setup}; LISTMAX=1000\n")

    def answer_to(self, keys: str) -> str:
        """Type `keys`, then clear the line. Returns what zsh has written meanwhile."""
        self._seen = ""
        self._answers += 1
        os.write(self._terminal, keys.encode())
        for _ in range(_TRIES):  # zsh may drop what is typed while it makes a list
            # \x15 deletes the line. The echo of the command has the quotes, its output has not.
            os.write(self._terminal, f"\x15print EN''D{self._answers}.\n".encode())
            with suppress(AssertionError):
                wait_until(self._ended, within_s=_TRY_S)
                return self._seen
        raise AssertionError(f"no end of the answer to {keys!r}: {self._seen!r}")

    def _ended(self) -> bool:
        if select.select([self._terminal], [], [], 0)[0]:
            self._seen += os.read(self._terminal, 65_536).decode(errors="replace")
        return f"END{self._answers}." in self._seen

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)


@pytest.fixture(scope="module")
def zsh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zsh]:
    program = shutil.which("zsh")
    if program is None:
        pytest.skip("no zsh on PATH")
    running = Zsh(program, tmp_path_factory.mktemp("zsh"))
    yield running
    running.stop()


@pytest.mark.parametrize(("words", "expected", "absent"), CASES)
def test_zsh_completes_commands_and_options(
    zsh: Zsh, words: list[str], expected: set[str], absent: set[str]
) -> None:
    # ^D lists the candidates, also if there is one only.
    found = set[str]()
    for _ in range(_TRIES):  # zsh may drop what is typed while it makes a list
        found = set(zsh.answer_to(f"ustreamer {' '.join(words)}\x04").split())
        if expected <= found:
            break
    assert expected <= found
    assert not absent & (found - set(words))


def test_zsh_completes_a_value_behind_an_equals_sign(zsh: Zsh) -> None:
    found = set[str]()
    for _ in range(_TRIES):
        found = set(zsh.answer_to("ustreamer run --log-format=\x04").split())
        if {"console", "journal", "json"} <= found:
            break
    assert {"console", "journal", "json"} <= found
    assert "--drain" not in found


def test_the_manual_page_has_every_command_and_option() -> None:
    page = manual_page(parser())
    for path, each in parsers_below(parser()):
        assert f".SH {' '.join(('ustreamer', *path)).upper()}\n" in page
        for action in each._actions:
            for option in action.option_strings:
                assert option.replace("-", r"\-") in page, json.dumps([path, option])


def test_man_reads_the_page_without_a_warning(tmp_path: Path) -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("no groff on PATH")
    file = tmp_path / "ustreamer.1"
    file.write_text(manual_page(parser()), encoding="utf-8")
    done = subprocess.run([groff, "-man", "-Tutf8", "-ww", file], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "\u2010" not in done.stdout  # hyphens of options can be copied
