# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/clients.md in Rust, C++ and Java, each through a streamer. `make clients` builds what they need."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from examples.rig import on_ports
from tests.e2e.clients.environments import (
    BROKER,
    CHASSIS,
    CLOUD,
    ECU,
    PROGRAMS,
    VEHICLE,
    Command,
    Gateway,
    output_of,
    python_of,
    running_gateway,
    serving,
)
from tests.e2e.rigs.ports import tcp_ports
from tests.e2e.rigs.streamer import StreamerProcess
from tests.mqtt_rig import Mosquitto, needs_mosquitto

ALL_LINES: Final = ["event: 21.5", "answer: WARM", "notification: called"]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("gateway")) as running:
        yield running


def named_by(variable: str) -> Path:
    """What an environment variable names. Without it the test is skipped."""
    if variable not in os.environ:
        pytest.skip(f"{variable} is not set: `make clients` builds it")
    found = Path(os.environ[variable])
    assert found.exists(), f"{variable}: {found} does not exist"
    return found


def program(language: str, name: str) -> list[str | Path]:
    """The command that runs `serve` or `use`, without its arguments."""
    if language == "Rust":
        return [named_by("RUST_CLIENTS") / name]
    return [python_of("up-python"), PROGRAMS / f"{name}.py"]


@pytest.mark.parametrize(("provider", "consumer"), [("Rust", "Rust"), ("Rust", "Python"), ("Python", "Rust")])
def test_provider_and_consumer_of_two_languages(gateway: Gateway, provider: str, consumer: str) -> None:
    served: Command = [*program(provider, "serve"), gateway.locator(VEHICLE), "hpc.vin1"]
    used: Command = [*program(consumer, "use"), gateway.locator(CLOUD), "cloud", "//hpc.vin1/A001/1/0"]
    with serving(served):
        assert output_of(used) == ALL_LINES


@pytest.mark.parametrize("consumer", ["Rust", "Python"])
def test_an_ecu_in_cpp(gateway: Gateway, consumer: str, tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs the compiler g++")
    ecu = tmp_path / "ecu"
    options = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-o"]
    subprocess.run([compiler, *options, ecu, PROGRAMS / "ecu.cpp"], check=True)
    used: Command = [*program(consumer, "use"), gateway.locator(CLOUD), "cloud", "//chassis/1234/1/0"]
    with serving([ecu, str(gateway.ports[ECU]), str(gateway.ports[CHASSIS])]):
        assert output_of(used) == ["event: 36.6", "answer: WARM"]


@needs_mosquitto
def test_an_application_in_java_at_a_broker(tmp_path: Path) -> None:
    library = named_by("PAHO_JAR")
    java = shutil.which("java")
    assert java is not None, "PAHO_JAR is set, and there is no java"
    broker = Mosquitto(tmp_path)
    broker.start()
    (port,) = tcp_ports(1)
    config = tmp_path / "gateway_mqtt.toml"
    text = (PROGRAMS / config.name).read_text(encoding="utf-8")
    config.write_text(on_ports(text, {VEHICLE: port, BROKER: broker.port}), encoding="utf-8")
    served: Command = [*program("Python", "serve"), f"tcp/127.0.0.1:{port}", "hpc.vin1"]
    used: Command = [
        java,
        "-cp",
        library,
        PROGRAMS / "Use.java",
        f"tcp://127.0.0.1:{broker.port}",
        "phone",
        "hpc.vin1",
        "A001",
    ]
    try:
        with StreamerProcess(config), serving(served):
            assert output_of(used) == ALL_LINES
    finally:
        broker.kill()
