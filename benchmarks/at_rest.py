# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.at_rest`: start time of a streamer, and its CPU and memory without traffic.

The configuration is configs/minimal.toml. There are two references. The first only imports the libraries that this
configuration needs. The second is the bare forwarder from UDP to Zenoh: Python, Zenoh and two sockets, the minimum
for this work. Starts alternate. All processes run from compiled bytecode, as after an installation: compiling the
sources takes as long as the rest of a start. `benchmarks.subscriptions` measures memory per subscription.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.harness.child_process import REPO, Child, console_script, module_command
from benchmarks.harness.testbed import Ports

_START_S: Final = 60.0
_SETTLE_S: Final = 1.0
_IMPORTS: Final = """\
import sys
import lmdb, msgspec, pluggy, zenoh
from google.protobuf import descriptor_pool, message_factory
print("READY", flush=True)
sys.stdin.read()
"""
"""Exactly the libraries that a streamer with configs/minimal.toml imports."""


def measured(directory: Path, starts: int = 5, idle_s: float = 5.0) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {"imports": [], "bare": [], "streamer": []}
    environment = _environment(directory / "bytecode")
    for number in range(starts + 1):
        for subject, rounds in found.items():
            start_dir = directory / f"{subject}-{number}"
            start_dir.mkdir()
            last = number == starts
            start = _measure_start(subject, start_dir, environment, idle_s if last else 0.0)
            if number:  # the first start compiles
                rounds.append(start)
    return {
        subject: {
            "start_s": median(each["start_s"] for each in rounds),
            "start_min_s": min(each["start_s"] for each in rounds),
            "start_max_s": max(each["start_s"] for each in rounds),
            "start_cpu_s": median(each["start_cpu_s"] for each in rounds),
            "start_cpu_min_s": min(each["start_cpu_s"] for each in rounds),
            "idle_cpu_percent": rounds[-1]["idle_cpu_percent"],
            "memory_mb": rounds[-1]["memory_mb"],
            "proportional_mb": rounds[-1]["proportional_mb"],
        }
        for subject, rounds in found.items()
    }


def _environment(bytecode: Path) -> Mapping[str, str]:
    """The environment of this process, with bytecode of our own even where it forbids writing any."""
    inherited = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return inherited | {"PYTHONPYCACHEPREFIX": str(bytecode)}


def _command(subject: str, directory: Path) -> list[str]:
    if subject == "imports":
        return [sys.executable, "-c", _IMPORTS]
    ports = Ports.free()
    if subject == "bare":
        return module_command("traffic.bare_forwarders", "udp-to-zenoh", ports.zenoh, ports.someip)
    text = (REPO / "configs/minimal.toml").read_text(encoding="utf-8")
    for port, free in (("7447", ports.zenoh), ("30500", ports.someip), ("30501", ports.ecu)):
        text = text.replace(port, str(free))
    config = directory / "streamer.toml"
    config.write_text(text, encoding="utf-8")
    return [console_script("ustreamer"), "run", str(config)]


def _measure_start(
    subject: str, directory: Path, environment: Mapping[str, str], idle_s: float
) -> dict[str, float]:
    command = _command(subject, directory)
    began = time.monotonic()
    child = Child(subject, command, directory, environment)
    try:
        child.wait_line("READY", _START_S)
        start_s, start_cpu_s = time.monotonic() - began, child.cpu_ns / 1e9
        if not idle_s:
            return {"start_s": start_s, "start_cpu_s": start_cpu_s}
        time.sleep(_SETTLE_S)
        before_ns = child.cpu_ns
        time.sleep(idle_s)
        idle = (child.cpu_ns - before_ns) / 1e9 / idle_s * 100
        return {
            "start_s": start_s,
            "start_cpu_s": start_cpu_s,
            "idle_cpu_percent": idle,
            "memory_mb": child.resident_bytes / 1e6,
            "proportional_mb": child.proportional_bytes / 1e6,
        }
    finally:
        child.stop()


_LINES: Final = (
    ("start to READY, s", "start_s", "{:.2f}"),
    ("CPU of a start, s", "start_cpu_s", "{:.2f}"),
    ("CPU at rest, % of a core", "idle_cpu_percent", "{:.2f}"),
    ("memory at rest, MB", "memory_mb", "{:.1f}"),
    ("of it proportional, MB", "proportional_mb", "{:.1f}"),
)


def table(figures: dict[str, Any]) -> str:
    imports, bare, streamer = (figures[subject] for subject in ("imports", "bare", "streamer"))

    def ratio(name: str, reference: dict[str, float]) -> float:
        return streamer[name] / reference[name] if reference[name] else float("inf")

    return "\n".join(
        [
            f"{'':<28}{'imports':>10}{'bare':>10}{'streamer':>10}{'/imports':>10}{'/bare':>8}",
            *(
                f"{text:<28}{shown.format(imports[name]):>10}{shown.format(bare[name]):>10}"
                f"{shown.format(streamer[name]):>10}{ratio(name, imports):>10.2f}{ratio(name, bare):>8.2f}"
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
