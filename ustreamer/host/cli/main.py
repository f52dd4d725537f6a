# SPDX-License-Identifier: Apache-2.0
"""The command line: `ustreamer run | check | explain | plugins | demo | import`, `admin_commands`, and commands of
plugins.
"""

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, TextIO

import msgspec

from ustreamer import __version__
from ustreamer.host.config.config import ConfigError
from ustreamer.host.runtime import logs, plugins, process
from ustreamer.host.runtime.plugins import PluginError
from ustreamer.uprotocol.ustatus import UCode, UStatusError

_MAX_SECONDS: Final = 86_400


class ExitCode(IntEnum):
    """Exit codes; the numbers above 2 are those of sysexits.h where it has one."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    UNAVAILABLE = 69
    STORE_DAMAGED = 74
    NOT_DRAINED = 75
    DENIED = 77
    BAD_CONFIG = 78


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    try:
        words = sys.argv[1:] if argv is None else argv
        only_run = bool(words) and words[0] == "run"
        arguments = (run_parser() if only_run else parser()).parse_args(words)
        run: Callable[[argparse.Namespace], int] = arguments.run
        code = run(arguments)
        sys.stdout.flush()
    except (ConfigError, PluginError) as error:
        print(error, file=sys.stderr)
        return ExitCode.BAD_CONFIG
    except UStatusError as error:
        print(error, file=sys.stderr)
        return _exit_code_of(error)
    except BrokenPipeError:  # `ustreamer ... | head`
        _discard_output(sys.stdout)
        return ExitCode.FAILURE
    return code


def _exit_code_of(error: UStatusError) -> ExitCode:
    by_code = {
        UCode.UNAVAILABLE: ExitCode.UNAVAILABLE,
        UCode.DATA_LOSS: ExitCode.STORE_DAMAGED,
        UCode.PERMISSION_DENIED: ExitCode.DENIED,
        UCode.INVALID_ARGUMENT: ExitCode.BAD_CONFIG,
        UCode.UNIMPLEMENTED: ExitCode.BAD_CONFIG,
        UCode.FAILED_PRECONDITION: ExitCode.BAD_CONFIG,  # for example state of a newer version
    }
    return by_code.get(error.code, ExitCode.FAILURE)


class _OneLineHelpFormatter(argparse.HelpFormatter):
    """Wide enough for the longest command: argparse ignores the extra indentation of commands and would wrap them."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        names = [each.dest for each in getattr(action, "_choices_actions", ())]
        self._action_max_length = max([self._action_max_length, *(len(name) + 4 for name in names)])


def parser() -> argparse.ArgumentParser:
    """The whole command line, with the commands of all installed plugins."""
    from ustreamer.host.cli.admin_commands import add_admin_commands
    from ustreamer.host.cli.explain_command import add_explain
    from ustreamer.host.cli.import_command import add_import_command
    from ustreamer.host.storage.stored_messages import read_stored_messages

    top, commands = _start_parser()

    checking = commands.add_parser("check", help="check a configuration; changes nothing")
    checking.add_argument("config", type=Path, metavar="CONFIG")
    checking.add_argument("--offline", action="store_true", help="leave out the environment (ports, files)")
    checking.add_argument("--json", action="store_true")
    checking.set_defaults(run=_check)

    add_explain(commands)

    listing = commands.add_parser("plugins", help="list installed plugins and the hooks they use")
    listing.add_argument(
        "config", type=Path, metavar="CONFIG", nargs="?", help="only those enabled in a running streamer"
    )
    listing.add_argument("--json", action="store_true")
    listing.set_defaults(run=_plugins)

    demo = commands.add_parser("demo", help="run a small simulated vehicle with a streamer, and report")
    demo.add_argument(
        "--seconds", type=_seconds, default=10.0, metavar="N", help="how long messages flow (10)"
    )
    demo.add_argument("--json", action="store_true", help="print one JSON object at the end and nothing else")
    demo.add_argument(
        "--recordings", type=Path, metavar="DIR", help="keep the recordings there (`ustreamer recordings`)"
    )
    demo.add_argument(
        "--web",
        type=_port,
        nargs="?",
        const=8080,
        metavar="PORT",
        help="serve a page with live values on this machine (8080; 0: any port); needs the plugin wamp",
    )
    demo.set_defaults(run=_demo)

    add_admin_commands(commands)
    add_import_command(commands)
    classes, broken = plugins.load_plugin_classes()
    for error in broken.values():
        print(f"warning: {error}", file=sys.stderr)
    plugins.class_plugin_manager(classes).hook.ustreamer_commands(
        commands=commands, read_stored_messages=read_stored_messages
    )
    return top


def run_parser() -> argparse.ArgumentParser:
    """The command line with `run` only: a streamer imports no other command, and only the plugins it enables."""
    return _start_parser()[0]


def _start_parser() -> "tuple[argparse.ArgumentParser, argparse._SubParsersAction[argparse.ArgumentParser]]":
    """A parser with the command `run`, and the action to which other commands are added."""
    top = argparse.ArgumentParser(
        prog="ustreamer",
        description="The uProtocol dispatcher of a vehicle gateway.",
        formatter_class=_OneLineHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"ustreamer {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)

    run = commands.add_parser("run", help="run a streamer until SIGTERM or SIGINT")
    run.add_argument("config", type=Path, metavar="CONFIG")
    run.add_argument(
        "--drain", type=_seconds, default=5.0, metavar="S", help="seconds to send accepted messages (5)"
    )
    run.add_argument(
        "--log", choices=("console", "json"), default="console", help="form of the log on stderr"
    )
    run.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    run.set_defaults(run=_run)
    return top, commands


def _seconds(text: str) -> float:
    """A duration on the command line: finite, not negative, at most a day."""
    seconds = float(text)
    if not 0 <= seconds <= _MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, 0 to {_MAX_SECONDS}")
    return seconds


def _port(text: str) -> int:
    """A TCP port on the command line; 0 is any."""
    port = int(text)
    if not 0 <= port <= 65_535:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a port, 0 to 65535")
    return port


def _run(arguments: argparse.Namespace) -> int:
    logs.configure_logging(json_lines=arguments.log == "json", level=arguments.log_level)
    undelivered = process.run(process.load(arguments.config), arguments.drain, _print_ready)
    if undelivered.unsent:
        print(f"{undelivered.unsent} messages were not sent within {arguments.drain:g} s", file=sys.stderr)
    if undelivered.unconfirmed:
        print(f"{undelivered.unconfirmed} messages were sent but may not have arrived", file=sys.stderr)
    return ExitCode.NOT_DRAINED if any(undelivered) else ExitCode.OK


def _print_ready() -> None:
    try:
        print("READY", flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:  # a file on a full disk, which must not end the streamer
        extra = {"reason": str(error)}
        logging.getLogger("ustreamer.streamer").warning("streamer.ready_not_printed", extra=extra)
        _discard_output(sys.stdout)


def _discard_output(stream: TextIO) -> None:
    """Discard the buffered output. Otherwise the interpreter reports an error at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _check(arguments: argparse.Namespace) -> int:
    from ustreamer.host.cli import check  # no other command needs it

    report = check.check(arguments.config, offline=arguments.offline)
    if arguments.json:
        _print_json(report)
    else:
        print(check.render(report), file=sys.stderr if report.problems else sys.stdout)
    return ExitCode.BAD_CONFIG if report.problems else ExitCode.OK


def _plugins(arguments: argparse.Namespace) -> int:
    from ustreamer.host.cli.admin_commands import (
        running_plugins,
    )  # loads what only clients of a streamer need

    classes, _ = plugins.load_plugin_classes()
    running = None if arguments.config is None else running_plugins(arguments.config)
    found = [
        plugins.describe(entry)
        for name, entry in sorted(plugins.installed_plugins().items())
        if name in classes and (running is None or name in running)
    ]
    if arguments.json:
        _print_json(found)
        return ExitCode.OK
    for plugin in found:
        print(f"{plugin.name:<16} {plugin.distribution} {plugin.version}  {' '.join(plugin.hooks)}")
    if not found:
        print("no plugins installed")
    return ExitCode.OK


def _demo(arguments: argparse.Namespace) -> int:
    from ustreamer.host.demo import command  # loads the simulated vehicle, which no other command needs

    return command.run(
        seconds=arguments.seconds,
        as_json=arguments.json,
        recordings=arguments.recordings,
        web=arguments.web,
    )


def _print_json(value: Any) -> None:
    print(json.dumps(msgspec.to_builtins(value), indent=2, default=str))
