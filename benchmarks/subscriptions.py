# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.subscriptions`: cost of a million subscriptions at the start, per lookup, and in memory.

A start is everything from the files to the first routed message: the process that reads the store, the checks, and
the directory. The reference is a bare scan: LMDB opened, and every key and value read by a cursor. Both alternate and
the fastest of each counts.
A lookup is the query of a route build: the subscribers of one topic that was looked up before. Exit code 1 if a limit
is missed.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import lmdb
from ustreamer_usubscription.directory import InMemoryDirectory
from ustreamer_usubscription.model.subscription import SubscriptionRecord
from ustreamer_usubscription.store.store import SubscriptionStore, put_subscription

from ustreamer.uprotocol.uuri import UUri

START_LIMIT: Final = 4.0
"""Factor relative to a bare scan."""
LOOKUP_LIMIT: Final = 1.5
"""Factor relative to a thousand subscriptions."""

_PER_TOPIC: Final = 10
_FEW: Final = 1000
_LOOKUPS: Final = 1000
_MAP_BYTES: Final = 2 << 30


def subscription_entry(number: int) -> SubscriptionRecord:
    """One of ten subscriptions of its topic, by one of 50 000 subscribers."""
    topic = UUri("chassis", number // _PER_TOPIC // 0x4000, 1, 0x8000 + number // _PER_TOPIC % 0x4000)
    return SubscriptionRecord(topic, UUri("hpc.vin1", 1 + number % 50_000, 1, 0), 10_000_000)


def write_store(path: Path, count: int) -> None:
    store = SubscriptionStore(path, _MAP_BYTES)
    store.open()
    changes = sorted(put_subscription(subscription_entry(number)) for number in range(count))
    for start in range(0, count, 100_000):
        store.commit(changes[start : start + 100_000])
    store.close()


def scan_s(path: Path) -> float:
    start = time.perf_counter()
    with lmdb.open(str(path), readonly=True) as env, env.begin() as txn, txn.cursor() as cursor:
        for _key, _value in cursor:
            pass
    return time.perf_counter() - start


def open_directory(path: Path) -> tuple[float, InMemoryDirectory]:
    """Seconds until any topic can be looked up, and their parts."""
    start = time.perf_counter()
    store, directory = SubscriptionStore(path, _MAP_BYTES), InMemoryDirectory()
    store.open()
    directory.load_stored(store.take_subscriptions())
    assert directory.subscribers(subscription_entry(0).topic)
    seconds = time.perf_counter() - start
    store.close()
    return seconds, directory


def lookup_ns(directory: InMemoryDirectory, topics: Sequence[UUri]) -> tuple[float, float]:
    """Nanoseconds of the first lookup of a topic, which decodes it, and of every further one."""
    rounds = []
    for _ in range(21):
        start = time.perf_counter_ns()
        for topic in topics:
            directory.subscribers(topic)
        rounds.append((time.perf_counter_ns() - start) / len(topics))
    return rounds[0], statistics.median(rounds[1:])


def topics_of(count: int) -> list[UUri]:
    """All different topics, at most a thousand, in an order without cache locality; hashes are computed."""
    step = max(count // _LOOKUPS // _PER_TOPIC, 1) * _PER_TOPIC
    topics = [subscription_entry(number).topic for number in range(0, count, step)][:_LOOKUPS]
    # The same number of lookups of different topics on both sides, otherwise the larger one has more cache misses.
    for topic in topics:
        hash(topic)
    return topics


def resident_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def memory_per_subscription(path: Path) -> dict[str, float]:
    """Bytes per subscription: after the start, and with all decoded. Needs its own process."""
    warm_up_store = path / "warm"
    write_store(warm_up_store, _PER_TOPIC)
    open_directory(warm_up_store)
    before = resident_bytes()
    _, directory = open_directory(path / "many")
    loaded = resident_bytes() - before
    sum(1 for _ in directory)
    directory.subscribed_by(subscription_entry(0).subscriber)
    decoded = resident_bytes() - before
    return {"loaded": loaded / directory.count, "decoded": decoded / directory.count}


def measured(path: Path, count: int, repeats: int) -> dict[str, float]:
    write_store(path / "many", count)
    write_store(path / "few", _FEW)
    scans, starts = [], []
    for _ in range(repeats):
        scans.append(scan_s(path / "many"))
        seconds, many = open_directory(path / "many")
        starts.append(seconds)
        del many
    _, many = open_directory(path / "many")
    _, few = open_directory(path / "few")
    first_few, again_few = lookup_ns(few, topics_of(_FEW))
    first_many, again_many = lookup_ns(many, topics_of(count)[: len(topics_of(_FEW))])
    _, wide = lookup_ns(many, topics_of(count))
    command = [sys.executable, "-m", "benchmarks.subscriptions", "--memory", str(path)]
    per_subscription = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {
        "subscriptions": count,
        "scan_s": min(scans),
        "start_s": min(starts),
        "start_ratio": min(starts) / min(scans),
        "lookup_few_ns": again_few,
        "lookup_many_ns": again_many,
        "lookup_ratio": again_many / again_few,
        "lookup_many_topics_ns": wide,
        "first_lookup_few_ns": first_few,
        "first_lookup_many_ns": first_many,
        "bytes_loaded": per_subscription["loaded"],
        "bytes_decoded": per_subscription["decoded"],
    }


def table(figures: dict[str, float]) -> str:
    count = f"{figures['subscriptions']:,}"
    rows = [
        (f"start with {count}", "bare scan", f"{figures['scan_s'] * 1e3:.0f} ms", ""),
        (
            "",
            "files to routing",
            f"{figures['start_s'] * 1e3:.0f} ms",
            f"{figures['start_ratio']:.2f} (limit {START_LIMIT})",
        ),
        ("lookup", f"among {_FEW:,}", f"{figures['lookup_few_ns']:.0f} ns", ""),
        (
            "",
            f"among {count}",
            f"{figures['lookup_many_ns']:.0f} ns",
            f"{figures['lookup_ratio']:.2f} (limit {LOOKUP_LIMIT})",
        ),
        ("", f"among {count}, 1,000 topics in turn", f"{figures['lookup_many_topics_ns']:.0f} ns", ""),
        ("first lookup", f"among {_FEW:,}", f"{figures['first_lookup_few_ns'] / 1e3:.1f} us", ""),
        ("", f"among {count}", f"{figures['first_lookup_many_ns'] / 1e3:.1f} us", ""),
        ("memory", "after the start", f"{figures['bytes_loaded']:.0f} B each", ""),
        ("", "all decoded", f"{figures['bytes_decoded']:.0f} B each", ""),
    ]
    return "\n".join(f"{a:<24}{b:<38}{c:>12}   {d}".rstrip() for a, b, c, d in rows)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.subscriptions", description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000, help="subscriptions (%(default)s)")
    parser.add_argument("--repeats", type=int, default=7, help="starts and scans (%(default)s)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--memory", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.memory is not None:
        print(json.dumps(memory_per_subscription(arguments.memory)))
        return 0
    with tempfile.TemporaryDirectory(prefix="ustreamer-benchmark-") as directory:
        figures = measured(Path(directory), arguments.count, arguments.repeats)
    print(json.dumps(figures, indent=2) if arguments.json else table(figures))
    return int(figures["start_ratio"] > START_LIMIT or figures["lookup_ratio"] > LOOKUP_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
