# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.vehicle [TREE ...]`: traffic with many topics, between Zenoh networks and SOME/IP.

TREE is a checkout, by default this one. Each model of `benchmarks.traffic.models` runs through a bare forwarder and
through the streamer of each checkout, in alternating rounds. Every run counts lost and out-of-order messages. Model
`vehicle` has topics of different rates in bursts, requests, throttled topics, and subscriptions that come and go. A run
at 70 % of the messages/s at saturation checks them.

`--cold` sends the first messages of 2 000 topics at a fast pace to a forwarder that just started. Where the bare
forwarder does not sustain the pace, the pace is reduced until it does: no message is lost, the p99 is below 100 ms, and
no queue is left at the end. Then both forwarders are compared at this pace in alternating rounds. `--soak SECONDS`
sends model `vehicle` at 70 % of the messages/s at saturation. `--endpoints N ...` adds Zenoh networks without traffic.
The environment variable REFERENCE_STREAMER adds the Rust reference streamer, Zenoh to Zenoh
(`benchmarks.harness.reference`).
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from benchmarks.harness import measure
from benchmarks.harness.checked_run import SHARE, CheckedRun, RunChecks, saturation_hz, soak
from benchmarks.harness.checkouts import CheckoutTestbed
from benchmarks.harness.child_process import ChildError
from benchmarks.harness.measure import Load, Round
from benchmarks.harness.reference import reference_binary
from benchmarks.harness.shared_counters import MAX_AGES, OUT_OF_ORDER, RECEIVED, SENT
from benchmarks.harness.testbed import Direction, Subject
from benchmarks.traffic import wire
from benchmarks.traffic.models import MODELS, VEHICLE, TrafficModel

DIRECTIONS: Final = {
    "zenoh-zenoh": Direction.ZENOH_TO_ZENOH,
    "someip-zenoh": Direction.SOMEIP_TO_ZENOH,
    "zenoh-someip": Direction.ZENOH_TO_SOMEIP,
}
_BARE: Final = "bare"
_REFERENCE: Final = "reference"
_COLD_MODEL: Final = "2000"
_ENDPOINTS_MODEL: Final = "100"
_USED_ENDPOINTS: Final = 2
_MAX_ENDPOINTS: Final = 64
_CHECKED_S: Final = 10.0
_IDLE_S: Final = 3.0
_COLD_P99_NS: Final = 100_000_000
_COLD_STEP: Final = 0.8
"""The next pace, where the bare forwarder does not sustain one."""
_COLD_STEPS: Final = 6
_COLD_TRIES: Final = 2
_PRIORITIES: Final = range(7)
"""CS0 to CS6."""


class Figures(msgspec.Struct, frozen=True):
    """Medians of the rounds of one forwarder with one model, and its lost and out-of-order messages.

    `cpu_us` is per message at saturation, `paced_cpu_us` at 1 000/s. The percentiles are ages at 10 000/s.
    """

    cpu_us: float
    messages_per_s: float
    paced_cpu_us: float
    p50_us: float
    p99_us: float
    p999_us: float
    lost: int
    out_of_order: int

    @classmethod
    def of(cls, rounds: Sequence[Round], checks: RunChecks) -> "Figures":
        return cls(
            median(each.cpu_us for each in rounds),
            median(each.messages_per_s for each in rounds),
            median(each.paced_cpu_us for each in rounds),
            median(each.fast_p50_us for each in rounds),
            median(each.fast_p99_us for each in rounds),
            median(each.fast_p999_us for each in rounds),
            checks.topics.lost,
            checks.topics.out_of_order,
        )


class ModelResults(msgspec.Struct, frozen=True):
    """The figures and the checks of each forwarder, and the ledgers of the streamers."""

    figures: dict[str, Figures]
    checks: dict[str, RunChecks]
    ledger: dict[str, int]


def measure_model(
    directory: Path,
    model: TrafficModel,
    trees: Sequence[Path],
    load: Load,
    repeats: int,
    direction: Direction = Direction.ZENOH_TO_ZENOH,
    checked_s: float = _CHECKED_S,
) -> ModelResults:
    """Measure a model in one direction. Raises ChildError."""
    with CheckoutTestbed(directory) as testbed:
        rigs = {_BARE: testbed.topics_rig(model, direction, Subject.BARE)}
        for tree in trees:
            testbed.tree = tree
            rigs[str(tree)] = testbed.topics_rig(model, direction, Subject.STREAMER)
        if reference_binary() and direction is Direction.ZENOH_TO_ZENOH:
            rigs[_REFERENCE] = testbed.topics_rig(model, direction, Subject.REFERENCE)
        rounds: dict[str, list[Round]] = {name: [] for name in rigs}
        runs = {}
        for number in range(-1, repeats):  # round -1 is the warm-up
            if number == 0:
                runs = {name: CheckedRun(rig, model) for name, rig in rigs.items()}
            for name, rig in rigs.items():
                result = measure.run_round(rig, load)
                if number >= 0:
                    rounds[name].append(result)
        checks = {name: run.finish() for name, run in runs.items()}
        figures = {name: Figures.of(rounds[name], checks[name]) for name in rigs}
        if model.limits:
            hz = SHARE * min(each.messages_per_s for each in figures.values())
            checks = {name: soak(rig, model, hz, checked_s).checks for name, rig in rigs.items()}
    return ModelResults(figures, checks, testbed.ledger())


def table(model: TrafficModel, direction: Direction, results: ModelResults) -> str:
    """Figures next to those of the bare forwarder."""
    found = results.figures
    bare = found[_BARE]
    columns = ("CPU us", "paced", "msg/s", "of bare", "p50 us", "p99 us", "p99.9", "lost", "disorder")
    lines = [f"{model.name}: {direction}", " " * 20 + "".join(f"{each:>9}" for each in columns)]
    lines += [
        f"{name[-20:]:<20}{each.cpu_us:>9.1f}{each.paced_cpu_us:>9.1f}{each.messages_per_s:>9.0f}"
        f"{each.messages_per_s / bare.messages_per_s:>9.2f}{each.p50_us:>9.0f}{each.p99_us:>9.0f}{each.p999_us:>9.0f}"
        f"{each.lost:>9}{each.out_of_order:>9}"
        for name, each in found.items()
    ]
    if model.calls or model.limits:
        lines += [f"{name[-20:]}: {checks.text()}" for name, checks in results.checks.items()]
    return "\n".join([*lines, _ledger_line(results.ledger)])


def _ledger_line(ledger: dict[str, int]) -> str:
    return "ledger: " + ", ".join(f"{name} {count}" for name, count in ledger.items() if count)


class ColdStart(msgspec.Struct, frozen=True):
    """The first messages through a forwarder that just started: `arrivals` are ages in ns, in order of arrival."""

    hz: float
    arrivals: list[int]
    lost: int
    out_of_order: int
    ledger: dict[str, int]

    @property
    def p99_ns(self) -> float:
        """0 if nothing arrived."""
        return measure.percentile(sorted(self.arrivals), 0.99) if self.arrivals else 0.0

    @property
    def is_complete(self) -> bool:
        """No message is lost, out of order or a dead letter."""
        return not (self.lost or self.out_of_order or self.ledger.get("dead_lettered", 0))

    @property
    def is_sustained(self) -> bool:
        """No message is lost, the p99 is below 100 ms, and the median of the last tenth is below 10 ms: no queue is left."""
        last = sorted(self.arrivals[-max(1, len(self.arrivals) // 10) :])
        return (
            not self.lost
            and 0 < self.p99_ns < _COLD_P99_NS
            and measure.percentile(last, 0.5) < _COLD_P99_NS / 10
        )

    def text(self) -> str:
        text = f"at {self.hz:.0f}/s: lost {self.lost}, disorder {self.out_of_order}"
        text += f", {_percentiles_text(sorted(self.arrivals))}"
        return f"{text}; {_ledger_line(self.ledger)}" if self.ledger else text


def measure_cold(
    directory: Path,
    model: TrafficModel,
    tree: Path | None,
    hz: float,
    count: int,
    direction: Direction = Direction.ZENOH_TO_ZENOH,
    priority: int = wire.CS1,
) -> ColdStart:
    """The first `count` messages through a forwarder that just started; None is the bare one. Raises ChildError."""
    with CheckoutTestbed(directory) as testbed:
        subject = Subject.BARE
        if tree is not None:
            testbed.tree, subject = tree, Subject.STREAMER
        rig = testbed.topics_rig(model, direction, subject, priority=priority)
        arrivals = measure.arrivals_at_pace(rig, hz, count)
        lost = rig.counters[SENT] - rig.counters[RECEIVED]
        disorder = rig.counters[OUT_OF_ORDER]
    return ColdStart(hz, arrivals, lost, disorder, testbed.ledger() if tree is not None else {})


def cold_starts(
    run: Callable[[Path | None, float], ColdStart], trees: Sequence[Path], hz: float, rounds: int
) -> Iterator[tuple[str, bool]]:
    """Compare at `hz`, or at the highest of some slower paces that the bare forwarder sustains in one of two runs.

    Yields each result, and at the end the median p99 of each forwarder with whether its checks passed. Where the bare
    forwarder sustains no pace, the machine is too busy: then the forwarders are compared at `hz`, and nothing passes.
    """
    pace_hz = hz
    for _ in range(_COLD_STEPS):
        tries = list[ColdStart]()
        while len(tries) < _COLD_TRIES and not (tries and tries[-1].is_sustained):
            tries.append(run(None, pace_hz))
            yield f"{_BARE} {tries[-1].text()}", True
        if tries[-1].is_sustained:
            break
        pace_hz *= _COLD_STEP
    else:
        yield f"{_BARE} sustains no pace down to {pace_hz / _COLD_STEP:.0f}/s", False
        pace_hz = hz
    found: dict[str, list[ColdStart]] = {str(tree or _BARE): [] for tree in (None, *trees)}
    for _ in range(rounds):
        for tree in (None, *trees):
            found[str(tree or _BARE)].append(run(tree, pace_hz))
            yield f"{str(tree or _BARE)[-20:]} {found[str(tree or _BARE)][-1].text()}", True
    for name, results in found.items():
        ms = sorted(each.p99_ns / 1e6 for each in results)
        text = (
            f"{name[-20:]}: p99 at {pace_hz:.0f}/s: median {median(ms):.1f}, {ms[0]:.1f} to {ms[-1]:.1f} ms"
        )
        is_fast = median(ms) * 1e6 < _COLD_P99_NS
        yield text, name == _BARE or (is_fast and all(each.is_complete for each in results))


def _percentiles_text(ages: Sequence[int]) -> str:
    percentiles = [measure.percentile(ages, part) / 1e6 for part in (0.5, 0.99, 0.999)] if ages else []
    return "p50/p99/p99.9 " + "/".join(f"{each:.1f}" for each in percentiles) + " ms"


def measure_soak(
    directory: Path, tree: Path, direction: Direction, load: Load, seconds: float
) -> tuple[str, bool]:
    """The results of model `vehicle` at 70 % of the saturation, and whether all checks passed. Raises ChildError."""
    with CheckoutTestbed(directory) as testbed:
        testbed.tree = tree
        rig = testbed.topics_rig(VEHICLE, direction, Subject.STREAMER)
        found = soak(rig, VEHICLE, SHARE * saturation_hz(rig, load), seconds, _print_progress)
    ledger = testbed.ledger()
    passed = found.checks.passed and not ledger["unaccounted"] and not ledger.get("dead_lettered", 0)
    return f"{tree!s:<20.20} {direction}: {found.text()}\n    {_ledger_line(ledger)}", passed


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def measure_endpoints(directory: Path, tree: Path, endpoints: int, load: Load) -> str:
    """One line about a streamer with this number of Zenoh networks, of which two have traffic. Raises ChildError."""
    with CheckoutTestbed(directory) as testbed:
        testbed.tree = tree
        model, idle = MODELS[_ENDPOINTS_MODEL], endpoints - _USED_ENDPOINTS
        rig = testbed.topics_rig(model, Direction.ZENOH_TO_ZENOH, Subject.STREAMER, idle)
        assert rig.forwarder is not None
        threads, memory_mb = rig.forwarder.threads, rig.forwarder.resident_bytes / (1 << 20)
        cpu_ns = rig.forwarder.cpu_ns
        time.sleep(_IDLE_S)
        idle_cpu = (rig.forwarder.cpu_ns - cpu_ns) / _IDLE_S / 1e7
        run = CheckedRun(rig, model)
        cpu_us, messages_per_s = measure.at_saturation(rig, load)
        ages = measure.ages_at_pace(rig, load.fast_hz, load.fast_messages)
        checks = run.finish()
    return (
        f"{tree!s:<20.20}{endpoints:>3} endpoints: READY after {rig.forwarder.ready_s:.2f} s, {threads} threads, "
        f"{memory_mb:.1f} MB, idle {idle_cpu:.1f} % CPU; {cpu_us:.1f} us, {messages_per_s:.0f}/s, "
        f"{_percentiles_text(ages)} at {load.fast_hz:g}/s; {checks.text()}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vehicle", description=__doc__)
    parser.add_argument("trees", nargs="*", type=Path, metavar="TREE", default=[Path()])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--directions", nargs="+", choices=DIRECTIONS, default=["zenoh-zenoh"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a round at saturation")
    parser.add_argument(
        "--cold", action="store_true", help="instead: the first messages after the start of a forwarder"
    )
    parser.add_argument("--hz", type=float, default=20_000.0, help="fastest pace of --cold (%(default)g)")
    parser.add_argument("--cold-seconds", type=float, default=2.0, help="duration of --cold (%(default)g)")
    parser.add_argument(
        "--priority",
        type=int,
        choices=_PRIORITIES,
        default=1,
        metavar="N",
        help="--cold: CSN of publications from Zenoh",
    )
    parser.add_argument(
        "--soak", type=float, metavar="SECONDS", help="instead: model vehicle at 70 %% of its saturation"
    )
    parser.add_argument(
        "--endpoints",
        type=_endpoints,
        nargs="+",
        metavar="N",
        help="instead: streamers with these numbers of Zenoh endpoints",
    )
    return parser


def _endpoints(text: str) -> int:
    if not _USED_ENDPOINTS <= (number := int(text)) <= _MAX_ENDPOINTS:
        raise argparse.ArgumentTypeError(f"{text}: expected {_USED_ENDPOINTS}..{_MAX_ENDPOINTS}")
    return number


def _results(options: argparse.Namespace) -> Iterator[tuple[str, bool]]:
    """The text of each measurement, and whether its checks passed. Raises ChildError."""
    load = Load(warm_up_s=0.3, saturated_s=options.seconds, paced_messages=1_000, fast_messages=10_000)
    directions = [DIRECTIONS[each] for each in options.directions]

    def directory() -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix="ustreamer-benchmark-")

    if options.endpoints:
        for tree in options.trees:
            for endpoints in options.endpoints:
                with directory() as path:
                    yield measure_endpoints(Path(path), tree, endpoints, load), True
        return
    for direction in directions:
        if options.cold:

            def run(tree: Path | None, hz: float, direction: Direction = direction) -> ColdStart:
                count = min(MAX_AGES, round(hz * options.cold_seconds))
                with directory() as path:
                    model = MODELS[_COLD_MODEL]
                    return measure_cold(Path(path), model, tree, hz, count, direction, options.priority + 1)

            yield from cold_starts(run, options.trees, options.hz, options.rounds)
        elif options.soak:
            for tree in options.trees:
                with directory() as path:
                    yield measure_soak(Path(path), tree, direction, load, options.soak)
        else:
            for name in options.models:
                with directory() as path:
                    results = measure_model(
                        Path(path), MODELS[name], options.trees, load, options.rounds, direction
                    )
                    yield table(MODELS[name], direction, results), True


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 1 if a process ends, or a check of `--cold` or `--soak` fails."""
    code = 0
    try:
        for text, passed in _results(_parser().parse_args(argv)):
            print(text, flush=True)
            code |= not passed
    except ChildError as error:
        print(error, file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
