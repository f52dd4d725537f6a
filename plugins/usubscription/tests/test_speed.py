# SPDX-License-Identifier: Apache-2.0
"""The cost of operations, measured: `make soak ARGS="-s -k speed"` prints the figures of the README.

Ratios are asserted, not times: they hold on any machine.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.conftest import ServiceRig

pytestmark = pytest.mark.soak


def test_speed_of_subscribing_alone_and_in_company(make_rig: "Callable[..., ServiceRig]") -> None:
    rig = make_rig().start()

    def one_at_a_time(seconds: float) -> float:
        done, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            rig.subscribe(caller=UUri("device1", done, 1, 0))
            done += 1
        return done / seconds

    def company(seconds: float, clients: int) -> float:
        """Each client has one pending request at any time."""
        done, end = 0, time.perf_counter() + seconds
        waiting = [
            rig.send_request(1, rig.subscription_request(), caller=UUri("device1", n, 2, 0))
            for n in range(clients)
        ]
        while time.perf_counter() < end:
            for place, reqid in enumerate(waiting):
                rig.wait_response(reqid)
                done += 1
                caller = UUri("device1", done, 3, 0)
                waiting[place] = rig.send_request(1, rig.subscription_request(), caller=caller)
        return done / seconds

    alone = one_at_a_time(3)
    before = rig.statistics("transactions")
    together = company(3, 64)
    shared = together * 3 / (rig.statistics("transactions") - before)
    print(f"\nSubscribe: alone {alone:,.0f}/s; 64 clients {together:,.0f}/s, {shared:.1f} per transaction")
    assert shared > 8
