# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.fan_out`: cost of a delivery of one publication to 1, 10 or 100 SOME/IP receivers.

An application publishes over Zenoh at a pace that gives the same number of deliveries per second for any number of
receivers. In the first half of the rows every receiver gets all messages. In the second half all limits differ: the
nth receiver gets one of n messages, up to one of ten.
The figure is the total CPU time of the streamer per delivery. Rows alternate, each with its own streamer.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

from benchmarks.harness.measure import wait_quiet
from benchmarks.harness.shared_counters import AGES_ENABLED, RECEIVED, SENT
from benchmarks.harness.testbed import CONFIG, BenchRig, Ports, Rig
from benchmarks.traffic import wire

COUNTS: Final = (1, 10, 100)
DELIVERIES_HZ: Final = 20_000.0

_SLOWEST: Final = 10
_HEAD: Final = CONFIG[: CONFIG.index("[[endpoints.chassis.services]]")]
_SERVICE: Final = f"""\
[[endpoints.chassis.services]]
service = {wire.OFFERED:#06x}
major = {wire.MAJOR}
events = [{{{{ id = {wire.EVENT:#06x} }}}}]
offered = true
provider = "up://{wire.STREAMER}/{wire.OFFERED:X}/{wire.MAJOR}/0"
receivers = [%s]

[plugins.usubscription]
[plugins.throttle]
"""


class FanOutCase(msgspec.Struct, frozen=True):
    """Number of receivers, whether their limits differ, and the publication rate."""

    receivers: int
    limited: bool
    hz: float


def fan_out_cases(counts: Sequence[int]) -> list[FanOutCase]:
    return [
        FanOutCase(count, limited, DELIVERIES_HZ / count) for limited in (False, True) for count in counts
    ]


def config(row: FanOutCase) -> str:
    """A streamer with receivers at addresses of the loopback network, all with one port."""
    receivers = []
    for number in range(row.receivers):
        limit = (
            f", max_frequency = {row.hz / (1 + number % _SLOWEST)}"
            if row.limited and number % _SLOWEST
            else ""
        )
        receivers.append(f'{{{{ address = "127.0.1.{1 + number}:{{receiver}}"{limit} }}}}')
    return _HEAD + _SERVICE % ", ".join(receivers)


def measured(
    directory: Path, counts: Sequence[int] = COUNTS, rounds: int = 3, seconds: float = 2.0
) -> list[dict[str, Any]]:
    with ExitStack() as stack:
        rigs = []
        for row in fan_out_cases(counts):
            case_dir = directory / f"{row.receivers}-{row.limited}"
            case_dir.mkdir()
            stage = stack.enter_context(BenchRig(case_dir, 64))
            rigs.append((row, stage.fan_out_rig(config(row), Ports.free())))
        found: list[list[tuple[int, int, float]]] = [[] for _ in rigs]
        for _ in range(rounds):
            for (row, rig), results in zip(rigs, found, strict=True):
                results.append(_round(rig, row, seconds))
    return [_figures(row, results) for (row, _), results in zip(rigs, found, strict=True)]


def _round(rig: Rig, row: FanOutCase, seconds: float) -> tuple[int, int, float]:
    """Publications, deliveries, and the CPU time of the streamer for them in us."""
    assert rig.forwarder is not None
    rig.counters[AGES_ENABLED] = 0
    count = max(1, round(row.hz * seconds))
    sent, received, cpu_ns = rig.counters[SENT], rig.counters[RECEIVED], rig.forwarder.cpu_ns
    rig.generator.send_command(f"pace {row.hz} {count}")
    rig.generator.wait_line("DONE", 30 + 10 * seconds)
    wait_quiet(rig.counters)
    return (
        rig.counters[SENT] - sent,
        rig.counters[RECEIVED] - received,
        (rig.forwarder.cpu_ns - cpu_ns) / 1_000,
    )


def _figures(row: FanOutCase, results: Sequence[tuple[int, int, float]]) -> dict[str, Any]:
    return {
        **msgspec.structs.asdict(row),
        "published": sum(published for published, _, _ in results),
        "delivered": sum(delivered for _, delivered, _ in results),
        "delivery_us": median(us / max(delivered, 1) for _, delivered, us in results),
        "decision_us": median(us / published / row.receivers for published, _, us in results),
    }


def table(figures: Sequence[dict[str, Any]]) -> str:
    lines = [
        f"{'receivers':<28}{'published':>10}{'delivered':>11}{'us a delivery':>15}{'us a decision':>15}{'by 1':>7}"
    ]
    for each in figures:
        single = next(other for other in figures if other["limited"] is each["limited"])
        case_text = "limits that differ" if each["limited"] else "each gets all"
        lines.append(
            f"{each['receivers']:>5}, {case_text:<21}{each['published']:>10}{each['delivered']:>11}"
            f"{each['delivery_us']:>15.2f}{each['decision_us']:>15.2f}{each['delivery_us'] / single['delivery_us']:>7.2f}"
        )
    return "\n".join(
        [
            *lines,
            f"at {DELIVERIES_HZ:,.0f} decisions/s; wake-ups, which are most of it with one receiver, included",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fan_out", description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=list(COUNTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="ustreamer-benchmark-") as directory:
        figures = measured(Path(directory), arguments.counts, arguments.rounds, arguments.seconds)
    print(json.dumps(figures, indent=1) if arguments.json else table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
