# SPDX-License-Identifier: Apache-2.0
"""The configuration of a streamer for `benchmarks.traffic.mixed`."""

from collections.abc import Sequence

from benchmarks.harness.testbed import CONFIG
from benchmarks.traffic import mixed, sockets, wire

_HEAD = CONFIG[: CONFIG.index("[[endpoints.chassis.services]]")]


def mixed_config(ecu_ports: Sequence[int]) -> str:
    """Each service has its ECU at one of these ports. All offered services have one receiver."""
    events = ", ".join(f"{{{{ id = {event:#06x} }}}}" for event in mixed.event_ids())
    services = "".join(
        f"""
[[endpoints.chassis.services]]
service = {wire.SERVICE + number:#06x}
major = {wire.MAJOR}
events = [{events}]
remote = "{sockets.LOOPBACK}:{port}"

[[endpoints.chassis.services]]
service = {wire.OFFERED + number:#06x}
major = {wire.MAJOR}
events = [{events}]
offered = true
provider = "up://{wire.STREAMER}/{wire.OFFERED + number:X}/{wire.MAJOR}/0"
remote = "{sockets.LOOPBACK}:{{receiver}}"
"""
        for number, port in enumerate(ecu_ports)
    )
    return f"{_HEAD}{services}\n[plugins.usubscription]\n[plugins.throttle]\n"
