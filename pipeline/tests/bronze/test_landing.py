# SPDX-License-Identifier: Apache-2.0
"""Landing of files and the manifest. Without Spark: the code runs on an executor, or on the driver alone."""

import errno
import json
import multiprocessing
import os
from functools import partial
from pathlib import Path
from zlib import crc32

import pyarrow as pa
import pytest
from tests.sample_recordings import MS, NOON_MS, TARGET, TOPIC, Record, make_row
from ustreamer_pipeline.bronze import landing
from ustreamer_pipeline.bronze import manifest as manifest_module
from ustreamer_pipeline.bronze.landing import (
    Landed,
    land,
    landed_from_json,
    landed_to_json,
    read_bronze,
    segment_file,
)
from ustreamer_pipeline.bronze.manifest import REFUSED_FILES, Manifest, commit, list_recordings
from ustreamer_pipeline.errors import DamagedError, UnavailableError
from ustreamer_pipeline.ingest.ingest import _pack_into_tasks
from ustreamer_pipeline.lake.snapshot import TableFile, load_snapshot, version_name
from ustreamer_pipeline.lake.storage import storage_of
from ustreamer_pipeline.recording.rows import DAY_US
from ustreamer_pipeline.silver.silver import TASK_ROWS, TASK_UNITS, UnitPlan, pack_tasks, plan_unit
from ustreamer_recorder.events import Letter

DAY = NOON_MS * 1000 // DAY_US
MIDNIGHT_MS = 12 * 3_600_000.0


@pytest.fixture
def lake(tmp_path: Path) -> str:
    (tmp_path / "lake").mkdir()
    return str(tmp_path / "lake")


def files(lake: str) -> list[str]:
    return sorted(str(path.relative_to(lake)) for path in Path(lake).rglob("*") if path.is_file())


def test_bronze_has_the_original_bytes_and_a_summary_of_them(record: Record, lake: str) -> None:
    late = [
        make_row(7, MIDNIGHT_MS + 5),
        Letter(7, make_row(7).id, int(MIDNIGHT_MS + 6) * MS, TARGET, TOPIC, None, 0, 0),
    ]
    path = record([make_row(5, 3.0), make_row(6, 2.0), *late], gateway="a/b c", first_seq=5)
    landed = land(str(path), lake)
    assert landed.segment is not None
    name = f"{path.stem}.{crc32(path.read_bytes()):08x}.useg.zst"
    assert landed.segment.file == f"bronze/date=2023-11-14/gateway=a%2Fb%20c/{name}"
    assert segment_file(landed.segment.file) == path.name
    assert files(lake) == [landed.segment.file]
    assert read_bronze(storage_of(lake), landed.segment.file) == path.read_bytes()
    summary = landed.segment
    assert summary.days == [(DAY, 2), (DAY + 1, 1)]
    assert summary.event_days == [DAY, DAY + 1]
    assert (summary.rows, summary.min_ns, summary.first_seq, summary.next_seq) == (3, 2 * MS, 5, 8)
    assert (summary.complete, summary.faults, summary.gateway) == (True, 0, "a/b c")
    assert landed_from_json(json.loads(json.dumps(landed_to_json(landed)))).segment.all_days == {DAY, DAY + 1}  # type: ignore[union-attr]


def test_landing_twice_changes_nothing(record: Record, lake: str) -> None:
    path = str(record([make_row(0)]))
    first = land(path, lake)
    place = Path(lake) / str(first.segment and first.segment.file)
    before = place.stat().st_mtime_ns
    assert land(path, lake) == first
    assert place.stat().st_mtime_ns == before


def test_a_more_complete_copy_replaces_a_less_complete_one_and_never_the_reverse(
    record: Record, lake: str, tmp_path: Path
) -> None:
    whole = record([make_row(seq) for seq in range(300)])
    half = tmp_path / "half" / whole.name
    half.parent.mkdir()
    half.write_bytes(whole.read_bytes()[:25_000])
    first, second, third = land(str(half), lake), land(str(whole), lake), land(str(half), lake)
    rows = [one.segment.rows for one in (first, second, third) if one.segment]
    assert rows == [200, 300, 300]
    assert [one.segment.complete for one in (first, second, third) if one.segment] == [False, True, True]
    assert read_bronze(storage_of(lake), str(third.segment and third.segment.file)) == whole.read_bytes()


def test_a_valid_copy_replaces_a_damaged_one(record: Record, lake: str) -> None:
    path = record([make_row(seq) for seq in range(300)])
    sound = path.read_bytes()
    broken = bytearray(sound)
    broken[15_000] ^= 1
    path.write_bytes(broken)
    first = land(str(path), lake)
    path.write_bytes(sound)
    second = land(str(path), lake)
    assert first.segment is not None
    assert second.segment is not None
    assert (first.segment.rows, first.segment.faults) == (200, 1)
    assert (second.segment.rows, second.segment.faults) == (300, 0)


def test_two_recordings_of_one_name_that_differ_are_not_mixed(record: Record, lake: str) -> None:
    first = land(str(record([make_row(0, size=1)])), lake)
    other = land(str(record([make_row(0, size=2)], folder="other")), lake)
    assert first.segment is not None
    assert other.segment is None
    assert "differs from bronze/" in str(other.refused)
    assert read_bronze(storage_of(lake), str(other.copy)) == Path(other.path).read_bytes()


def test_an_unreadable_file_is_kept_whole_with_its_reason(lake: str, tmp_path: Path) -> None:
    path = tmp_path / "0000000000000001-000000.useg"
    path.write_bytes(b"not a recording" * 1_000)
    landed = land(str(path), lake)
    assert (landed.segment, landed.raw) == (None, path.read_bytes()[:4096])
    assert "begins with" in str(landed.refused)
    assert read_bronze(storage_of(lake), str(landed.copy)) == path.read_bytes()


def test_a_copy_that_fails_leaves_nothing_behind(
    record: Record, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    path = str(record([make_row(0)]))
    with monkeypatch.context() as context:
        context.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            land(path, lake)
    assert files(lake) == []
    assert land(path, lake).segment is not None


# ------------------------------------------------------------------------------------------------------- the manifest


def noted(*landed: Landed) -> Manifest:
    made = Manifest()
    for one in landed:
        made.record_landed(one)
    return made


def test_the_manifest_is_loaded_as_saved(record: Record, lake: str, tmp_path: Path) -> None:
    bad = tmp_path / "0000000000000001-000000.useg"
    bad.write_bytes(b"nonsense")
    made = noted(land(str(record([make_row(0), make_row(1, MIDNIGHT_MS + 1)])), lake), land(str(bad), lake))
    storage = storage_of(lake)
    assert made.save(storage)
    again = Manifest.load(storage)
    assert again.files == made.files
    assert {key: one.crc for key, one in again.segments.items()} == {
        key: one.crc for key, one in made.segments.items()
    }
    assert again.pending == {("hpc.vin1", DAY), ("hpc.vin1", DAY + 1), REFUSED_FILES}
    assert [seen.path for seen in again.refused] == [str(bad)]
    assert [name for name in files(lake) if "manifest" in name] == [version_name(1)]
    assert Manifest.load(storage_of(str(tmp_path))).files == {}


def test_every_day_of_an_older_lake_is_rebuilt(record: Record, lake: str) -> None:
    storage = storage_of(lake)
    made = noted(land(str(record([make_row(0), make_row(1, MIDNIGHT_MS + 1)])), lake))
    made.pending.clear()
    assert made.save(storage)
    assert Manifest.load(storage).pending == set()
    _, *lines = (Path(lake) / version_name(1)).read_text().splitlines(keepends=True)
    (Path(lake) / version_name(1)).unlink()
    (Path(lake) / "manifest.jsonl").write_text("".join(['{"version":2}\n', *lines]))
    again = Manifest.load(storage)
    assert again.pending == {("hpc.vin1", DAY), ("hpc.vin1", DAY + 1)}
    assert again.save(storage)
    assert files(lake)[-1] == version_name(1)


def test_the_tables_of_an_earlier_version_are_rebuilt_and_not_read(record: Record, lake: str) -> None:
    storage = storage_of(lake)
    made = noted(land(str(record([make_row(0)])), lake))
    made.pending.clear()
    assert made.save(storage)
    version = Path(lake) / version_name(1)
    version.write_text(version.read_text().replace('"version":4', '"version":3', 1))
    with pytest.raises(UnavailableError, match="ingest again, to rebuild them"):
        load_snapshot(lake)
    again = Manifest.load(storage)
    assert again.pending == {("hpc.vin1", DAY)}
    assert again.save(storage)
    with pytest.raises(UnavailableError, match="ingest again"):
        load_snapshot(lake)
    again.pending.clear()
    assert again.save(storage)
    assert Manifest.load(storage).pending == set()
    assert load_snapshot(lake).number == 3


def test_a_change_is_applied_again_to_the_version_of_another_writer(lake: str) -> None:
    storage = storage_of(lake)
    ours, theirs = Manifest.load(storage), Manifest.load(storage)

    def add(gateway: str, manifest: Manifest) -> int:
        manifest.replace_files(
            (gateway, DAY), [TableFile("deliveries", gateway, DAY, f"{gateway}.parquet", 1, 1)]
        )
        return len(manifest.tables)

    theirs, count = commit(storage, theirs, partial(add, "theirs"))
    assert (theirs.number, count) == (1, 1)
    ours, count = commit(storage, ours, partial(add, "ours"))
    assert (ours.number, count) == (2, 2)
    assert [file.gateway for file in load_snapshot(lake).files_of("deliveries")] == ["ours", "theirs"]


def test_a_commit_whose_answer_was_lost_keeps_its_files(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = storage_of(lake)
    create, answers = storage.create, [False, True]

    def create_without_answer(name: str, data: bytes) -> bool:
        return create(name, data) and answers.pop(0)

    monkeypatch.setattr(storage, "create", create_without_answer)
    file = TableFile("deliveries", "vin1", DAY, "vin1.parquet", 1, 1)
    saved, _ = commit(storage, Manifest(), lambda manifest: manifest.replace_files(("vin1", DAY), [file]))
    assert (saved.number, saved.dropped) == (2, {})
    assert load_snapshot(lake).files == [file]


def test_a_reader_has_the_newest_complete_version(lake: str) -> None:
    storage = storage_of(lake)
    manifest = Manifest(pending={("vin1", DAY)})
    assert manifest.save(storage)
    with pytest.raises(UnavailableError, match="none was completed: ingest again"):
        load_snapshot(lake)
    first = TableFile("deliveries", "vin1", DAY, "first.parquet", 1, 1)
    manifest.replace_files(("vin1", DAY), [first])
    for number in range(2, 30):  # more than KEPT_VERSIONS
        assert manifest.save(storage)
        assert load_snapshot(lake).files == [first]
        assert load_snapshot(lake).number == 2
        manifest.pending.add(("vin1", DAY + number))
    manifest.pending.clear()
    manifest.replace_files(("vin1", DAY), [first._replace(name="second.parquet")])
    assert manifest.save(storage)
    assert [file.name for file in load_snapshot(lake).files] == ["second.parquet"]
    assert list(manifest.dropped) == ["first.parquet"]


def test_a_file_is_new_until_it_was_seen_with_its_size_and_time(record: Record, lake: str) -> None:
    path = record([make_row(0)])
    landed = land(str(path), lake)
    made = noted(landed)
    assert not made.is_new(landed.path, landed.size, landed.mtime_ns)
    assert made.is_new(landed.path, landed.size + 1, landed.mtime_ns)
    assert made.is_new(landed.path, landed.size, landed.mtime_ns + 1)
    assert made.is_new("/other", landed.size, landed.mtime_ns)


def test_a_newer_reader_reads_files_that_an_older_one_refused(
    record: Record, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reverse case: a reader that knows an older layout still reads the file."""
    path = record([make_row(0)])
    with monkeypatch.context() as before:
        before.setattr("ustreamer_pipeline.recording.segments.LAYOUTS", frozenset({0}))
        before.setattr(manifest_module, "LAYOUTS", frozenset({0}))
        landed = land(str(path), lake)
        assert landed.refused == "layout 2: this version reads 0"
        made = noted(landed)
        assert not made.is_new(landed.path, landed.size, landed.mtime_ns)
    assert made.is_new(landed.path, landed.size, landed.mtime_ns)
    assert made.record_landed(land(str(path), lake))
    assert made.refused == []
    monkeypatch.setattr("ustreamer_pipeline.recording.segments.LAYOUTS", frozenset({1, 2, 3}))
    assert land(str(path), lake).segment is not None


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"version":5,"complete":1}\n', ":1: version 5"),
        ("garbage\n", ":1: "),
        ('{"version":4,"complete":1}\n{"file":{"nonsense":1}}\n', ":2: "),
        ('{"version":4,"complete":1}\n{"version":4}\n', ":2: "),
        ('{"version":4,"complete":1}\n[]\n', ":2: "),
        ('{"version":4,"complete":1}\n{"file":{"path":"', ":2: "),
    ],
)
def test_a_damaged_manifest_is_named_and_not_overwritten(lake: str, text: str, place: str) -> None:
    storage = storage_of(lake)
    assert storage.create(version_name(1), text.encode())
    with pytest.raises(DamagedError, match=f"{version_name(1)}{place}.*move the lake aside"):
        Manifest.load(storage)
    if place.startswith(":1:"):
        with pytest.raises(DamagedError, match=f"{version_name(1)}{place}"):
            load_snapshot(lake)


@pytest.mark.parametrize("links", [True, False])
def test_a_name_is_created_once_and_whole(lake: str, links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no hard links")

    if not links:
        monkeypatch.setattr(os, "link", unsupported)
    storage = storage_of(lake)
    assert storage.create("a/1", b"first")
    assert not storage.create("a/1", b"second")
    assert (storage.read("a/1"), files(lake)) == (b"first", ["a/1"])
    storage.write("a/1", b"third")
    storage.remove("a/2")
    assert [(file.name, file.bytes) for file in storage.list_files("a")] == [("a/1", 5)]
    assert storage.list_files("none") == []
    assert abs(storage.now_s() - (Path(lake) / "a/1").stat().st_mtime) < 60
    storage.remove("a/1")
    with pytest.raises(FileNotFoundError):
        storage.read("a/1")


def hold(lake: str, ready: object, release: object) -> None:
    with storage_of(lake).lock():
        ready.set()  # type: ignore[attr-defined]
        release.wait(30)  # type: ignore[attr-defined]


def test_a_lake_has_one_writer_at_a_time_on_a_machine(tmp_path: Path) -> None:
    lake = str(tmp_path / "new")
    spawn = multiprocessing.get_context("fork")
    ready, release = spawn.Event(), spawn.Event()
    other = spawn.Process(target=hold, args=(lake, ready, release))
    other.start()
    try:
        assert ready.wait(30)
        with (
            pytest.raises(UnavailableError, match="another ingest, or a compaction, is running"),
            storage_of(lake).lock(),
        ):
            pass
    finally:
        release.set()
        other.join()
    with storage_of(lake).lock():
        assert files(lake) == [".lock"]


def test_recordings_are_found_in_folders_and_by_name_and_a_missing_folder_is_an_error(
    record: Record, tmp_path: Path
) -> None:
    first = record([], folder="x/a")
    second = record([], folder="x/b/c", still_open=True)
    (tmp_path / "x" / "notes.txt").touch()
    (tmp_path / "x" / "0000000000000009-000000.useg").symlink_to("/nowhere")
    suffixes = (".useg", ".useg.open")
    found = [path for path, _, _ in list_recordings([str(tmp_path / "x")], suffixes)]
    assert found == [str(first), str(second)]
    assert [path for path, _, _ in list_recordings([str(first)], suffixes)] == [str(first)]
    with pytest.raises(UnavailableError, match="nothing: expected a folder"):
        list(list_recordings([str(tmp_path / "nothing")], suffixes))


# ------------------------------------------------------------------------------------------------------------ planning


def test_copies_of_one_recording_land_in_one_task() -> None:
    name = "0000000000000001-000000.useg"
    found = [(f"/{letter}/{name}{suffix}", 60 << 20, 0) for letter in "abc" for suffix in ("", ".open")]
    found += [(f"/a/{name.replace('-0', '-1')}", 1, 0), (f"/a/{name.replace('-0', '-2')}", 70 << 20, 0)]
    packed = _pack_into_tasks(found)
    assert sorted(path for task in packed for path in task) == sorted(path for path, _, _ in found)
    (same,) = [task for task in packed if f"/a/{name}" in task]
    assert len([path for path in same if name in path]) == 6


def test_a_later_segment_limits_the_wait_of_earlier_rows(record: Record, lake: str) -> None:
    rows = [[make_row(0, 1), make_row(1, 9)], [make_row(2, 8)], [], [make_row(3, 7)]]
    firsts = [0, 2, 3, 3]
    landed = [land(str(record(part, number=n, first_seq=firsts[n])), lake) for n, part in enumerate(rows)]
    landed.append(land(str(record([make_row(0, 0.5)], run=2)), lake))
    made = noted(*landed)
    (unit,) = made.by_unit()
    plan = plan_unit(made, unit, made.by_unit()[unit])
    assert [piece.later_from_ns for piece in plan.parts] == [7 * MS, 7 * MS, 7 * MS, None, None]
    assert [piece.floor for piece in plan.parts] == [0, 2, 3, 3, 0]
    assert plan.rows == 5


def test_a_late_segment_rebuilds_the_next_one(record: Record, lake: str) -> None:
    """The first segment decides which rows of the second one are duplicates."""
    first = land(str(record([make_row(0), make_row(1), make_row(2)], number=0)), lake)
    second = land(
        str(record([make_row(2, MIDNIGHT_MS + 1), make_row(3, MIDNIGHT_MS + 2)], number=1, first_seq=2)), lake
    )
    made = noted(second)
    made.pending.clear()
    made.record_landed(first)
    assert ("hpc.vin1", DAY + 1) in made.pending
    assert made.first_new_seq(made.segments["hpc.vin1", 1, 1]) == 3


def test_tasks_have_a_limited_number_of_whole_units() -> None:
    units = [
        UnitPlan(f"g{n}", 0, (), rows)
        for n, rows in enumerate([3 * TASK_ROWS, *[10] * 200, TASK_ROWS - 50, 0])
    ]
    packed = pack_tasks(units)
    assert sorted(unit.gateway for task in packed for unit in task) == sorted(unit.gateway for unit in units)
    assert packed[0] == [units[0]]
    assert all(sum(unit.rows for unit in task) <= TASK_ROWS for task in packed[1:])
    assert max(len(task) for task in packed) == TASK_UNITS
    assert pack_tasks([]) == []


def test_a_landing_task_yields_one_line_per_file(record: Record, lake: str) -> None:
    paths = [[str(record([make_row(0)]))], [str(record([make_row(0)], number=1)), str(record([], number=2))]]
    batch = pa.RecordBatch.from_pydict({"id": [1, 0]})
    got = [
        landed_from_json(json.loads(line))
        for out in landing.landing_task(paths, lake)(iter([batch]))
        for line in out["landed"].to_pylist()
    ]
    assert [one.path for one in got] == [*paths[1], *paths[0]]


def test_a_removed_file_is_skipped_and_an_unreadable_one_is_refused(
    record: Record, lake: str, tmp_path: Path
) -> None:
    folder = tmp_path / "0000000000000001-000005.useg"
    folder.mkdir()
    paths = [[str(tmp_path / "gone.useg"), str(folder), str(record([make_row(0)]))]]
    batch = pa.RecordBatch.from_pydict({"id": [0]})
    (out, other) = [
        landed_from_json(json.loads(line))
        for out in landing.landing_task(paths, lake)(iter([batch]))
        for line in out["landed"].to_pylist()
    ]
    assert "Is a directory" in str(out.refused)
    assert other.segment is not None
    assert noted(out).is_new(out.path, folder.stat().st_size, folder.stat().st_mtime_ns), (
        "it may be readable later"
    )
