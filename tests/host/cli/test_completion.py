# SPDX-License-Identifier: Apache-2.0
"""The completion script in a real bash, and the manual page."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from ustreamer.host.cli.completion import bash_script, manual_page, parsers_below
from ustreamer.host.cli.main import parser

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


@pytest.mark.parametrize(
    ("words", "expected", "absent"),
    [
        (["re"], {"reload", "recordings"}, {"run", "top"}),
        (["recordings", ""], {"ls", "show", "check", "prove", "replay"}, {"run"}),
        (["recordings", "replay", "--"], {"--into", "--speed", "--json"}, {"--received"}),
        (["run", "vehicle.toml", "--"], {"--drain", "--log"}, {"--json"}),
        (["test", "run", "--"], {"--recording"}, {"--drain"}),  # a file with the name of a command
        (["completion", ""], {"bash", "man"}, set()),
        (["check", "vehicle"], set(), {"run"}),
    ],
)
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
