# SPDX-License-Identifier: Apache-2.0
"""From rounds to figures: medians with their spread, ratios of adjacent rounds, one table, one JSON object."""

import json
import os
import platform
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

from benchmarks.harness.measure import Load, Round
from benchmarks.harness.testbed import Direction, Subject

METRICS: Final = (
    "messages_per_s",
    "cpu_us",
    "p50_us",
    "p99_us",
    "p999_us",
    "fast_p50_us",
    "fast_p99_us",
    "fast_p999_us",
)
_DISTRIBUTIONS: Final = (
    "ustreamer",
    "ustreamer-usubscription",
    "ustreamer-throttle",
    "eclipse-zenoh",
    "msgspec",
    "lmdb",
)


class Spread(msgspec.Struct, frozen=True):
    """A median with minimum and maximum."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(median(values), min(values), max(values))


class RigResult(msgspec.Struct, frozen=True):
    """All rounds on one rig. `busy_cores` are medians at saturation: forwarder, generator, sink, other processes."""

    direction: str
    subject: str
    payload: int
    messages_per_s: Spread
    cpu_us: Spread
    p50_us: Spread
    p99_us: Spread
    p999_us: Spread
    fast_p50_us: Spread
    fast_p99_us: Spread
    fast_p999_us: Spread
    lost: int
    sent: int
    busy_cores: tuple[float, float, float, float]
    rounds: tuple[Round, ...]

    @classmethod
    def of(cls, direction: Direction, subject: Subject, payload: int, rounds: Sequence[Round]) -> "RigResult":
        return cls(
            direction=direction.value,
            subject=subject.value,
            payload=payload,
            **{metric: Spread.of([getattr(each, metric) for each in rounds]) for metric in METRICS},
            lost=sum(each.lost for each in rounds),
            sent=sum(each.sent for each in rounds),
            busy_cores=(
                median(each.forwarder_cores for each in rounds),
                median(each.generator_cores for each in rounds),
                median(each.sink_cores for each in rounds),
                median(each.other_cores for each in rounds),
            ),
            rounds=tuple(rounds),
        )


class Ratio(msgspec.Struct, frozen=True):
    """Ratio of two subjects: each round divided by the adjacent round of the other, then median, min and max."""

    direction: str
    subject: str
    by: str
    payload: int
    messages_per_s: Spread
    cpu_us: Spread
    p50_us: Spread
    p99_us: Spread
    p999_us: Spread
    fast_p50_us: Spread
    fast_p99_us: Spread
    fast_p999_us: Spread

    @classmethod
    def of(cls, row: RigResult, partner: RigResult) -> "Ratio":
        pairs = list(zip(row.rounds, partner.rounds, strict=True))
        return cls(
            direction=row.direction,
            subject=row.subject,
            by=partner.subject,
            payload=row.payload,
            **{
                metric: Spread.of([getattr(one, metric) / getattr(other, metric) for one, other in pairs])
                for metric in METRICS
            },
        )


class Results(msgspec.Struct, frozen=True):
    """Results of one run, with the machine and the versions."""

    machine: dict[str, str | int]
    versions: dict[str, str]
    load: Load
    repeats: int
    seconds: float
    rows: tuple[RigResult, ...]
    ratios: tuple[Ratio, ...]
    ledgers: tuple[dict[str, int], ...]
    """Final ledgers of the streamers of the run (one per payload size)."""

    @property
    def unaccounted(self) -> int:
        return sum(ledger["unaccounted"] for ledger in self.ledgers)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(msgspec.to_builtins(self), indent=1) + "\n", encoding="utf-8")


def machine() -> dict[str, str | int]:
    """Processor and system, as far as they explain a figure."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in _DISTRIBUTIONS}


# --- the table --------------------------------------------------------------------------------------------------------

_COLUMN_NAMES: Final = (
    "path",
    "payload",
    "",
    "messages/s",
    "CPU us/message",
    "p50 us",
    "p99 us",
    "p99.9 us",
    "p50 at 10k",
    "p99 at 10k",
    "p99.9 at 10k",
    "lost",
    "busy cores",
)


def table(results: Results) -> str:
    """All figures on one screen: median (min-max), and the ratio below each pair."""
    lines: list[tuple[str, ...]] = []
    for row in results.rows:
        lines.append(_row(row))
        lines += [
            _ratio(each)
            for each in results.ratios
            if (each.direction, each.payload, each.subject) == (row.direction, row.payload, row.subject)
        ]
    ledgers = [
        f"ledger: {', '.join(f'{name} {count}' for name, count in each.items())}" for each in results.ledgers
    ]
    return "\n".join((_aligned([_COLUMN_NAMES, *lines]), "", *ledgers, "", _LEGEND))


_LEGEND: Final = """\
Median (min-max) of all rounds; a ratio divides each round by the adjacent round of the bare forwarder or, with the
recorder on, of the streamer without recorder. at 10k: age of a message at 10 000 messages/s.
messages/s: what the sink received while the generator kept it saturated.  CPU: user + system time of the forwarder
(direct: of both ends) per message at saturation.  p50, p99: age of a message at the sink at 1 000 messages/s, both ends
included; the direct rows show how much of it is the ends'.  lost: sent and never received, of all that was sent.
busy cores: forwarder + generator + sink + all other processes on this machine at saturation. If their sum is all
cores, the machine was the limit, and only the CPU time is meaningful.  direct: generator and sink of one protocol with
nothing between them, the capacity of the measuring apparatus itself."""


def _row(row: RigResult) -> tuple[str, ...]:
    return (
        row.direction,
        f"{row.payload} B",
        row.subject,
        _show(row.messages_per_s, _thousands),
        _show(row.cpu_us, _digits(2)),
        *(_show(getattr(row, metric), _digits(0)) for metric in METRICS[2:]),
        f"{row.lost} of {row.sent}",
        " + ".join(f"{cores:.2f}" for cores in row.busy_cores),
    )


def _ratio(ratio: Ratio) -> tuple[str, ...]:
    figures = [_show(getattr(ratio, metric), _digits(2)) for metric in METRICS]
    return ("", "", f"ratio / {ratio.by}", *figures, "", "")


def _show(spread: Spread, number: Callable[[float], str]) -> str:
    return f"{number(spread.median)} ({number(spread.min)}-{number(spread.max)})"


def _digits(count: int) -> Callable[[float], str]:
    return lambda value: f"{value:.{count}f}"


def _thousands(value: float) -> str:
    return f"{value / 1_000:.1f}k"


def _aligned(lines: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def summary(value: Any) -> str:
    """One line of progress."""
    return (
        f"{_thousands(value.messages_per_s)}/s  {value.cpu_us:.2f} us/message  "
        f"p50 {value.p50_us:.0f} us  p99 {value.p99_us:.0f} us  lost {value.lost}"
    )
