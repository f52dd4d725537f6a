# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.suite`: every figure of docs/performance.md, in less than 15 minutes; `make bench`.

Each part prints its table when it is done. All results go to benchmarks/results.json, with the machine and the
versions. The last lines compare the goals with the results. Exit code 1 if a part cannot be measured, or the ledger
has unaccounted deliveries.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from benchmarks import at_rest, calls, fan_out, growth, rates, subscriptions, switching, vehicle
from benchmarks.__main__ import QUICK, measure_forwarding
from benchmarks.chains import figures as chain_figures
from benchmarks.harness import report
from benchmarks.harness.child_process import REPO, ChildError
from benchmarks.harness.measure import Load
from benchmarks.harness.testbed import Direction, Subject
from benchmarks.traffic.models import MODELS, VEHICLE

RESULTS: Final = REPO / "benchmarks" / "results.json"
"""Of all parts."""
PARTIAL_RESULTS: Final = REPO / "build" / "bench-results.json"
_LOAD: Final = Load(warm_up_s=0.3, saturated_s=1.0, paced_messages=1_000, fast_messages=5_000)


MAX_SECONDS: Final = 900
"""For all parts, on a quiet machine."""


class SuitePart(NamedTuple):
    """A part: measures in a directory, in full or as a quick check, and formats its results."""

    measure: Callable[[Path, bool], Any]
    table: Callable[[Any], str]


def _measure_forwarding(_: Path, quick: bool) -> dict[str, Any]:
    payloads, load, repeats = ([64], QUICK, 1) if quick else ([64, 1_024], _LOAD, 7)
    found: dict[str, Any] = msgspec.to_builtins(
        measure_forwarding(payloads, load, repeats, lambda line: print(line, file=sys.stderr, flush=True))
    )
    return found


def _forwarding_table(found: dict[str, Any]) -> str:
    return report.table(msgspec.convert(found, report.Results))


def _growth(directory: Path, quick: bool) -> list[dict[str, Any]]:
    return growth.measured(directory, (10, 100) if quick else growth.SIZES, 3 if quick else 40)


def _memory(directory: Path, quick: bool) -> dict[str, float]:
    return subscriptions.measured(directory, 2_000 if quick else 1_000_000, 1 if quick else 3)


def _rates(directory: Path, quick: bool) -> list[dict[str, Any]]:
    return rates.measured(directory, 1.0 if quick else 30.0)


def _chains(directory: Path, quick: bool) -> list[dict[str, Any]]:
    return chain_figures.measured(directory, 1.0 if quick else 12.0)


def _fan_out(directory: Path, quick: bool) -> list[dict[str, Any]]:
    if quick:
        return fan_out.measured(directory, (1, 3), rounds=1, seconds=0.05)
    return fan_out.measured(directory)


def _calls(directory: Path, quick: bool) -> list[dict[str, Any]]:
    return calls.measured(directory, 1 if quick else 5, 0.2 if quick else 1.5)


def _topics(directory: Path, quick: bool) -> list[dict[str, Any]]:
    rows = []
    for name in ("8",) if quick else ("100", "500", VEHICLE.name):
        place = directory / name
        place.mkdir()
        load, repeats = (QUICK, 1) if quick else (_LOAD, 3)
        found = vehicle.measure_model(place, MODELS[name], [Path()], load, repeats)
        rows.append({"model": name, **msgspec.to_builtins(found)})
    return rows


def _topics_table(rows: list[dict[str, Any]]) -> str:
    return "\n".join(
        vehicle.table(
            MODELS[row["model"]],
            Direction.ZENOH_TO_ZENOH,
            msgspec.convert(
                {name: each for name, each in row.items() if name != "model"}, vehicle.ModelResults
            ),
        )
        for row in rows
    )


def _switching(directory: Path, quick: bool) -> dict[str, Any]:
    return switching.measured(directory, 2 if quick else 30)


def _at_rest(directory: Path, quick: bool) -> dict[str, Any]:
    return at_rest.measured(directory, *((1, 0.2) if quick else (5, 5.0)))


PARTS: Final[dict[str, SuitePart]] = {
    "forwarding": SuitePart(_measure_forwarding, _forwarding_table),
    "calls": SuitePart(_calls, calls.table),
    "fan_out": SuitePart(_fan_out, fan_out.table),
    "growth": SuitePart(_growth, growth.table),
    "subscriptions": SuitePart(_memory, subscriptions.table),
    "switching": SuitePart(_switching, switching.table),
    "rates": SuitePart(_rates, rates.table),
    "chains": SuitePart(_chains, chain_figures.table),
    "topics": SuitePart(_topics, _topics_table),
    "at_rest": SuitePart(_at_rest, at_rest.table),
}


class PerformanceGoal(NamedTuple):
    goal: str
    measured: str
    met: bool


def check_goals(found: dict[str, Any]) -> list[PerformanceGoal]:
    """The goals, as far as they were measured."""
    checked = []
    for ratio in found.get("forwarding", {}).get("ratios", ()):
        if ratio["payload"] != 64:
            continue
        where, rate = ratio["direction"], ratio["messages_per_s"]["median"]
        if ratio["subject"] == Subject.RECORDED:
            checked.append(
                PerformanceGoal(f"{where}, recorder on: at least 0.85", f"{rate:.2f}", rate >= 0.85)
            )
            continue
        checked.append(PerformanceGoal(f"{where}: messages/s at least 0.6", f"{rate:.2f}", rate >= 0.6))
        for metric, most in (("p50_us", 1.5), ("p99_us", 2.0)):
            times = ratio[metric]["median"]
            checked.append(
                PerformanceGoal(f"{where}: {metric[:3]} at most {most}", f"{times:.2f}", times <= most)
            )
    for each in found.get("calls", ()):
        rate = each["ratio"]["calls_per_s"]
        checked.append(
            PerformanceGoal(f"{each['direction']}: calls/s at least 0.6", f"{rate:.2f}", rate >= 0.6)
        )
    checked += _topics_goals(found.get("topics", ()))
    if "growth" in found:
        most = max(row["ratio"] for row in found["growth"])
        checked.append(
            PerformanceGoal(
                f"a message at any number of subscriptions: at most {growth.MAX_RATIO}",
                f"{most:.2f}",
                most <= growth.MAX_RATIO,
            )
        )
    if "rates" in found:
        least, most = (each(row["fidelity"] for row in found["rates"]) for each in (min, max))
        checked.append(
            PerformanceGoal(
                f"limits: {rates.MIN_FIDELITY} to {rates.MAX_FIDELITY}",
                f"{least:.3f} to {most:.3f}",
                rates.is_within_limits(found["rates"]),
            )
        )
    if "chains" in found:
        exact = sum(map(chain_figures.is_exact, found["chains"]))
        checked.append(
            PerformanceGoal(
                f"one to three streamers: shares of at least {chain_figures.MIN_SHARE}",
                f"{exact} of {len(found['chains'])}",
                exact == len(found["chains"]),
            )
        )
    if "seconds" in found:
        seconds = found["seconds"]
        checked.append(
            PerformanceGoal(f"seconds: at most {MAX_SECONDS}", f"{seconds:.0f}", seconds <= MAX_SECONDS)
        )
    return checked


def _topics_goals(rows: Sequence[dict[str, Any]]) -> Iterator[PerformanceGoal]:
    for row in rows:
        bare, streamer = row["figures"]["bare"], row["figures"]["."]
        rate = streamer["messages_per_s"] / bare["messages_per_s"]
        if row["model"] != VEHICLE.name:
            yield PerformanceGoal(
                f"{row['model']} topics: messages/s at least 0.65", f"{rate:.2f}", rate >= 0.65
            )
        failures = streamer["lost"] + streamer["out_of_order"]
        yield PerformanceGoal(f"{row['model']} topics: none lost, in order", str(failures), failures == 0)


def _goals_table(found: dict[str, Any]) -> str:
    return "\n".join(
        f"{'met   ' if each.met else 'MISSED'}  {each.goal:<64}{each.measured}" for each in check_goals(found)
    )


def run_parts(names: Sequence[str], *, quick: bool) -> tuple[dict[str, Any], list[str]]:
    """Run the parts and print their figures. Returns the results and the names of failed parts."""
    print(f"parts: {', '.join(names)}; at most {MAX_SECONDS / 60:g} minutes on a quiet machine", flush=True)
    seconds: dict[str, float] = {}
    figures: dict[str, Any] = {}
    failed = []
    for number, name in enumerate(names, 1):
        print(f"\n== {name} ({number} of {len(names)})\n", flush=True)
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="ustreamer-benchmark-") as directory:
            try:
                figures[name] = PARTS[name].measure(Path(directory), quick)
            except (ChildError, AssertionError) as error:
                failed.append(name)
                print(f"{name}: {error}", file=sys.stderr)
                continue
            finally:
                seconds[name] = round(time.monotonic() - began, 1)
        print(f"{PARTS[name].table(figures[name])}\n\n{seconds[name]:.0f} s", flush=True)
    about = {"machine": report.machine(), "versions": report.versions(), "quick": quick}
    return {**about, "seconds": round(sum(seconds.values()), 1), "part_seconds": seconds, **figures}, failed


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)} (all)")
    parser.add_argument("--quick", action="store_true", help="just to see that it works")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help=f"where results go ({RESULTS.name} if complete)"
    )
    arguments = parser.parse_args(argv)
    unknown = [name for name in arguments.parts if name not in PARTS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: expected some of {', '.join(PARTS)}")
    found, failed = run_parts(arguments.parts or list(PARTS), quick=arguments.quick)
    is_complete = not arguments.parts and not arguments.quick
    out = arguments.out or (RESULTS if is_complete else PARTIAL_RESULTS)
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"\n== demanded\n\n{_goals_table(found)}\n\n{found['seconds']:.0f} s", flush=True)
    unaccounted = sum(each["unaccounted"] for each in found.get("forwarding", {}).get("ledgers", ()))
    if unaccounted:
        print(f"{unaccounted} deliveries are unaccounted for", file=sys.stderr)
    return int(bool(failed or unaccounted))


if __name__ == "__main__":
    sys.exit(main())
