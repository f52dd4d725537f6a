# SPDX-License-Identifier: Apache-2.0
"""R24: the vehicle of the benchmarks at 10 000 messages/s: calls, limits, and subscriptions that change."""

from pathlib import Path
from typing import Final

from benchmarks.harness.checked_run import soak
from benchmarks.harness.checkouts import CheckoutTestbed
from benchmarks.harness.testbed import Direction, Subject
from benchmarks.traffic.models import VEHICLE
from tests.e2e.rigs.entities import Metronome

HZ: Final = 10_000.0
"""Of all messages. Near saturation the queues fill, and their memory hides a leak."""
SAMPLES_HZ: Final = 20
MB: Final = 1 << 20


def test_hours_of_traffic_change_nothing(tmp_path: Path, trials: int) -> None:
    """`trials` is the time in s. Caches fill in its first half; the second half is measured.

    The growth is that of the least memory: what waits for an acknowledgement of Zenoh varies by some MB. The
    allocator keeps up to 2 MB of that for minutes. A leak of 2 bytes per message exceeds it in 400 s.
    """
    samples: list[float] = []
    with CheckoutTestbed(tmp_path) as testbed:
        rig = testbed.topics_rig(VEHICLE, Direction.ZENOH_TO_ZENOH, Subject.STREAMER)
        forwarder = rig.forwarder
        assert forwarder is not None
        soak(rig, VEHICLE, HZ, trials / 2)
        threads = forwarder.threads
        with Metronome(SAMPLES_HZ, lambda _: samples.append(forwarder.resident_bytes / MB)):
            found = soak(rig, VEHICLE, HZ, trials / 2)
        more_threads = forwarder.threads - threads
    ledger, checks = testbed.ledger(), found.checks
    unanswered = sum(checks.calls[name] for name in ("unanswered", "unexpected", "missing"))
    middle = len(samples) // 2
    growth_mb = min(samples[middle:]) - min(samples[:middle])
    print(f"messages={checks.sent} time_s={found.seconds:.0f} per_second={found.sent_hz:.0f}")
    print(f"lost={checks.topics.lost} disordered={checks.topics.out_of_order} unanswered={unanswered}")
    print(f"rss_growth_mb={max(0.0, growth_mb):.1f} threads={max(0, more_threads)}")
    print(
        f"switches={checks.switches} unaccounted={ledger['unaccounted']} p99_ms={found.ages_us[1] / 1e3:.1f}"
    )
