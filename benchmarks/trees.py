# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.trees BEFORE AFTER`: two checkouts of the streamer and the bare forwarder, in alternating
rounds.

For a change on a machine whose speed varies within a minute: many short rounds at saturation, in a random order. The
minimum and the first quartile count. `--hz` measures at a pace instead. AFTER may be `.`.
`--direction mixed-someip-zenoh mixed-zenoh-someip` sends 200 topics (model `mixed` of `benchmarks.traffic.models`),
without the bare forwarder.
`--both recorder` enables the recorder in both checkouts, `--after recorder` in the second only, so `. . --after
recorder` shows its cost. Other names are `metrics`, with a scrape each second, and `rules`, access
rules that allow the traffic.
"""

import argparse
import random
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Final, Self
from urllib.request import urlopen

import msgspec

from benchmarks.harness.checkouts import CheckoutTestbed, start_code
from benchmarks.harness.child_process import Child, ChildError
from benchmarks.harness.measure import Load, at_pace, at_saturation
from benchmarks.harness.testbed import Direction, Ports, Rig, Subject, free_ports
from benchmarks.traffic import sockets, wire
from benchmarks.traffic.models import MODELS

_PACED: Final = 1_500  # messages of a round
_FEATURES: Final = ("recorder", "metrics", "rules")
_SCRAPE_S: Final = 1.0
_RULES: Final = """
[[endpoints.{name}.access]]
allow = true
type = "publish"

[[endpoints.{name}.access]]
allow = true
type = "request"
sink = "//*/0/FF/FFFF"
"""
"""For one endpoint: publications, and calls of core services. All other messages are denied."""
DIRECTIONS: Final = ("someip-zenoh", "zenoh-someip", "zenoh-zenoh")
MIXED: Final = {
    "mixed-someip-zenoh": Direction.SOMEIP_TO_ZENOH,
    "mixed-zenoh-someip": Direction.ZENOH_TO_SOMEIP,
}
"""Directions with 200 topics."""


class TreesTestbed(CheckoutTestbed):
    """The rigs of each direction, of streamers with the features in `features`. Scrapes their metrics each second."""

    def __init__(self, directory: Path, payload: int) -> None:
        super().__init__(directory, payload)
        self.features: Sequence[str] = ()
        self._urls: list[str] = []
        self._stopping = Event()
        self._scraper = Thread(target=self._scrape)

    def __enter__(self) -> Self:
        self._scraper.start()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._scraper.join()
        super().__exit__(*error)

    def _scrape(self) -> None:
        while not self._stopping.wait(_SCRAPE_S):
            for url in list(self._urls):
                with urlopen(url) as answer:  # noqa: S310  # of this process's own child
                    answer.read()

    def start_streamer(self, name: str, config: str, ports: Ports) -> Child:
        if "recorder" in self.features:
            config += "[plugins.recorder]\n"
        if "rules" in self.features:
            names = re.findall(r"^\[endpoints\.(\w+)\]", config, re.MULTILINE)
            config += "".join(_RULES.format(name=each) for each in names)
        if "metrics" not in self.features:
            return super().start_streamer(name, config, ports)
        [port] = free_ports([socket.SOCK_STREAM])
        address = f"{sockets.LOOPBACK}:{port}"
        config += f'[observe]\nlisten = "{address}"\n'
        streamer = super().start_streamer(name, config, ports)
        self._urls.append(f"http://{address}/metrics")
        return streamer

    def rig(self, direction: str, subject: Subject) -> Rig:
        if direction in MIXED:
            return self.topics_rig(MODELS["mixed"], MIXED[direction], subject)
        if direction == "zenoh-zenoh":
            return self.zenoh_to_zenoh(subject)
        rigs = self.bare_rigs() if subject is Subject.BARE else self.streamer_rigs(subject)
        return rigs[DIRECTIONS.index(direction)]


class Figures(msgspec.Struct, frozen=True):
    """Figures of many rounds: CPU us per message of the forwarder; messages/s at saturation, or the p50 in us at a
    pace.

    `ratio` is the median of the latter relative to the tree `before` in the same round.
    """

    least_us: float
    quartile_us: float
    median_us: float
    median: float
    ratio: float

    @classmethod
    def of(cls, rounds: Sequence[tuple[float, float]], before: Sequence[tuple[float, float]]) -> "Figures":
        """Figures from those of each round, and of `before` in the same rounds."""
        spent = sorted(cpu_us for cpu_us, _ in rounds)
        ratios = [ours / theirs for (_, ours), (_, theirs) in zip(rounds, before, strict=True)]
        quartile = spent[len(spent) // 4]
        return cls(spent[0], quartile, median(spent), median(each for _, each in rounds), median(ratios))


def compare_trees(
    directory: Path,
    trees: Sequence[Path],
    direction: str,
    payload: int,
    rounds: int,
    features: Sequence[Sequence[str]],
    measured: Callable[[Rig], tuple[float, float]],
) -> dict[str, Figures]:
    """Measure all trees, each with its features. Raises ChildError if a process ends or nothing arrives."""
    with TreesTestbed(directory, payload) as stage:
        rigs = [] if direction in MIXED else [("bare", stage.rig(direction, Subject.BARE))]
        for name, stage.tree, stage.features in zip(("before", "after"), trees, features, strict=True):
            rigs.append((name, stage.rig(direction, Subject.STREAMER)))
        found: dict[str, list[tuple[float, float]]] = {name: [] for name, _ in rigs}
        for number in range(-1, rounds):
            for name, rig in random.sample(rigs, len(rigs)):
                result = measured(rig)
                if number >= 0:
                    found[name].append(result)
    return {name: Figures.of(each, found["before"]) for name, each in found.items()}


def table(direction: str, column: str, found: dict[str, Figures]) -> str:
    lines = [
        f"{direction:<16}{'CPU us: least':>14}{'quartile':>10}{'median':>8}{column:>12}{'of before':>11}"
    ]
    lines += [
        f"{name:<16}{each.least_us:>14.2f}{each.quartile_us:>10.2f}{each.median_us:>8.2f}"
        f"{each.median:>12.0f}{each.ratio:>11.2f}"
        for name, each in found.items()
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trees", description=__doc__)
    parser.add_argument("trees", nargs=2, type=Path, metavar="TREE")
    parser.add_argument("--direction", choices=(*DIRECTIONS, *MIXED), nargs="+", default=DIRECTIONS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--payload", type=int, default=64)
    parser.add_argument("--both", choices=_FEATURES, nargs="+", default=[], help="enabled in both checkouts")
    parser.add_argument("--after", choices=_FEATURES, nargs="+", default=[], help="enabled in the second one")
    parser.add_argument("--seconds", type=float, default=0.3, help="of a round at saturation")
    parser.add_argument("--hz", type=float, help=f"rounds of {_PACED} messages at this pace instead")
    options = parser.parse_args(argv)
    limits = {
        "rounds": (1, 10_000),
        "payload": (wire.TAIL.size, 60_000),
        "seconds": (0.01, 3_600),
        "hz": (1, 1e6),
    }
    for name, (least, most) in limits.items():
        found = getattr(options, name)
        if found is not None and not least <= found <= most:
            parser.error(f"--{name} {found}: expected {least} to {most:g}")
    for tree in options.trees:
        try:
            start_code(tree)
        except (OSError, KeyError) as error:
            parser.error(f"{tree}: expected a checkout of the streamer, found {error!r}")
    load = Load(warm_up_s=0.1, saturated_s=options.seconds)
    hz: float | None = options.hz

    def measured(rig: Rig) -> tuple[float, float]:
        return at_saturation(rig, load) if hz is None else at_pace(rig, hz, _PACED)

    features = (options.both, [*options.both, *options.after])
    for direction in options.direction:
        with tempfile.TemporaryDirectory(prefix="ustreamer-benchmark-") as directory:
            try:
                found = compare_trees(
                    Path(directory),
                    options.trees,
                    direction,
                    options.payload,
                    options.rounds,
                    features,
                    measured,
                )
            except ChildError as error:
                print(error, file=sys.stderr)
                return 1
        print(table(direction, "messages/s" if hz is None else "p50 us", found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
