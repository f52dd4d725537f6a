# SPDX-License-Identifier: Apache-2.0
"""Synthetic recordings: the same bytes as from the recorder, and the same decisions as by the gate."""

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.sample_recordings import NOON_MS, TOPIC, make_row
from ustreamer_pipeline import cli
from ustreamer_pipeline.fleet.fleet import Fleet, SyntheticVehicle, write_fleet
from ustreamer_pipeline.fleet.plan import VehiclePlan
from ustreamer_pipeline.fleet.traffic import Traffic
from ustreamer_pipeline.recording.events import find_event_rows
from ustreamer_pipeline.recording.layout import DELIVERY, LAYOUT, TYPES
from ustreamer_pipeline.recording.rows import TextPool, record_batches, rows_of
from ustreamer_pipeline.recording.segment_writer import (
    StringTable,
    TargetText,
    as_cells,
    empty_records,
    encode_header,
    encode_segment,
    file_name,
    preamble,
)
from ustreamer_pipeline.recording.segments import Header, Segment, read_segment
from ustreamer_pipeline.schemas import COUNTERS, DEAD_LETTERS, QUARANTINE, SUBSCRIPTIONS
from ustreamer_recorder.encoder import SegmentEncoder
from ustreamer_recorder.events import Anchor, Config, Target
from ustreamer_recorder.layout import SegmentHeader, segment_name
from ustreamer_throttle.gate import Gate

SMALL = Fleet(
    vehicles=3, seconds=20, topics=12, fast=1, outages=400, requests_hz=5, killed=50, segment_rows=4_000
)


def segments(vehicle: SyntheticVehicle) -> list[Segment]:
    return [read_segment(data, file_name(header)) for header, data in vehicle.segments()]


def table(parts: list[Segment]) -> list[dict[str, Any]]:
    pool = TextPool()
    return [
        row
        for part in parts
        for batch in record_batches(
            rows_of(part, pool, "f", part.header.first_seq, detail=False), pool, 0, "g"
        )
        for row in batch.to_pylist()
    ]


@cache
def drive(number: int) -> list[Segment]:
    """Recording of a vehicle of SMALL, shared and read only, as is `drive_rows`."""
    return segments(SyntheticVehicle(SMALL, number))


@cache
def drive_rows(number: int) -> list[dict[str, Any]]:
    return table(drive(number))


# ---------------------------------------------------------------------------------------------------------- the bytes


@pytest.mark.parametrize("count", [0, 1, 2_048, 5_000])
def test_the_writer_makes_the_same_bytes_as_the_recorder(count: int) -> None:
    """The same content in the same blocks, with a text of several records and one with extreme values."""
    long = "//" + "x" * 400 + "/1/1/8001"
    targets = [TargetText(1, 1, "chassis", "backbone", TOPIC, None, 10, 5), TargetText(7, 0, "ü", None, long)]
    header = Header("hpc.vin1", 77, 3, LAYOUT, 5, NOON_MS, 2**33)
    theirs = bytearray()
    recorder = SegmentEncoder(SegmentHeader("hpc.vin1", 77, 3, 5, NOON_MS, 2**33, 0), theirs.extend)
    recorder.now = 9, NOON_MS + 1
    recorder.anchor(Anchor(5, NOON_MS))
    recorder.config(Config(0, 5, '{"egress": 1}'))
    known = [
        Target(t.target, t.delivery, t.ingress, t.egress, t.topic, t.subscriber, t.period_ns, t.tuned_ns)
        for t in targets
    ]
    for target in known:
        recorder.add_target(target)
    recorder.end_block()
    for seq in range(2**33, 2**33 + count):
        recorder.row(
            make_row(seq, seq % 977, target=known[seq % 2], source=TOPIC, sink=long if seq % 3 else None)
        )
    recorder.end_block()

    strings = StringTable()
    first = preamble(header, strings, targets, 0, 5, {"egress": 1})
    rows = empty_records(DELIVERY, count)
    numbers = np.arange(2**33, 2**33 + count)
    rows["seq"], rows["code"], rows["type"], rows["priority"] = numbers, 255, 1, 1
    rows["size"], rows["attempts"] = 20, 1
    rows["id_msb"], rows["id_lsb"] = NOON_MS << 16 | 0x7001, -(2**63) + 5
    rows["arrived_ns"] = rows["received_ns"] = numbers % 977 * 1_000_000
    rows["first_attempt_ns"], rows["settled_ns"] = rows["arrived_ns"] + 1_000, rows["arrived_ns"] + 2_000
    rows["target"] = np.where(numbers % 2, 7, 1)
    rows["source"], rows["sink"] = strings[TOPIC], np.where(numbers % 3, strings[long], 0)
    ours = encode_segment(
        header, [part for part in (first, as_cells(rows)) if len(part)], mono_ns=9, wall_ms=NOON_MS + 1
    )
    assert ours[:288] == encode_header(header) == recorder.header.pack()
    assert ours[288:] == bytes(theirs)
    assert file_name(header) == segment_name(77, 3)


def test_an_answer_is_in_the_block_of_its_row() -> None:
    header = Header("g", 1, 0, LAYOUT, 0, NOON_MS, 0)
    row, answer = as_cells(empty_records(DELIVERY, 1)), as_cells(empty_records(4, 1))
    rows = np.concatenate([row] * 2_048 + [answer] + [row] * 10)
    data = encode_segment(header, [rows], mono_ns=0, wall_ms=0)
    assert len(read_segment(data, file_name(header)).cells) == 2_059
    second = 288 + 96 * (1 + 2_047)
    assert (data[second : second + 4], data[second + 96], data[second + 192]) == (b"UBLK", DELIVERY, 4)


# ---------------------------------------------------------------------------------------------------------- the drive


def test_a_vehicle_has_the_same_bytes_in_every_fleet(tmp_path: Path) -> None:
    assert sum(write_fleet(SMALL, tmp_path / "a")) == sum(write_fleet(SMALL, tmp_path / "b", processes=2))
    assert sum(write_fleet(replace(SMALL, vehicles=2), tmp_path / "c")) > 0
    names = {str(path.relative_to(tmp_path / "a")) for path in (tmp_path / "a").rglob("*.useg")}
    assert len(names) > 6
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    for path in (tmp_path / "c").rglob("*.useg"):
        assert path.read_bytes() == (tmp_path / "a" / path.relative_to(tmp_path / "c")).read_bytes()
    other = SyntheticVehicle(replace(SMALL, seed=2), 0)
    assert [data for _, data in other.segments()] != [
        data for _, data in SyntheticVehicle(SMALL, 0).segments()
    ]


def test_a_new_gate_reproduces_the_recorded_verdicts() -> None:
    """Every verdict is the same when a new gate of the throttle decides the rows of a delivery in order of time."""
    decided: Counter[bool] = Counter()
    retuned = 0
    for number in range(6):
        rows = [row for row in drive_rows(number) if row["delivery"] and row["period_ns"]]
        rows.sort(key=lambda row: (row["delivery"], row["received_ns"], row["seq"]))
        for _, group in groupby(rows, key=lambda row: row["delivery"]):
            gate, tuned = None, None
            for row in group:
                if gate is None:
                    gate = Gate(row["period_ns"], 0.1)
                elif row["tuned_ns"] != tuned:
                    gate.retune(row["period_ns"], row["tuned_ns"])
                    retuned += 1
                tuned = row["tuned_ns"]
                passed = gate.admit(row["received_ns"])
                assert passed == (row["verdict"] != 1)
                decided[passed] += 1
    assert min(decided.values()) > 100
    assert retuned > 0


def test_messages_of_a_topic_have_distinct_times_also_in_bursts_at_segment_ends() -> None:
    """Equal times would break the order of the gate: an admitted message settles after a dropped one."""
    fleet, rng = replace(SMALL, jitter=0.49, outages=0), np.random.default_rng(1)
    topic = VehiclePlan(fleet, "v.hpc", rng).topics[-1]
    traffic = Traffic(fleet.jitter, fleet.start_ms, StringTable(), rng)
    assert topic.period_ns == 1_000_000
    times = np.concatenate(
        [traffic.arrivals(topic, begins, begins + 2_000_000) for begins in range(10**9, 5 * 10**9, 2_000_000)]
    )
    assert len(times) > 4_000 + 10 * 100
    assert np.all(np.diff(times) > 0)


def test_a_queue_delivers_in_order_of_arrival_also_after_bursts_and_outages() -> None:
    """The rule `order` of the audit."""
    key = ("ingress", "source", "sink", "priority", "egress", "subscriber")
    several = 0
    for number in range(3):
        latest: dict[tuple[object, ...], int] = {}
        for row in table(segments(SyntheticVehicle(replace(SMALL, requests_hz=50), number))):
            if row["verdict"] == 0:
                stream = tuple(row[name] for name in key)
                assert row["received_ns"] >= latest.get(stream, 0)
                several += stream in latest
                latest[stream] = row["received_ns"]
    assert several > 1_000


def test_the_recording_follows_the_layout_and_the_ledger_law() -> None:
    seen: Counter[str] = Counter()
    ends = Counter[bool]()
    for number in range(6):
        parts = drive(number)
        assert not any(part.torn or part.faults for part in parts)
        assert [part.header.first_seq for part in parts[1:]] == [part.next_seq for part in parts[:-1]]
        rows = drive_rows(number)
        assert [row["seq"] for row in rows] == list(range(len(rows)))
        assert [row["settled_ns"] for row in rows] == sorted(row["settled_ns"] for row in rows)
        assert not any(row["fault"] for row in rows)
        assert all(row["arrived_ns"] <= row["received_ns"] <= row["settled_ns"] for row in rows)
        seen.update(str(row["verdict"]) for row in rows)
        listed = [(t, row) for part in parts for t, _, row in find_event_rows(part, "f", 0)]
        assert not any(t is QUARANTINE for t, _ in listed)
        letters = [row["seq"] for t, row in listed if t is DEAD_LETTERS]
        assert letters == [row["seq"] for row in rows if row["verdict"] in {2, 3}]
        asked = {(row["id_msb"], row["id_lsb"]) for row in rows if row["type"] == 2}
        answered = [(row["request_msb"], row["request_lsb"]) for row in rows if row["type"] == 3]
        assert sorted(asked) == sorted(answered)
        assert sum(t is SUBSCRIPTIONS for t, _ in listed) > 0
        for t, books in listed:
            if t is COUNTERS:
                settled = sum(
                    books[v] for v in ("delivered", "throttled", "expired", "dead_lettered", "no_subscriber")
                )
                assert books["received"] == settled + books["queued"]
                assert books["next_seq"] == settled
        ends[parts[-1].end is None] += 1
    assert {"0", "1", "2", "3", "5"} <= seen.keys()
    assert ends.keys() == {True, False}, "some are killed, some are not"


def test_every_message_for_several_targets_has_one_id_and_one_time() -> None:
    rows = table(segments(SyntheticVehicle(replace(SMALL, subscribers=4), 1)))
    by_id: dict[tuple[int, int], set[tuple[int, str]]] = {}
    for row in rows:
        by_id.setdefault((row["id_msb"], row["id_lsb"]), set()).add((row["arrived_ns"], row["source"]))
    assert len(rows) > 2 * len(by_id)
    assert all(len(distinct) == 1 for distinct in by_id.values())
    assert all(msb & 0xF000 == 0x7000 and lsb < -(2**62) for msb, lsb in by_id)


# ---------------------------------------------------------------------------------------------------- command line


def test_generate_prints_the_number_of_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "fleet"
    assert (
        cli.main(
            [
                "generate",
                str(place),
                "--vehicles",
                "2",
                "--minutes",
                "0.1",
                "--topics",
                "5",
                "--processes",
                "1",
            ]
        )
        == 0
    )
    said = capsys.readouterr().out
    rows = sum(
        int((read_segment(path.read_bytes(), path.name).records(DELIVERY)["kind"] == DELIVERY).sum())
        for path in place.rglob("*.useg")
    )
    assert said == f"{place}: 2 vehicles, {rows} rows\n"
    assert {path.name for path in place.iterdir()} == {"v0000000.hpc", "v0000001.hpc"}


@pytest.mark.parametrize(("option", "value"), [("--jitter", "0.5"), ("--vehicles", "0"), ("--killed", "101")])
def test_an_invalid_fleet_is_a_usage_error(
    tmp_path: Path, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["generate", str(tmp_path), option, value]) == 2
    assert f"{option[2:]} {float(value):g}: expected" in capsys.readouterr().err


def test_every_record_type_has_the_size_of_a_cell() -> None:
    assert {form.itemsize for form in TYPES.values()} == {96}
