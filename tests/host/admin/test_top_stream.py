# SPDX-License-Identifier: Apache-2.0
"""The frames of `ustreamer top`, and their latencies."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.host.running_streamer import INSIDE, OUTSIDE, RunningStreamer
from tests.host.waiting import DEADLINE_S, eventually
from ustreamer.host.admin.server import AdminError, TapRequest, TopRequest, stream_lines
from ustreamer.host.admin.taps import MAX_READERS
from ustreamer.host.cli.top_command import frames_of
from ustreamer.host.diagnosis.recent import RecentLetters, RecentLogLine
from ustreamer.host.runtime.top_stream import bucket_of, problems_of, quantile_ms
from ustreamer.testing.messages import new_id
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.rpc import RpcClient
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import publish
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

TOPIC: Final = UUri("hpc", 0x1234, 1, 0x8001)
SUBSCRIBER: Final = UUri("cloud", 7, 1, 0)
PLUGINS: Final = "[plugins.usubscription]\nmap_size_mb = 1\n[plugins.throttle]"


@pytest.mark.parametrize("latency_us", [0, 1, 3, 4, 5, 7, 8, 100, 999, 1_000, 12_345, 5_000_000])
def test_a_quantile_is_exact_to_a_quarter(latency_us: int) -> None:
    counts = [0] * 128
    counts[bucket_of(latency_us)] = 10
    found = quantile_ms(counts, 0.5)
    assert found is not None
    assert latency_us < found * 1_000 <= max(latency_us + 1, latency_us * 1.26)


def test_quantiles_of_many_latencies_are_in_order_and_none_has_none() -> None:
    counts = [0] * 128
    for latency_us in range(1_000):
        counts[bucket_of(latency_us)] += 1
    p50, p99 = quantile_ms(counts, 0.5), quantile_ms(counts, 0.99)
    assert p50 is not None
    assert p99 is not None
    assert 0.4 < p50 < 0.65 < p99 < 1.3
    assert quantile_ms([0] * 128, 0.5) is None
    assert bucket_of(1 << 60) == 127


def test_problems_are_in_the_order_of_their_times() -> None:
    letters = RecentLetters(TOPIC, None, "outside", UCode.INTERNAL, "broken", INSIDE, 1, 3, 1, 20, 3)
    lines = [RecentLogLine(at_ms, "warning", "zenoh.lost", {"endpoint": "x"}) for at_ms in (10, 30)]
    assert [each.text for each in problems_of([letters], lines)] == [
        "warning zenoh.lost endpoint=x",
        f"3 dead letters of {TOPIC} at outside: broken",
        "warning zenoh.lost endpoint=x",
    ]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningStreamer]:
    """A streamer with a topic at 200 Hz or more, of which the subscriber asked for 10 Hz."""
    with RunningStreamer(tmp_path, PLUGINS) as running:
        fleet, app, over = running.app(OUTSIDE, "cloud"), running.app(INSIDE, "hpc"), threading.Event()
        wanted = pb.SubscriptionRequest(
            topic=TOPIC.to_pb(), attributes=pb.SubscribeAttributes(sample_period_ms=100)
        )
        client = RpcClient(fleet, SUBSCRIBER, UuidSource(lambda: new_id().time_ms))
        client.call(UUri("hpc", 0, 3, 1), wanted.SerializeToString(), UPayloadFormat.PROTOBUF)

        def send() -> None:
            while not over.wait(0.002):
                app.send(publish(new_id(), TOPIC, b"12"))

        sender = threading.Thread(target=send)
        sender.start()
        yield running
        over.set()
        sender.join(DEADLINE_S)


def tap_count(running: RunningStreamer) -> int:
    return len(running.streamer.dispatcher.ingress(INSIDE).taps)


def test_frames_have_endpoints_targets_and_latencies(running: RunningStreamer) -> None:
    lines = stream_lines(running.state_dir / "admin.sock", TopRequest(0.1))
    frames = frames_of(lines)
    frame, target, p99_ms = next(
        (each, found, found.p99_ms) for each in frames for found in each.targets if found.p99_ms is not None
    )
    assert (target.topic, target.ingress, target.endpoint) == (str(TOPIC), INSIDE, OUTSIDE)
    assert (target.subscribers, target.period_ns) == ((str(SUBSCRIBER),), 100_000_000)
    assert target.p50_ms is not None
    assert 0 < target.p50_ms <= p99_ms
    later = next(frames)
    assert later.time_ms > frame.time_ms
    assert later.targets[0].throttled > target.throttled
    assert {each.name for each in frame.endpoints} == {"self", INSIDE, OUTSIDE}
    lines.close()
    eventually(lambda: tap_count(running) == 0, "the tap to end")


def test_a_screen_takes_the_place_of_a_tap(running: RunningStreamer) -> None:
    path = running.state_dir / "admin.sock"
    screens = [stream_lines(path, TopRequest()) for _ in range(MAX_READERS)]
    assert all(next(each) for each in screens)
    with pytest.raises(AdminError, match="too many tap readers"):
        next(stream_lines(path, TapRequest()))
    for each in screens:
        each.close()
    eventually(lambda: tap_count(running) == 0, "the screens to end")
