# SPDX-License-Identifier: Apache-2.0
"""The command line finds its commands and maps errors to exit codes."""

import importlib.metadata
import sys
from pathlib import Path

import pytest
from ustreamer_pipeline import cli, commands
from ustreamer_pipeline.commands import compact, generate, ingest
from ustreamer_pipeline.errors import DamagedError, PipelineError, UnavailableError, UsageError

COMMAND = """
from ustreamer_pipeline import errors
HELP = "runs a command"
def arguments(parser):
    parser.add_argument("fate")
def run(options):
    if options.fate == "well":
        return 0
    raise getattr(errors, options.fate)("because of that")
"""


@pytest.fixture
def obeying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command named obey-me, as an additional module."""
    (tmp_path / "obey_me.py").write_text(COMMAND, encoding="utf-8")
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "ustreamer_pipeline.commands.obey_me", raising=False)


@pytest.mark.usefixtures("obeying")
def test_a_new_module_is_a_command() -> None:
    assert cli.find_commands()["obey-me"].HELP == "runs a command"
    assert cli.main(["obey-me", "well"]) == 0


@pytest.mark.usefixtures("obeying")
@pytest.mark.parametrize(
    ("error", "code"), [(PipelineError, 1), (UsageError, 2), (UnavailableError, 69), (DamagedError, 74)]
)
def test_an_error_is_one_line_and_an_exit_code(
    error: type[PipelineError], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["obey-me", error.__name__]) == code
    assert capsys.readouterr().err == "ustreamer-pipeline obey-me: because of that\n"


def test_commands_are_found_by_their_file_names() -> None:
    expected: dict[str, object] = {"compact": compact, "generate": generate, "ingest": ingest}
    assert {name: each for name, each in cli.find_commands().items() if name in expected} == expected


def test_help_does_not_load_spark(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("ustreamer_pipeline.commands.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)  # importing it fails
    with pytest.raises(SystemExit) as left:
        cli.main(["--help"])
    assert left.value.code == 0
    said = capsys.readouterr().out
    assert all(name in said for name in cli.find_commands())


def test_the_script_is_installed() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="ustreamer-pipeline")
    assert script.load() is cli.main
