# SPDX-License-Identifier: Apache-2.0
"""Environments with the libraries of others, and the programs of examples/clients in processes of their own."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import pytest

from examples.rig import on_ports
from tests.e2e.rigs.entities import DEADLINE_S
from tests.e2e.rigs.ports import tcp_ports, udp_ports
from tests.e2e.rigs.streamer import StreamerProcess

REPO: Final = Path(__file__).parents[3]
PROGRAMS: Final = REPO / "examples/clients"
VEHICLE, CLOUD, CHASSIS, ECU, BROKER = 7447, 7448, 30500, 30501, 1883
"""The ports in the configurations there."""
Command: TypeAlias = Sequence[str | Path]


def python_of(name: str) -> Path:
    """The interpreter of build/<name>. Without it the test is skipped."""
    environment = REPO / "build" / name
    if not (environment / ".installed").exists():
        # Also in CI: the package index is a third-party service, and its outage is no fault of this project.
        pytest.skip(f"{name} is not in {environment}: `make test` installs it, by pip")
    return environment / "bin/python"


class Gateway(NamedTuple):
    """A streamer with examples/clients/gateway.toml, on other ports."""

    streamer: StreamerProcess
    ports: dict[int, int]

    def locator(self, shown: int) -> str:
        return f"tcp/127.0.0.1:{self.ports[shown]}"


@contextmanager
def running_gateway(directory: Path) -> Iterator[Gateway]:
    ports = {
        **dict(zip((VEHICLE, CLOUD), tcp_ports(2), strict=True)),
        **dict(zip((CHASSIS, ECU), udp_ports(2), strict=True)),
    }
    config = directory / "gateway.toml"
    config.write_text(on_ports((PROGRAMS / config.name).read_text(encoding="utf-8"), ports), encoding="utf-8")
    with StreamerProcess(config) as streamer:
        yield Gateway(streamer, ports)


@contextmanager
def serving(command: Command) -> Iterator[None]:
    """A program until the end of the block. Its first line is `serving`."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "serving\n", command
            yield
            assert process.poll() is None, f"{command} has ended with {process.returncode}"
        finally:
            process.kill()


def output_of(command: Command, directory: Path = REPO) -> list[str]:
    """The lines of a program that ends with 0."""
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=3 * DEADLINE_S, check=False
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout.splitlines()
