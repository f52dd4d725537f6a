# SPDX-License-Identifier: Apache-2.0
"""`ustreamer run` of the copy, in a process of its own: its start, its memory, its counters, its end."""

import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from types import TracebackType
from typing import IO, Any, Final, Self

from ustreamer.host.admin.server import StatisticsRequest, send_request
from ustreamer.host.attack.config_copy import FreePorts, copied, toml_text
from ustreamer.host.attack.target import Target, read_target
from ustreamer.host.config import config as configuration
from ustreamer.host.runtime import process
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.uprotocol.ustatus import UCode, UStatusError

_USTREAMER: Final = "import sys; from ustreamer.host.cli.main import main; sys.exit(main())"
_START_S: Final = 60.0
_STOP_S: Final = 30.0
_PAGE_BYTES: Final = 4_096
_POLL_S: Final = 0.05
_NS_PER_S: Final = 1_000_000_000


class StreamerCopy:
    """A running copy of a configuration. Each start has a new state directory and new ports."""

    def __init__(self, config: Path) -> None:
        """Raises ConfigError, and NoVehiclePath if nothing can be measured."""
        self._directory = tempfile.TemporaryDirectory(prefix="ustreamer-attack-")
        directory = Path(self._directory.name)
        ports = FreePorts()
        try:
            document = configuration.read(config)
            process.load_document(document)
            data = copied(document.data, config.absolute().parent, directory, ports.allocate)
            self.path = directory / "copy.toml"
            self.path.touch(mode=0o600)
            self.path.write_text(toml_text(data), encoding="utf-8")
            self.target: Target = read_target(process.load(self.path).config)
        except BaseException:
            self._directory.cleanup()
            raise
        finally:
            ports.release()
        self._process: subprocess.Popen[str] | None = None
        self._lines: SimpleQueue[str] = SimpleQueue()

    def __enter__(self) -> Self:
        with (self.path.parent / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _USTREAMER, "run", str(self.path), "--drain", "1"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        Thread(target=_read_lines, args=(self._process.stdout, self._lines), daemon=True).start()
        with suppress(Empty):
            if self._lines.get(timeout=_START_S) == "READY\n":
                return self
        reason = (self.path.parent / "log").read_text(encoding="utf-8", errors="replace")[-2_000:]
        self.__exit__(None, None, None)
        raise UStatusError(UCode.UNAVAILABLE, f"the copy of the configuration did not start:\n{reason}")

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def memory_bytes(self) -> int:
        """The resident memory of the streamer and of its child processes."""
        assert self._process is not None
        return sum(_resident_bytes(pid) for pid in _with_children(self._process.pid))

    def wait_memory(self, limit_bytes: int, timeout_s: float) -> int:
        """Wait until the memory is within a limit; returns it, whether it is or not."""
        deadline_ns = SYSTEM_CLOCK.monotonic_ns() + round(timeout_s * _NS_PER_S)
        pause = Event()
        while (found := self.memory_bytes()) > limit_bytes and SYSTEM_CLOCK.monotonic_ns() < deadline_ns:
            pause.wait(_POLL_S)
        return found

    def statistics(self) -> dict[str, Any]:
        """As `ustreamer top --json`. Raises UStatusError."""
        found: dict[str, Any] = send_request(self.target.state_dir, StatisticsRequest())
        return found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(_STOP_S)
        with suppress(OSError):  # a child of the streamer may still write
            self._directory.cleanup()


def _read_lines(pipe: IO[str], lines: "SimpleQueue[str]") -> None:
    with pipe:
        for line in pipe:
            lines.put(line)
    lines.put("")


def _with_children(pid: int) -> list[int]:
    found = [pid]
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text(encoding="ascii").split())
    return found


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):  # the process has ended
        return 0
