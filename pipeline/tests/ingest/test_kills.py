# SPDX-License-Identifier: Apache-2.0
"""Real kills of an ingest, as a batch and as a stream, with a second ingest and a reader at the same time."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final, Self

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.sample_lakes import contents
from ustreamer_pipeline import cli
from ustreamer_pipeline.bronze.manifest import Manifest
from ustreamer_pipeline.fleet.fleet import Fleet, write_fleet
from ustreamer_pipeline.ingest.ingest import Ingested, ingest
from ustreamer_pipeline.lake.snapshot import last_version, load_snapshot
from ustreamer_pipeline.lake.storage import LocalStorage, storage_of
from ustreamer_pipeline.schemas import DELIVERIES

from tests.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3_600)]  # many Spark processes: each has 15 s of CPU

FLEET: Final = Fleet(vehicles=4, seconds=4, topics=8, outages=2_000, killed=0, segment_rows=30, seed=23)
"""Of 24 seeds this one has the vehicles with the most similar numbers of segments."""
FILES: Final = 2 * FLEET.vehicles
"""Files of the tables that an ingest writes: two of each vehicle."""
HALVES: Final = ("a", "b")
"""Folders of two vehicles each. The second ingest knows only the second one."""
BATCHES: Final = 40
ROUNDS: Final = {"any time": 12, "writing": 4, "second ingest": 4, "both end": 4}
"""Kinds of ingests: three that are killed, with a second ingest or without, and one that ends during a second one."""
DAY_MS: Final = 86_400_000
START_S: Final = 300.0
"""A generous limit for the start of a Spark process and its first files."""


@contextmanager
def ingest_process(words: list[str], environ: dict[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    """An ingest of its own process group, which ends with a SIGKILL of the driver and its JVM."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ustreamer_pipeline", "ingest", *words, "--memory", "512m", "--cores", "1"],
        env=os.environ | environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        kill(process)


def kill(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def table_files(lake: Path) -> set[Path]:
    """All files of the tables, also those that are being written or that no version lists."""
    return set(lake.glob("silver/**/*.parquet"))


@dataclass
class Deliverer:
    """Hands over the recordings of a fleet in batches, each with the next segments of every vehicle of a half."""

    fleet: Path
    coming: Path
    given: dict[str, int] = field(default_factory=lambda: dict.fromkeys(HALVES, 0))

    def vehicles(self, half: str) -> list[Path]:
        return sorted(self.fleet.iterdir())[HALVES.index(half) :: 2]

    def files(self, vehicle: Path, batch: int) -> list[Path]:
        """The segments of the first `batch` batches."""
        every = sorted(vehicle.iterdir())
        return every[: len(every) * batch // BATCHES]

    def hand_over(self, half: str) -> None:
        self.given[half] = batch = min(self.given[half] + 1, BATCHES)
        for vehicle in self.vehicles(half):
            place = self.coming / half / vehicle.name
            place.mkdir(parents=True, exist_ok=True)
            for file in self.files(vehicle, batch):
                if not (place / file.name).exists():
                    (place / file.name).write_bytes(file.read_bytes())


class Reader(threading.Thread):
    """Reads snapshot after snapshot until it is stopped. `wrong` has a text for each that is not whole.

    A snapshot is whole if the vehicles of a half have the rows of the same number of batches, each row once, and not of
    fewer batches than before: of any ingest, all files become visible or none, and they stay.
    """

    def __init__(self, spark: SparkSession, lake: str, whole: dict[str, list[dict[str, int]]]) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self.seen: defaultdict[int, int] = defaultdict(int)
        self._spark, self._lake, self._whole = spark, lake, whole
        self._batches = dict.fromkeys(whole, 0)
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._read()
            except Exception as error:  # noqa: BLE001  # a reader that cannot read is a finding like any other
                self.wrong.append(repr(error))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.join()

    def _read(self) -> None:
        snapshot = load_snapshot(self._lake)
        counted = DELIVERIES.read_table(self._spark, snapshot).count()
        numbers: defaultdict[str, list[int]] = defaultdict(list)
        for file in snapshot.files_of(DELIVERIES.name):
            column = pq.ParquetFile(snapshot.storage.path(file.name)).read(["seq"]).column(0)
            numbers[file.gateway] += column.to_pylist()
        self.seen[snapshot.number] += 1
        if counted != sum(map(len, numbers.values())):
            self.wrong.append(f"version {snapshot.number}: Spark counts {counted} rows")
        for half, batches in self._whole.items():
            read = {gateway: sorted(numbers[gateway]) for gateway in batches[0]}
            equal = [
                number
                for number, batch in enumerate(batches)
                if read == {gateway: list(range(count)) for gateway, count in batch.items()}
            ]
            if not equal or equal[-1] < self._batches[half]:
                found = {gateway: len(each) for gateway, each in read.items()}
                expected = batches[self._batches[half] :]
                self.wrong.append(
                    f"version {snapshot.number}, half {half}: {found}: expected one of {expected}"
                )
            else:
                self._batches[half] = equal[-1]


def whole_batches(deliverer: Deliverer, lake: str) -> dict[str, list[dict[str, int]]]:
    """Rows of each vehicle of a half after each number of batches, from the segments of a finished ingest."""
    last: dict[str, list[int]] = {}
    for (gateway, _, _), segment in sorted(Manifest.load(storage_of(lake)).segments.items()):
        last.setdefault(gateway, [0]).append(segment.next_seq)
    return {
        half: [
            {
                each.name: last[each.name][len(deliverer.files(each, batch))]
                for each in deliverer.vehicles(half)
            }
            for batch in range(BATCHES + 1)
        ]
        for half in HALVES
    }


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("fleet")
    assert sum(write_fleet(FLEET, place)) > 5_000
    assert all(len(list(vehicle.iterdir())) >= BATCHES for vehicle in place.iterdir())
    return place


@pytest.fixture(scope="module")
def batch_lake(spark: SparkSession, fleet: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The lake of one ingest of all recordings."""
    lake = str(tmp_path_factory.mktemp("lake"))
    ingest(spark, [str(fleet)], lake)
    return lake


@dataclass
class KilledIngest:
    """One ingest in a process, and the moment at which it is killed, if it is."""

    process: "subprocess.Popen[bytes]"
    lake: Path
    random: Random
    before: set[Path]

    def written(self) -> int:
        """Files of the tables since the start of this ingest."""
        return len(table_files(self.lake) - self.before)

    def wait_for_files(self, count: int) -> None:
        wait_until(lambda: self.written() >= count or self.process.poll() is not None, "files", START_S)

    def at_any_time(self, whole_s: float) -> None:
        """Uniformly over the time of an undisturbed ingest."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(self.random.uniform(0.0, whole_s))

    def while_it_writes(self) -> None:
        self.wait_for_files(self.random.randint(1, FILES - 1))

    def with_a_second_ingest(
        self, spark: SparkSession, deliverer: Deliverer, pool: ThreadPoolExecutor
    ) -> None:
        """The second one begins while the first one writes, with recordings that have come meanwhile."""
        self.wait_for_files(1)
        second = second_ingest(spark, deliverer, self.lake, pool)
        self.wait_for_files(self.random.randint(2, FILES))
        kill(self.process)
        assert second.result(START_S).landed >= 2

    def both_end(self, spark: SparkSession, deliverer: Deliverer, pool: ThreadPoolExecutor) -> None:
        """The second one begins when the first one has planned its tables, and is quicker: that plan is then old."""
        storage = storage_of(str(self.lake))
        number = last_version(storage)
        wait_until(lambda: last_version(storage) > number, "the recordings in bronze", START_S)
        assert second_ingest(spark, deliverer, self.lake, pool).result(START_S).landed >= 2
        assert self.process.wait(START_S) == 0


def second_ingest(
    spark: SparkSession, deliverer: Deliverer, lake: Path, pool: ThreadPoolExecutor
) -> "Future[Ingested]":
    deliverer.hand_over("b")
    return pool.submit(ingest, spark, [str(deliverer.coming / "b")], str(lake))


def test_twenty_kills_lose_no_row_double_none_and_every_reader_sees_one_snapshot(
    spark: SparkSession,
    fleet: Path,
    batch_lake: str,
    quick_java: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    random, lake = Random(19), tmp_path / "lake"
    deliverer = Deliverer(fleet, tmp_path / "coming")
    command = [str(deliverer.coming), str(lake)]

    def hand_over() -> None:
        for half in HALVES:
            deliverer.hand_over(half)

    hand_over()
    began = time.monotonic()
    with ingest_process(command, quick_java) as undisturbed:
        assert undisturbed.wait(START_S) == 0
    whole_s = time.monotonic() - began
    # A lock of the file system says nothing to another machine, on which the second ingest is.
    monkeypatch.setattr(LocalStorage, "lock", lambda _: nullcontext())
    left = [kind for kind, count in ROUNDS.items() for _ in range(count)]
    random.shuffle(left)
    pending: Counter[str] = Counter()
    """Kills that left days whose tables were not complete, by kind."""
    with (
        ThreadPoolExecutor(1) as pool,
        Reader(spark, str(lake), whole_batches(deliverer, batch_lake)) as reader,
    ):
        for _ in range(BATCHES - ROUNDS["second ingest"] - ROUNDS["both end"] - 1):
            if not left:
                break
            hand_over()
            with ingest_process(command, quick_java) as process:
                one = KilledIngest(process, lake, random, table_files(lake))
                match left[0]:
                    case "any time":
                        one.at_any_time(whole_s)
                    case "writing":
                        one.while_it_writes()
                    case "second ingest":
                        one.with_a_second_ingest(spark, deliverer, pool)
                    case _:
                        one.both_end(spark, deliverer, pool)
                if process.poll() in (None, -signal.SIGKILL) or left[0] == "both end":  # it was not faster
                    kill(process)
                    kind = left.pop(0)
                    pending[kind] += kind == "writing" and bool(Manifest.load(storage_of(str(lake))).pending)
        assert left == []
    assert reader.wrong == []
    assert pending["writing"] >= ROUNDS["writing"] // 2
    assert len(reader.seen) >= ROUNDS["second ingest"], "readings of several versions"
    while min(deliverer.given.values()) < BATCHES:
        hand_over()
    assert cli.main(["ingest", *command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["refused"], told["quarantined"]) == (0, 0)
    assert contents(str(lake)) == contents(batch_lake)
    orphans = table_files(lake) - {lake / name for name in listed_files(lake)}
    assert orphans, "files of ingests that were killed while they wrote"


def listed_files(lake: Path) -> set[str]:
    manifest = Manifest.load(storage_of(str(lake)))
    return manifest.table_names() | manifest.dropped.keys()


def test_a_stream_that_is_killed_twice_takes_late_days_as_one_batch_does(
    spark: SparkSession,
    fleet: Path,
    quick_java: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Killed when bronze is complete and no table is, then while it writes the tables of an earlier day."""
    coming, lake = tmp_path / "coming", tmp_path / "lake"
    earlier = tmp_path / "earlier"
    assert sum(write_fleet(replace(FLEET, start_ms=FLEET.start_ms - DAY_MS), earlier)) > 5_000
    ingest(spark, [str(fleet), str(earlier)], str(tmp_path / "batch"))
    expected = contents(str(tmp_path / "batch"))
    command = ["--stream", str(tmp_path / "checkpoint"), "--json", str(coming), str(lake)]

    def restarted() -> int:
        """Rows of the same command in the shared session, which has only the checkpoint and the lake."""
        assert cli.main(["ingest", *command]) == 0
        return int(json.loads(capsys.readouterr().out)["rows"])

    # The last segments of the later day are first.
    late = [file for vehicle in sorted(fleet.iterdir()) for file in sorted(vehicle.iterdir())[:3]]
    copy(fleet, coming / "later", without=late)
    with ingest_process(command, quick_java):
        wait_until(lambda: any(lake.glob("manifest/*.jsonl")), "a manifest", START_S)
    assert Manifest.load(storage_of(str(lake))).pending
    assert 0 < restarted() < len(expected["deliveries"]) / 2
    copy(earlier, coming / "earlier")
    before = table_files(lake)
    with ingest_process(command, quick_java):
        wait_until(lambda: len(table_files(lake) - before) >= FILES // 2, "files of the tables", START_S)
    assert Manifest.load(storage_of(str(lake))).pending
    assert {file.day for file in load_snapshot(lake).files} == {FLEET.start_ms // DAY_MS}, "of the run before"
    copy(fleet, coming / "later")
    assert restarted() == len(expected["deliveries"])
    assert contents(str(lake)) == expected
    assert restarted() == 0


def copy(fleet: Path, place: Path, without: Collection[Path] = ()) -> None:
    """Copy the recordings that are not there yet."""
    for file in sorted(set(fleet.rglob("*.useg")) - set(without)):
        target = place / file.relative_to(fleet)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.write_bytes(file.read_bytes())
