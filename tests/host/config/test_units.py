# SPDX-License-Identifier: Apache-2.0
"""Numbers with a unit become numbers in the unit of their key."""

import pytest

from ustreamer.host.config.units import without_unit


@pytest.mark.parametrize(
    ("key", "text", "number"),
    [
        ("max_age_ms", "30s", 30_000),
        ("max_age_ms", "30 S", 30_000),
        ("max_age_ms", "0.5min", 30_000),
        ("separation_us", "2ms", 2_000),
        ("ping_interval_s", "500ms", 0.5),
        ("max_age_days", "48h", 2),
        ("queue_bytes", "16MB", 16_000_000),
        ("bytes", "16 MiB", 1 << 24),
        ("queue_bytes", "1_000 k", 1_000_000),
        ("max_frequency", "1kHz", 1_000),
        ("queue_messages", "10k", 10_000),
        ("queue_messages", "10 messages", 10),
        ("receive_buffer", "4MB", 4_000_000),
        ("port", "30500 udp", 30_500),
        ("max_age_ms", "30MB", None),
        ("max_age_ms", "30", None),
        ("max_age_ms", "s", None),
        ("max_age_ms", "1h30m", None),
    ],
)
def test_a_number_with_a_unit(key: str, text: str, number: float | None) -> None:
    assert without_unit(key, text) == number
