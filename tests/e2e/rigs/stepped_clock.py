# SPDX-License-Identifier: Apache-2.0
"""`ustreamer run` in a process whose clocks a file steps: 16 bytes in, two clocks that are off by so many ms out.

A time namespace steps the monotonic clock only, and the clock of the machine belongs to all its processes. Everything
else of the process is unchanged.
"""

import mmap
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from tests.e2e.rigs.streamer import StreamerProcess

_OFFSETS: Final = struct.Struct("=qq")  # ms of the wall clock, ms of the monotonic clock


class SteppedClockProcess(StreamerProcess):
    """A streamer with clocks that `set_offsets` steps; `command` may run it in a namespace."""

    working_directory = Path(__file__).parents[3]

    def __init__(self, config: Path, *arguments: str, namespace: tuple[str, ...] = ()) -> None:
        self._file = config.with_name("clock_offsets")
        self.set_offsets()
        self.command = (*namespace, sys.executable, "-m", "tests.e2e.rigs.stepped_clock", str(self._file))
        super().__init__(config, *arguments)

    def set_offsets(self, *, wall_s: int = 0, monotonic_s: int = 0) -> None:
        """Step both clocks. Later than the clocks of the machine, or earlier if negative."""
        mode = "r+b" if self._file.exists() else "w+b"
        with self._file.open(mode) as file:
            file.write(_OFFSETS.pack(wall_s * 1_000, monotonic_s * 1_000))


def time_namespace() -> tuple[str, ...]:
    """A command prefix for a monotonic clock of 3 years; () if there are no time namespaces here.

    Without `--fork`, so that signals reach the streamer: Linux 6.3 and later switch the clock at the exec.
    """
    age_s = 3 * 365 * 86_400
    prefix = ("unshare", "--user", "--map-root-user", "--time", "--monotonic", f"{age_s}")
    read_clock = (sys.executable, "-c", f"import time; assert time.monotonic() > {age_s}")
    works = (
        subprocess.run([*prefix, *read_clock], capture_output=True, check=False, timeout=30).returncode == 0
    )
    return prefix if works else ()


def _run(offsets_file: str, arguments: list[str]) -> int:
    from ustreamer.core.base.clock import Clock
    from ustreamer.host.runtime import clock

    with Path(offsets_file).open("rb") as file:
        offsets = mmap.mmap(file.fileno(), _OFFSETS.size, access=mmap.ACCESS_READ)

    def wall_ms() -> int:
        return time.time_ns() // 1_000_000 + int(_OFFSETS.unpack_from(offsets)[0])

    def monotonic_ns() -> int:
        return time.monotonic_ns() + int(_OFFSETS.unpack_from(offsets)[1]) * 1_000_000

    # Before any module imports it.
    clock.SYSTEM_CLOCK = Clock(monotonic_ns, wall_ms)  # type: ignore[misc]
    from ustreamer.host.cli.main import main

    return main(arguments) or 0


if __name__ == "__main__":
    sys.exit(_run(sys.argv[1], sys.argv[2:]))
