# SPDX-License-Identifier: Apache-2.0
"""Payloads to signals: the samples of a segment in, rows of the tables PAYLOADS and SIGNALS out. No Spark.

The types are those of `[plugins.payloads]` at the time of the message: a recording has them in its CONFIG records. This
is the only place of the pipeline that decodes a payload. A class that a configuration names is not imported: a
recording must not choose the code that runs here.
"""

import datetime as dt
import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
from ustreamer_payloads.description import Description
from ustreamer_payloads.errors import PayloadError
from ustreamer_payloads.plugin import PayloadsConfig
from ustreamer_payloads.units import units_of

from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import UUri
from ustreamer_pipeline.recording.layout import CONFIG
from ustreamer_pipeline.recording.rows import BATCH_ROWS, DAY_US, EPOCH
from ustreamer_pipeline.recording.samples import PayloadSample, SamplesFault, read_samples
from ustreamer_pipeline.recording.segments import Segment
from ustreamer_pipeline.schemas import PAYLOADS, SAMPLED, SIGNALS

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

MAX_SIGNALS: Final = 1_000
"""Signals of one payload; the others are left out, with the error in PAYLOADS."""
WHOLE: Final = "value"
"""Name of the signal of a payload that is one value."""
_INDEX: Final = re.compile(r"\[\d+\]")
_MAX_BIGINT: Final = 2**63 - 1

Value = bool | int | float | str


class PayloadTypes:
    """The decoders of one configuration."""

    def __init__(self, config: PayloadsConfig) -> None:
        """Raises ValueError for a type that does not compile."""
        self._descriptions = config.descriptions()
        self._topics = [(UUri.parse(each.topic), each.type or "", each.class_) for each in config.topics]
        self._units: Mapping[str, Mapping[str, str]] = {
            name: units_of(config.types, name) for name in self._descriptions
        }
        self._found: dict[str, tuple[Description | str, Mapping[str, str]]] = {}

    def of_topic(self, topic: str) -> tuple[Description | str, Mapping[str, str]]:
        """The decoder of a topic and its units, or the reason why there is none."""
        if topic not in self._found:
            self._found[topic] = self._find(topic)
        return self._found[topic]

    def _find(self, topic: str) -> tuple[Description | str, Mapping[str, str]]:
        uuri = UUri.parse(topic)
        for pattern, name, class_ in self._topics:
            if pattern.matches(uuri):
                if class_ is not None:
                    return f"decoded by the class {class_}, which is not imported here", {}
                return self._descriptions[name], self._units[name]
        return "no type in [plugins.payloads]", {}


@lru_cache(maxsize=256)
def payload_types(settings: str) -> PayloadTypes | str:
    """The types of a CONFIG record, or the reason why there are none."""
    try:
        section = json.loads(settings).get("payloads")
        if section is None:
            return "the recording has no types of payloads"
        return PayloadTypes(msgspec.convert(section, PayloadsConfig))
    except (ValueError, UStatusError, AttributeError) as error:
        return f"types of payloads: {error}"


def flatten(value: object, units: Mapping[str, str]) -> Iterator[tuple[str, Value, str | None]]:
    """Signals of a decoded value: name, value, unit. "wheels[3].speed" is a name; bytes are hexadecimal text."""
    waiting: list[tuple[str, object]] = [("", value)]
    while waiting:
        path, each = waiting.pop()
        if isinstance(each, dict):
            waiting += [(f"{path}.{name}" if path else name, part) for name, part in reversed(each.items())]
        elif isinstance(each, list | tuple):
            waiting += [(f"{path}[{at}]", each[at]) for at in reversed(range(len(each)))]
        elif each is not None:
            plain = each.hex() if isinstance(each, bytes) else each
            assert isinstance(plain, bool | int | float | str)
            yield path or WHOLE, plain, units.get(_INDEX.sub("[]", path))


class _Columns:
    """Rows of SAMPLED as columns, for one day."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in SAMPLED.names}
        self.rows = 0

    def add(self, row: Mapping[str, Any]) -> None:
        for name, column in self._columns.items():
            column.append(row.get(name))
        self.rows += 1

    def batch(self) -> "pa.RecordBatch":
        import pyarrow as pa

        schema = SAMPLED.arrow_schema()
        return pa.RecordBatch.from_arrays(
            [pa.array(self._columns[field.name], field.type) for field in schema], schema=schema
        )


def sample_batches(segment: Segment, day: int, gateway: str) -> "Iterator[pa.RecordBatch]":
    """The samples of one day and their signals, as batches of the frame SAMPLED."""
    columns = _Columns()
    for row in _rows(segment, day, gateway):
        columns.add(row)
        if columns.rows >= BATCH_ROWS:
            yield columns.batch()
            columns = _Columns()
    if columns.rows:
        yield columns.batch()


def _rows(segment: Segment, day: int, gateway: str) -> Iterator[dict[str, Any]]:
    configs = sorted(
        (int(each["since_ns"]), segment.strings.get(int(each["text"]), "{}"))
        for each in segment.records(CONFIG)
    )
    since = [each for each, _ in configs]
    date = EPOCH + dt.timedelta(days=day)
    samples = [each for each in read_samples(segment) if not isinstance(each, SamplesFault)]
    if not samples:
        return
    times = segment.wall_us(_times(samples))
    for sample, time_us in zip(samples, times.tolist(), strict=True):
        if time_us // DAY_US != day:
            continue
        settings = configs[max(bisect_right(since, sample.time_ns) - 1, 0)][1] if configs else "{}"
        shared = {
            "run": segment.header.run,
            "time_us": time_us,
            "time_ns": sample.time_ns,
            "id_msb": sample.id_msb,
            "id_lsb": sample.id_lsb,
            "topic": sample.topic,
            "date": date,
            "gateway": gateway,
        }
        signals, error = _signals(sample, settings)
        yield {
            **shared,
            "table": PAYLOADS.name,
            "format": _format_name(sample.format),
            "size": sample.size,
            "payload": sample.payload,
            "error": error,
        }
        for name, value, unit in signals:
            yield {**shared, "table": SIGNALS.name, "signal": name, "unit": unit, **_typed(value)}


def _times(samples: list[PayloadSample]) -> "np.typing.NDArray[np.int64]":
    import numpy as np

    return np.array([each.time_ns for each in samples], np.int64)


def _signals(sample: PayloadSample, settings: str) -> tuple[list[tuple[str, Value, str | None]], str | None]:
    """The signals of a payload, or the reason why there are none."""
    types = payload_types(settings)
    found, units = (types, {}) if isinstance(types, str) else types.of_topic(sample.topic)
    if isinstance(found, str):
        return [], found
    if len(sample.payload) < sample.size:
        return [], f"cut: {len(sample.payload)} of {sample.size} bytes are here"
    try:
        signals = list(flatten(found.decode(sample.payload), units))
    except PayloadError as error:
        return [], str(error)
    if len(signals) > MAX_SIGNALS:
        return signals[:MAX_SIGNALS], f"{len(signals)} signals: the first {MAX_SIGNALS} are here"
    return signals, None


def _typed(value: Value) -> dict[str, Value]:
    if isinstance(value, str):
        return {"value_string": value}
    typed: dict[str, Value] = {"value_double": float(value)}
    if isinstance(value, bool):
        typed["value_boolean"] = value
    elif isinstance(value, int) and value <= _MAX_BIGINT:
        typed["value_bigint"] = value
    return typed


def _format_name(number: int) -> str:
    try:
        return UPayloadFormat(number).name
    except ValueError:
        return str(number)
