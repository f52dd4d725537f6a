# SPDX-License-Identifier: Apache-2.0
"""Behaviour of Zenoh for which docs/delivery.md has no guarantee: a blocked link is closed in the middle of a write.

If the first of these tests fails, Zenoh has changed, and the page can guarantee more.
"""

import pytest

from tests.e2e.delivery.plain_zenoh import ZenohStallOutcome, router_stalled
from tests.e2e.rigs.cable import unsupported_reason

STALL_S = 7.5
LONGER_US = 10_000_000
"""longer than the stall"""

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(bool(unsupported_reason()), reason=f"needs a namespace: {unsupported_reason()}"),
]


def test_a_router_that_stalls_longer_than_the_put_timeout_loses_messages_and_corrupts_some() -> None:
    outcomes: list[ZenohStallOutcome] = []
    while not any(each.garbled and each.received < each.published for each in outcomes):
        assert len(outcomes) < 10, outcomes  # half of them are
        outcomes.append(router_stalled(STALL_S))


def test_a_put_timeout_longer_than_the_stall_loses_nothing() -> None:
    for _ in range(3):
        outcome = router_stalled(STALL_S, LONGER_US)
        assert (outcome.received, outcome.garbled) == (outcome.published, [])
