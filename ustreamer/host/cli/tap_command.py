# SPDX-License-Identifier: Apache-2.0
"""`ustreamer tap`: shows the verdicts of a running streamer, one line per message and target."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from ustreamer.host.admin.server import TapRequest, stream_lines
from ustreamer.host.admin.taps import Dropped, TapLine
from ustreamer.host.cli.format import GREEN, RED, YELLOW, format_time, painted, use_colour
from ustreamer.uprotocol.ustatus import UCode, UStatusError

_OK: Final = 0
_SHOWN_SUBSCRIBERS: Final = 3
_COLOURS: Final = {"delivered": GREEN, "throttled": YELLOW, "no_subscriber": YELLOW}
"""The colours of verdicts; every other verdict is a loss."""


def show_tap(path: Path, arguments: argparse.Namespace) -> int:
    """Print the lines of the streamer whose admin socket is `path`, until Ctrl-C or `arguments.count` of them."""
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
