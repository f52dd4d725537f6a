# SPDX-License-Identifier: Apache-2.0
"""The contracts of transports find each of many mistakes in a copy of the plugin, and none in an unchanged copy."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

import pytest

from tests import mqtt_mutants
from tests.mqtt_mutants import BROKER, BROKER_PID, MUTATIONS, class_name, write_copy
from tests.mqtt_rig import Mosquitto, needs_mosquitto

pytestmark = needs_mosquitto
REPO: Final = Path(__file__).parents[3]
DEADLINE_S: Final = "1"
"""What a test waits for in vain. The unchanged copy has 30 s."""
AT_ONCE: Final = 4


def failed_tests(directory: Path, tests: Sequence[str], deadline_s: str | None = None) -> dict[str, set[str]]:
    """By class: the tests that failed, of `tests` (class::test). One run of pytest, with a broker of its own."""
    directory.mkdir()
    report = directory / "report.xml"
    path = os.pathsep.join(map(str, (directory.parent, REPO)))
    deadline = {} if deadline_s is None else {"USTREAMER_TEST_DEADLINE_S": deadline_s}
    with Mosquitto(directory) as broker:
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"),
                *(f"{mqtt_mutants.__file__}::{each}" for each in tests),
            ],
            cwd=REPO,
            env={
                **os.environ,
                BROKER: broker.url,
                BROKER_PID: str(broker.pid),
                "PYTHONPATH": path,
                **deadline,
            },
            capture_output=True,
            check=False,
        )
    found: dict[str, set[str]] = {}
    for case in ET.parse(report).iter("testcase"):
        name = case.attrib["classname"].rpartition(".Test")[2].removesuffix("Durable")
        failed = found.setdefault(name, set())
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(case.attrib["name"].partition("[")[0])
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, set[str]]:
    """By copy: the tests that failed. Each mutant runs the test that is named to find it, the unchanged copy all."""
    directory = tmp_path_factory.mktemp("copies")
    write_copy(directory, "correct")
    for name, mutation in MUTATIONS.items():
        write_copy(directory, name.lower(), mutation)
    chosen = [f"{class_name(name, each.test)}::{each.test}" for name, each in MUTATIONS.items()]
    parts = [chosen[first::AT_ONCE] for first in range(AT_ONCE)]
    tests = sorted({each.test for each in MUTATIONS.values()})
    correct = [f"{class_name('Correct', test)}::{test}" for test in tests]
    with ThreadPoolExecutor(AT_ONCE + 1) as pool:
        runs = [pool.submit(failed_tests, directory / "run-correct", correct)]
        for number, part in enumerate(parts):
            runs.append(pool.submit(failed_tests, directory / f"run-{number}", part, DEADLINE_S))
        return {name: failed for run in runs for name, failed in run.result().items()}


def test_an_unchanged_copy_passes(results: Mapping[str, set[str]]) -> None:
    assert results["Correct"] == set()
    assert len(MUTATIONS) >= 20


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_contract_finds_the_mistake(results: Mapping[str, set[str]], name: str) -> None:
    assert results[name] == {MUTATIONS[name].test}
