# SPDX-License-Identifier: Apache-2.0
"""`ustreamer tap`: shows the verdicts of a running streamer, one line per message and target."""

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.host.admin.server import SOCKET, TapRequest, stream_lines
from ustreamer.host.admin.taps import Dropped, TapLine
from ustreamer.host.cli.format import GREEN, RED, YELLOW, format_time, painted, use_colour
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

_OK: Final = 0
MESSAGE_TYPES: Final = ("publish", "notification", "request", "response")
_SHOWN_SUBSCRIBERS: Final = 3
_COLOURS: Final = {"delivered": GREEN, "throttled": YELLOW, "no_subscriber": YELLOW}
"""The colours of verdicts; every other verdict is a loss."""
_FINAL: Final = [each.name.lower() for each in Verdict if each is not Verdict.QUEUED]


def add_tap(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", state_dir: Callable[[Path], Path]
) -> None:
    """Add the command; `state_dir` reads it from a configuration."""
    parser = commands.add_parser("tap", help="show the verdicts of a running streamer, message by message")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "config", type=Path, metavar="CONFIG", nargs="?", help="the configuration of the streamer"
    )
    where.add_argument("--socket", type=Path, metavar="PATH", help=f"its socket: {SOCKET} in its state_dir")
    parser.add_argument(
        "--source", type=uuri_pattern, metavar="UURI", help="only messages from there; may have wildcards"
    )
    parser.add_argument("--sink", type=uuri_pattern, metavar="UURI", help="only messages addressed to there")
    parser.add_argument("--type", choices=MESSAGE_TYPES, metavar="TYPE", help="only this message type")
    parser.add_argument("--at", metavar="ENDPOINT", help="only messages that came in there")
    help_text = f"only this verdict: {', '.join(_FINAL)}"
    parser.add_argument("--verdict", choices=_FINAL, metavar="VERDICT", help=help_text)
    parser.add_argument("--count", type=_line_count, metavar="N", help="end after so many lines")
    parser.add_argument("--payload", action="store_true", help="with payloads, up to 256 bytes of each")
    parser.add_argument(
        "--decode", action="store_true", help="with decoded payloads, if a plugin can decode them"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.set_defaults(run=lambda arguments: _tap(arguments, state_dir))


def uuri_pattern(text: str) -> str:
    """The text of a valid UUri, which may have wildcards. Raises ArgumentTypeError."""
    try:
        UUri.parse(text)
    except UStatusError as error:
        raise argparse.ArgumentTypeError(error.message) from error
    return text


def _line_count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 1 on")
    return number


def _tap(arguments: argparse.Namespace, state_dir: Callable[[Path], Path]) -> int:
    path = arguments.socket or state_dir(arguments.config) / SOCKET
    request = TapRequest(
        arguments.source,
        arguments.sink,
        arguments.verdict,
        arguments.payload,
        arguments.decode,
        arguments.type,
        arguments.at,
    )
    try:
        return _print_lines(stream_lines(path, request), arguments.count, arguments.json)
    except KeyboardInterrupt:
        return _OK


def _print_lines(lines: Iterable[bytes], count: int | None, as_json: bool) -> int:
    shown, colour = 0, use_colour()
    for text in lines:
        line = msgspec.json.decode(text, type=TapLine | Dropped)
        if isinstance(line, Dropped):
            print(f"{line.count} lines were lost: they were not read in time", file=sys.stderr)
        if as_json:
            print(text.decode(), end="", flush=True)
        elif isinstance(line, TapLine):
            print(_format_line(line, colour=colour), flush=True)
        shown += isinstance(line, TapLine)
        if shown == count:
            return _OK
    raise UStatusError(UCode.UNAVAILABLE, "the streamer has stopped, or no line was read for a minute")


def _format_line(line: TapLine, *, colour: bool = False) -> str:
    verdict = painted(line.verdict, _COLOURS.get(line.verdict, RED)) if colour else line.verdict
    parts: list[Any] = [format_time(line.time_ms), verdict, line.type, line.source]
    if line.sink is not None:
        parts.append(f"to {line.sink}")
    if line.subscriber is not None:
        parts.append(f"for {line.subscriber}")
    elif line.subscribers:
        more = len(line.subscribers) - _SHOWN_SUBSCRIBERS
        shown = ", ".join(line.subscribers[:_SHOWN_SUBSCRIBERS])
        parts.append(f"for {shown}{f' and {more} more' if more > 0 else ''}")
    parts += [
        f" {line.ingress} -> {line.egress or 'no receiver'} ",
        f"{line.attempts} attempts",
        f"{line.latency_ms:.3f} ms",
        f"{line.payload_size} bytes",
        line.id,
    ]
    if line.code is not None:
        parts.append(f" {line.code}: {line.reason}")
    if line.decoded is not None:
        parts.append(f" {line.decoded}")
    if line.payload is not None:
        parts.append(f" {line.payload}")
    return " ".join(parts)
