# SPDX-License-Identifier: Apache-2.0
"""The count of the tier and the seed, for measurements that take them."""

import os

import pytest

from tests.scorecard.run import COUNT, SEED


@pytest.fixture
def count() -> int:
    return int(os.environ[COUNT])


@pytest.fixture
def seed() -> int:
    return int(os.environ[SEED])
