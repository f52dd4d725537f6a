# SPDX-License-Identifier: Apache-2.0
"""The tables of a lake: what is in each column, written once and read by every job.

    <lake>/bronze/date=D/gateway=G/<run>-<number>.<crc>.useg.zst   recordings as they came
    <lake>/silver/deliveries/date=D/gateway=G/*.parquet      one clean row per delivery
    <lake>/silver/events/date=D/gateway=G/*.parquet          all small tables in one, so that a gateway's day is two files
    <lake>/silver/sampled/date=D/gateway=G/*.parquet     payloads that were kept by topic, and their signals
    <lake>/compacted/TABLE/...                               dates that are over once more, in large files (compact.py)
    <lake>/quarantine/date=D/gateway=G/*.parquet             invalid records with their fault
    <lake>/refused/<crc>-<name>.zst                          files of which nothing could be read
    <lake>/manifest/<number>.jsonl                           which recordings and which of these files are in it

The layout of a recording, and what its fields mean, is docs/recordings.md; here it is what they have become.

Types are Spark's names. Times: `_us` is UTC since 1970 in microseconds, `_ns` is the gateway's monotonic clock.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ustreamer_pipeline.lake.snapshot import Snapshot, snapshot_of
from ustreamer_pipeline.lake.tables import read_snapshot

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Column:
    """A column of a file. `time`: the name of its TIMESTAMP in the view, for a time of the wall clock (views.py)."""

    name: str
    type: str
    note: str
    nullable: bool = False
    time: str = ""

    @property
    def ddl(self) -> str:
        return f"`{self.name}` {self.type}{'' if self.nullable else ' NOT NULL'}"


@dataclass(frozen=True)
class Table:
    """`folder` is relative to the lake. The partition columns are the last ones, as Spark writes them."""

    name: str
    folder: str
    columns: tuple[Column, ...]
    note: str = ""
    partitioned_by: tuple[str, ...] = ("date", "gateway")

    @property
    def ddl(self) -> str:
        """Schema for `DataFrameReader.schema` and `mapInArrow`. For Spark every column of a file is nullable."""
        return ", ".join(column.ddl for column in self.columns)

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def arrow_schema(self) -> "pa.Schema":
        import pyarrow as pa

        types = {
            "bigint": pa.int64(),
            "int": pa.int32(),
            "double": pa.float64(),
            "string": pa.string(),
            "binary": pa.binary(),
            "boolean": pa.bool_(),
            "date": pa.date32(),
        }
        return pa.schema([pa.field(c.name, types[c.type], c.nullable) for c in self.columns])

    def read_table(self, spark: "SparkSession", lake: "str | Path | Snapshot") -> "DataFrame":
        """The content of the table in a snapshot, by default the current one; empty if nothing was written yet."""
        snapshot = snapshot_of(lake)
        if not snapshot.files:
            return spark.createDataFrame([], self.ddl)
        stored = STORED_IN.get(self.folder, self)
        if stored is not self:
            return stored.read_table(spark, snapshot).where(f"`table` = '{self.name}'").select(*self.names)
        return read_snapshot(spark, snapshot, self)


VERDICTS: Final = ("DELIVERED", "THROTTLED", "EXPIRED", "DEAD_LETTERED", "DENIED", "NO_SUBSCRIBER")
"""Verdict of a delivery, by its code in a recording."""

TYPES: Final = ("PUBLISH", "REQUEST", "RESPONSE", "NOTIFICATION")
"""Message type; the code in a recording is one more than the index."""

CHANGES: Final = ("PRESENT", "SUBSCRIBED", "CHANGED", "UNSUBSCRIBED")
"""Change of a subscription; PRESENT: it existed at the start of the run."""

EVENTS_FOLDER: Final = "silver/events"
SAMPLED_FOLDER: Final = "silver/sampled"

_PARTITION: Final = (
    Column("date", "date", "UTC"),
    Column("gateway", "string", "authority of the gateway"),
)

RECORDED: Final = Table(
    "recorded",
    "bronze",
    (
        Column("run", "bigint", ""),
        Column("seq", "bigint", ""),
        Column("id_msb", "bigint", ""),
        Column("id_lsb", "bigint", ""),
        Column("received_us", "bigint", "received_ns on the wall clock"),
        Column("received_ns", "bigint", ""),
        Column("arrived_ns", "bigint", ""),
        Column("first_attempt_ns", "bigint", "0: never tried"),
        Column("settled_ns", "bigint", ""),
        Column("source", "string", "", nullable=True),
        Column("sink", "string", "", nullable=True),
        Column("topic", "string", "", nullable=True),
        Column("subscriber", "string", "", nullable=True),
        Column("type", "int", "code"),
        Column("priority", "int", ""),
        Column("flags", "int", ""),
        Column("ttl_ms", "bigint", ""),
        Column("size", "bigint", ""),
        Column("ingress", "string", "", nullable=True),
        Column("egress", "string", "", nullable=True),
        Column("verdict", "int", "code"),
        Column("code", "int", "255: none"),
        Column("reason", "string", "", nullable=True),
        Column("attempts", "int", ""),
        Column("delivery", "bigint", ""),
        Column("period_ns", "bigint", ""),
        Column("tuned_ns", "bigint", ""),
        Column("epoch", "bigint", ""),
        Column("request_msb", "bigint", "0: answers nothing"),
        Column("request_lsb", "bigint", ""),
        Column("fault", "string", "the fault, if the bytes show it", nullable=True),
        Column("file", "string", "only where asked for", nullable=True),
        Column("offset", "bigint", "byte in it; only where asked for", nullable=True),
        Column("raw", "binary", "the record; only where asked for", nullable=True),
        *_PARTITION,
    ),
)
"""DELIVERY records of bronze with texts and wall clock times, unchecked. Never written."""

DELIVERIES: Final = Table(
    "deliveries",
    "silver/deliveries",
    (
        Column(
            "run",
            "bigint",
            "number of the run, from the start of the gateway's process to its end; runs are in order",
        ),
        Column(
            "seq",
            "bigint",
            "number of the row: contiguous in a run, in the order of verdicts; gaps has missing rows",
        ),
        Column(
            "id_msb",
            "bigint",
            "UUID of the message, upper half; bits 63..16 are the time of its creation, ms since 1970",
        ),
        Column("id_lsb", "bigint", "lower half"),
        Column("received_us", "bigint", "time of the filters' decision, wall clock", time="received_time"),
        Column(
            "received_ns",
            "bigint",
            "monotonic time of the filters' decision; rows of a run are in order of (received_ns, seq)",
        ),
        Column(
            "arrived_ns",
            "bigint",
            "monotonic time of arrival; before received_ns only if a filter held the message",
        ),
        Column("settled_ns", "bigint", "monotonic time of the verdict"),
        Column("source", "string", "UUri"),
        Column("sink", "string", "UUri; null in a publication", nullable=True),
        Column("topic", "string", "UUri of a publication with a subscription; else null", nullable=True),
        Column(
            "subscriber",
            "string",
            "UUri of the target; null: a multicast domain, or no target",
            nullable=True,
        ),
        Column("type", "string", f"one of {', '.join(TYPES)}"),
        Column("priority", "int", "class of service, 0 to 6"),
        Column("ttl_ms", "bigint", "time to live, ms; null: none", nullable=True),
        Column("size", "bigint", "payload, bytes"),
        Column("ingress", "string", "endpoint of arrival"),
        Column("egress", "string", "endpoint of the target; null: no target", nullable=True),
        Column("verdict", "string", f"one of {', '.join(VERDICTS)}"),
        Column("code", "int", "UCode of the reason", nullable=True),
        Column("reason", "string", "reason as text", nullable=True),
        Column("attempts", "int", "attempts to send; 65535: that many or more"),
        Column(
            "queue_wait_us",
            "bigint",
            "us from received_ns to the first attempt, or to the verdict if there was none",
        ),
        Column("latency_us", "bigint", "us from arrived_ns to the verdict"),
        Column(
            "held", "boolean", "a filter held the message: it decided at arrived_ns and again at received_ns"
        ),
        Column(
            "delivery",
            "bigint",
            "number of the filter state in the run, one throttle each; 0: no target",
        ),
        Column("period_ns", "bigint", "period of the limit in force; 0: no limit"),
        Column(
            "tuned_ns",
            "bigint",
            "monotonic time of the last change of the limit (docs/recordings.md)",
        ),
        Column("epoch", "bigint", "configuration in force, see epochs"),
        Column("request_msb", "bigint", "in a RESPONSE: UUID of its request, upper half", nullable=True),
        Column("request_lsb", "bigint", "lower half", nullable=True),
        *_PARTITION,
    ),
    "One row per message and target; a message without a target has one row.",
)

SUBSCRIPTIONS: Final = Table(
    "subscriptions",
    EVENTS_FOLDER,
    (
        Column("run", "bigint", "as in deliveries"),
        Column("number", "bigint", "contiguous in a run"),
        Column("time_us", "bigint", "wall clock", time="time"),
        Column("time_ns", "bigint", "monotonic"),
        Column("topic", "string", "UUri, may be a pattern"),
        Column("subscriber", "string", "UUri"),
        Column("change", "string", f"{', '.join(CHANGES)}; PRESENT: it was there when the run began"),
        Column("period_ns", "bigint", "requested period; 0: no limit"),
        *_PARTITION,
    ),
    "One row per change of a subscription.",
)

DEAD_LETTERS: Final = Table(
    "dead_letters",
    EVENTS_FOLDER,
    (
        Column("run", "bigint", "as in deliveries"),
        Column("seq", "bigint", "seq of its row in deliveries"),
        Column("time_us", "bigint", "wall clock", time="time"),
        Column("id_msb", "bigint", "UUID of the message"),
        Column("id_lsb", "bigint", "lower half"),
        Column("source", "string", "UUri"),
        Column("sink", "string", "UUri", nullable=True),
        Column("code", "int", "UCode", nullable=True),
        Column("reason", "string", "reason as text", nullable=True),
        Column("endpoint", "string", "endpoint of the target; without a target, the endpoint of arrival"),
        Column("attempts", "bigint", "attempts to send"),
        Column("size", "bigint", "payload, bytes"),
        Column("payload", "binary", "may be cut; null: the recorder does not keep payloads", nullable=True),
        *_PARTITION,
    ),
    "One row per dead letter: an expired or failed message that was kept.",
)

EPOCHS: Final = Table(
    "epochs",
    EVENTS_FOLDER,
    (
        Column("run", "bigint", "as in deliveries"),
        Column("epoch", "bigint", "from 0, one more with each reload; each recording repeats it"),
        Column("since_us", "bigint", "wall clock", time="since_time"),
        Column("since_ns", "bigint", "monotonic"),
        Column("settings", "string", "JSON: egress by endpoint, throttle (null: none)"),
        *_PARTITION,
    ),
    "One row per configuration in force, repeated in each recording.",
)

_PER_VERDICT: Final = tuple(verdict.lower() for verdict in VERDICTS)

GAPS: Final = Table(
    "gaps",
    EVENTS_FOLDER,
    (
        Column("run", "bigint", "as in deliveries"),
        Column(
            "cause",
            "string",
            "OVERRUN, DISK, UNFIT: announced by the recorder. DAMAGED: bytes that do not match",
        ),
        Column("first_seq", "bigint", "seq of the first missing row"),
        Column("rows", "bigint", "number of missing rows"),
        Column("from_us", "bigint", "wall clock", time="from_time"),
        Column("until_us", "bigint", "wall clock", time="until_time"),
        Column("from_ns", "bigint", "monotonic, as received_ns"),
        Column("until_ns", "bigint", "monotonic"),
        *(
            Column(name, "bigint", "rows by verdict; null where damaged", nullable=True)
            for name in _PER_VERDICT
        ),
        Column("changes", "bigint", "subscription changes that are missing", nullable=True),
        Column("letters", "bigint", "dead letters that are missing", nullable=True),
        *_PARTITION,
    ),
    "One row per range of rows that are missing, announced by the recorder or damaged.",
)

COUNTERS: Final = Table(
    "counters",
    EVENTS_FOLDER,
    (
        Column("run", "bigint", "as in deliveries"),
        Column("time_us", "bigint", "wall clock", time="time"),
        Column(
            "final", "boolean", "at the stop, where the counters are exact; else read while messages moved"
        ),
        Column("received", "bigint", "messages received, by the dispatcher's ledger, as all counters below"),
        *(Column(name, "bigint", "by verdict") for name in _PER_VERDICT),
        Column("queued", "bigint", "messages without a verdict"),
        Column("next_seq", "bigint", "rows so far, as the recorder counted them"),
        Column("skipped", "bigint", "rows in gaps so far"),
        *_PARTITION,
    ),
    "Readings of the dispatcher's own ledger.",
)

SEGMENTS: Final = Table(
    "segments",
    EVENTS_FOLDER,
    (
        Column("run", "bigint", "as in deliveries"),
        Column("number", "bigint", "from 0; a missing one was deleted, or has not arrived yet"),
        Column("began_us", "bigint", "wall clock", time="began_time"),
        Column("began_ns", "bigint", "monotonic"),
        Column("first_seq", "bigint", "seq of its first row"),
        Column("next_seq", "bigint", "seq of the first row after it"),
        Column("first_change", "bigint", "number of its first subscription change"),
        Column("next_change", "bigint", "number of the first subscription change after it", nullable=True),
        Column("rows", "bigint", "deliveries in the recording"),
        Column(
            "end",
            "string",
            "CONTINUED, STOPPED: ended by its process; null: killed, or still open",
            nullable=True,
        ),
        Column("ended_us", "bigint", "wall clock", nullable=True, time="ended_time"),
        Column("dropped", "bigint", "payloads that were due and not kept, above a limit", nullable=True),
        *_PARTITION,
    ),
    "One row per recording.",
)
"""One row per recording. Segments, counters and gaps together describe a run."""

LEAPS: Final = Table(
    "leaps",
    EVENTS_FOLDER,
    (
        Column("run", "bigint", "as in deliveries"),
        Column("time_us", "bigint", "what the wall clock showed after it", time="time"),
        Column("time_ns", "bigint", "monotonic; up to one flush after the step"),
        Column("leap_ms", "bigint", "size of the wall clock step; negative: back"),
        *_PARTITION,
    ),
    "One row per step of the gateway's wall clock.",
)

QUARANTINE: Final = Table(
    "quarantine",
    "quarantine",
    (
        Column("file", "string", "name of the recording"),
        Column(
            "offset", "bigint", "position in the recording, bytes; null: the file as a whole", nullable=True
        ),
        Column("rows", "bigint", "1: a readable delivery, which silver does not have; 0: else"),
        Column("reason", "string", "what was found, and what was expected"),
        Column("raw", "binary", "at most 4096 of the bytes; bronze has all", nullable=True),
        *_PARTITION,
    ),
    "One row per invalid row or byte range, and per unreadable recording.",
)

_MESSAGE: Final = (
    Column("run", "bigint", "as in deliveries"),
    Column("time_us", "bigint", "arrival of the message, wall clock", time="time"),
    Column("time_ns", "bigint", "arrival, monotonic, as arrived_ns in deliveries"),
    Column("id_msb", "bigint", "UUID of the message, as in deliveries, upper half"),
    Column("id_lsb", "bigint", "lower half"),
    Column("topic", "string", "UUri of the publication"),
)

PAYLOADS: Final = Table(
    "payloads",
    SAMPLED_FOLDER,
    (
        *_MESSAGE,
        Column("format", "string", "UPayloadFormat of the message"),
        Column("size", "bigint", "payload, bytes"),
        Column("payload", "binary", "shorter than size if the recorder cut it"),
        Column("error", "string", "why it has no signals, or not all; null: decoded", nullable=True),
        *_PARTITION,
    ),
    "One row per publication whose payload was kept: `payloads` of `[plugins.recorder]` names the topics.",
)

SIGNALS: Final = Table(
    "signals",
    SAMPLED_FOLDER,
    (
        *_MESSAGE,
        Column(
            "signal",
            "string",
            "path in the payload, such as wheels[3].speed; value: the payload is one value",
        ),
        Column("value_double", "double", "any number; true is 1", nullable=True),
        Column("value_bigint", "bigint", "an integer, exact; null above 2^63 - 1", nullable=True),
        Column(
            "value_string", "string", "a text, the name of an enumeration value, bytes in hex", nullable=True
        ),
        Column("value_boolean", "boolean", "a truth value", nullable=True),
        Column("unit", "string", "unit of the member in [plugins.payloads]", nullable=True),
        *_PARTITION,
    ),
    "One row per value in a kept payload, decoded with the types of `[plugins.payloads]` at that time.",
)

SAMPLES: Final = (PAYLOADS, SIGNALS)

UNKNOWN_GATEWAY: Final = "?"
"""Partition of files with an unknown gateway; its date is 1970-01-01."""

EVENTS: Final = (SUBSCRIPTIONS, DEAD_LETTERS, EPOCHS, GAPS, COUNTERS, SEGMENTS, LEAPS)
"""The small tables of silver."""


def _wide(name: str, folder: str, tables: tuple[Table, ...]) -> Table:
    """Every column of these tables once, all nullable, and the name of the table."""
    columns: dict[str, Column] = {"table": Column("table", "string", "which of them")}
    for column in (column for table in tables for column in table.columns[: -len(_PARTITION)]):
        have = columns.setdefault(column.name, Column(column.name, column.type, column.note, nullable=True))
        if have.type != column.type:
            raise TypeError(f"{column.name} is {have.type} in one table and {column.type} in another")
    return Table(name, folder, (*columns.values(), *_PARTITION))


WIDE: Final = _wide("events", EVENTS_FOLDER, (*EVENTS, QUARANTINE))
"""Storage of the small tables. Rows of the quarantine pass through it into a folder of their own."""

SAMPLED: Final = _wide("sampled", SAMPLED_FOLDER, SAMPLES)
"""Storage of payloads and signals."""

STORED_IN: Final = {EVENTS_FOLDER: WIDE, SAMPLED_FOLDER: SAMPLED}
"""Tables that share files, by their folder."""

SILVER: Final = (DELIVERIES, *EVENTS, *SAMPLES)
