# SPDX-License-Identifier: Apache-2.0
"""SOME/IP stories that must hold: rare situations, and mended defects."""

import errno
from collections.abc import Mapping
from typing import Final

from tests.simulation.host import OUTSIDE, HostConfig
from tests.simulation.someip.network import ECU_A, ECU_B, SomeipConfig
from tests.simulation.story import Step, Story

_SMALL_BUFFER: Final = HostConfig(someip=SomeipConfig(receive_buffer=4_096))
_CONFIG: Final = HostConfig(someip=SomeipConfig())


def _publish(at_ms: int, flow: str, count: int, every_us: int, size: int = 12) -> Step:
    return Step(at_ms, "publish", (flow, count, every_us, size, 0))


STORIES: Final[Mapping[str, Story]] = {
    "what the kernel drops in a flood is counted": Story(
        1,
        (
            _publish(500, "in udp", 300, 1),
            _publish(500, "static in", 300, 1),
            Step(490, "freeze", (OUTSIDE, 1_000)),
        ),
        _SMALL_BUFFER,
    ),
    "an ECU dies with unread data": Story(
        2,
        (
            _publish(100, "static tcp", 400, 2_000, 100),
            Step(420, "ecu freeze", (ECU_B.ip, 100)),
            Step(500, "ecu kill", (ECU_B.ip, 1_500)),
        ),
        _CONFIG,
    ),
    "a port without a socket costs no other datagram": Story(
        3,
        (
            Step(100, "ecu kill", (ECU_B.ip, 2_000)),
            _publish(200, "static udp", 300, 20),
            _publish(200, "out udp", 300, 20),
        ),
        _CONFIG,
        interrupt_every=7,
    ),
    "a firewall refuses for two seconds": Story(
        4,
        (Step(100, "refuse", (errno.EPERM, 2_000)), _publish(200, "static udp", 100, 2_000)),
        _CONFIG,
    ),
    "the interface goes down during calls": Story(
        5,
        (
            _publish(100, "call udp", 200, 10_000),
            _publish(100, "call tcp", 200, 10_000),
            Step(600, "link", (4_000,)),
        ),
        _CONFIG,
    ),
    "the streamer loses power while ECUs wait": Story(
        6,
        (
            _publish(100, "static tcp", 200, 10_000),
            _publish(100, "ecu call", 200, 10_000),
            Step(800, "power", (1_000,)),
        ),
        _CONFIG,
    ),
    # The kernel of a closed connection went on sending. Callers had got UNAVAILABLE for these calls.
    "a closed connection sends no calls after newer ones": Story(
        58, (_publish(0, "call tcp", 150, 40_000), Step(500, "cable", (ECU_A.ip, 7_000))), _CONFIG
    ),
    # Its kernel had acknowledged messages that it had not read. They came after the newer ones of the next connection.
    "an ECU loses power with unread data and connects again": Story(
        986,
        (
            Step(7_580, "ecu freeze", (ECU_B.ip, 2_020)),
            _publish(9_575, "static tcp", 100, 20, 1_000),
            _publish(9_575, "static tcp", 200, 5, 100),
            Step(9_580, "ecu power", (ECU_B.ip, 3_939)),
        ),
        HostConfig(queue_messages=100, someip=SomeipConfig()),
        interrupt_every=50,
    ),
}
