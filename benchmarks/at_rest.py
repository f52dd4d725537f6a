# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.at_rest`: start time of a streamer, and its CPU and memory without traffic.

The reference is the bare forwarder from UDP to Zenoh: Python, Zenoh and two sockets, the minimum for this work.
Starts alternate. `benchmarks.subscriptions` measures memory per subscription.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

from benchmarks.harness.child_process import Child, console_script, module_command
from benchmarks.harness.testbed import CONFIG, Ports

_START_S: Final = 60.0
_SETTLE_S: Final = 1.0


def measured(directory: Path, starts: int = 5, idle_s: float = 5.0) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {"bare": [], "streamer": []}
    for number in range(starts):
        for subject, rounds in found.items():
            start_dir = directory / f"{subject}-{number}"
            start_dir.mkdir()
            last = number == starts - 1
            rounds.append(_measure_start(subject, start_dir, idle_s if last else 0.0))
    return {
        subject: {
            "start_s": median(each["start_s"] for each in rounds),
            "start_min_s": min(each["start_s"] for each in rounds),
            "start_max_s": max(each["start_s"] for each in rounds),
            "start_cpu_s": median(each["start_cpu_s"] for each in rounds),
            "idle_cpu_percent": rounds[-1]["idle_cpu_percent"],
            "memory_mb": rounds[-1]["memory_mb"],
        }
        for subject, rounds in found.items()
    }


def _measure_start(subject: str, directory: Path, idle_s: float) -> dict[str, float]:
    ports = Ports.free()
    if subject == "bare":
        command = module_command("traffic.bare_forwarders", "udp-to-zenoh", ports.zenoh, ports.someip)
    else:
        config = directory / "streamer.toml"
        config.write_text(CONFIG.format(**msgspec.structs.asdict(ports)), encoding="utf-8")
        command = [console_script("ustreamer"), "run", str(config)]
    began = time.monotonic()
    child = Child(subject, command, directory)
    try:
        child.wait_line("READY", _START_S)
        start_s, start_cpu_s = time.monotonic() - began, child.cpu_ns / 1e9
        if not idle_s:
            return {"start_s": start_s, "start_cpu_s": start_cpu_s}
        time.sleep(_SETTLE_S)
        before_ns = child.cpu_ns
        time.sleep(idle_s)
        idle = (child.cpu_ns - before_ns) / 1e9 / idle_s * 100
        memory_mb = child.resident_bytes / 1e6
        return {
            "start_s": start_s,
            "start_cpu_s": start_cpu_s,
            "idle_cpu_percent": idle,
            "memory_mb": memory_mb,
        }
    finally:
        child.stop()


_LINES: Final = (
    ("start to READY, s", "start_s", "{:.2f}"),
    ("CPU of a start, s", "start_cpu_s", "{:.2f}"),
    ("CPU at rest, % of a core", "idle_cpu_percent", "{:.2f}"),
    ("memory at rest, MB", "memory_mb", "{:.1f}"),
)


def table(figures: dict[str, Any]) -> str:
    bare, streamer = figures["bare"], figures["streamer"]
    return "\n".join(
        [
            f"{'':<28}{'bare':>10}{'streamer':>10}{'ratio':>8}",
            *(
                f"{text:<28}{shown.format(bare[name]):>10}{shown.format(streamer[name]):>10}"
                f"{streamer[name] / bare[name] if bare[name] else float('inf'):>8.2f}"
                for text, name, shown in _LINES
            ),
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.at_rest", description=__doc__)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of being idle")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="ustreamer-benchmark-") as directory:
        figures = measured(Path(directory), arguments.starts, arguments.seconds)
    print(json.dumps(figures, indent=1) if arguments.json else table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
