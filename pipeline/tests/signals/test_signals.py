# SPDX-License-Identifier: Apache-2.0
"""Payloads become signals with types, units and times; what cannot be decoded has its reason."""

import json
import runpy
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.sample_drives import Drive
from tests.sample_recordings import MS, NOON_MS, Record, make_row
from ustreamer_pipeline.recording import samples
from ustreamer_pipeline.recording.layout import CELL, SAMPLES
from ustreamer_pipeline.recording.segments import read_segment
from ustreamer_pipeline.schemas import DELIVERIES, PAYLOADS, SEGMENTS, SIGNALS
from ustreamer_pipeline.silver.signals import MAX_SIGNALS, flatten, payload_types, sample_batches
from ustreamer_pipeline.views import register_signal_views, signal_view, view
from ustreamer_recorder.events import Config, Sample, Samples

from ustreamer.uprotocol.uuid import UUID

SPEED, ANGLE, DOOR = (f"up://chassis/{each}" for each in ("1234/1/8001", "1234/1/8005", "2001/1/8001"))
EXAMPLE = Path(__file__).parents[2] / "examples" / "signals.py"
TYPES = {
    "topics": [
        {"topic": SPEED, "type": "Wheels"},
        {"topic": DOOR, "type": "u8"},
        {"topic": "//chassis/3001/1/FFFF", "class": "os:system"},
    ],
    "types": {
        "Wheels": {
            "kind": "struct",
            "members": [
                {"name": "speed", "type": {"kind": "array", "of": "f32", "count": 2}, "unit": "m/s"},
                {"name": "gear", "type": "Gear"},
                {"name": "count", "type": "u64", "unit": "1"},
                {"name": "rest", "type": "bytes"},
            ],
        },
        "Gear": {"kind": "enum", "of": "u8", "values": {"park": 0, "drive": 3}},
    },
}


def sample(topic: str, payload: bytes, number: int = 0, size: int | None = None) -> Sample:
    at_ns = number * MS
    id = UUID(NOON_MS << 16 | 0x7000, 0b10 << 62 | number)
    return Sample(id, at_ns, topic, len(payload) if size is None else size, payload)


def rows_of(path: Path) -> list[dict[str, Any]]:
    segment = read_segment(path.read_bytes(), path.name)
    (day,) = samples.sample_days(segment)
    return [row for batch in sample_batches(segment, day, "vin1") for row in batch.to_pylist()]


def recorded(record: Record, *kept: Sample, settings: object = None, dropped: int = 0) -> Path:
    text = json.dumps({"egress": {}, "throttle": None, "payloads": settings or TYPES})
    return record([Config(0, 0, text), make_row(0), Samples(0, 10 * MS, kept, dropped)])


def test_a_payload_has_its_values_with_type_and_unit(record: Record) -> None:
    payload = struct.pack(">ffBQI", 1.5, -2.0, 3, 2**63, 2) + b"\x01\xff"
    whole, *signals = rows_of(recorded(record, sample(SPEED, payload)))
    assert (whole["table"], whole["payload"], whole["error"]) == ("payloads", payload, None)
    assert [
        (each["signal"], each["value_double"], each["value_bigint"], each["value_string"], each["unit"])
        for each in signals
    ] == [
        ("speed[0]", 1.5, None, None, "m/s"),
        ("speed[1]", -2.0, None, None, "m/s"),
        ("gear", None, None, "drive", None),
        ("count", 2.0**63, None, None, "1"),
        ("rest", None, None, "01ff", None),
    ]
    assert {each["time_us"] for each in signals} == {NOON_MS * 1000}


def test_a_payload_that_is_not_decoded_has_its_reason(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.system", None)  # a recording must not call it
    path = recorded(
        record,
        sample(DOOR, b"\x07"),
        sample(SPEED, b"\x00", 1),
        sample(SPEED, bytes(9), 2, size=300),
        sample(ANGLE, b"\x00", 3),
        sample("up://chassis/3001/1/8001", b"\x00", 4),
    )
    rows = rows_of(path)
    errors = [each["error"] for each in rows if each["table"] == "payloads"]
    assert errors == [
        None,
        "at byte 0: Wheels.speed: needs 8 bytes, 1 are left",
        "cut: 9 of 300 bytes are here",
        "no type in [plugins.payloads]",
        "decoded by the class os:system, which is not imported here",
    ]
    (door,) = [each for each in rows if each["table"] == "signals"]
    assert (door["signal"], door["value_bigint"]) == ("value", 7)


@pytest.mark.parametrize("section", [{"types": 3}, {"topics": [{"topic": "x", "type": "u8"}]}, "text", [1]])
def test_types_that_are_wrong_are_a_reason(record: Record, section: object) -> None:
    (row,) = rows_of(recorded(record, sample(SPEED, b"\x00"), settings=section))
    assert row["error"].startswith("types of payloads: ")


def test_a_recording_without_types_keeps_its_payloads() -> None:
    assert payload_types('{"egress": {}}') == "the recording has no types of payloads"


def test_truth_values_and_nested_values_have_names() -> None:
    value = {"doors": [{"open": True}, {"open": False}], "none": None}
    assert list(flatten(value, {"doors[].open": "bool"})) == [
        ("doors[0].open", True, "bool"),
        ("doors[1].open", False, "bool"),
    ]


def test_signals_of_one_payload_are_bounded(record: Record) -> None:
    many = {
        "topics": [{"topic": SPEED, "type": "Many"}],
        "types": {"Many": {"kind": "array", "of": "u8", "length": 0}},
    }
    rows = rows_of(recorded(record, sample(SPEED, bytes(MAX_SIGNALS + 5)), settings=many))
    assert len(rows) == 1 + MAX_SIGNALS
    assert rows[0]["error"] == "1005 signals: the first 1000 are here"


def test_damaged_samples_are_named_and_the_rest_is_read(record: Record) -> None:
    path = recorded(record, sample(DOOR, b"\x07"), dropped=4)
    segment = read_segment(path.read_bytes(), path.name)
    assert samples.has_samples(segment)
    assert samples.dropped_samples(segment) == 4
    (position,) = segment.positions_of(SAMPLES)
    cells = segment.cells.copy()
    view = memoryview(cells.view("u1")).cast("B")  # type: ignore[arg-type]
    for at, value in ((8, 42), (8, 40), (12, 3), (1, 2)):  # length, packed, compression
        before = view[CELL * int(position) + at]
        view[CELL * int(position) + at] = value
        damaged = type(segment)(segment.header, cells, segment.offsets, 0, 1, torn=False)
        (fault,) = samples.read_samples(damaged)
        assert isinstance(fault, samples.SamplesFault)
        view[CELL * int(position) + at] = before
    assert zlib.crc32(cells.tobytes()) == zlib.crc32(segment.cells.tobytes())


# ------------------------------------------------------------------------------------------------- a real drive


def test_each_kept_payload_of_a_drive_is_a_message_with_its_signals(
    spark: SparkSession, drive: Drive
) -> None:
    of_speed = f"topic = '{SPEED}'"
    received = {row.id: row for row in view(spark, drive.lake, DELIVERIES).where(of_speed).collect()}
    signals = {row.id: row for row in view(spark, drive.lake, SIGNALS).where(of_speed).collect()}
    kept = view(spark, drive.lake, PAYLOADS).where(of_speed).collect()
    assert len(kept) == len(signals) > 5
    for row in kept:
        signal = signals[row.id]
        assert (signal.signal, signal.value_double) == ("speed", struct.unpack(">f", row.payload)[0])
        assert (row.error, signal.unit, row.time) == (None, "m/s", received[row.id].received_time)
    assert {row.dropped for row in SEGMENTS.read_table(spark, drive.lake).collect()} == {0}


def test_a_topic_is_a_wide_view_with_a_column_for_each_signal(spark: SparkSession, drive: Drive) -> None:
    names = register_signal_views(spark, drive.lake)
    assert {signal_view(each) for each in (SPEED, ANGLE, DOOR)} <= set(names)
    described = {row.col_name: row for row in spark.sql(f"DESCRIBE {signal_view(ANGLE)}").collect()}
    assert (described["angle"].data_type, described["angle"].comment) == ("bigint", "deg")
    assert list(described)[:6] == ["gateway", "date", "run", "time", "time_ns", "id"]
    assert (described["id"].data_type, described["time"].data_type) == ("string", "timestamp")
    assert described["id"].comment.startswith("UUID of the message")
    (door, *_) = spark.sql(f"SELECT * FROM {signal_view(DOOR)}").collect()
    assert isinstance(door.open, bool)
    messages = {row.id for row in view(spark, drive.lake, SIGNALS).where(f"topic = '{DOOR}'").collect()}
    assert door.id in messages
    assert door.door in {"front_left", "front_right", "rear_left", "rear_right"}


def test_the_example_goes_from_recordings_to_an_answer(
    spark: SparkSession, drive: Drive, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["signals.py", str(drive.recordings), str(drive.lake)])
    runpy.run_path(str(EXAMPLE))
    assert "|hpc.vin1|" in capfd.readouterr().out
    lines = EXAMPLE.read_text().split("as spark:\n")[1].splitlines()
    assert len(lines) + 1 <= 5
