# SPDX-License-Identifier: Apache-2.0
"""Sends events of an ECU through a gateway to an application, calls a method of the ECU, and counts."""

import sys
from typing import Final

from examples.rig import Example, arguments_of, cycle, figures, numbered, numbers_at, show, wait
from ustreamer.uprotocol.uuri import UUri

SERVICE, EVENT, METHOD = 0x1234, 0x8001, 0x0001
SPEED: Final = UUri("chassis", SERVICE, 1, EVENT)  # //chassis/1234/1/8001
RESET: Final = UUri("chassis", SERVICE, 1, METHOD)
HZ: Final = 100


def main() -> int:
    arguments = arguments_of("minimal", __doc__, events=200).parse_args()
    with Example(__file__, arguments.ports) as example:
        gateway = example.start("gateway")
        ecu = example.ecu(30500, 30501, methods={(SERVICE, METHOD): lambda request: request[::-1]})
        application = example.zenoh_app(7447, "hpc.vin1")
        application.subscribe(SPEED)
        for number in cycle(arguments.events, HZ):
            ecu.send_event(SERVICE, EVENT, numbered(number))
        wait(lambda: gateway.received(SPEED) >= arguments.events)
        answer = application.call(RESET, b"tset").payload
        throttled = gateway.stop()["throttled"]
        wait(lambda: len(application.received) + throttled >= arguments.events)
        found = figures(range(arguments.events), numbers_at(application, SPEED), throttled)
    show({f"{SPEED}": found})
    print(f"the method of the ECU answered {answer!r}")
    return 1 if found.lost or found.twice or answer != b"test" else 0


if __name__ == "__main__":
    sys.exit(main())
