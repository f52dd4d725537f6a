# SPDX-License-Identifier: Apache-2.0
"""The signals in a file, with the number of their values of each type.

The writer of a file adds them to its metadata: to find the signals of a lake then takes the end of each file.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from ustreamer_pipeline.columns import Dictionary
from ustreamer_pipeline.groups import Groups

VALUE_KINDS: Final = ("boolean", "bigint", "double", "string")
"""Types of values. Each has a column in the table, such as `value_double`."""
TEXTS: Final = ("table", "topic", "signal", "unit")
"""Columns that stay encoded with a dictionary."""
READS: Final = (*TEXTS, *(f"value_{kind}" for kind in VALUE_KINDS))
MAX_SIGNALS: Final = 10_000
"""Signals of a file with metadata. Those of a file with more are counted when it is read."""

_TABLE: Final = "signals"
_KEY: Final = b"ustreamer.signals"


class SignalCount(NamedTuple):
    """The number of values of a signal by type, in the order of VALUE_KINDS."""

    topic: str
    signal: str
    unit: str | None
    boolean: int
    bigint: int
    double: int
    string: int


COUNTS: Final = pa.schema(
    [(name, pa.string() if name in TEXTS else pa.int64()) for name in SignalCount._fields]
)


class SignalCounts:
    """Counts the values in batches with the columns READS."""

    def __init__(self) -> None:
        self._dictionary, self._groups = Dictionary(), Groups()
        self._counts = np.zeros((len(VALUE_KINDS), 0), dtype=np.int64)

    def add(self, rows: pa.RecordBatch) -> None:
        number = self._groups.numbers([self._dictionary.codes(rows.column(name)) for name in TEXTS])
        new = len(self._groups) - self._counts.shape[1]
        self._counts = np.pad(self._counts, ((0, 0), (0, new)))
        for row, kind in enumerate(VALUE_KINDS):
            values = rows.column(f"value_{kind}")
            if values.null_count < len(values):
                is_value = values.is_valid().to_numpy(zero_copy_only=False)
                self._counts[row] += np.bincount(number[is_value], minlength=len(self._groups))

    def __iter__(self) -> Iterator[SignalCount]:
        for codes, counts in zip(self._groups.combinations, self._counts.T.tolist(), strict=True):
            table, topic, signal, unit = map(self._dictionary.text, codes)
            if table == _TABLE and topic is not None and signal is not None:
                yield SignalCount(topic, signal, unit, *counts)


def to_metadata(counts: Iterable[SignalCount]) -> dict[bytes, bytes]:
    """The metadata of a file; none for too many signals."""
    listed = list(counts)
    return {_KEY: json.dumps(listed).encode()} if len(listed) <= MAX_SIGNALS else {}


def from_metadata(metadata: Mapping[bytes, bytes] | None) -> list[SignalCount] | None:
    """The signals of a file; None if its metadata has none."""
    text = (metadata or {}).get(_KEY)
    return None if text is None else [SignalCount(*each) for each in json.loads(text)]


def sum_counts(counts: Iterable[SignalCount]) -> list[SignalCount]:
    """The sum of the counts of each topic and signal, in order of these. Of several units, the last one in order."""
    found: dict[tuple[str, str], SignalCount] = {}
    for each in counts:
        key = each.topic, each.signal
        before = found.get(key)
        if before is not None:
            unit = max(each.unit, before.unit, key=lambda unit: unit or "")
            found[key] = SignalCount(*key, unit, *map(sum, zip(each[3:], before[3:], strict=True)))
        else:
            found[key] = each
    return [found[key] for key in sorted(found)]
