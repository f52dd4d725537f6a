# SPDX-License-Identifier: Apache-2.0
"""Another device whose uSubscription listens at the methods of version 4 only: nothing there answers UNIMPLEMENTED."""

import time
from pathlib import Path
from typing import Final

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ZenohEntity
from tests.e2e.rigs.ports import tcp_ports
from tests.e2e.rigs.streamer import StreamerProcess, statistics
from tests.e2e.rigs.subscriber import SUBSCRIBED, Subscriber

_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1"]
mode = "peer"
listen = ["tcp/127.0.0.1:{backbone}"]

[endpoints.cloud]
transport = "zenoh"
authorities = ["cloud"]
mode = "peer"
listen = ["tcp/127.0.0.1:{cloud}"]

[plugins.usubscription]
"""
FOUND_S: Final = 10.0
"""A second until the probe, and the margin of a busy machine. Without a probe it took 301 s."""


def test_a_device_that_listens_in_version_4_only_is_subscribed_soon(tmp_path: Path) -> None:
    backbone, cloud = tcp_ports(2)
    config = tmp_path / "streamer.toml"
    config.write_text(_CONFIG.format(backbone=backbone, cloud=cloud), encoding="utf-8")
    with (
        StreamerProcess(config),
        ZenohEntity(cloud, "cloud", 0, listen_to="up/*/*/*/*/*/cloud/0/0/4/*") as device,
        Subscriber(backbone, "hpc.vin1") as reader,
        ZenohEntity(cloud, "cloud", 0x5000, listen_to="up/none") as publisher,
    ):
        topic = publisher.address.at(0x8001)
        began = time.monotonic()
        reader.request_subscription(topic)
        for count in (1, 2):  # the probe, and the call about the topic
            call = device.inbox.wait_count(lambda _: True, count, within=FOUND_S)[-1]
            assert call.head.sink == device.address._replace(version=4).at(wire.SUBSCRIBE)
            device.respond(call, wire.field(1, topic.encode()) + wire.field(2, SUBSCRIBED + 1))
        reader.wait_notified(topic, SUBSCRIBED)
        print(f"subscribed_s={time.monotonic() - began:.2f}")
        publisher.publish(topic, b"event")
        reader.inbox.wait_one(lambda each: each.payload == b"event")
        counts = statistics(tmp_path / "state")["plugins"]["usubscription"]
        assert (counts["remote_probes"], counts.get("remote_timeouts", 0)) == (1, 0)
