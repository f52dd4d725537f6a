# SPDX-License-Identifier: Apache-2.0
"""One broker for the tests that do not end it."""

from collections.abc import Iterator

import pytest

from tests.mqtt_rig import MOSQUITTO, Mosquitto


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    if MOSQUITTO is None:
        pytest.skip("needs the broker mosquitto")
    with Mosquitto(tmp_path_factory.mktemp("broker")) as running:
        yield running
