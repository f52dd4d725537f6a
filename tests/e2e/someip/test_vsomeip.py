# SPDX-License-Identifier: Apache-2.0
"""The samples of COVESA's vsomeip as peers of the streamer, if VSOMEIP_HOME names an installation."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.e2e.rigs.cable import in_own_namespace, unsupported_reason
from tests.e2e.rigs.streamer import run_command
from tests.e2e.someip.vsomeip_peer import build_peer
from tests.e2e.someip.vsomeip_samples import (
    HOME,
    SAMPLES,
    Installation,
    SampleProcess,
    installation,
    sample_command,
    sample_environment,
    vsomeip_json,
)

SCENARIOS_S = 110.0
REPO = Path(__file__).parents[3]


def run_scenarios(directory: Path, home: str, module: str = "vsomeip_scenarios", *arguments: str) -> None:
    """Run the scenarios in their own namespace."""
    why = unsupported_reason()
    if why:
        pytest.skip(f"no network namespaces on this machine: {why}")
    done = subprocess.run(
        in_own_namespace(f"tests.e2e.someip.{module}", str(directory), *arguments),
        env=os.environ | {HOME: home},
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=SCENARIOS_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_samples_of_vsomeip_are_found_called_subscribed_and_served(tmp_path: Path) -> None:
    found = installation(os.environ)
    if isinstance(found, str):
        pytest.skip(found)
    run_scenarios(tmp_path, str(found.home))


@pytest.fixture(scope="module")
def peer_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled `vsomeip_peer.cpp`."""
    found = installation(os.environ)
    program = found if isinstance(found, str) else build_peer(found, tmp_path_factory.mktemp("peer"))
    if isinstance(program, str):
        pytest.skip(program)
    return program


@pytest.mark.parametrize("scenario", ["served_by_vsomeip", "used_by_vsomeip", "many"])
def test_a_scripted_vsomeip_application(tmp_path: Path, peer_program: Path, scenario: str) -> None:
    run_scenarios(tmp_path, os.environ[HOME], "vsomeip_peer_scenarios", str(peer_program), scenario)


@pytest.mark.soak
def test_the_streamer_and_vsomeips_own_client_recover(tmp_path: Path, peer_program: Path) -> None:
    """Each step waits for an event, or fails. The figures are printed by the module alone."""
    run_scenarios(tmp_path, os.environ[HOME], "vsomeip_recovery", str(peer_program), "1")


def test_the_scenarios_pass_with_stand_ins(tmp_path: Path) -> None:
    """Stand-ins on the library someip replace the samples: they read the same JSON and print the same lines."""
    home = tmp_path / "v"
    (home / "bin").mkdir(parents=True)
    for name in SAMPLES:
        understudy = home / "bin" / name
        understudy.write_text(
            f"#!/bin/sh\ncd {REPO} && exec {sys.executable} -m tests.e2e.someip.vsomeip_stand_in {name}\n",
            encoding="utf-8",
        )
        understudy.chmod(0o755)
    run_scenarios(tmp_path, str(home))


# --- tests without vsomeip --------------------------------------------------------------------------------------------


def fake_installation(
    home: Path, folder: str = "bin", names: tuple[str, ...] = SAMPLES, prints: str = ""
) -> Path:
    """A fake installation whose samples print text and record their arguments."""
    (home / folder).mkdir(parents=True)
    for name in names:
        sample = home / folder / name
        sample.write_text(
            f'#!/bin/sh\necho "{prints}"\necho "$0 $*"\necho "$VSOMEIP_CONFIGURATION"\nexec cat\n',
            encoding="utf-8",
        )
        sample.chmod(0o755)
    return home


def test_a_missing_variable_or_sample_is_named(tmp_path: Path) -> None:
    assert (
        installation({}) == "VSOMEIP_HOME is not set; it names an installation of vsomeip 3 with its samples"
    )
    home = fake_installation(tmp_path / "v", names=("notify-sample",))
    output = installation({"VSOMEIP_HOME": str(home)})
    assert isinstance(output, str)
    assert "no subscribe-sample, request-sample, response-sample in" in output
    assert str(home / "bin") in output


@pytest.mark.parametrize("folder", ["bin", "examples", "build/examples"])
def test_samples_are_found_in_an_installation_and_in_a_build(tmp_path: Path, folder: str) -> None:
    home = fake_installation(tmp_path / "v", folder)
    found = installation({"VSOMEIP_HOME": str(home)})
    assert isinstance(found, Installation)
    assert dict(found.samples) == {name: home / folder / name for name in SAMPLES}


@pytest.mark.parametrize("serves", [True, False])
def test_the_configuration_is_readable_by_import_vsomeip(tmp_path: Path, serves: bool) -> None:
    written = vsomeip_json("sample", "192.0.2.2", "224.244.224.245", 30_490, is_server=serves)
    assert (written["unicast"], written["routing"]) == ("192.0.2.2", "sample")
    assert written["applications"][0]["name"] == "sample"
    assert set(written["npdu-default-timings"]) == {
        "debounce-time-request",
        "debounce-time-response",
        "max-retention-time-request",
        "max-retention-time-response",
    }
    assert written["service-discovery"]["port"] == "30490"
    file = tmp_path / "sample.json"
    file.write_text(json.dumps(written), encoding="utf-8")
    imported = run_command("import", "vsomeip", file, "--bind", "192.0.2.1")
    assert imported.returncode == 0, imported.stderr
    section = tomllib.loads(imported.stdout)["endpoints"]
    [endpoint] = [each for each in section.values() if each["transport"] == "someip"]
    assert [each["service"] for each in endpoint.get("services", [])] == [0x1234] * serves
    assert endpoint["sd"]["multicast"] == "224.244.224.245"


def test_a_sample_runs_with_its_configuration_and_its_output_is_read(tmp_path: Path) -> None:
    found = installation({"VSOMEIP_HOME": str(fake_installation(tmp_path / "v", prints="is available."))})
    assert isinstance(found, Installation)
    with SampleProcess(found, "notify-sample", tmp_path, "192.0.2.2", ("224.244.224.245", 30_490)) as sample:
        sample.output.wait_count(count=3)
        there, called, configured = (line.strip() for line in sample.output.items())
    assert there == "is available."
    assert called == f"{found.samples['notify-sample']} --udp --cycle 100"
    assert configured == str(tmp_path / "notify-sample.json")
    assert json.loads(Path(configured).read_text(encoding="utf-8"))["services"]
    assert sample_command(found, "request-sample") == [str(found.samples["request-sample"]), "--udp"]
    assert sample_environment(found, tmp_path, "a")["LD_LIBRARY_PATH"].split(":")[0] == f"{found.home}/lib"
