# SPDX-License-Identifier: Apache-2.0
"""The arguments of `ustreamer subscriptions ls | show | export | import | history | check | rm`.

The help of all commands imports this module, so it imports no part of the service.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ustreamer.hooks import OpenNetworks, ReadStoredMessages, RequestPlugin
    from ustreamer.uprotocol.uuri import UUri


def add_commands(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    _: "ReadStoredMessages",
    __: "OpenNetworks | None" = None,
    request_plugin: "RequestPlugin | None" = None,
    *___: object,
) -> None:
    """Add the command `subscriptions` with its options."""
    top = commands.add_parser("subscriptions", help="list, show, copy, check or end subscriptions")
    top.set_defaults(run=_run, request_plugin=request_plugin)
    actions = top.add_subparsers(dest="action", metavar="ACTION", required=True)
    place = argparse.ArgumentParser(add_help=False)
    where = place.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "config", type=Path, metavar="CONFIG", nargs="?", help="the configuration of the streamer"
    )
    where.add_argument("--state-dir", type=Path, metavar="DIR", help="or its state_dir")
    place.add_argument("--json", action="store_true", help="print JSON")

    which = argparse.ArgumentParser(add_help=False)
    which.add_argument(
        "--topic", type=_uuri, metavar="UURI", help="only those of this topic (wildcards match)"
    )
    which.add_argument("--subscriber", type=_uuri, metavar="UURI", help="only those of this subscriber")

    actions.add_parser("ls", parents=[place, which], help="list subscriptions, by topic and subscriber")

    showing = actions.add_parser("show", parents=[place], help="what is stored of a topic's subscriptions")
    showing.add_argument("topic", type=_uuri, metavar="TOPIC", help="the topic")

    actions.add_parser("export", parents=[place], help="all subscriptions, one JSON object per line")

    importing = actions.add_parser(
        "import", parents=[place], help="add subscriptions, with a running streamer or without"
    )
    importing.add_argument(
        "file", type=Path, metavar="FILE", help="of `export`, or the subscription_data.json of up-streamer"
    )

    past = actions.add_parser(
        "history", parents=[place, which], help="what happened to subscriptions, oldest first"
    )
    past.add_argument("--limit", type=_positive_int, metavar="N", help="only the last N")

    actions.add_parser(
        "rm", parents=[place, which], help="end subscriptions, with a running streamer or without"
    )

    actions.add_parser("check", parents=[place], help="verify the whole store; exit code 74 if it is damaged")


def _run(arguments: argparse.Namespace) -> int:
    from ustreamer_usubscription.subscriptions_command import ACTIONS

    return ACTIONS[arguments.action](arguments)


def _uuri(text: str) -> "UUri":
    from ustreamer.uprotocol.uuri import UUri

    return UUri.parse(text)


def _positive_int(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("expected at least 1")
    return number
