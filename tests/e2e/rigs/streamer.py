# SPDX-License-Identifier: Apache-2.0
"""The streamer as a process, and the other commands of `ustreamer`."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import IO, Any, Final, Self

from tests.e2e.rigs.entities import DEADLINE_S, Inbox

COMMAND: Final = Path(sys.executable).with_name("ustreamer")
START_S: Final = 30.0
DRAIN_S: Final = 20.0
"""Less than what its end may take."""
VERDICTS: Final = ("delivered", "throttled", "expired", "dead_lettered", "denied", "no_subscriber", "queued")


class StreamerProcess:
    """`ustreamer run` in a process of its own. In a `with` block it is stopped at the end and must exit with 0."""

    def __init__(self, config: Path, *arguments: str) -> None:
        """Start it; READY is waited for by `ready` and by `with`."""
        # Of an option given twice the last one holds: 5 s, the default, may be too short for a busy machine.
        self.config = config
        self._process = subprocess.Popen(
            [COMMAND, "run", config, "--log", "json", "--drain", f"{DRAIN_S}", *arguments],
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
        """Wait for READY; AssertionError with everything it said if that does not come."""
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
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def send_sigterm(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def send_sigint(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def send_sighup(self) -> None:
        self._process.send_signal(signal.SIGHUP)

    def wait_exit(self) -> int:
        """Wait for its end; its exit code."""
        try:
            code = self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)  # on which faulthandler writes every thread's stack
            self._process.wait(DEADLINE_S)
            self.close_pipes()
            raise AssertionError(f"did not end within {DEADLINE_S} s\n{self.output}") from None
        self.close_pipes()
        return code

    def kill(self) -> None:
        """SIGKILL: the power fails. What it was saying is still heard."""
        self._process.kill()
        self._process.wait(DEADLINE_S)
        self.close_pipes()

    def close_pipes(self) -> None:
        for reader in self._readers:
            reader.join(DEADLINE_S)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe:
                pipe.close()

    def stop(self) -> None:
        """SIGTERM; it must exit with 0 and have kept its books."""
        if not self.is_alive:
            self.close_pipes()
            raise AssertionError(f"ended by itself with {self._process.returncode}\n{self.output}")
        self.send_sigterm()
        code = self.wait_exit()
        assert code == 0, self.output
        assert_ledger_balanced(self.ledger)

    @property
    def log_records(self) -> list[dict[str, Any]]:
        """The log; what is no JSON is for people, such as the reason of a failure at the end."""
        return [json.loads(line) for line in self.stderr.items() if line.startswith("{")]

    @property
    def ledger(self) -> dict[str, int]:
        """The ledger in the last words of the process."""
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
                error.add_note(f"the streamer said:\n{self.output}")


def _read_lines(pipe: IO[str], inbox: Inbox[str]) -> None:
    for line in pipe:
        inbox.append(line)
    inbox.append("")  # the end


def statistics(state_dir: Path) -> dict[str, Any]:
    """What the streamer with this state_dir counts.

    Not by `ustreamer top`: a process of its own takes seconds on a busy machine.
    """
    directory = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as admin:
            admin.settimeout(DEADLINE_S)
            admin.connect(f"/proc/self/fd/{directory}/admin.sock")  # a whole path may be too long
            admin.sendall(b'{"type":"statistics"}\n')
            with admin.makefile("rb") as answer:
                found = json.loads(answer.readline())
    finally:
        os.close(directory)
    assert "result" in found, found
    result: dict[str, Any] = found["result"]
    return result


def assert_ledger_balanced(ledger: dict[str, int]) -> None:
    """The ledger law: every accepted delivery has ended in exactly one verdict, and none is left."""
    assert ledger["queued"] == 0, ledger
    assert ledger["received"] == sum(ledger[verdict] for verdict in VERDICTS), ledger


def run_command(
    *arguments: str | os.PathLike[str], within: float = START_S
) -> subprocess.CompletedProcess[str]:
    """Run a command of `ustreamer` to its end."""
    return subprocess.run(
        [COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
        stdin=subprocess.DEVNULL,
    )
