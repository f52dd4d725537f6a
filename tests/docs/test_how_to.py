# SPDX-License-Identifier: Apache-2.0
"""docs/how-to.md is true: each example makes a file that `check` accepts, and each command has these arguments."""

import re
import shlex
from pathlib import Path

import pytest
from ustreamer_pipeline.cli import parser as pipeline_parser

from ustreamer.host.cli.main import parser
from ustreamer.host.runtime import process

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to.md").read_text(encoding="utf-8")
BASE = (ROOT / "configs/minimal.toml").read_text(encoding="utf-8")
TASKS = dict(re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", PAGE.replace("\r", ""), re.DOTALL | re.MULTILINE))
EXAMPLES = {
    title: "\n".join(blocks)
    for title, text in TASKS.items()
    if (blocks := re.findall(r"^```toml\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
}
COMMANDS = re.findall(
    r"^(ustreamer(?:-pipeline)? .+)$",
    "\n".join(re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)),
    re.MULTILINE,
)


def tables(text: str) -> list[tuple[str, str]]:
    """The tables of a file, each with its header; the part above the first one has none."""
    first, *parts = re.split(r"^(?=\[)", text, flags=re.MULTILINE)
    return [("", first), *((re.match(r"\[.*?\]+", part)[0], part) for part in parts)]  # type: ignore[index]


def joined(example: str) -> str:
    """configs/minimal.toml with the example: its tables replace those of the same name."""
    replaced = {header for header, _ in tables(example) if not header.startswith("[[")}
    kept = [part for header, part in tables(BASE) if not header or header not in replaced]
    return "".join(kept) + example


@pytest.mark.parametrize("title", EXAMPLES)
def test_an_example_makes_a_valid_file(title: str, tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(joined(EXAMPLES[title]), encoding="utf-8")
    config = process.load(path).config
    assert set(config.endpoints) >= {"backbone", "chassis"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_these_arguments(command: str) -> None:
    program, *arguments = shlex.split(re.split("[>|]", command)[0])
    chosen = pipeline_parser() if program == "ustreamer-pipeline" else parser(arguments[0])
    assert callable(chosen.parse_args(arguments).run)


def test_the_page_has_twenty_tasks_and_more() -> None:
    assert len(TASKS) == 24
    assert len(EXAMPLES) >= 12
    assert len(COMMANDS) >= 15


def test_an_example_with_a_mistake_is_found(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(joined("[plugins.throttle]\nlatests = []\n"), encoding="utf-8")
    with pytest.raises(Exception, match="latests"):
        process.load(path)


def test_the_dashboard_of_the_page_may_subscribe_the_chassis() -> None:
    [prefix] = re.findall(r'anonymous = \{ subscribe = \["(.+?)"\]', EXAMPLES["Show values in a browser"])
    assert "up.chassis.1234.0.1.8001".startswith(prefix)
