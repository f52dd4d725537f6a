# SPDX-License-Identifier: Apache-2.0
"""The arguments of `ustreamer recordings ls|show|check|prove|replay|upload DIR`, and of
`ustreamer test CONFIG --recording DIR`.

The help of all commands imports this module, so it imports no part of the recorder.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ustreamer.hooks import LoadRouting, OpenNetworks, ReadStoredMessages


def add_commands(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    read_stored_messages: "ReadStoredMessages",
    open_networks: "OpenNetworks",
    _: object,
    load_routing: "LoadRouting",
) -> None:
    """Add the commands `recordings` and `test`."""
    parser = commands.add_parser("recordings", help="list, show, check, prove, replay or upload recordings")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in (
        ("ls", "the segments in a directory"),
        ("show", "what is recorded, a line for each"),
        ("check", "verify every byte, and name what is missing"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("directory", type=Path, metavar="DIR", help="the recordings")
        action.add_argument("--json", action="store_true", help="one JSON object in a line for each")
        action.set_defaults(run=_run)
        if name == "show":
            action.add_argument("--limit", type=int, metavar="N", help="the first N lines only")
    _add_prove(actions, read_stored_messages)
    _add_replay(actions, open_networks)
    _add_upload(actions)
    _add_test(commands, load_routing)


def _run(arguments: argparse.Namespace) -> int:
    from ustreamer_recorder.recordings_command import ACTIONS

    return ACTIONS[arguments.action](arguments)


def _add_prove(
    actions: "argparse._SubParsersAction[argparse.ArgumentParser]", read_stored_messages: "ReadStoredMessages"
) -> None:
    action = actions.add_parser("prove", help="explain every message by all files and logs, or name it")
    action.add_argument("directory", type=Path, metavar="DIR", help="the recordings")
    action.add_argument(
        "--received", type=Path, metavar="LOG", nargs="+", required=True, help="one log for each receiver"
    )
    action.add_argument("--sent", type=Path, metavar="LOG", nargs="+", default=[], help="logs of senders")
    action.add_argument(
        "--state",
        type=Path,
        metavar="DIR",
        help="the state_dir, with spools and dead letters (parent of DIR)",
    )
    action.add_argument("--limit", type=int, metavar="N", default=20, help="unexplained messages shown (20)")
    action.add_argument("--json", action="store_true", help="one JSON object in a line for each; no limit")

    def run(arguments: argparse.Namespace) -> int:
        from ustreamer_recorder.prove_command import run_prove

        return run_prove(arguments, read_stored_messages)

    action.set_defaults(run=run)


def _add_replay(
    actions: "argparse._SubParsersAction[argparse.ArgumentParser]", open_networks: "OpenNetworks"
) -> None:
    action = actions.add_parser("replay", help="publish a recorded run again, into a live streamer")
    action.add_argument("directory", type=Path, metavar="DIR", help="the recordings")
    action.add_argument("--into", type=Path, required=True, metavar="CONFIG", help="of the live streamer")
    action.add_argument("--speed", type=float, default=1.0, metavar="N", help="times its own speed (1)")
    action.add_argument(
        "--run", dest="number", default="", metavar="RUN", help="as `recordings ls` shows it (the last one)"
    )
    action.add_argument("--json", action="store_true", help="the result as one JSON object")

    def run(arguments: argparse.Namespace) -> int:
        from ustreamer_recorder.replay_command import run_replay

        return run_replay(arguments, open_networks)

    action.set_defaults(run=run)


def _add_test(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", load_routing: "LoadRouting"
) -> None:
    parser = commands.add_parser("test", help="show which deliveries a configuration changes")
    parser.add_argument("config", type=Path, metavar="CONFIG", help="the changed configuration")
    parser.add_argument("--recording", type=Path, metavar="DIR", required=True, help="the recordings")
    parser.add_argument(
        "--run", dest="number", default="", metavar="RUN", help="as `recordings ls` shows it (the last one)"
    )
    parser.add_argument("--limit", type=int, metavar="N", default=20, help="changes shown (20)")
    parser.add_argument("--json", action="store_true", help="one JSON object; no limit")

    def run(arguments: argparse.Namespace) -> int:
        from ustreamer_recorder.rehearsal.command import run_test

        return run_test(arguments, load_routing)

    parser.set_defaults(run=run)


def _add_upload(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    action = actions.add_parser("upload", help="copy finished recordings to an object store; may be repeated")
    action.add_argument("directory", type=Path, metavar="DIR", help="the recordings")
    action.add_argument("url", metavar="s3://BUCKET/FOLDER", help="access as for the AWS clients (AWS_*)")
    action.add_argument("--json", action="store_true", help="the result as one JSON object")

    def run(arguments: argparse.Namespace) -> int:
        from ustreamer_recorder.upload.command import run_upload

        return run_upload(arguments)

    action.set_defaults(run=run)
