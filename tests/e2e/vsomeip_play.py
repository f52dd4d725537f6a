# SPDX-License-Identifier: Apache-2.0
"""What the samples of vsomeip and Zenoh applications have to say to each other.

    python -m tests.e2e.vsomeip_play DIRECTORY

run in a namespace of its own, with the samples beyond a cable, because vsomeip wants a route for multicasts.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.e2e import vsomeip, wire
from tests.e2e.cable import FAR, NEAR, Cable, run
from tests.e2e.ecu import GROUP
from tests.e2e.peers import USUBSCRIPTION, ZenohPeer
from tests.e2e.ports import tcp_ports, udp_ports
from tests.e2e.streamer import START_S, StreamerProcess
from tests.e2e.wire import Uri

SD_PORT: Final = 30_490
UE_ID: Final = vsomeip.INSTANCE << 16 | vsomeip.SERVICE
TOPIC: Final = Uri("chassis", UE_ID, 0, vsomeip.EVENT)
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


class Play:
    """Each act has a streamer of its own, which has the samples' service, or wants it."""

    def __init__(self, directory: Path, found: vsomeip.Installation, cable: Cable) -> None:
        self._directory = directory
        self._found = found
        self._there = cable.there
        run(*cable.there, "ip", "route", "add", "224.0.0.0/4", "dev", "far")

    @contextmanager
    def _with(self, name: str, *, offered: bool) -> Iterator[tuple[vsomeip.Sample, int]]:
        [zenoh], [data] = tcp_ports(1), udp_ports(1)
        directory = self._directory / name
        directory.mkdir()
        config = directory / "vsomeip.toml"
        field = ", field = true" if offered else ""
        text = _CONFIG.format(
            zenoh=zenoh,
            near=NEAR,
            data=data,
            group=GROUP,
            sd=SD_PORT,
            service=vsomeip.SERVICE,
            instance=vsomeip.INSTANCE,
            event=vsomeip.EVENT,
            eventgroup=vsomeip.EVENTGROUP,
            method=vsomeip.METHOD,
            field=field,
            side=_OURS if offered else "",
        )
        config.write_text(text, encoding="utf-8")
        sd = (GROUP, SD_PORT)
        with (
            StreamerProcess(config),
            vsomeip.Sample(self._found, name, directory, FAR, sd, self._there) as sample,
        ):
            yield sample, zenoh

    def notified(self) -> None:
        """notify-sample is found and subscribed, and its event arrives."""
        with self._with("notify-sample", offered=False) as (_, zenoh), ZenohPeer(zenoh, "hpc.vin1") as app:
            app.call(USUBSCRIPTION.at(wire.SUBSCRIBE), wire.subscription_request(TOPIC))
            app.wait_events(TOPIC, _CALLS, START_S)

    def called(self) -> None:
        """response-sample answers."""
        with self._with("response-sample", offered=False) as (_, zenoh), ZenohPeer(zenoh, "hpc.vin1") as app:
            for _ in range(_CALLS):
                method = Uri("chassis", UE_ID, 0, vsomeip.METHOD)
                answer = app.answer(app.request(method, b"\1\2", ttl=round(START_S * 1_000)), START_S)
                assert answer.head.commstatus in {None, wire.OK}, answer.status
                assert answer.payload

    def served(self) -> None:
        """request-sample finds what we offer, and is answered by a Zenoh application."""
        with (
            self._with("request-sample", offered=True) as (sample, zenoh),
            ZenohPeer(zenoh, "hpc.vin1", PROVIDER.ue_id) as provider,
        ):
            asked = provider.inbox.one(
                lambda each: each.attributes is not None and each.head.type == wire.REQUEST, START_S
            )
            provider.respond(asked, b"\3\4")
            sample.said.one(lambda line: "Received a response" in line, START_S)

    def subscribed(self) -> None:
        """subscribe-sample subscribes what we offer, and gets what a Zenoh application publishes."""
        with (
            self._with("subscribe-sample", offered=True) as (sample, zenoh),
            ZenohPeer(zenoh, "hpc.vin1", PROVIDER.ue_id) as provider,
        ):
            sample.said.one(lambda line: "is available" in line and "NOT" not in line, START_S)
            until = time.monotonic() + START_S
            while not sample.said.all(lambda line: "Received a notification" in line):
                assert time.monotonic() < until, "the sample was told of no event"
                provider.publish(PROVIDER.at(vsomeip.EVENT), b"\5\6")
                time.sleep(0.05)


def _main(directory: Path) -> None:
    found = vsomeip.installation(os.environ)
    assert isinstance(found, vsomeip.Installation), found
    with Cable() as cable:
        play = Play(directory, found, cable)
        for act in (play.notified, play.called, play.served, play.subscribed):
            act()


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
