# SPDX-License-Identifier: Apache-2.0
"""The benchmark of MQTT runs, and neither forwarder loses, repeats or reorders a message."""

from pathlib import Path

from benchmarks.mqtt import measured
from tests.mqtt_rig import needs_mosquitto


@needs_mosquitto
def test_both_forwarders_carry_every_message_once_and_in_order(tmp_path: Path) -> None:
    found = measured(tmp_path, messages=400, rounds=1)
    for name in ("streamer", "bare"):
        counts = {key: found[name][key] for key in ("lost", "repeated", "out_of_order")}
        assert counts == {"lost": 0, "repeated": 0, "out_of_order": 0}, name
    # The goal is 0.6, on a quiet machine; a forwarder that waits for each acknowledgement has 0.1.
    assert found["ratio"] > 0.3
