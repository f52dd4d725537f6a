# SPDX-License-Identifier: Apache-2.0
"""`ustreamer demo`: runs the vehicle for a while, shows live values, and ends with the ledger."""

import json
import math
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ustreamer.host.demo.vehicle import DemoOutcome, DemoVehicle, TargetRow
from ustreamer.host.runtime import logs, process
from ustreamer.host.runtime.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from rich.table import Table

_NS_PER_S = 1_000_000_000


_NEXT: Final = (
    "demo --seconds 600 --web                # the same, with live values in a browser",
    "check configs/vehicle.toml --offline    # a configuration, checked line by line",
    "run configs/minimal.toml                # a streamer of your own; Ctrl-C stops it",
)
_FILE: Final = re.compile(r"\S+\.toml")


def run(
    *,
    seconds: float,
    as_json: bool,
    recordings: Path | None = None,
    web: int | None = None,
    metrics: int | None = None,
    strict: bool = False,
) -> int:
    """Run the demo; returns 0 if no message is unaccounted for.

    `strict`: and if every rate is right and every call has a response, which a busy machine may not reach.
    `recordings` is a directory for recordings to keep; `web` is the port of a page of live values, 0 for any, and
    `metrics` that of metrics and the page for operators.
    """
    logs.configure_logging(level="WARNING")
    process.tune_interpreter()
    with DemoVehicle(recordings, web, metrics) as vehicle:
        if vehicle.page is not None:
            print(f"live values: {vehicle.page}", file=sys.stderr, flush=True)
        if vehicle.metrics_page is not None:
            print(
                f"for operators: {vehicle.metrics_page} and {vehicle.metrics_page}metrics",
                file=sys.stderr,
                flush=True,
            )
        if as_json:
            _wait(seconds, lambda left: None, every=seconds)
        elif sys.stdout.isatty() and (live := _live(vehicle, seconds)):
            live()
        else:
            _wait(seconds, lambda left: _print_line(vehicle, left), every=1.0)
        outcome = vehicle.finish()
    if as_json:
        print(json.dumps(msgspec.to_builtins(outcome), indent=2))
    else:
        print(_summary(outcome, strict=strict))
        if recordings is not None:
            print(f"recorded in {recordings}")
        program = sys.argv[0] if Path(sys.argv[0]).name == "ustreamer" else "ustreamer"
        print("", "try next:", *(f"  {program} {each}" for each in _next_commands()), sep="\n")
    return 1 if outcome.defects or (strict and outcome.deviations) else 0


def _next_commands() -> list[str]:
    """Without a checkout there is no configs/: its commands would fail."""
    files = {each: _FILE.search(each) for each in _NEXT}
    return [each for each, found in files.items() if found is None or Path(found[0]).exists()]


def _wait(seconds: float, report: Callable[[float], None], *, every: float) -> None:
    """Wait `seconds` and call `tell` with the remaining time, periodically and at the end."""
    began_ns = SYSTEM_CLOCK.monotonic_ns()
    pause = threading.Event()
    steps = math.ceil(seconds / every) if seconds else 0
    for step in range(1, steps + 1):
        passed = seconds if step == steps else step * every
        end_ns = began_ns + round(passed * _NS_PER_S)
        while (left_ns := end_ns - SYSTEM_CLOCK.monotonic_ns()) > 0:
            pause.wait(left_ns / _NS_PER_S)
        report(seconds - passed)


def _print_line(vehicle: DemoVehicle, remaining_s: float) -> None:
    ledger = vehicle.streamer.ledger()
    rates = "  ".join(f"{row.delivered_hz:6.1f}/{_format_requested_rate(row)}" for row in vehicle.rows())
    print(
        f"{remaining_s:5.1f} s left  Hz delivered/requested {rates}  received {ledger.received}", flush=True
    )


def _format_requested_rate(row: TargetRow) -> str:
    return "all" if row.requested_hz is None else f"{row.requested_hz:g}"


def _live(vehicle: DemoVehicle, seconds: float) -> Callable[[], None] | None:
    """A table that updates in place, if the terminal library is installed."""
    try:
        from rich.live import Live
    except ImportError:
        return None

    def show() -> None:
        with Live(_table(vehicle.rows(), seconds), refresh_per_second=4, transient=True) as screen:
            _wait(seconds, lambda left: screen.update(_table(vehicle.rows(), left)), every=0.25)

    return show


def _table(rows: tuple[TargetRow, ...], remaining_s: float) -> "Table":
    from rich.table import Table

    table = Table(title=f"SOME/IP chassis -> Zenoh applications, {remaining_s:.0f} s left")
    table.add_column("topic")
    table.add_column("subscriber")
    for name in ("published Hz", "requested Hz", "delivered Hz"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.topic,
            row.subscriber,
            f"{row.published_hz:.1f}",
            _format_requested_rate(row),
            f"{row.delivered_hz:.1f}",
        )
    return table


def _summary(outcome: DemoOutcome, *, strict: bool) -> str:
    lines = [f"{'topic':<28} {'subscriber':<26} {'published':>9} {'requested':>9} {'delivered':>9}  Hz"]
    lines += [
        f"{row.topic:<28} {row.subscriber:<26} {row.published_hz:9.2f} {_format_requested_rate(row):>9} {row.delivered_hz:9.2f}"
        for row in outcome.targets
    ]
    counters = msgspec.to_builtins(outcome.ledger)
    lines += [
        "",
        f"calls of the climate method: {outcome.rpc.sent} sent, {outcome.rpc.answered} answered",
        "ledger: " + " ".join(f"{name}={count}" for name, count in counters.items()),
        f"unaccounted: {outcome.unaccounted}",
        *(f"WRONG: {each}" for each in outcome.defects),
        *(f"{'WRONG' if strict else 'on a busy machine'}: {each}" for each in outcome.deviations),
    ]
    return "\n".join(lines)
