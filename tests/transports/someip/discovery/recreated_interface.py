# SPDX-License-Identifier: Apache-2.0
"""An endpoint whose interface is deleted and recreated, as for a VLAN, with an ECU at byte level.

    python -m tests.transports.someip.discovery.recreated_interface

in its own network namespace. Prints nothing and exits with 0 if both find each other again.
"""

from contextlib import ExitStack
from typing import Final

import msgspec

from tests.e2e.rigs.cable import run_system_command
from tests.e2e.rigs.ports import udp_ports
from tests.transports.someip.discovery.sd_bench import DOORS, FAST, GROUP, SPEED, Ecu
from tests.waiting import wait_until
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.transport_port import EndpointContext
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.endpoint.transport import SomeipTransport
from ustreamer.transports.someip.sd.codec import EntryType

OURS: Final = "10.79.0.1"
THEIRS: Final = "10.79.0.2"


def make_interface(name: str) -> None:
    run_system_command("ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}b")
    for address in (OURS, THEIRS):
        run_system_command("ip", "address", "add", f"{address}/24", "dev", name)
    for each in (f"{name}b", name):
        run_system_command("ip", "link", "set", each, "up")


def main() -> None:
    run_system_command("ip", "link", "set", "lo", "up")
    make_interface("first")
    sd_port, port = udp_ports(2)
    event = {"id": 0x8001, "eventgroup": 1}
    config = {
        "transport": "someip",
        "authorities": ["chassis"],
        "bind": OURS,
        "port": port,
        "sd": {"multicast": GROUP, "port": sd_port, "interface": OURS, "timings": FAST},
        "services": [
            {"service": SPEED, "major": 1, "events": [event]},
            {
                "service": DOORS,
                "major": 1,
                "events": [event],
                "offered": True,
                "provider": "//hpc.vin1/8401/1/0",
            },
        ],
    }
    with ExitStack() as stack:
        endpoint = SomeipTransport(
            msgspec.convert(config, SomeipEndpoint), EndpointContext("chassis", "hpc.vin1", SYSTEM_CLOCK)
        )
        stack.callback(endpoint.close)
        endpoint.open()

        def find_each_other() -> None:
            with ExitStack() as life:
                ecu = Ecu(life, THEIRS, sd_port)
                ecu.expect_entry(lambda each: each.type == EntryType.OFFER and each.service == DOORS)
                ecu.leave_group()
                ecu.offer()
                wait_until(lambda: endpoint.statistics()["sd_found"] == 1)

        find_each_other()
        run_system_command("ip", "link", "delete", "first")
        wait_until(lambda: endpoint.statistics()["sd_found"] == 0)
        make_interface("second")  # the interface index is new, so no membership of the old one remains
        find_each_other()


if __name__ == "__main__":
    main()
