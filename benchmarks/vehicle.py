# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.vehicle [TREE ...]`: traffic with many topics from one Zenoh network to another.

Each model of `benchmarks.traffic.models` runs through a bare forwarder and through the streamer of each checkout (`.`),
in alternating rounds. `--cold` sends the first messages of all topics at a fast pace to a streamer that just started.
Every run counts loss and order.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from benchmarks.harness import measure
from benchmarks.harness.child_process import Child, ChildError, module_command
from benchmarks.harness.measure import Load, Round
from benchmarks.harness.shared_counters import OUT_OF_ORDER, RECEIVED, SENT, SharedCounters
from benchmarks.harness.testbed import (
    CLOUD_ENDPOINT,
    ZENOH_CONFIG,
    Direction,
    Ports,
    Rig,
    Subject,
    wait_connected,
)
from benchmarks.traffic.models import MODELS, TrafficModel
from benchmarks.trees import CheckoutTestbed

_BARE: Final = "bare"
_COLD_MODEL: Final = "2000"
_START_S: Final = 120.0


class VehicleTestbed(CheckoutTestbed):
    """Rigs of a generator and a sink with many topics."""

    def many_topics(self, model: TrafficModel, subject: Subject) -> Rig:
        """From one Zenoh network to another, through the streamer of `tree` or a bare forwarder."""
        ports, other = Ports.free(), Ports.free()
        name = f"{subject.name.lower()}-{model.name}"
        if subject is Subject.BARE:
            command = module_command("traffic.many_topics", "bare", ports.zenoh, other.zenoh)
            forwarder = self.start_process(f"{name}-forwarder", command)
        else:
            config = ZENOH_CONFIG + CLOUD_ENDPOINT.replace("{other}", str(other.zenoh))
            forwarder = self.start_streamer(name, config, ports)
        counters = self._open_counters(name)
        options = () if subject is Subject.BARE else ("subscribe",)
        sink = self._start_end(counters, "sink", model, other.zenoh, *options)
        generator = self._start_end(counters, "generator", model, ports.zenoh)
        return wait_connected(Rig(Direction.ZENOH_TO_ZENOH, subject, generator, sink, counters, forwarder))

    def _start_end(
        self, counters: SharedCounters, kind: str, model: TrafficModel, port: int, *options: str
    ) -> Child:
        command = module_command("traffic.many_topics", kind, counters.path, model.name, port, *options)
        return self.start_process(f"{counters.path.stem}-{kind}", command, _START_S)


class Figures(msgspec.Struct, frozen=True):
    """Medians of the rounds of one forwarder with one model, and the sums of loss and disorder."""

    cpu_us: float
    messages_per_s: float
    paced_cpu_us: float
    p50_us: float
    p99_us: float
    p999_us: float
    lost: int
    out_of_order: int

    @classmethod
    def of(cls, rounds: Sequence[Round], out_of_order: int) -> "Figures":
        return cls(
            median(each.cpu_us for each in rounds),
            median(each.messages_per_s for each in rounds),
            median(each.paced_cpu_us for each in rounds),
            median(each.fast_p50_us for each in rounds),
            median(each.fast_p99_us for each in rounds),
            median(each.fast_p999_us for each in rounds),
            sum(each.lost for each in rounds),
            out_of_order,
        )


def measure_model(
    directory: Path, model: TrafficModel, trees: Sequence[Path], load: Load, repeats: int
) -> tuple[dict[str, Figures], dict[str, int]]:
    """The figures of each forwarder, and the ledgers of the streamers. Raises ChildError."""
    with VehicleTestbed(directory, 0) as testbed:
        rigs = {_BARE: testbed.many_topics(model, Subject.BARE)}
        for testbed.tree in trees:
            rigs[str(testbed.tree)] = testbed.many_topics(model, Subject.STREAMER)
        rounds: dict[str, list[Round]] = {name: [] for name in rigs}
        for number in range(-1, repeats):
            for name, rig in rigs.items():
                result = measure.run_round(rig, load)
                if number >= 0:
                    rounds[name].append(result)
        found = {name: Figures.of(rounds[name], rig.counters[OUT_OF_ORDER]) for name, rig in rigs.items()}
    return found, testbed.ledger()


def table(model: TrafficModel, found: dict[str, Figures], ledger: dict[str, int]) -> str:
    """Figures next to those of the bare forwarder."""
    bare = found[_BARE]
    columns = ("CPU us", "paced", "msg/s", "of bare", "p50 us", "p99 us", "p99.9", "lost", "disorder")
    lines = [f"{model.name + ' topics':<20}" + "".join(f"{each:>9}" for each in columns)]
    lines += [
        f"{name[-20:]:<20}{each.cpu_us:>9.1f}{each.paced_cpu_us:>9.1f}{each.messages_per_s:>9.0f}"
        f"{each.messages_per_s / bare.messages_per_s:>9.2f}{each.p50_us:>9.0f}{each.p99_us:>9.0f}{each.p999_us:>9.0f}"
        f"{each.lost:>9}{each.out_of_order:>9}"
        for name, each in found.items()
    ]
    return "\n".join([*lines, _ledger_line(ledger)])


def _ledger_line(ledger: dict[str, int]) -> str:
    return "ledger: " + ", ".join(f"{name} {count}" for name, count in ledger.items() if count)


def measure_cold(directory: Path, model: TrafficModel, tree: Path | None, hz: float, count: int) -> str:
    """One line about the first `count` messages through a forwarder that just started. Raises ChildError."""
    with VehicleTestbed(directory, 0) as testbed:
        subject = Subject.BARE
        if tree is not None:
            testbed.tree, subject = tree, Subject.STREAMER
        rig = testbed.many_topics(model, subject)
        ages = measure.ages_at_pace(rig, hz, count)
        lost = rig.counters[SENT] - rig.counters[RECEIVED]
        disorder = rig.counters[OUT_OF_ORDER]
    percentiles = [measure.percentile(ages, part) / 1e6 for part in (0.5, 0.99, 0.999)] if ages else []
    text = f"{tree or _BARE!s:<20.20} cold, {model.name} topics at {hz:g}/s: lost {lost}, disorder {disorder}"
    text += ", p50/p99/p99.9 " + "/".join(f"{each:.1f}" for each in percentiles) + " ms"
    return text if tree is None else f"{text}; {_ledger_line(testbed.ledger())}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vehicle", description=__doc__)
    parser.add_argument("trees", nargs="*", type=Path, metavar="TREE", default=[Path()])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a round at saturation")
    parser.add_argument("--cold", action="store_true", help="the first messages after the start instead")
    parser.add_argument("--hz", type=float, default=20_000.0, help="pace of --cold (%(default)g)")
    parser.add_argument("--count", type=int, default=60_000, help="messages of --cold")
    options = parser.parse_args(argv)
    load = Load(warm_up_s=0.3, saturated_s=options.seconds, paced_messages=1_000, fast_messages=10_000)
    try:
        for name in [_COLD_MODEL] if options.cold else options.models:
            for tree in [None, *options.trees] if options.cold else [None]:
                with tempfile.TemporaryDirectory(prefix="ustreamer-benchmark-") as directory:
                    if options.cold:
                        text = measure_cold(Path(directory), MODELS[name], tree, options.hz, options.count)
                    else:
                        found = measure_model(
                            Path(directory), MODELS[name], options.trees, load, options.rounds
                        )
                        text = table(MODELS[name], *found)
                print(text, flush=True)
    except ChildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
