# SPDX-License-Identifier: Apache-2.0
"""The command line `ustreamer-pipeline`: every module of `commands` is a command."""

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from ustreamer_pipeline import commands
from ustreamer_pipeline.errors import PipelineError, damage_in_task


class Command(Protocol):
    """A module of `commands`."""

    HELP: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def find_commands() -> dict[str, Command]:
    """All commands by name, in alphabetical order."""
    names = sorted(module.name for module in pkgutil.iter_modules(commands.__path__))
    return {
        name.replace("_", "-"): cast("Command", importlib.import_module(f"{commands.__name__}.{name}"))
        for name in names
    }


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="ustreamer-pipeline", description="What the recordings of gateways say, on Spark."
    )
    chosen = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in find_commands().items():
        below = chosen.add_parser(name, help=command.HELP, description=command.HELP)
        command.arguments(below)
        below.set_defaults(run=command.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 ok, 1 violations found, 2 usage, 69 unavailable, 74 damaged."""
    options = parser().parse_args(argv)
    try:
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except PipelineError as error:
        failure = error
    except Exception as error:
        damage = damage_in_task(error)
        if damage is None:
            raise
        failure = damage
    print(f"ustreamer-pipeline {options.command}: {failure}", file=sys.stderr)
    return failure.exit_code
