# SPDX-License-Identifier: Apache-2.0
"""The scenarios of vsomeip's samples and Zenoh applications.

    python -m tests.e2e.someip.vsomeip_scenarios DIRECTORY

runs in its own namespace with the samples at the far end of a cable, because vsomeip requires a multicast route.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.e2e.rigs import wire
from tests.e2e.rigs.cable import FAR_ADDRESS, NEAR_ADDRESS, Cable, run_system_command
from tests.e2e.rigs.entities import USUBSCRIPTION, ZenohEntity
from tests.e2e.rigs.ports import tcp_ports, udp_ports
from tests.e2e.rigs.sd_ecu import SD_GROUP
from tests.e2e.rigs.streamer import START_S, StreamerProcess
from tests.e2e.rigs.wire import Uri
from tests.e2e.someip import vsomeip_samples

SD_PORT: Final = 30_490
UE_ID: Final = vsomeip_samples.INSTANCE << 16 | vsomeip_samples.SERVICE
TOPIC: Final = Uri("chassis", UE_ID, 0, vsomeip_samples.EVENT)
PROVIDER: Final = Uri("hpc.vin1", 0x8401, 1)
_CALLS: Final = 3

_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1"]
listen = ["tcp/127.0.0.1:{zenoh}"]

[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "{near}"
port = {data}

[endpoints.chassis.sd]
multicast = "{group}"
port = {sd}
interface = "{near}"

[[endpoints.chassis.services]]
service = {service}
instance = {instance}
major = 0
events = [{{ id = {event}, eventgroup = {eventgroup}{field} }}]
methods = [{method}]
{side}

[plugins.usubscription]
"""
_OURS: Final = 'offered = true\nprovider = "//hpc.vin1/8401/1/0"'


class VsomeipScenarios:
    """Each scenario has its own streamer, which offers or requests the samples' service."""

    def __init__(self, directory: Path, found: vsomeip_samples.Installation, cable: Cable) -> None:
        self._directory = directory
        self._found = found
        self._far_prefix = cable.far_prefix
        run_system_command(*cable.far_prefix, "ip", "route", "add", "224.0.0.0/4", "dev", "far")

    @contextmanager
    def _running_sample(
        self, name: str, *, offered: bool
    ) -> Iterator[tuple[vsomeip_samples.SampleProcess, int]]:
        [zenoh], [data] = tcp_ports(1), udp_ports(1)
        directory = self._directory / name
        directory.mkdir()
        config = directory / "vsomeip.toml"
        field = ", field = true" if offered else ""
        text = _CONFIG.format(
            zenoh=zenoh,
            near=NEAR_ADDRESS,
            data=data,
            group=SD_GROUP,
            sd=SD_PORT,
            service=vsomeip_samples.SERVICE,
            instance=vsomeip_samples.INSTANCE,
            event=vsomeip_samples.EVENT,
            eventgroup=vsomeip_samples.EVENTGROUP,
            method=vsomeip_samples.METHOD,
            field=field,
            side=_OURS if offered else "",
        )
        config.write_text(text, encoding="utf-8")
        sd = (SD_GROUP, SD_PORT)
        with (
            StreamerProcess(config),
            vsomeip_samples.SampleProcess(
                self._found, name, directory, FAR_ADDRESS, sd, self._far_prefix
            ) as sample,
        ):
            yield sample, zenoh

    def notified(self) -> None:
        """notify-sample is found and subscribed, and its event arrives."""
        with (
            self._running_sample("notify-sample", offered=False) as (_, zenoh),
            ZenohEntity(zenoh, "hpc.vin1") as app,
        ):
            app.call(USUBSCRIPTION.at(wire.SUBSCRIBE), wire.subscription_request(TOPIC))
            app.wait_events(TOPIC, _CALLS, START_S)

    def called(self) -> None:
        """response-sample answers."""
        with (
            self._running_sample("response-sample", offered=False) as (_, zenoh),
            ZenohEntity(zenoh, "hpc.vin1") as app,
        ):
            for _ in range(_CALLS):
                method = Uri("chassis", UE_ID, 0, vsomeip_samples.METHOD)
                answer = app.wait_response(
                    app.send_request(method, b"\1\2", ttl=round(START_S * 1_000)), START_S
                )
                assert answer.head.commstatus in {None, wire.OK}, answer.status
                assert answer.payload

    def served(self) -> None:
        """request-sample finds an offered service and gets the response of a Zenoh application."""
        with (
            self._running_sample("request-sample", offered=True) as (sample, zenoh),
            ZenohEntity(zenoh, "hpc.vin1", PROVIDER.ue_id) as provider,
        ):
            request = provider.inbox.wait_one(
                lambda each: each.attributes is not None and each.head.type == wire.REQUEST, START_S
            )
            provider.respond(request, b"\3\4")
            sample.output.wait_one(lambda line: "Received a response" in line, START_S)

    def subscribed(self) -> None:
        """subscribe-sample subscribes to an offered service and gets the publication of a Zenoh application."""
        with (
            self._running_sample("subscribe-sample", offered=True) as (sample, zenoh),
            ZenohEntity(zenoh, "hpc.vin1", PROVIDER.ue_id) as provider,
        ):
            sample.output.wait_one(lambda line: "is available" in line and "NOT" not in line, START_S)
            until = time.monotonic() + START_S
            while not sample.output.items(lambda line: "Received a notification" in line):
                assert time.monotonic() < until, "the sample received no event"
                provider.publish(PROVIDER.at(vsomeip_samples.EVENT), b"\5\6")
                time.sleep(0.05)


def _main(directory: Path) -> None:
    found = vsomeip_samples.installation(os.environ)
    assert isinstance(found, vsomeip_samples.Installation), found
    with Cable() as cable:
        scenarios = VsomeipScenarios(directory, found, cable)
        for scenario in (scenarios.notified, scenarios.called, scenarios.served, scenarios.subscribed):
            scenario()


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
