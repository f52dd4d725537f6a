# SPDX-License-Identifier: Apache-2.0
"""The messages of a lake with their payloads and signals, gateway by gateway, in the order of recording."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer_pipeline.days import LAST_DATE
from ustreamer_pipeline.errors import UnavailableError, UsageError
from ustreamer_pipeline.lake.snapshot import load_snapshot
from ustreamer_pipeline.lake.tables import read_file
from ustreamer_pipeline.recording.rows import day_text
from ustreamer_pipeline.schemas import PAYLOADS, SAMPLED

Signal = tuple[str, bool | int | float | str, str | None]
"""Name, value and unit."""


class SampledMessage(NamedTuple):
    """A publication whose payload was kept. `payload` is shorter than `size` if it was cut."""

    gateway: str
    time_us: int
    id: str
    created_ms: int
    topic: str
    size: int
    payload: bytes
    error: str | None
    signals: list[Signal]


Write = Callable[[Iterator[SampledMessage], Path], int]
"""Writes messages to a file, and returns their number."""


def read_messages(
    lake: str, topic: str = "", gateway: str = "", since: str = "", until: str = LAST_DATE
) -> Iterator[SampledMessage]:
    """The messages of topics that match a pattern, of one gateway or all.

    Raises UsageError for a wrong pattern, UnavailableError for a lake without kept payloads.
    """
    snapshot = load_snapshot(lake)
    pattern = _pattern(topic)
    matches: dict[str, bool] = {}
    files = snapshot.files_of(SAMPLED.name)
    if not files:
        raise UnavailableError(
            f"{lake}: no payloads: `payloads` of [plugins.recorder] names the topics to keep"
        )
    for file in files:
        if since <= day_text(file.day) <= until and gateway in ("", file.gateway):
            rows = (row for batch in read_file(snapshot.storage, file, SAMPLED) for row in batch.to_pylist())
            for message in _messages(rows):
                if message.topic not in matches:
                    matches[message.topic] = pattern is None or pattern.matches(UUri.parse(message.topic))
                if matches[message.topic]:
                    yield message


def _pattern(topic: str) -> UUri | None:
    try:
        return UUri.parse(topic) if topic else None
    except UStatusError as error:
        raise UsageError(f"--topic {topic}: {error.message}") from error


def _messages(rows: Iterator[dict[str, Any]]) -> Iterator[SampledMessage]:
    """A row of PAYLOADS begins a message; the rows of SIGNALS after it are its signals."""
    message: SampledMessage | None = None
    for row in rows:
        if row["table"] == PAYLOADS.name:
            if message is not None:
                yield message
            message = _begin(row)
        elif message is not None:
            message.signals.append((row["signal"], signal_value(row), row["unit"]))
    if message is not None:
        yield message


def _begin(row: dict[str, Any]) -> SampledMessage:
    upper, lower = (row[name] & 0xFFFF_FFFF_FFFF_FFFF for name in ("id_msb", "id_lsb"))
    id = UUID(upper, lower)
    return SampledMessage(
        row["gateway"],
        row["time_us"],
        str(id),
        id.time_ms,
        row["topic"],
        row["size"],
        row["payload"],
        row["error"],
        [],
    )


def signal_value(row: dict[str, Any]) -> bool | int | float | str:
    """The value of a row of SIGNALS, in its own type."""
    names = ("value_boolean", "value_bigint", "value_double", "value_string")
    value: bool | int | float | str = next(row[name] for name in names if row[name] is not None)
    return value
