# SPDX-License-Identifier: Apache-2.0
"""The wide view of a topic has the rows of its definition: the signals, grouped by message."""

import json
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import EqualTo, GreaterThan, In
from tests.sample_drives import Drive
from tests.sample_recordings import MS, NOON_MS, make_row, write_recording
from ustreamer_pipeline.ingest.compact import compact
from ustreamer_pipeline.ingest.ingest import ingest
from ustreamer_pipeline.lake.snapshot import TableFile, load_snapshot, snapshot_at
from ustreamer_pipeline.lake.tables import date_of, read_file, signals_of
from ustreamer_pipeline.schemas import SAMPLED, SIGNALS
from ustreamer_pipeline.signal_counts import VALUE_KINDS, SignalCounts
from ustreamer_pipeline.signal_source import WideSignals
from ustreamer_pipeline.views import register_signal_views, signal_view, view
from ustreamer_pipeline.wide_signals import WideColumn, WideMessages
from ustreamer_recorder.events import Config, Event, Sample, Samples

from ustreamer.uprotocol.uuid import UUID

TOPIC, OTHER = "up://chassis/1234/1/8001", "up://chassis/1234/1/8002"
BYTES = {"kind": "array", "of": "u8", "length": 0}


def samples(count: int) -> Iterator[Sample]:
    """Messages of two topics: arrays of one to three bytes, some messages at one time of arrival."""
    for number in range(count):
        at_ns = (
            number // 3 * 2 * MS + (number % 3 == 2) * 400
        )  # the third one is 400 ns, but no microsecond later
        payload = bytes([number]) * (1 + number % 3)
        for topic in (TOPIC, OTHER):
            id = UUID(NOON_MS << 16 | 0x7000, 0b10 << 62 | number << 1 | (topic == OTHER))
            yield Sample(id, at_ns, topic, len(payload), payload)


def config(epoch: int, since_ns: int, kind: object) -> Config:
    types = {"topics": [{"topic": each, "type": "Any"} for each in (TOPIC, OTHER)], "types": {"Any": kind}}
    return Config(epoch, since_ns, json.dumps({"egress": {}, "throttle": None, "payloads": types}))


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two gateways. The type of a topic changes during the run: the value of a name is first a number, then a text."""
    place = tmp_path_factory.mktemp("types")
    word = {"kind": "enum", "of": "u8", "values": {"on": 1}}
    text = {"kind": "array", "of": word, "length": 0}
    kept = [*samples(30)]
    later = Sample(UUID(NOON_MS << 16 | 0x7000, 0b10 << 62 | 999), 900 * MS, TOPIC, 1, b"\x01")
    for gateway in ("hpc.vin1", "hpc.vin2"):
        events: list[Event] = [
            config(0, 0, BYTES),
            config(1, 800 * MS, text),
            make_row(0),
            Samples(0, 1000 * MS, (*kept, later), 0),
        ]
        write_recording(place, events, gateway=gateway, folder=f"recordings/{gateway}")
    ingest(spark, [str(place / "recordings")], str(place / "lake"))
    return place / "lake"


def grouped(spark: SparkSession, lake: Path, topic: str, names: list[str]) -> list[Any]:
    """The definition of the view: one row for each message, with the first value of each signal."""
    of_topic = view(spark, lake, SIGNALS).where(f.col("topic") == topic)
    counts = of_topic.groupBy("signal").agg(*(f.count(f"value_{kind}").alias(kind) for kind in VALUE_KINDS))
    kinds = {row.signal: max(VALUE_KINDS, key=lambda kind: row[kind]) for row in counts.collect()}
    assert sorted(kinds) == sorted(names)
    values = [
        f.first(f.when(f.col("signal") == name, f.col(f"value_{kinds[name]}")), ignorenulls=True)
        for name in names
    ]
    by_message = of_topic.groupBy("gateway", "date", "run", "time", "time_ns", "id")
    return sorted(map(tuple, by_message.agg(*values).collect()), key=repr)


def assert_views_are_grouped_signals(spark: SparkSession, lake: Path) -> int:
    """Returns the number of messages."""
    count = 0
    names = register_signal_views(spark, lake)
    topics = [row.topic for row in view(spark, lake, SIGNALS).select("topic").distinct().collect()]
    assert sorted(names) == sorted(map(signal_view, topics))
    for topic in topics:
        wide = spark.table(signal_view(topic))
        found = sorted(map(tuple, wide.collect()), key=repr)
        assert found == grouped(spark, lake, topic, wide.columns[6:])
        count += len(found)
    return count


def test_the_view_of_a_drive_is_its_signals_by_message(spark: SparkSession, drive: Drive) -> None:
    assert assert_views_are_grouped_signals(spark, drive.lake) > 20


def test_messages_of_one_microsecond_and_missing_signals_and_two_types_are_kept_apart(
    spark: SparkSession, lake: Path
) -> None:
    assert assert_views_are_grouped_signals(spark, lake) == 2 * (30 + 30 + 1)
    rows = spark.table(signal_view(TOPIC)).where("gateway = 'hpc.vin2'").orderBy("time", "id").collect()
    assert [(row["[0]"], row["[1]"], row["[2]"]) for row in rows[:3]] == [
        (0, None, None),
        (1, 1, None),
        (2, 2, 2),
    ]
    assert len({row.time for row in rows[:3]}) == 1
    assert (rows[-1]["[0]"], rows[-1]["[1]"]) == (None, None)  # a text, where most values are numbers


def test_large_files_have_the_same_messages(spark: SparkSession, lake: Path) -> None:
    assert compact(spark, str(lake), lambda _: nullcontext(), until="9999-12-31").large
    assert load_snapshot(lake).large_of(SAMPLED.name)
    assert assert_views_are_grouped_signals(spark, lake) == 2 * (30 + 30 + 1)


def test_a_message_that_two_batches_share_is_one_row(lake: Path) -> None:
    snapshot = load_snapshot(lake)
    columns = [WideColumn(f"[{number}]", "value_bigint") for number in range(3)]
    for file in (*snapshot.files_of(SAMPLED.name), *snapshot.large_of(SAMPLED.name)):

        def messages(size: int, file: TableFile = file) -> list[Any]:
            wide = WideMessages(TOPIC, columns, file)
            (rows,) = read_file(snapshot.storage, file, SAMPLED, wide.reads, wide.encoded)
            parts = (rows.slice(start, size) for start in range(0, len(rows), size))
            return pylist(wide.of(parts))

        whole = messages(10_000)
        assert len(whole) >= 31
        for size in (1, 2, 3, 7, 50):
            assert sorted(messages(size), key=repr) == sorted(whole, key=repr)


def test_messages_of_one_time_of_arrival_may_be_mixed(lake: Path) -> None:
    snapshot = load_snapshot(lake)
    file = snapshot.files_of(SAMPLED.name)[0]
    wide = WideMessages(TOPIC, [WideColumn(f"[{number}]", "value_bigint") for number in range(3)], file)
    (rows,) = read_file(snapshot.storage, file, SAMPLED, wide.reads, wide.encoded)
    signals, times = rows.column("signal").to_pylist(), rows.column("time_ns").to_pylist()
    mixed = rows.take(sorted(range(len(rows)), key=lambda at: (times[at], signals[at] or "")))
    found, expected = (sorted(pylist(wide.of([each])), key=repr) for each in (mixed, rows))
    assert found == expected


def pylist(batches: Iterable[pa.RecordBatch]) -> list[Any]:
    return [row for batch in batches for row in batch.to_pylist()]


def test_a_query_reads_the_files_of_its_gateway_and_date_only(lake: Path) -> None:
    snapshot = load_snapshot(lake)
    options = {"lake": str(lake), "version": str(first_version(lake)), "topic": TOPIC, "columns": "[]"}
    small = snapshot.files_of(SAMPLED.name)
    date = date_of(small[0].day)
    for condition, expected in (
        (EqualTo(("gateway",), "hpc.vin1"), 1),
        (In(("gateway",), ("hpc.vin1", "hpc.vin2")), 2),
        (EqualTo(("date",), date), 2),
        (GreaterThan(("date",), date), 0),
        (EqualTo(("_0",), 5), 2),
    ):
        reader = WideSignals(options).reader(None)
        assert list(reader.pushFilters([condition])) == [condition]
        assert sum(len(part.value) for part in reader.partitions()) == expected


def first_version(lake: Path) -> int:
    """Number of the oldest version with files of signals, which is not compacted."""
    return next(number for number in range(1, 100) if snapshot_at(str(lake), number).files_of(SAMPLED.name))


def test_the_metadata_of_a_file_has_its_signals(lake: Path) -> None:
    snapshot = load_snapshot(lake)
    for file in snapshot.files_of(SAMPLED.name):
        counts = SignalCounts()
        for rows in read_file(snapshot.storage, file, SAMPLED):
            counts.add(rows)
        listed = signals_of(snapshot.storage, file, SAMPLED)
        assert listed == list(counts)
        assert {(each.topic, each.signal): each.bigint for each in listed}[TOPIC, "[2]"] == 10


def test_a_file_without_metadata_is_counted(lake: Path) -> None:
    snapshot = load_snapshot(lake)
    file = snapshot.files_of(SAMPLED.name)[0]
    table = pq.read_table(snapshot.storage.path(file.name), partitioning=None)
    pq.write_table(table.replace_schema_metadata(None), lake / "silver" / "older.parquet")
    older = file._replace(name="silver/older.parquet")
    assert signals_of(snapshot.storage, older, SAMPLED) == signals_of(snapshot.storage, file, SAMPLED)
