# SPDX-License-Identifier: Apache-2.0
"""Publishes positions in a vehicle, receives a tenth of them in the cloud, and records what the gateway decided."""

import shutil
import sys
from pathlib import Path
from typing import Final

from examples.rig import (
    Example,
    arguments_of,
    cycle,
    figures,
    numbered,
    numbers_at,
    show,
    subscribe,
    wait,
    wait_route,
)
from ustreamer.uprotocol.uuri import UUri

POSITION: Final = UUri("hpc.vin1", 0x5001, 1, 0x8001)  # //hpc.vin1/5001/1/8001
HZ: Final = 100
PERIOD_MS: Final = 100


def main() -> int:
    parser = arguments_of("fleet", __doc__, events=300)
    parser.add_argument(
        "--recordings", type=Path, metavar="FOLDER", help="copy the recordings of the gateway there"
    )
    arguments = parser.parse_args()
    with Example(__file__, arguments.ports) as example:
        cloud, vehicle = example.start("cloud"), example.start("vehicle")
        sensor = example.zenoh_app(7447, "hpc.vin1")
        service = example.zenoh_app(7449, "cloud")
        if not wait(lambda: subscribe(service, POSITION, PERIOD_MS)):
            raise SystemExit("the vehicle has not accepted the subscription")
        wait_route(sensor, service)
        for number in cycle(arguments.events, HZ):
            sensor.publish(POSITION, numbered(number))
        wait(lambda: vehicle.received(POSITION) >= arguments.events)
        in_vehicle = vehicle.stop()["throttled"]
        expected = arguments.events - in_vehicle
        wait(lambda: cloud.top()["ledger"]["throttled"] + len(numbers_at(service, POSITION)) >= expected)
        in_cloud = cloud.stop()["throttled"]
        found = figures(range(arguments.events), numbers_at(service, POSITION), in_vehicle + in_cloud)
        if arguments.recordings:
            shutil.copytree(
                example.directory / "state-vehicle/recordings", arguments.recordings, dirs_exist_ok=True
            )
    show({f"{POSITION}": found})
    print(f"over the mobile network: {expected} of {arguments.events}")
    return 1 if found.lost or found.twice else 0


if __name__ == "__main__":
    sys.exit(main())
