# SPDX-License-Identifier: Apache-2.0
"""`ustreamer recordings ls|show|check DIR` lists and checks recordings. Read only; the streamer may be running.

commands.py has the arguments, ACTIONS the function of each action.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from ustreamer_recorder.events import (
    Anchor,
    Counters,
    Damage,
    End,
    Event,
    Gap,
    Letter,
    Row,
    SubscriptionChange,
    Target,
)
from ustreamer_recorder.layout import OPEN_SUFFIX, Damaged
from ustreamer_recorder.reader import read_header
from ustreamer_recorder.run_summary import RunSummary, segment_events
from ustreamer_recorder.segments import SegmentInfo, list_segments

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OK, _FAILURE, _DAMAGED = 0, 1, 74


def _files(arguments: argparse.Namespace) -> list[SegmentInfo] | None:
    try:
        return list_segments(arguments.directory)
    except OSError as error:
        print(f"{arguments.directory}: {error.strerror}", file=sys.stderr)
        return None


def _ls(arguments: argparse.Namespace) -> int:
    files = _files(arguments)
    if files is None:
        return _FAILURE
    for file in files:
        line = _segment_line(file)
        if arguments.json:
            print(json.dumps(line))
        else:
            print("{file}  {bytes:>11}  {since}  {authority}  {state}".format(**line))
    return _OK


def _segment_line(file: SegmentInfo) -> dict[str, Any]:
    line = {
        "file": file.path.name,
        "bytes": file.bytes,
        "run": f"{file.run:016x}",
        "number": file.number,
        "state": "open" if file.path.name.endswith(OPEN_SUFFIX) else "finished",
        "authority": "?",
        "since": "?",
    }
    try:
        header = read_header(file.path)
    except (Damaged, OSError) as error:
        line["state"] = f"unusable: {error}"
        return line
    return line | {"authority": header.authority, "since": _time(header.wall_ms * 1000)}


# ---------------------------------------------------------------------------------------------------------------- show


def _show(arguments: argparse.Namespace) -> int:
    files = _files(arguments)
    if files is None:
        return _FAILURE
    left = arguments.limit
    for line in _lines(files):
        if left is not None:
            left -= 1
            if left < 0:
                break
        print(json.dumps(line) if arguments.json else _text(line))
    return _OK


def _lines(files: Iterable[SegmentInfo]) -> Iterator[dict[str, Any]]:
    for file in files:
        anchors: list[Anchor] = []
        for event in segment_events(file):
            if isinstance(event, Anchor):
                anchors.append(event)
            line = {"kind": type(event).__name__.lower(), **_fields(event)}
            time_ns = _time_of(event)
            if time_ns is not None and anchors:
                anchor = next((each for each in reversed(anchors) if each.mono_ns <= time_ns), anchors[0])
                line = {"time": _time(anchor.wall_us(time_ns)), **line}
            yield line


def _time_of(event: Event | Damage) -> int | None:
    match event:
        case Row():
            return event.received_ns
        case Target():
            return event.tuned_ns
        case SubscriptionChange() | Letter():
            return event.time_ns
        case Gap():
            return event.from_ns
        case Anchor() | Counters() | End():
            return event.mono_ns
    return None


def _fields(event: Event | Damage) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(event)
    for name, value in msgspec.structs.asdict(event).items():
        if hasattr(value, "name"):
            fields[name] = value.name
    for name in ("id", "request"):
        if fields.get(name) is not None:
            fields[name] = str(getattr(event, name))
    fields.pop("raw", None)
    return fields


def _text(line: dict[str, Any]) -> str:
    head = f"{line.get('time', '?'):<27} {line['kind']:<18}"
    if line["kind"] != "row":
        rest = {key: value for key, value in line.items() if key not in ("time", "kind")}
        return head + " " + " ".join(f"{key}={value}" for key, value in rest.items())
    target = line["target"]
    path = f"{target['ingress']} -> {target['egress'] or 'nowhere'}"
    if target["subscriber"]:
        path += f" for {target['subscriber']}"
    recipient = f" to {line['sink']}" if line["sink"] else ""
    took_us = (line["settled_ns"] - line["arrived_ns"]) // 1000
    reason = f": {line['reason']}" if line["reason"] else ""
    return (
        f"{head} #{line['seq']} {line['verdict']:<13} {line['type']} {line['source']}{recipient}, {path}, "
        f"{line['size']} B, {took_us} us{reason}"
    )


def _time(us: int) -> str:
    try:
        return (_EPOCH + timedelta(microseconds=us)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    except OverflowError:
        return f"{us} us"


# --------------------------------------------------------------------------------------------------------------- check


def _check(arguments: argparse.Namespace) -> int:
    files = _files(arguments)
    if files is None:
        return _FAILURE
    runs: dict[int, RunSummary] = {}
    for file in files:
        for _ in runs.setdefault(file.run, RunSummary(0)).count_events(file):
            pass
    for number, run in runs.items():
        line = run.line(number)
        print(
            json.dumps(line) if arguments.json else "  ".join(f"{key}={value}" for key, value in line.items())
        )
    return _OK if all(run.is_complete for run in runs.values()) else _DAMAGED


ACTIONS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "ls": _ls,
    "show": _show,
    "check": _check,
}
