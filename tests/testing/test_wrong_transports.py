# SPDX-License-Identifier: Apache-2.0
"""The contract finds each of many wrong transports, and has no complaint about the correct one they are made from."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.testing import wrong_transports
from tests.testing.queued_transport import (
    CuttableNetwork,
    DurableTransport,
    PeeredTransport,
    QueuedTransport,
)
from tests.testing.wrong_transports import DEFECTS
from ustreamer.testing.contract import Pair, TransportContract
from ustreamer.testing.durable_contract import DurableContract
from ustreamer.testing.messages import ALPHA, BETA
from ustreamer.testing.peer_contract import PeerContract
from ustreamer.transports.local.transport import LocalNetwork

REPO = Path(__file__).parents[2]
DEADLINE_S = "0.3"
"""What a test waits for in vain. A correct transport has 30 s."""


class TestCorrectTransport(TransportContract):
    @contextmanager
    def make_pair(self) -> Iterator[Pair]:
        network = LocalNetwork()
        yield Pair(QueuedTransport(network, ALPHA), QueuedTransport(network, BETA))


class TestCorrectPeer(PeerContract):
    @contextmanager
    def make_pair(self) -> Iterator[Pair]:
        network = LocalNetwork()
        yield Pair(PeeredTransport(network, ALPHA), PeeredTransport(network, BETA))


class TestCorrectDurable(DurableContract):
    @contextmanager
    def make_pair(self) -> Iterator[Pair]:
        self.network = CuttableNetwork()
        yield Pair(DurableTransport(self.network, ALPHA), DurableTransport(self.network, BETA))

    @contextmanager
    def outage(self) -> Iterator[None]:
        self.network.is_cut = True
        yield
        self.network.is_cut = False


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """By defect: the tests that failed, of those that are named to find it. One run of pytest for all."""
    report = tmp_path_factory.mktemp("wrong") / "report.xml"
    where = Path(str(wrong_transports.__file__)).relative_to(REPO)
    chosen = [f"{where}::Test{name}::{test}" for name, (_, test) in DEFECTS.items()]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
        *chosen,
    ]
    subprocess.run(
        command,
        cwd=REPO,
        env={**os.environ, "USTREAMER_TEST_DEADLINE_S": DEADLINE_S},
        capture_output=True,
        check=False,
    )
    found: dict[str, set[str]] = {}
    for case in ET.parse(report).iter("testcase"):
        defect = case.attrib["classname"].rpartition(".Test")[2]
        failed = found.setdefault(defect, set())
        if case.find("failure") is not None:  # in the test, not in its fixtures
            failed.add(case.attrib["name"].partition("[")[0])
    return found


def test_each_test_of_the_contract_finds_a_defect() -> None:
    tests = {
        name
        for each in (TransportContract, PeerContract, DurableContract)
        for name in dir(each)
        if name.startswith("test_")
    }
    assert {test for _, test in DEFECTS.values()} == tests
    assert len(DEFECTS) > 80


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_contract_finds_the_defect(failures: dict[str, set[str]], defect: str) -> None:
    assert failures[defect] == {DEFECTS[defect][1]}
