# SPDX-License-Identifier: Apache-2.0
"""docs/reference has every public name, command and protobuf, and each public name has a docstring."""

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from ustreamer_pipeline.cli import parser as pipeline_parser

from docs.reference.commands import arguments_of, commands_text, has_commands, meaning_of, name_of
from docs.reference.docstrings import as_rst
from ustreamer.host.cli.completion import parsers_below
from ustreamer.host.cli.main import parser as streamer_parser

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"
WHOLE = (
    "ustreamer/hooks.py",
    "ustreamer/transport_port.py",
    "ustreamer/uprotocol/*.py",
    "ustreamer/testing/*.py",
)
"""Modules of which each name is public. `ustreamer.uprotocol.pb` is generated from the files in `proto`."""
DIRECTIVE = re.compile(r"^\.\. automodule:: ([\w.]+)\n   :members:(.*)$", re.MULTILINE)
CORE_IMPORT = re.compile(r"from (ustreamer\.core[\w.]*) import (?:\(([^)]*)\)|(.+))")
EXTENSIONS = (
    "ustreamer/hooks.py",
    "ustreamer/transport_port.py",
    "plugins/mqtt/ustreamer_mqtt/*.py",
    "ustreamer/host/cli/skeletons/**/*.in",
    "docs/*.md",
)
"""What others read when they write a plugin or a transport. The plugin mqtt is written against public names only."""


def files(*patterns: str) -> Iterator[Path]:
    for pattern in patterns:
        yield from sorted(ROOT.glob(pattern))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def directives() -> dict[str, frozenset[str]]:
    """By module: the members that a page has; none for all."""
    found = [
        each for page in files("docs/reference/*.md") for each in DIRECTIVE.findall(page.read_text("utf-8"))
    ]
    assert len(found) == len(dict(found)), "a module twice"
    return {
        module: frozenset(name.strip() for name in members.split(",") if name.strip())
        for module, members in found
    }


def public_files() -> dict[str, Path]:
    return {module_of(path): path for path in files(*WHOLE) if path.name != "__init__.py"}


def symbols(
    path: Path, members: frozenset[str] = frozenset()
) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef]]:
    """(dotted name, definition) of the public classes, functions and methods of a module; all, or these members."""
    module = module_of(path)
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
            continue
        if members and node.name not in members:
            continue
        yield f"{module}.{node.name}", node
        for part in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(part, ast.ClassDef | ast.FunctionDef) and not part.name.startswith("_"):
                yield f"{module}.{node.name}.{part.name}", part


def public_symbols() -> dict[str, ast.ClassDef | ast.FunctionDef]:
    """Every public name of the pages, with its definition."""
    return {
        name: node
        for module, members in directives().items()
        for name, node in symbols(ROOT / f"{module.replace('.', '/')}.py", members)
    }


def imported_from_core(text: str) -> Iterator[tuple[str, str]]:
    for module, several, one in CORE_IMPORT.findall(text):
        yield from ((module, name.strip()) for name in (several or one).split(",") if name.strip())


def test_each_public_module_is_on_a_page_and_whole() -> None:
    whole = {module for module, members in directives().items() if not members}
    assert whole == public_files().keys()


def test_the_pages_have_the_names_of_the_core_that_extensions_use() -> None:
    used = {
        each for path in files(*EXTENSIONS) for each in imported_from_core(path.read_text(encoding="utf-8"))
    }
    assert used == {(module, name) for module, members in directives().items() for name in members}
    assert len(used) > 20


def test_each_public_name_has_a_docstring() -> None:
    found = public_symbols()
    # The name of a test is its sentence.
    missing = [
        name
        for name, node in found.items()
        if not ast.get_docstring(node) and not node.name.startswith("test_")
    ]
    assert missing == []
    assert len(found) > 400


def test_the_names_of_a_module_are_found() -> None:
    module = ROOT / "ustreamer/hooks.py"
    assert {"ustreamer.hooks.Hooks", "ustreamer.hooks.Hooks.ustreamer_filters"} <= dict(
        symbols(module)
    ).keys()
    assert dict(symbols(module, frozenset({"PluginContext"}))).keys() == {"ustreamer.hooks.PluginContext"}


def commands() -> list[tuple[str, argparse.ArgumentParser]]:
    """Each command of both programs that can be run."""
    return [
        (f"{top.prog} {' '.join(path)}", parser)
        for top in (streamer_parser(), pipeline_parser())
        for path, parser in parsers_below(top)
        if path and not has_commands(parser)
    ]


@pytest.fixture(scope="module")
def sections() -> dict[str, str]:
    """By command: its part of the page."""
    return {
        part.partition("\n")[0]: part for part in re.split(r"^## ", commands_text(), flags=re.MULTILINE)[1:]
    }


def test_the_page_has_each_command_with_its_purpose(sections: dict[str, str]) -> None:
    assert sections.keys() == {name for name, _ in commands()}
    assert len(sections) > 40
    without = [name for name, part in sections.items() if not re.match(r".+\n\n[A-Z].+\.\n\n```text", part)]
    assert without == []


def test_each_argument_is_explained(sections: dict[str, str]) -> None:
    arguments = [(name, each) for name, parser in commands() for each in arguments_of(parser)]
    assert len(arguments) > 200
    assert [f"{name} {name_of(each)}" for name, each in arguments if not meaning_of(each)] == []
    assert all(f"| {name_of(each)} | {meaning_of(each)} |" in sections[name] for name, each in arguments)


def test_the_page_of_commands_has_the_place_of_the_text() -> None:
    assert (REFERENCE / "commands.md").read_text(encoding="utf-8").count("<!-- commands -->") == 1


def test_an_indented_block_of_a_docstring_stays_as_it_is() -> None:
    text = [
        "A class:",
        "",
        "    code  # **not** bold",
        "",
        "    more",
        "",
        "* a list",
        "  goes on",
        "",
        "    again",
    ]
    marked = ["A class:", "", "::", "", *text[2:9], "::", "", "    again"]
    assert as_rst(text) == marked
    assert as_rst(["One line."]) == ["One line."]


def test_the_page_of_protobufs_has_each_file() -> None:
    page = (REFERENCE / "protobufs.md").read_text(encoding="utf-8")
    expected = [path.relative_to(ROOT).as_posix() for path in files("proto/**/*.proto")]
    assert re.findall(r"{literalinclude} ../../(\S+)", page) == expected
    assert re.findall(r"^\| `(\S+)` \| `\w+` \|$", page, re.MULTILINE) == [
        each.removeprefix("proto/") for each in expected
    ]
    for module in re.findall(r"^\| `\S+` \| `(\w+)` \|$", page, re.MULTILINE):
        assert (ROOT / f"ustreamer/uprotocol/pb/{module}.py").is_file()
