# SPDX-License-Identifier: Apache-2.0
"""R24: the vehicle of the benchmarks at 70 % of its saturation: calls, limits, and subscriptions that change."""

from pathlib import Path

from benchmarks.harness.checked_run import SHARE, saturation_hz, soak
from benchmarks.harness.checkouts import CheckoutTestbed
from benchmarks.harness.measure import Load
from benchmarks.harness.testbed import Direction, Subject
from benchmarks.traffic.models import VEHICLE

LOAD = Load(warm_up_s=0.3, saturated_s=1.0, paced_messages=100, fast_messages=300)


def test_hours_of_traffic_change_nothing(tmp_path: Path, trials: int) -> None:
    """`trials` is the time in s. Caches fill in its first half; the second half is measured."""
    with CheckoutTestbed(tmp_path) as testbed:
        rig = testbed.topics_rig(VEHICLE, Direction.ZENOH_TO_ZENOH, Subject.STREAMER)
        assert rig.forwarder is not None
        hz = SHARE * saturation_hz(rig, LOAD)
        soak(rig, VEHICLE, hz, trials / 2)
        threads = rig.forwarder.threads
        found = soak(rig, VEHICLE, hz, trials / 2)
        more_threads = rig.forwarder.threads - threads
    ledger, checks = testbed.ledger(), found.checks
    unanswered = sum(checks.calls[name] for name in ("unanswered", "unexpected", "missing"))
    print(f"messages={checks.sent} time_s={found.seconds:.0f} per_second={found.sent_hz:.0f}")
    print(f"lost={checks.topics.lost} disordered={checks.topics.out_of_order} unanswered={unanswered}")
    print(f"rss_growth_mb={max(0.0, found.last_mb - found.first_mb):.1f} threads={max(0, more_threads)}")
    print(
        f"switches={checks.switches} unaccounted={ledger['unaccounted']} p99_ms={found.ages_us[1] / 1e3:.1f}"
    )
