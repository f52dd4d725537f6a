# SPDX-License-Identifier: Apache-2.0
"""The arguments of `ustreamer reload | routes | top | tap | dead-letters`. `admin_commands` does what they ask.

The help of all commands imports this module, so it imports no part of a streamer.
"""

import argparse
from pathlib import Path

from ustreamer.host.cli.arguments import MESSAGE_TYPES, TOP_ORDERS, VERDICTS, uuri_pattern


def add_admin_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands of this module."""
    config_arguments = argparse.ArgumentParser(add_help=False)
    config_arguments.add_argument(
        "config", type=Path, metavar="CONFIG", help="the configuration of the streamer"
    )
    config_arguments.add_argument("--json", action="store_true", help="print JSON")

    def add(
        to: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, help_text: str, group: str = ""
    ) -> argparse.ArgumentParser:
        parser = to.add_parser(name, parents=[config_arguments], help=help_text)
        parser.set_defaults(run=_run, action=f"{group} {name}".strip())
        return parser

    add(commands, "reload", "load the changed configuration into a running streamer")
    add(commands, "routes", "show the routes of a running streamer")
    top = add(commands, "top", "show rates, queues and problems of a running streamer, live")
    _add_top_arguments(top)
    _add_tap(commands)
    letters = commands.add_parser(
        "dead-letters", help="list, show, redrive or purge undelivered messages"
    ).add_subparsers(metavar="ACTION", required=True)
    add(letters, "ls", "list dead letters, the oldest first", "dead-letters")
    add(letters, "show", "one dead letter, without its token", "dead-letters").add_argument(
        "number", type=_number, metavar="ID", help="its number in `ls`"
    )
    for name, help_text in (
        ("redrive", "dispatch dead letters again by a running streamer, and delete them"),
        ("purge", "delete dead letters"),
    ):
        which = add(letters, name, help_text, "dead-letters")
        which.add_argument("numbers", type=_number, metavar="ID", nargs="*", help="their numbers in `ls`")
        which.add_argument("--all", action="store_true", help="all; to redrive: all but calls")
        which.set_defaults(usage_error=which.error)


def _add_top_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--once", action="store_true", help="print all counters once, also without a terminal"
    )
    parser.add_argument("--sort", choices=TOP_ORDERS, default="rate", help="the order of the targets (rate)")
    parser.add_argument("--interval", type=_interval, default=1.0, metavar="S", help="seconds per screen (1)")
    parser.add_argument("--count", type=int, metavar="N", help="end after so many screens")


def _add_tap(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("tap", help="show the verdicts of a running streamer, message by message")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "config", type=Path, metavar="CONFIG", nargs="?", help="the configuration of the streamer"
    )
    where.add_argument("--socket", type=Path, metavar="PATH", help="its socket: admin.sock in its state_dir")
    parser.add_argument(
        "--source", type=uuri_pattern, metavar="UURI", help="only messages from there; may have wildcards"
    )
    parser.add_argument("--sink", type=uuri_pattern, metavar="UURI", help="only messages addressed to there")
    parser.add_argument("--type", choices=MESSAGE_TYPES, metavar="TYPE", help="only this message type")
    parser.add_argument("--at", metavar="ENDPOINT", help="only messages that came in there")
    help_text = f"only this verdict: {', '.join(VERDICTS)}"
    parser.add_argument("--verdict", choices=VERDICTS, metavar="VERDICT", help=help_text)
    parser.add_argument("--count", type=_line_count, metavar="N", help="end after so many lines")
    parser.add_argument("--payload", action="store_true", help="with payloads, up to 256 bytes of each")
    parser.add_argument(
        "--decode", action="store_true", help="with decoded payloads, if a plugin can decode them"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.set_defaults(run=_run, action="tap")


def _run(arguments: argparse.Namespace) -> int:
    from ustreamer.host.cli.admin_commands import ACTIONS

    return ACTIONS[arguments.action](arguments)


# --- values of arguments ----------------------------------------------------------------------------------------------


def _number(text: str) -> int:
    number = int(text)
    if not 0 < number < 1 << 63:
        raise argparse.ArgumentTypeError(f"{text!r}: expected the number of a dead letter, from 1 on")
    return number


def _interval(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 60:
        raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, 0.1 to 60")
    return seconds


def _line_count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 1 on")
    return number
