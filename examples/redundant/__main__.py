# SPDX-License-Identifier: Apache-2.0
"""Kills the forwarding one of two gateways while messages flow, and counts the lost ones and the copies."""

import sys
from functools import partial
from signal import SIGKILL, SIGTERM
from typing import Final

from examples.rig import (
    Example,
    Figures,
    RunningStreamer,
    arguments_of,
    cycle,
    figures,
    numbered,
    numbers_at,
    show,
    subscribe,
    wait,
    zenoh_router,
)
from ustreamer.testing.entity import Entity
from ustreamer.uprotocol.uuri import UUri

RADAR: Final = UUri("sensors.vin1", 0x5001, 1, 0x8001)  # //sensors.vin1/5001/1/8001
HZ: Final = 200
WARM_UP: Final = 200
LONGEST_WARM_UP: Final = 20
LONGEST_TAKE_OVER: Final = 15  # s; more than the lease of Zenoh, 10 s


class Traffic:
    """A sensor that publishes numbers, and a display that has subscribed them at both gateways."""

    def __init__(self, sensor: Entity, display: Entity) -> None:
        self._sensor = sensor
        self._display = display
        self._next = 0

    def run_until_received(self, count: int) -> range:
        """As `run`, and then a second at a time until the newest one arrives, at most for `LONGEST_TAKE_OVER`."""
        numbers = self.run(count)
        for _ in range(LONGEST_TAKE_OVER):
            if wait(partial(self._has, numbers.stop - 1), within_s=1):
                break
            numbers = range(numbers.start, self.run(HZ).stop)
        return numbers

    def run(self, count: int) -> range:
        """Publish `count` numbers and return them."""
        numbers = range(self._next, self._next + count)
        self._next = numbers.stop
        for each in cycle(count, HZ):
            self._sensor.publish(RADAR, numbered(numbers[each]))
        return numbers

    def figures(self, numbers: range) -> Figures:
        """What arrived of these numbers, once their last one is there."""
        wait(lambda: self._has(numbers[-1]), within_s=10)
        return figures(numbers, numbers_at(self._display, RADAR))

    def _has(self, number: int) -> bool:
        return number in numbers_at(self._display, RADAR)[-HZ:]


def warm_up(traffic: Traffic) -> None:
    """Until a second passes without a loss or a copy: Zenoh has found the receivers, and the gateways have agreed."""
    for _ in range(LONGEST_WARM_UP):
        found = traffic.figures(traffic.run(WARM_UP))
        if not found.lost and not found.twice:
            return
    raise SystemExit("the gateways lose or copy messages after 20 s")


def forwarding(gateways: list[RunningStreamer], traffic: Traffic) -> RunningStreamer:
    """The gateway that delivers the messages; the other one defers to it."""
    before = [each.top()["ledger"]["delivered"] for each in gateways]
    traffic.run(HZ)
    grown = [each.top()["ledger"]["delivered"] - old for each, old in zip(gateways, before, strict=True)]
    return gateways[grown.index(max(grown))]


def main() -> int:
    parser = arguments_of("redundant", __doc__, events=400)
    parser.add_argument("--stop", action="store_true", help="stop the gateway by SIGTERM, do not kill it")
    arguments = parser.parse_args()
    ports = arguments.ports
    with (
        zenoh_router(ports.get(7447, 7447)),
        zenoh_router(ports.get(7448, 7448)),
        Example(__file__, ports) as example,
    ):
        gateways = [example.start(name) for name in ("g1", "g2")]
        sensor, display = example.zenoh_app(7447, "sensors.vin1"), example.zenoh_app(7448, "displays.vin1")
        for name in ("g1.vin1", "g2.vin1"):
            display.usubscription = UUri(name, 0, 3, 0)
            # No uSubscription in the network of sensors accepts it. It is forwarded all the same.
            subscribe(display, RADAR)
        traffic = Traffic(sensor, display)
        warm_up(traffic)
        first = forwarding(gateways, traffic)
        both = traffic.figures(traffic.run(arguments.events))
        how = "stopped" if arguments.stop else "killed"
        before = traffic.run(arguments.events // 2)
        first.send_signal(SIGTERM if arguments.stop else SIGKILL)
        after = traffic.run_until_received(arguments.events // 2)
        failed = traffic.figures(range(before.start, after.stop))
        left = traffic.figures(traffic.run(arguments.events))
        if arguments.stop:
            first.stop()  # it has ended; its exit code is 0
    show({"both run": both, f"{first.name} is {how}": failed, "the other one is left": left})
    return 1 if both.lost or left.lost else 0


if __name__ == "__main__":
    sys.exit(main())
