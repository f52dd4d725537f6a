# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the SOME/IP tests."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.transports.someip.loopback_rig import LoopbackReceiver


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopbackReceiver]:
    """One for all tests, as in an endpoint: earlier batches must not show."""
    with ExitStack() as stack:
        yield LoopbackReceiver(stack)
