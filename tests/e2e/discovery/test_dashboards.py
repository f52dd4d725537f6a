# SPDX-License-Identifier: Apache-2.0
"""A dashboard subscribes by a pattern to an ECU's events without any other subscriber: service discovery subscribes."""

from functools import partial
from operator import eq
from pathlib import Path
from typing import Any, Final

import msgspec
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.e2e.rigs.entities import DEADLINE_S
from tests.e2e.rigs.ports import tcp_ports, udp_ports
from tests.e2e.rigs.sd_ecu import SD_GROUP, SdEcu, SdNotification
from tests.e2e.rigs.streamer import StreamerProcess

SPEED: Final = 0x1234
ECU: Final = "127.0.0.9"

_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "state"

[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "127.0.0.1"
port = {data}

[endpoints.chassis.sd]
multicast = "{group}"
port = {sd}
interface = "127.0.0.1"

[endpoints.chassis.sd.timings]
initial_delay_min_ms = 1
initial_delay_max_ms = 10
repetitions_base_delay_ms = 20

[[endpoints.chassis.services]]
service = 0x1234
major = 1
events = [{{ id = 0x8001, eventgroup = 1 }}, {{ id = 0x8003, eventgroup = 2 }}]

[[endpoints.chassis.services]]
service = 0x4001
major = 1
events = [{{ id = 0x8001, eventgroup = 1 }}]
offered = true
provider = "//hpc.vin1/8401/1/0"

[plugins.usubscription]
[plugins.wamp]
listen = "ws://127.0.0.1:{wamp}/ws"
anonymous = true
"""


class Dashboard:
    """A WAMP client with a session."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        assert self.call(1, "realm1", {"roles": {"subscriber": {}}})[0] == 2

    def call(self, *message: Any) -> Any:
        self._socket.send(msgspec.json.encode(message).decode())
        return self.receive()

    def receive(self) -> Any:
        return msgspec.json.decode(self._socket.recv(timeout=DEADLINE_S))


def test_a_pattern_subscription_subscribes_to_an_ecu(tmp_path: Path) -> None:
    [wamp] = tcp_ports(1)
    data, sd = udp_ports(2)
    file = tmp_path / "dashboard.toml"
    file.write_text(_CONFIG.format(data=data, sd=sd, group=SD_GROUP, wamp=wamp), encoding="utf-8")
    groups = [SdNotification("subscribed", SPEED, group) for group in (1, 2)]
    with StreamerProcess(file), SdEcu(ECU, sd) as ecu:
        ecu.offer(SPEED, 1, 2)
        with connect(f"ws://127.0.0.1:{wamp}/ws", subprotocols=[Subprotocol("wamp.2.json")]) as socket:
            dashboard = Dashboard(socket)
            _, _, id = dashboard.call(32, 1, {"match": "prefix"}, "up.chassis.")
            for each in groups:
                ecu.notifications.wait_one(partial(eq, each))
            ecu.send_event(SPEED, 0x8001, b"\x00\x2a", ecu.endpoints[groups[0]])
            event = dashboard.receive()
            assert (event[:2], event[3]) == ([36, id], {"topic": "up.chassis.1234.0.1.8001"})
        for group in (1, 2):
            ecu.notifications.wait_one(partial(eq, SdNotification("unsubscribed", SPEED, group)))
