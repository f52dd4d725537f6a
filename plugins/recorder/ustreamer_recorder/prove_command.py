# SPDX-License-Identifier: Apache-2.0
"""`ustreamer recordings prove DIR --received LOG...`: explains every message for every receiver, or names it."""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from ustreamer.hooks import ReadStoredMessages, StoredMessages
from ustreamer.uprotocol.ustatus import invalid_argument
from ustreamer_recorder.events import Anchor
from ustreamer_recorder.history import History
from ustreamer_recorder.layout import Damaged
from ustreamer_recorder.message_logs import MessageLog, read_receiver_log, read_sender_log
from ustreamer_recorder.proof import Outcome, ReceiverProof, Unexplained, prove
from ustreamer_recorder.reader import read_header
from ustreamer_recorder.run_summary import RunSummary
from ustreamer_recorder.segments import list_segments

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OK, _UNEXPLAINED, _DAMAGED = 0, 1, 74
_STORES: Final = ("spool", "dead-letters")


def run_prove(arguments: argparse.Namespace, read_stored_messages: ReadStoredMessages) -> int:
    """Run the command."""
    receivers, senders = _logs(arguments.received, read_receiver_log), _logs(arguments.sent, read_sender_log)
    history = History(_stored(arguments, read_stored_messages))
    runs = _read_recordings(arguments.directory, history)
    incomplete = [f"{number:016x}" for number, run in runs.items() if not run.is_complete]
    proofs = prove(history, receivers, senders)
    found = (proofs, history.not_in_spool, incomplete)
    for line in _json_lines(*found) if arguments.json else _text_lines(*found, arguments.limit):
        print(line)
    if incomplete:
        return _DAMAGED
    return _UNEXPLAINED if history.not_in_spool or any(each.unexplained for each in proofs) else _OK


# --------------------------------------------------------------------------------------------------------------- input


def _logs(paths: Sequence[Path], read: Callable[[Path], MessageLog]) -> list[MessageLog]:
    logs = [read(path) for path in paths]
    for name, count in Counter(each.name for each in logs).items():
        if count > 1:
            raise invalid_argument(f"{count} logs of {name!r}: expected one log for each name")
    return logs


def _stored(arguments: argparse.Namespace, read_stored_messages: ReadStoredMessages) -> StoredMessages:
    """The stores in `--state`, or next to the recordings if there are any."""
    state: Path | None = arguments.state
    if state is None:
        state = arguments.directory.absolute().parent
    elif not state.is_dir():
        raise invalid_argument(f"--state {state}: expected the directory of a streamer's state")
    has_stores = any((state / each).is_dir() for each in _STORES)
    return read_stored_messages(state) if has_stores else StoredMessages()


def _read_recordings(directory: Path, history: History) -> dict[int, RunSummary]:
    """Add all files to the history; the totals of each run."""
    try:
        files = list_segments(directory)
    except OSError as error:
        raise invalid_argument(
            f"{directory}: {error.strerror}: expected a directory of recordings"
        ) from error
    if not files:
        raise invalid_argument(f"{directory}: has no recording: expected files *.useg or *.useg.open")
    runs: dict[int, RunSummary] = {}
    for file in files:
        events = runs.setdefault(file.run, RunSummary(0)).count_events(file)
        try:
            header = read_header(file.path)
        except (Damaged, OSError):
            for _ in events:  # counted as damage
                pass
            continue
        history.add_segment(file.run, Anchor(header.mono_ns, header.wall_ms), events)
    return runs


# -------------------------------------------------------------------------------------------------------------- output


def _json_lines(
    proofs: Sequence[ReceiverProof], not_in_spool: int, incomplete: Sequence[str]
) -> Iterator[str]:
    """All unexplained messages: `--limit` is for people."""
    for proof in proofs:
        reasons = [
            {"outcome": outcome, "reason": reason, "messages": count}
            for (outcome, reason), count in proof.reasons.items()
        ]
        yield json.dumps(
            {
                "kind": "receiver",
                "receiver": proof.receiver,
                "endpoint": proof.endpoint,
                "messages": proof.messages,
                **{str(outcome): proof.outcomes[outcome] for outcome in Outcome},
                "repeated": proof.repeated,
                "most_copies": proof.most_copies,
                "reasons": reasons,
            }
        )
        for each in proof.unexplained:
            yield json.dumps({"kind": "unexplained", "receiver": proof.receiver, **_fields(each)})
    yield json.dumps({"kind": "files", "not_in_spool": not_in_spool, "incomplete_runs": list(incomplete)})


def _fields(message: Unexplained) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(message)
    return fields | {"id": str(message.id), "time": _time(message.time_ms)}


def _text_lines(
    proofs: Sequence[ReceiverProof], not_in_spool: int, incomplete: Sequence[str], limit: int
) -> Iterator[str]:
    used = [outcome for outcome in Outcome if any(proof.outcomes[outcome] for proof in proofs)]
    rows = [["receiver", "endpoint", "messages", "repeated", *map(str, used)]]
    rows += [
        [
            proof.receiver,
            proof.endpoint,
            *map(str, (proof.messages, proof.repeated)),
            *(str(proof.outcomes[outcome]) for outcome in used),
        ]
        for proof in proofs
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if number < 2 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
    for proof in proofs:
        yield from _details(proof, limit)
    if not_in_spool:
        yield f"UNEXPLAINED {not_in_spool} messages were queued at a stop, and no spool has them"
    for run in incomplete:
        yield f"INCOMPLETE run {run}: `ustreamer recordings check` has the errors"


def _details(proof: ReceiverProof, limit: int) -> Iterator[str]:
    for (outcome, reason), count in sorted(proof.reasons.items()):
        yield f"{proof.receiver}: {count} {outcome}: {reason}"
    for each in proof.unexplained[:limit]:
        yield (
            f"UNEXPLAINED {_time(each.time_ms)} {each.id} {each.topic}, {each.endpoint} for {proof.receiver}: "
            f"{each.reason}"
        )
    more = len(proof.unexplained) - limit
    if more > 0:
        yield f"UNEXPLAINED {more} more for {proof.receiver}: --json has all"


def _time(ms: int) -> str:
    try:
        return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return f"{ms} ms"
