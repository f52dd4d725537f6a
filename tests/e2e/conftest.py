# SPDX-License-Identifier: Apache-2.0
"""One streamer for all tests that do not disturb each other; other tests have their own.

Every test has its own topics, uEntities and sessions.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.rigs.entities import ZenohEntity
from tests.e2e.rigs.vehicle import Vehicle, running_vehicle


@pytest.fixture(scope="session")
def vehicle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vehicle]:
    with running_vehicle(tmp_path_factory.mktemp("vehicle")) as running:
        yield running


@pytest.fixture
def own_vehicle(tmp_path: Path) -> Iterator[Vehicle]:
    """A vehicle for one test only, which may stop its streamer and read the ledger."""
    with running_vehicle(tmp_path) as running:
        yield running


@pytest.fixture
def app(vehicle: Vehicle) -> Iterator[ZenohEntity]:
    """An application in the vehicle."""
    with ZenohEntity(vehicle.ports.backbone, "hpc.vin1") as peer:
        yield peer


@pytest.fixture
def fleet(vehicle: Vehicle) -> Iterator[ZenohEntity]:
    """An application in the cloud, behind another Zenoh network."""
    with ZenohEntity(vehicle.ports.cloud, "cloud") as peer:
        yield peer
