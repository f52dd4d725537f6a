# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks`: the streamer and bare forwarders, alternating in one run.

`benchmarks.suite` runs all parts.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.harness import measure, report
from benchmarks.harness.child_process import ChildError
from benchmarks.harness.measure import Load, Round
from benchmarks.harness.report import Ratio, Results, RigResult
from benchmarks.harness.testbed import BenchRig, Rig, Subject
from benchmarks.traffic import wire
from benchmarks.traffic.generators import BURST

QUICK: Final = Load(warm_up_s=0.1, saturated_s=0.2, paced_messages=100, fast_messages=500)
_DIRECT_REPEATS: Final = 3
_WINDOW_MAX: Final = 4_096  # capacity of a receive buffer of 4 MiB for small datagrams, with a margin
_PAYLOAD_MAX: Final = 1_400  # maximum SOME/IP payload of a datagram without segmentation


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    load = msgspec.structs.replace(QUICK if arguments.quick else Load(), window=arguments.window)
    repeats = arguments.repeats or (3 if arguments.quick else 9)
    try:
        results = measure_forwarding(arguments.payload, load, repeats, _progress(arguments.quiet))
    except ChildError as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.out is not None:
        results.write(arguments.out)
    print(report.table(results))
    if results.unaccounted:
        print(f"{results.unaccounted} deliveries are unaccounted for", file=sys.stderr)
        return 1
    return 0


def measure_forwarding(
    payloads: Sequence[int], load: Load, repeats: int, progress: Callable[[str], None]
) -> Results:
    """Measure all directions with all payload sizes. Raises ChildError."""
    began = time.monotonic()
    rows: list[RigResult] = []
    ratios: list[Ratio] = []
    ledgers: list[dict[str, int]] = []
    for payload in payloads:
        measured, compared, ledger = _measure_payload(payload, load, repeats, progress)
        rows += measured
        ratios += compared
        ledgers.append(ledger)
    return Results(
        machine=report.machine(),
        versions=report.versions(),
        load=load,
        repeats=repeats,
        seconds=round(time.monotonic() - began, 1),
        rows=tuple(rows),
        ratios=tuple(ratios),
        ledgers=tuple(ledgers),
    )


def _measure_payload(
    payload: int, load: Load, repeats: int, progress: Callable[[str], None]
) -> tuple[list[RigResult], list[Ratio], dict[str, int]]:
    """Measure all rigs with one payload size. Returns the rows and the ledger of the streamer."""
    with tempfile.TemporaryDirectory(prefix="ustreamer-benchmark-") as directory:
        with BenchRig(Path(directory), payload) as stage:
            direct = [
                _measure_rigs([rig], payload, load, min(repeats, _DIRECT_REPEATS), progress)[0]
                for rig in stage.direct_rigs()
            ]
        with BenchRig(Path(directory), payload) as stage:
            groups = [
                _measure_rigs(rigs, payload, load, repeats, progress)
                for rigs in zip(
                    stage.bare_rigs(),
                    stage.streamer_rigs(),
                    stage.streamer_rigs(Subject.RECORDED),
                    strict=True,
                )
            ]
            zenohs = [stage.zenoh_to_zenoh(each) for each in (Subject.BARE, Subject.STREAMER)]
            groups.append(_measure_rigs(zenohs, payload, load, repeats, progress))
        ledger = stage.ledger()
    rows = [row for group in groups for row in group]
    # The streamer relative to the bare forwarder, and with the recorder relative to without it.
    ratios = [Ratio.of(row, partner) for group in groups for partner, row in pairwise(group)]
    return rows + direct, ratios, ledger


def _measure_rigs(
    rigs: Sequence[Rig], payload: int, load: Load, repeats: int, progress: Callable[[str], None]
) -> list[RigResult]:
    """Run `repeats` alternating rounds on each rig, after one warm-up round that is not counted."""
    rounds: list[list[Round]] = [[] for _ in rigs]
    for number in range(-1, repeats):
        for rig, done in zip(rigs, rounds, strict=True):
            result = measure.run_round(rig, load)
            if number >= 0:
                done.append(result)
            progress_text = f"round {number + 1}/{repeats}" if number >= 0 else "warm-up"
            progress(
                f"{rig.direction}  {payload} B  {rig.subject:8}  {progress_text}  {report.summary(result)}"
            )
    return [
        RigResult.of(rig.direction, rig.subject, payload, done)
        for rig, done in zip(rigs, rounds, strict=True)
    ]


def _progress(quiet: bool) -> Callable[[str], None]:
    return (lambda _: None) if quiet else lambda line: print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="short rounds, few of them: to see that it works"
    )
    parser.add_argument(
        "--repeats", type=_positive, metavar="N", help="rounds that count (9, with --quick 3)"
    )
    parser.add_argument(
        "--payload", type=_payload, nargs="+", default=[64], metavar="BYTES", help="sizes of payload (64)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="where results go, as JSON (nowhere)",
    )
    parser.add_argument(
        "--window",
        type=_window,
        default=Load().window,
        metavar="N",
        help="messages under way at saturation (%(default)s); above 1024 Zenoh has to hold back the generator",
    )
    parser.add_argument("--quiet", action="store_true", help="no line of progress per round")
    return parser


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected at least 1")
    return number


def _window(text: str) -> int:
    if not BURST <= (number := int(text)) <= _WINDOW_MAX:
        raise argparse.ArgumentTypeError(f"{text}: expected {BURST}..{_WINDOW_MAX}")
    return number


def _payload(text: str) -> int:
    if not wire.TAIL.size <= (size := int(text)) <= _PAYLOAD_MAX:
        raise argparse.ArgumentTypeError(f"{text}: expected {wire.TAIL.size}..{_PAYLOAD_MAX} bytes")
    return size


if __name__ == "__main__":
    sys.exit(main())
