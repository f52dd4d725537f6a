# SPDX-License-Identifier: Apache-2.0
"""The number of trials of the tier and the seed, for measurements that take them."""

import os

import pytest

from tests.scorecard.run import SEED, TRIALS


@pytest.fixture
def trials() -> int:
    return int(os.environ[TRIALS])


@pytest.fixture
def seed() -> int:
    return int(os.environ[SEED])
