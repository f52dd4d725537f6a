# SPDX-License-Identifier: Apache-2.0
"""COVESA's vsomeip as a peer, if the environment variable VSOMEIP_HOME names an installation with its samples.

The samples use service 0x1234, instance 0x5678, version 0, method 0x0421, event 0x8778 in event group 0x4465, and UDP
port 30509.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from tests.e2e.rigs.entities import DEADLINE_S, Inbox

SERVICE, INSTANCE, METHOD, EVENT, EVENTGROUP = 0x1234, 0x5678, 0x0421, 0x8778, 0x4465
DATA_PORT: Final = 30_509
HOME: Final = "VSOMEIP_HOME"
SAMPLES: Final = ("notify-sample", "subscribe-sample", "request-sample", "response-sample")
SERVER_SAMPLES: Final = {"notify-sample", "response-sample"}
_FOLDERS: Final = ("bin", "examples", "build/examples", "share/vsomeip/examples", "")
_LIBRARIES: Final = ("lib", "lib64", "build", "")
_NO_DEBOUNCE: Final = {
    f"{what}-time-{which}": "0" for what in ("debounce", "max-retention") for which in ("request", "response")
}
"""With debouncing, a response waits 5 ms to share its datagram with others."""


class Installation(NamedTuple):
    """The paths of the samples and of their libraries."""

    home: Path
    samples: Mapping[str, Path]


def installation(environment: Mapping[str, str]) -> Installation | str:
    """The installation, or the reason for its absence."""
    home_variable = environment.get(HOME)
    if not home_variable:
        return f"{HOME} is not set; it names an installation of vsomeip 3 with its samples"
    home = Path(home_variable)
    found = {
        name: path
        for name in SAMPLES
        for folder in reversed(_FOLDERS)
        if os.access(path := home / folder / name, os.X_OK) and path.is_file()
    }
    missing = [name for name in SAMPLES if name not in found]
    if missing:
        where = ", ".join(str(home / folder) for folder in _FOLDERS)
        return f"{HOME}: {home_variable}: no {', '.join(missing)} in {where}"
    return Installation(home, found)


def vsomeip_json(name: str, host: str, group: str, sd_port: int, *, is_server: bool) -> dict[str, Any]:
    """The JSON of a vsomeip host with one application that offers or requests the samples' service."""
    offered = {
        "service": f"{SERVICE:#06x}",
        "instance": f"{INSTANCE:#06x}",
        "unreliable": str(DATA_PORT),
        "events": [{"event": f"{EVENT:#06x}", "is_field": "true", "update-cycle": "0"}],
        "eventgroups": [{"eventgroup": f"{EVENTGROUP:#06x}", "events": [f"{EVENT:#06x}"]}],
    }
    return {
        "unicast": host,
        "netmask": "255.255.255.0",
        "logging": {"level": "info", "console": "true", "file": {"enable": "false"}, "dlt": "false"},
        "applications": [{"name": name, "id": "0x1277"}],
        "services": [offered] if is_server else [],
        "routing": name,
        "npdu-default-timings": _NO_DEBOUNCE,
        "service-discovery": {
            "enable": "true",
            "multicast": group,
            "port": str(sd_port),
            "protocol": "udp",
            "initial_delay_min": "10",
            "initial_delay_max": "100",
            "repetitions_base_delay": "200",
            "repetitions_max": "3",
            "ttl": "3",
            "cyclic_offer_delay": "1000",
            "request_response_delay": "1500",
        },
    }


def sample_environment(found: Installation, directory: Path, name: str) -> dict[str, str]:
    """The environment of a sample; its sockets are in its own directory and not in the shared /tmp."""
    libraries = [str(found.home / folder) for folder in _LIBRARIES]
    return {
        "VSOMEIP_CONFIGURATION": str(directory / f"{name}.json"),
        "VSOMEIP_APPLICATION_NAME": name,
        "VSOMEIP_BASE_PATH": f"{directory}/",
        "LD_LIBRARY_PATH": ":".join(libraries),
    }


def sample_command(found: Installation, name: str) -> list[str]:
    """The command that starts a sample with UDP; a server offers immediately."""
    cycle = ["--cycle", "100"] if name == "notify-sample" else []
    return [str(found.samples[name]), "--udp", *cycle]


class VsomeipProcess:
    """A vsomeip application as a process with its own configuration; `prefix` precedes its command."""

    def __init__(
        self,
        found: Installation,
        command: Sequence[str],
        directory: Path,
        configuration: Mapping[str, Any],
        prefix: tuple[str, ...] = (),
    ) -> None:
        name = configuration["routing"]
        (directory / f"{name}.json").write_text(json.dumps(configuration, indent=2), encoding="utf-8")
        self.output: Inbox[str] = Inbox(name)
        self._process = subprocess.Popen(
            [*prefix, *command],
            env=os.environ | sample_environment(found, directory, name),
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
        )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self.output.append(line)

    def send(self, *lines: str) -> None:
        """Send lines to stdin."""
        assert self._process.stdin
        self._process.stdin.writelines(f"{line}\n" for line in lines)
        self._process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL, as in a power failure: the application sends nothing more."""
        self._process.kill()
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.terminate()
        try:
            self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._close()
        if error is not None:
            error.add_note(f"output of the application:\n{''.join(self.output.items()[-40:])}")

    def _close(self) -> None:
        self._process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            with suppress(BrokenPipeError):
                pipe.close()


class SampleProcess(VsomeipProcess):
    """A sample as a process."""

    def __init__(
        self,
        found: Installation,
        name: str,
        directory: Path,
        host: str,
        sd: tuple[str, int],
        prefix: tuple[str, ...] = (),
    ) -> None:
        configuration = vsomeip_json(name, host, *sd, is_server=name in SERVER_SAMPLES)
        super().__init__(found, sample_command(found, name), directory, configuration, prefix)
