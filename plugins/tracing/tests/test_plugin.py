# SPDX-License-Identifier: Apache-2.0
"""The plugin in a streamer between in-process networks: start, stop, and the network of the collector away."""

import logging
import threading
from typing import TYPE_CHECKING

import pytest
from ustreamer_tracing.config import TracingConfig
from ustreamer_tracing.plugin import TracingPlugin

from tests.otlp_collector import OtlpCollector

if TYPE_CHECKING:
    from ustreamer.testing.bench import StreamerBench
    from ustreamer.testing.virtual_time import VirtualTime

CONFIG = """
authority = "hpc"
state_dir = "state"

[endpoints.backbone]
transport = "local"
authorities = ["hpc"]
network = "{network}"

[plugins.tracing]
collector = "{url}"
"""


def test_constructing_and_stopping_without_a_start_opens_nothing(virtual_time: "VirtualTime") -> None:
    before = threading.active_count()
    plugin = TracingPlugin(TracingConfig(), virtual_time.context())
    plugin.ustreamer_stopped()
    assert threading.active_count() == before


def test_a_streamer_starts_and_stops_without_its_collector(
    streamer_bench: "StreamerBench", caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    network = streamer_bench.network("backbone").name
    streamer = streamer_bench.start_streamer(CONFIG.format(network=network, url=OtlpCollector().url))
    assert "tracing" in {each.name for each in threading.enumerate()}
    streamer.stop(1.0)
    assert "tracing.stopped" in [each.getMessage() for each in caplog.records]
