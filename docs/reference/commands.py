# SPDX-License-Identifier: Apache-2.0
"""The reference of the command lines. A parser in, Markdown out. docs/conf.py puts it into commands.md."""

import argparse
import re
from collections.abc import Iterator

from ustreamer_pipeline.cli import parser as pipeline_parser

from ustreamer.host.cli.completion import parsers_below
from ustreamer.host.cli.main import parser as streamer_parser


def commands_text() -> str:
    """Each command of both programs: a heading, its purpose, its usage and a table of its arguments."""
    parts = [
        part
        for top in (streamer_parser(), pipeline_parser())
        for path, parser in parsers_below(top)
        if path and not has_commands(parser)
        for part in command_parts(f"{top.prog} {' '.join(path)}", purpose_of(top, path), parser)
    ]
    return "\n\n".join(parts) + "\n"


def command_parts(name: str, purpose: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """The section of one command."""
    yield f"## {name}"
    if purpose:
        yield f"{purpose[0].upper()}{purpose[1:].rstrip('.')}."
    yield f"```text\n{parser.format_usage().removeprefix('usage: ').rstrip()}\n```"
    if rows := [f"| {name_of(each)} | {meaning_of(each)} |" for each in arguments_of(parser)]:
        yield "\n".join(["| argument | meaning |", "|---|---|", *rows])


def arguments_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The arguments of a command, those without an option first. Each command has `--help`, which is left out."""
    actions = [each for each in parser._actions if each.dest != "help"]  # noqa: SLF001 - argparse cannot list them
    return sorted(actions, key=lambda each: bool(each.option_strings))


def has_commands(parser: argparse.ArgumentParser) -> bool:
    """Whether a command is only the first word of others."""
    return any(isinstance(each, argparse._SubParsersAction) for each in parser._actions)  # noqa: SLF001


def purpose_of(top: argparse.ArgumentParser, path: tuple[str, ...]) -> str:
    """The line of a command in the help of the command above it, or the first line of its own help."""
    parser, text = top, ""
    for word in path:
        [action] = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]  # noqa: SLF001
        lines = {each.dest: each.help or "" for each in action._get_subactions()}  # noqa: SLF001
        parser = action.choices[word]
        text = lines.get(word) or parser.description or ""
    return text


def name_of(action: argparse.Action) -> str:
    """An argument as in the usage: `--drain S`, `CONFIG...`, with its choices."""
    if action.choices and action.metavar is None:
        value = "|".join(map(str, action.choices))
    elif isinstance(action.metavar, tuple):
        value = " ".join(action.metavar)
    else:
        value = "" if action.nargs == 0 else action.metavar or action.dest.upper()
    more = "..." if action.nargs in {"+", "*"} else ""
    words = f"{', '.join(action.option_strings)} {value}{more}".strip()
    return f"`{words}`".replace("|", r"\|")


def meaning_of(action: argparse.Action) -> str:
    """The help of an argument as a cell of a table."""
    text = (action.help or "") % {**vars(action), "prog": ""}
    required = "; required" if action.required and action.option_strings else ""
    return re.sub(r"\s+", " ", text).replace("|", r"\|") + required
