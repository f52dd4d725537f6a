# SPDX-License-Identifier: Apache-2.0
"""Applications with the published up-python, in an environment of its own, through a streamer."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
from packaging.requirements import Requirement

from tests.e2e.clients.environments import (
    CHASSIS,
    CLOUD,
    ECU,
    PROGRAMS,
    REPO,
    VEHICLE,
    Command,
    Gateway,
    output_of,
    python_of,
    running_gateway,
    serving,
)
from ustreamer.host.demo.ecu import SimulatedEcu

CLIENT = REPO / "clients/up-python"


@pytest.fixture(scope="module")
def python() -> Path:
    return python_of("up-python")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("gateway")) as running:
        yield running


def test_the_transport_passes_its_own_tests(python: Path) -> None:
    lines = output_of([python, "-m", "pytest", "-q", "-p", "no:cacheprovider"], CLIENT)
    assert "passed" in lines[-1]
    assert "skipped" not in lines[-1]


def test_the_environment_has_up_python_and_not_the_streamer(python: Path) -> None:
    listed = {line.partition("==")[0] for line in output_of([python, "-I", "-c", _LIST])}
    assert {"up-python", "up-python-zenoh", "eclipse-zenoh"} <= listed
    assert "ustreamer" not in listed


_LIST = "import importlib.metadata as m; [print(each.metadata['Name']) for each in m.distributions()]"


def test_no_environment_can_have_both_because_of_protobuf(python: Path) -> None:
    """The reason for a distribution of its own. When this fails, an extra of the streamer has become possible."""
    code = "import importlib.metadata as m; print(*m.requires('up-python'), sep='\\n')"
    (theirs,) = [
        each for each in map(Requirement, output_of([python, "-I", "-c", code])) if each.name == "protobuf"
    ]
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (ours,) = [each for each in map(Requirement, project["dependencies"]) if each.name == "protobuf"]
    (pinned,) = theirs.specifier
    assert pinned.operator == "=="
    assert not ours.specifier.contains(pinned.version)


def test_subscribe_publish_notify_and_call_between_two_networks(python: Path, gateway: Gateway) -> None:
    served: Command = [python, PROGRAMS / "serve.py", gateway.locator(VEHICLE), "hpc.vin1"]
    with serving(served):
        lines = output_of(
            [python, PROGRAMS / "use.py", gateway.locator(CLOUD), "cloud", "//hpc.vin1/A001/1/0"]
        )
    assert lines == ["event: 21.5", "answer: WARM", "notification: called"]


def test_an_ecu_is_used_like_an_application(python: Path, gateway: Gateway) -> None:
    """The same program, and a SOME/IP service behind the streamer."""
    used: Command = [python, PROGRAMS / "use.py", gateway.locator(VEHICLE), "hpc.vin1", "//chassis/1234/1/0"]
    streamer, address = (("127.0.0.1", gateway.ports[each]) for each in (CHASSIS, ECU))
    ended = Event()
    with SimulatedEcu(streamer, address, {(0x1234, 1): bytes.upper}) as ecu:

        def send_events() -> None:
            while not ended.wait(0.05):
                ecu.send_event(0x1234, 0x8001, b"36.6")

        events = Thread(target=send_events)
        events.start()
        try:
            assert output_of(used) == ["event: 36.6", "answer: WARM"]
        finally:
            ended.set()
            events.join()
