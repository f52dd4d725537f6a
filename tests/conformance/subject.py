# SPDX-License-Identifier: Apache-2.0
"""A streamer as the subject of the test kit `tck/`, and the kit as a process.

`python -m tests.conformance.subject restart PORT` is the command that the kit runs to restart the subject.
"""

import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import Final, NamedTuple

from tests.conformance.run import RunOutcome
from tests.conformance.tags import CaseRef
from tests.e2e.rigs.ports import tcp_ports
from tests.e2e.rigs.streamer import StreamerProcess

REPO: Final = Path(__file__).parents[2]
KIT: Final = Path(sys.executable).with_name("uprotocol-tck")
OTHER: Final = "tck.other"
"""The authority of the other device, which the kit plays."""
KIT_S: Final = 180.0
_USER: Final = "kit:a ticket for tests"
_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "state"

[endpoints.here]
transport = "zenoh"
authorities = ["hpc.vin1"]
listen = ["tcp/127.0.0.1:{here}"]

[endpoints.there]
transport = "zenoh"
authorities = ["{other}"]
listen = ["tcp/127.0.0.1:{there}"]

[plugins.usubscription]
topic_lifecycle = "{lifecycle}"
may_reset = ["//{other}/0/FF/0"]

[plugins.throttle]

[plugins.wamp]
listen = "rs://127.0.0.1:{wamp}"
users = [{{ authid = "{authid}", ticket = "{ticket}", subscribe = ["com.", "up."], publish = ["{may_publish}"] }}]
"""


class SubjectSettings(NamedTuple):
    """What may differ between subjects: the topic lifecycle, and the topics that the WAMP user may publish."""

    lifecycle: str = "track"
    may_publish: str = "com."


USUAL: Final = SubjectSettings()


class KitRun(NamedTuple):
    """The end of one run of the kit: its exit code and its output."""

    code: int
    output: str

    @property
    def failed(self) -> list[str]:
        """The names of the failed cases."""
        return re.findall(r"^FAIL (\S+)", self.output, re.MULTILINE)

    @property
    def not_applicable(self) -> list[str]:
        return re.findall(r"^n/a  (\S+)", self.output, re.MULTILINE)

    @property
    def not_judged(self) -> list[str]:
        return re.findall(r"^\?\?   (\S+)", self.output, re.MULTILINE)

    @property
    def summary(self) -> str:
        """How many cases passed and failed; empty if the kit did not end."""
        found = re.search(r"^\d+ cases: .*$", self.output, re.MULTILINE)
        return found[0] if found else ""


class SubjectStreamer:
    """A streamer with all that the kit can judge. `environment` can put other code in the place of ours."""

    def __init__(
        self, directory: Path, environment: Mapping[str, str], settings: SubjectSettings = USUAL
    ) -> None:
        here, there, wamp = tcp_ports(3)
        authid, ticket = _USER.split(":")
        self._config = directory / "streamer.toml"
        self._config.write_text(
            _CONFIG.format(
                here=here,
                there=there,
                wamp=wamp,
                other=OTHER,
                authid=authid,
                ticket=ticket,
                **settings._asdict(),
            ),
            encoding="utf-8",
        )
        self._environment = environment
        self._process = self._start()
        self._restarts = socket.socket(socket.AF_UNIX)
        self._restarts.bind(_socket_name(here))
        self._restarts.listen()
        self._thread = Thread(target=self._serve_restarts, name="restarts", daemon=True)
        self._thread.start()
        self.arguments = (
            *("--connect", f"tcp/127.0.0.1:{here}"),
            *("--connect-other", f"tcp/127.0.0.1:{there}", "--other", OTHER),
            *("--wamp", f"rs://127.0.0.1:{wamp}", "--wamp-user", _USER),
            *("--wamp-denied", "org.example.denied"),
            *("--dead-letters", "//hpc.vin1/4/1/8000", "--allow-reset"),
            *("--with", "v3", "--with", "v4", "--with", "lifecycle", "--with", "max-frequency"),
            *("--restart", shlex.join(_restart_command(here))),
        )

    def _start(self) -> StreamerProcess:
        with _environment(self._environment):
            return StreamerProcess(self._config).wait_ready()

    def _serve_restarts(self) -> None:
        with suppress(OSError):  # closed at the end
            while True:
                connection, _ = self._restarts.accept()
                with connection:
                    self._process.kill()
                    self._process = self._start()
                    connection.sendall(b"ready")

    @property
    def output(self) -> str:
        return self._process.output

    def kill(self) -> None:
        """It stops in the middle of a run."""
        self._process.kill()

    def close(self) -> None:
        """Kill it. Other tests judge how a streamer ends."""
        self._restarts.shutdown(socket.SHUT_RDWR)  # ends the wait for a restart
        self._thread.join()
        self._restarts.close()
        self._process.kill()


def _restart_command(port: int) -> list[str]:
    return [sys.executable, "-m", "tests.conformance.subject", "restart", str(port)]


def _socket_name(port: int) -> str:
    """Where a subject waits for the command to restart: a name without a file, by its first port."""
    return f"\0subject of the test kit at {port}"


@contextmanager
def running_subject(
    environment: Mapping[str, str] = MappingProxyType({}), settings: SubjectSettings = USUAL
) -> Iterator[SubjectStreamer]:
    """A started streamer in a directory of its own."""
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        streamer = SubjectStreamer(Path(directory), environment, settings)
        stack.callback(streamer.close)
        yield streamer


def run_kit(streamer: SubjectStreamer, *arguments: str, timeout_s: float = KIT_S) -> KitRun:
    """Run the kit against a streamer."""
    done = subprocess.run(
        [KIT, *streamer.arguments, *arguments],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return KitRun(done.returncode, done.stdout + done.stderr)


def judge(cases: Sequence[CaseRef]) -> Mapping[CaseRef, RunOutcome]:
    """Run the kit against a started streamer; the outcomes of these cases."""
    with running_subject() as streamer:
        run = run_kit(streamer)
    print(run.output)
    by_name = outcomes_in(run.output)
    return {each: by_name.get(each.name, RunOutcome()) for each in cases}


def outcomes_in(output: str) -> Mapping[str, RunOutcome]:
    """The outcomes in the output of the kit, by the name of the case, with its versions combined.

    A case that is not applicable counts as skipped. One that is not judged has failed: it says nothing of our streamer.
    """
    by_name: dict[str, RunOutcome] = {}
    outcomes = {
        "ok": RunOutcome(1),
        "FAIL": RunOutcome(0, 1),
        "??": RunOutcome(0, 1),
        "n/a": RunOutcome(0, 0, 1),
    }
    for mark, name in re.findall(r"^(ok|FAIL|n/a|\?\?) +(\w+)", output, re.MULTILINE):
        by_name[name] = RunOutcome.total_of([by_name.get(name, RunOutcome()), outcomes[mark]])
    return by_name


@contextmanager
def _environment(changed: Mapping[str, str]) -> Iterator[None]:
    """A changed environment for the processes that start in the body."""
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def main(arguments: Sequence[str]) -> int:
    """Restart the subject: returns when it is ready."""
    match arguments:
        case ["restart", port]:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(_socket_name(int(port)))
                return 0 if connection.recv(16) == b"ready" else 1
    print("usage: python -m tests.conformance.subject restart PORT", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
