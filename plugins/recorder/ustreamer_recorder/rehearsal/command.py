# SPDX-License-Identifier: Apache-2.0
"""`ustreamer test CONFIG --recording DIR` prints the deliveries of a recorded run that CONFIG would change."""

import argparse
import gc
import json
import sys
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.hooks import LoadRouting, OfflineRouting
from ustreamer_recorder.rehearsal.recorded_traffic import RecordedTraffic
from ustreamer_recorder.rehearsal.rehearsal import ChangedDecision, ChangedDeliveries, Rehearsal
from ustreamer_recorder.rehearsal.subscriptions import RecordedSubscriptions
from ustreamer_recorder.run_summary import RunSummary
from ustreamer_recorder.segments import SegmentInfo, list_segments

_OK, _CHANGES, _USAGE, _DAMAGED = 0, 1, 2, 74


def run_test(arguments: argparse.Namespace, load_routing: LoadRouting) -> int:
    """Run the command; returns its exit code. Raises the errors of `check` for the configuration."""
    subscriptions = RecordedSubscriptions()
    routing = load_routing(arguments.config, subscriptions)  # first: a wrong file is found at once
    files = _files_of_run(arguments)
    if files is None:
        return _USAGE
    gc.disable()  # millions of small objects without cycles
    try:
        recorded, summary = read_run(files)
        rehearsal = Rehearsal(recorded, routing, subscriptions)
        rehearsal.run()
    finally:
        gc.enable()
    result = _result(files[0].run, recorded, summary, rehearsal, routing)
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        print("\n".join(_lines(result, arguments.limit)))
    if summary.damaged or summary.unannounced:
        print(
            f"{arguments.recording}: the recording is damaged or incomplete, so messages are missing:"
            f" ustreamer recordings check {arguments.recording}",
            file=sys.stderr,
        )
        return _DAMAGED
    return _CHANGES if rehearsal.changed else _OK


def _files_of_run(arguments: argparse.Namespace) -> list[SegmentInfo] | None:
    """The files of the chosen run; None, and a line that tells why, without one."""
    directory, number = arguments.recording, arguments.number
    try:
        files = list_segments(directory)
    except OSError as error:
        print(f"--recording {directory}: {error.strerror}", file=sys.stderr)
        return None
    runs = sorted({file.run for file in files})
    chosen = [run for run in runs if not number or f"{run:016x}" == number]
    if not chosen:
        have = ", ".join(f"{run:016x}" for run in runs) or "none"
        print(f"--recording {directory}: no run {number} (have: {have})", file=sys.stderr)
        return None
    return [file for file in files if file.run == chosen[-1]]


def read_run(files: list[SegmentInfo]) -> tuple[RecordedTraffic, RunSummary]:
    """The run in these files, and what is missing in it."""
    recorded, summary = RecordedTraffic(), RunSummary(files[0].number)
    for file in files:
        for event in summary.count_events(file):
            recorded.add_event(event)
    return recorded, summary


# --- the result ------------------------------------------------------------------------------------------------------


def _result(
    run: int, recorded: RecordedTraffic, summary: RunSummary, rehearsal: Rehearsal, routing: OfflineRouting
) -> dict[str, Any]:
    by_count = sorted(rehearsal.changes.items(), key=lambda item: (-item[1].total, item[1].first_ns))
    return {
        "run": f"{run:016x}",
        "seconds": round(recorded.seconds, 3),
        "messages": rehearsal.messages,
        "deliveries": rehearsal.deliveries,
        "changed": rehearsal.changed,
        "changes": [_change(recorded, *each) for each in by_count],
        "other_changes": rehearsal.other_changes,
        "not_replayed": {
            "of the streamer itself": recorded.own_rows,
            "sent again to a new subscriber": rehearsal.resent,
            "not recorded": summary.skipped + summary.unannounced,
        },
        "notes": [*summary.missing(), *_moved(rehearsal), *_changed_limits(recorded.config_text, routing)],
    }


def _change(
    recorded: RecordedTraffic, change: ChangedDecision, deliveries: ChangedDeliveries
) -> dict[str, Any]:
    subscriber = change.destination.subscriber
    time_ms = recorded.wall_ms(deliveries.first_ns)
    return {
        "count": deliveries.total,
        "before": _word(change.before),
        "after": _word(change.after),
        "source": str(change.source),
        "sink": None if change.sink is None else str(change.sink),
        "ingress": change.ingress,
        "endpoint": change.destination.endpoint,
        "subscriber": None if subscriber is None else str(subscriber),
        "first_id": str(deliveries.first),
        "first_time": datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds"),
    }


def _word(verdict: Verdict | None) -> str:
    """A decision in the words of the ledger. Whether a forwarded message is delivered depends on the receiver."""
    if verdict is None:
        return "no_delivery"
    return "forwarded" if verdict is Verdict.DELIVERED else verdict.name.lower()


def _moved(rehearsal: Rehearsal) -> list[str]:
    return [
        f"endpoint {before!r} of the recording is not in the file: its messages come in at {after!r},"
        f" where their source lives ({count})"
        for before, names in rehearsal.moved.items()
        for after, count in names.items()
    ]


def _changed_limits(config_text: str, routing: OfflineRouting) -> list[str]:
    """Queues are not replayed, so a change of their limits is only named."""
    recorded: dict[str, dict[str, Any]] = json.loads(config_text or "{}").get("egress") or {}
    notes = []
    for name, limits in routing.limits.items():
        after = msgspec.to_builtins(limits)
        for key, before in recorded.get(name, {}).items():
            if key in after and after[key] != before:
                notes.append(f"egress.{name}.{key} was {before} and is {after[key]}: queues are not replayed")
    return notes


_HEAD: Final = "{seconds:g} s, {messages} messages, {deliveries} deliveries of run {run}"


def _lines(result: dict[str, Any], limit: int) -> list[str]:
    lines = [_HEAD.format(**result)]
    lines += [f"not replayed: {count} rows {why}" for why, count in result["not_replayed"].items() if count]
    lines += [f"note: {each}" for each in result["notes"]]
    if not result["changed"]:
        return [*lines, "no delivery changes"]
    lines.append(f"{result['changed']} deliveries change:")
    lines += [_line(each) for each in result["changes"][:limit]]
    hidden = max(0, len(result["changes"]) - limit)
    if hidden:
        lines.append(f"  and {hidden} other changes: --limit")
    if result["other_changes"]:
        lines.append(f"  and {result['other_changes']} deliveries of still other changes")
    return lines


def _line(change: dict[str, Any]) -> str:
    sink = f" to {change['sink']}" if change["sink"] else ""
    target = change["endpoint"] or "nowhere"
    subscriber = f" for {change['subscriber']}" if change["subscriber"] else ""
    return (
        f"  {change['count']:>9}  {change['before']} -> {change['after']}  {change['source']}{sink},"
        f" {change['ingress']} -> {target}{subscriber}\n"
        f"             first {change['first_time']} {change['first_id']}"
    )
