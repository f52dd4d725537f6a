# SPDX-License-Identifier: Apache-2.0
"""The streamer as a process, and other commands of `ustreamer`."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Container, Sequence
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import IO, Any, Final, Self

from tests.e2e.rigs.entities import DEADLINE_S, Inbox
from ustreamer.testing.ledger import assert_accounted

COMMAND: Final = Path(sys.executable).with_name("ustreamer")
START_S: Final = 30.0
COMMAND_S: Final = 60.0
"""A command takes a second of CPU time with its processes; on an overloaded machine one took 30 s."""
DRAIN_S: Final = 20.0
"""Less than the deadline of its exit."""
VERDICTS: Final = ("delivered", "throttled", "expired", "dead_lettered", "denied", "no_subscriber", "queued")


class StreamerProcess:
    """`ustreamer run` in a process of its own. In a `with` block it is stopped at the end and must exit with 0."""

    command: Sequence[str | Path] = (COMMAND,)
    working_directory: Path | None = None

    def __init__(self, config: Path, *arguments: str, prefix: Sequence[str] = ()) -> None:
        """Start the process; `wait_ready` and `with` wait for READY. `prefix` starts it in another namespace."""
        # The last of repeated options takes effect. The default of 5 s may be too short on a busy machine.
        self.config = config
        self._process = subprocess.Popen(
            [
                *prefix,
                *self.command,
                "run",
                config,
                "--log-format",
                "json",
                "--log-level",
                "debug",
                "--drain",
                f"{DRAIN_S}",
                *arguments,
            ],
            cwd=self.working_directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONFAULTHANDLER": "1"},
        )
        self.stdout: Inbox[str] = Inbox("stdout of ustreamer run")
        self.stderr: Inbox[str] = Inbox("stderr of ustreamer run")
        assert self._process.stdout
        assert self._process.stderr
        self._readers = [
            Thread(target=_read_lines, args=(self._process.stdout, self.stdout), daemon=True),
            Thread(target=_read_lines, args=(self._process.stderr, self.stderr), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def wait_ready(self) -> Self:
        """Wait for READY; AssertionError with all output if it is not printed."""
        try:
            self.stdout.wait_one(lambda line: line in {"READY\n", ""}, START_S)
        finally:
            if "READY\n" not in self.stdout.items():
                self.kill()
        assert "READY\n" in self.stdout.items(), f"exit code {self._process.returncode}\n{self.output}"
        return self

    @property
    def output(self) -> str:
        return "".join([*self.stdout.items(), *self.stderr.items()])

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def send_sigterm(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def send_sigint(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def send_sighup(self) -> None:
        self._process.send_signal(signal.SIGHUP)

    def wait_exit(self) -> int:
        """Wait for the exit. Returns the exit code."""
        try:
            code = self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)  # faulthandler then writes the stacks of all threads
            self._process.wait(DEADLINE_S)
            self.close_pipes()
            raise AssertionError(f"did not end within {DEADLINE_S} s\n{self.output}") from None
        self.close_pipes()
        return code

    def kill(self) -> None:
        """SIGKILL, as in a power failure. Earlier output is still read."""
        self._process.kill()
        self._process.wait(DEADLINE_S)
        self.close_pipes()

    def close_pipes(self) -> None:
        for reader in self._readers:
            reader.join(DEADLINE_S)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe:
                pipe.close()

    def stop(self, codes: Container[int] = (0,)) -> None:
        """SIGTERM; the process must exit with one of `codes` and a balanced ledger."""
        if not self.is_alive:
            self.close_pipes()
            raise AssertionError(f"exited unexpectedly with {self._process.returncode}\n{self.output}")
        self.send_sigterm()
        code = self.wait_exit()
        assert code in codes, self.output
        assert_ledger_balanced(self.ledger)

    @property
    def log_records(self) -> list[dict[str, Any]]:
        """The JSON lines of the log. Other lines are plain text, such as the reason of a failed exit."""
        return [json.loads(line) for line in self.stderr.items() if line.startswith("{")]

    @property
    def ledger(self) -> dict[str, int]:
        """The ledger of the last log record."""
        [stopped] = [line for line in self.log_records if line["event"] == "streamer.stopped"]
        ledger: dict[str, int] = stopped["ledger"]
        return ledger

    def __enter__(self) -> Self:
        return self.wait_ready()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.returncode is None:
            if error is None:
                self.stop()
            else:
                self.kill()
                error.add_note(f"output of the streamer:\n{self.output}")


def _read_lines(pipe: IO[str], inbox: Inbox[str]) -> None:
    for line in pipe:
        inbox.append(line)
    inbox.append("")  # the end


def statistics(state_dir: Path) -> dict[str, Any]:
    """Statistics of the streamer with this state_dir.

    Through the admin socket: a process of `ustreamer top` takes seconds on a busy machine.
    """
    directory = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as admin:
            admin.settimeout(DEADLINE_S)
            admin.connect(f"/proc/self/fd/{directory}/admin.sock")  # the whole path may be too long
            admin.sendall(b'{"type":"statistics"}\n')
            with admin.makefile("rb") as answer:
                found = json.loads(answer.readline())
    finally:
        os.close(directory)
    assert "result" in found, found
    result: dict[str, Any] = found["result"]
    return result


def assert_ledger_balanced(ledger: dict[str, int]) -> None:
    """Check the ledger law: every accepted delivery has exactly one verdict, and none is queued."""
    assert_accounted(ledger, queued=0)


def run_command(
    *arguments: str | os.PathLike[str], within: float = COMMAND_S, prefix: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a command of `ustreamer` to its end."""
    return subprocess.run(
        [*prefix, COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
        stdin=subprocess.DEVNULL,
    )
