# SPDX-License-Identifier: Apache-2.0
"""Another device whose uSubscription listens at the methods of one version only: nothing there answers UNIMPLEMENTED."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Final

import pytest

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ZenohEntity
from tests.e2e.rigs.ports import tcp_ports
from tests.e2e.rigs.streamer import StreamerProcess, statistics
from tests.e2e.rigs.subscriber import SUBSCRIBED, Subscriber
from tests.e2e.rigs.two_streamers import open_router

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
mode = "{mode}"
{key} = ["tcp/127.0.0.1:{cloud}"]

[plugins.usubscription]
"""
FOUND_S: Final = 10.0
"""A second until the probe, and the margin of a busy machine. Without a probe it took 301 s."""


def test_a_device_that_listens_in_version_4_only_is_subscribed_soon(tmp_path: Path) -> None:
    backbone, cloud = tcp_ports(2)
    config = tmp_path / "streamer.toml"
    config.write_text(
        _CONFIG.format(mode="peer", key="listen", backbone=backbone, cloud=cloud), encoding="utf-8"
    )
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


@contextmanager
def device_of(version: int, port: int) -> Iterator[ZenohEntity]:
    """A device that answers Subscribe and FetchSubscriptions, and has `version` only."""
    stopped = Event()

    def answer(device: ZenohEntity) -> None:
        answered = 0
        while not stopped.is_set():
            calls = device.inbox.items()
            for call in calls[answered:]:
                assert call.head.sink is not None
                payload = b""
                if call.head.sink.resource == wire.SUBSCRIBE:
                    topic = wire.message_in(wire.fields(call.payload), 1) or b""
                    of_version_3 = wire.field(1, wire.field(1, SUBSCRIBED)) + wire.field(3, topic)
                    of_version_4 = wire.field(1, topic) + wire.field(2, SUBSCRIBED + 1)
                    payload = of_version_3 if version == 3 else of_version_4
                device.respond(call, payload)
            answered = len(calls)
            stopped.wait(0.01)

    with ZenohEntity(port, "cloud", 0, listen_to=f"up/*/*/*/*/*/cloud/0/0/{version}/*") as device:
        thread = Thread(target=answer, args=(device,))
        thread.start()
        try:
            yield device
        finally:
            stopped.set()
            thread.join()


@pytest.mark.parametrize(
    "has_bystander", [False, True], ids=["alone", "next to an entity that reads everything"]
)
@pytest.mark.parametrize(("before", "after"), [(3, 4), (4, 3)])
def test_a_device_behind_a_router_that_returns_with_the_other_version_is_subscribed_soon(
    tmp_path: Path, before: int, after: int, has_bystander: bool
) -> None:
    """No link event shows its reboot. What a bystander receives does not wait for the device."""
    backbone, cloud = tcp_ports(2)
    router = open_router(cloud)
    config = tmp_path / "streamer.toml"
    config.write_text(
        _CONFIG.format(mode="client", key="connect", backbone=backbone, cloud=cloud), encoding="utf-8"
    )
    with (
        StreamerProcess(config),
        Subscriber(backbone, "hpc.vin1") as reader,
        ZenohEntity(cloud, "cloud", 0x5000, listen_to="up/**" if has_bystander else "up/none") as publisher,
    ):
        first, second = publisher.address.at(0x8001), publisher.address.at(0x8002)
        with device_of(before, cloud):
            reader.request_subscription(first)
            reader.wait_notified(first, SUBSCRIBED)
        with device_of(after, cloud):
            began = time.monotonic()
            reader.request_subscription(second)
            reader.wait_notified(second, SUBSCRIBED)
            found_s = time.monotonic() - began
        print(f"found_s={found_s:.2f}")
        assert found_s < FOUND_S
        publisher.publish(second, b"event")
        reader.inbox.wait_one(lambda each: each.payload == b"event")
    router.close()  # type: ignore[no-untyped-call]
