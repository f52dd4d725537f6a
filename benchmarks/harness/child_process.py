# SPDX-License-Identifier: Apache-2.0
"""Child processes of a benchmark: started, awaited with a deadline, measured from outside, and ended."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

REPO: Final = Path(__file__).resolve().parents[2]
_CPUCLOCK_SCHED: Final = 2  # linux: low bits of a process' CPU clock id, the rest is the inverted pid
_LOG_TAIL_LINES: Final = 20


class ChildError(RuntimeError):
    """A process of the benchmark ended or did not answer; the text has the last lines it wrote."""


class Child:
    """One process. Its stdout is read line by line; its stderr goes to a log file."""

    ready_s = 0.0
    """Time from its start to the first line that was awaited."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._began_s = time.monotonic()
        self._log = directory / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=REPO,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, name=f"output of {name}", daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.strip())
        self._lines.put(None)

    def wait_line(self, expected: str, within_s: float) -> None:
        """Wait for the line `wanted`. Raises ChildError if the process ends before, or after `within_s`."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise ChildError(
                    f"{self.name}: no {expected} within {within_s:g} s{self.log_tail()}"
                ) from None
            if line is None:
                code = self._process.wait()
                raise ChildError(f"{self.name}: ended with {code} before {expected}{self.log_tail()}")
            if line == expected:
                self.ready_s = self.ready_s or time.monotonic() - self._began_s
                return

    def poll_line(self) -> str | None:
        """The next line of stdout; None if none is available yet. Raises ChildError if the process has ended."""
        try:
            line = self._lines.get_nowait()
        except queue.Empty:
            return None
        if line is None:
            raise ChildError(f"{self.name}: ended with {self._process.wait()}{self.log_tail()}")
        return line

    def request_report(self, within_s: float = 30.0) -> Any:
        """Send `report` and return its result. Raises ChildError if none arrives."""
        self.send_command("report")
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            line = self.poll_line()
            if line is not None:
                return json.loads(line)
            time.sleep(0.001)
        raise ChildError(f"{self.name}: no report within {within_s:g} s{self.log_tail()}")

    def send_command(self, command: str) -> None:
        """Write one line to its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def log_lines(self) -> list[str]:
        return self._log.read_text(errors="replace").splitlines()

    def log_tail(self) -> str:
        return "".join(f"\n    {line}" for line in self.log_lines()[-_LOG_TAIL_LINES:])

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def cpu_ns(self) -> int:
        """User and system time of all threads so far."""
        return time.clock_gettime_ns(~self._process.pid << 3 | _CPUCLOCK_SCHED)

    @property
    def core_wait_ns(self) -> int:
        """Time that its threads were ready to run and waited for a core (/proc/PID/task/TID/schedstat)."""
        stats = Path(f"/proc/{self._process.pid}/task").glob("*/schedstat")
        return sum(int(each.read_text(encoding="ascii").split()[1]) for each in stats)

    @property
    def threads(self) -> int:
        """Number of threads."""
        return sum(1 for _ in Path(f"/proc/{self._process.pid}/task").iterdir())

    @property
    def resident_bytes(self) -> int:
        """Resident memory."""
        return self._memory("Rss:")

    @property
    def proportional_bytes(self) -> int:
        """Resident memory; of pages that other processes share, its part."""
        return self._memory("Pss:")

    def _memory(self, field: str) -> int:
        lines = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024

    def stop(self, within_s: float = 10.0) -> int:
        """End the process, by force after `within_s`. Returns its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()


def module_command(name: str, *arguments: object) -> list[str]:
    """The command line for a module of this package."""
    return [sys.executable, "-m", f"benchmarks.{name}", *map(str, arguments)]


def console_script(name: str) -> str:
    """The script installed next to this interpreter. Raises ChildError if it does not exist."""
    path = Path(sys.executable).parent / name
    if not os.access(path, os.X_OK):
        raise ChildError(f"{path}: no such command; install the streamer into this environment first")
    return str(path)
