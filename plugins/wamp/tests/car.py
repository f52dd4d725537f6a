# SPDX-License-Identifier: Apache-2.0
"""A whole streamer with WAMP on it: real sockets, the real uSubscription and throttle."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ustreamer_wamp.process.parent import SessionsProcess
from ustreamer_wamp.sessions import LocalSessions
from ustreamer_wamp.transport import WampTransport

from ustreamer.host.runtime import process
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.host.runtime.streamer import Streamer
from ustreamer.transports.local.transport import LocalNetwork, LocalTransport
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.rpc import RpcClient
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.conftest import Peer
else:
    from plugins.wamp.tests.conftest import Peer

SPEED = UUri("car", 0x2001, 1, 0x8001)
RPM = UUri("car", 0x2001, 1, 0x8002)
SPEED_TOPIC, RPM_TOPIC = "up.car.2001.0.1.8001", "up.car.2001.0.1.8002"
REMOTE_TOPIC = "up.cloud.10ab.0.3.80cd"
MINE = "up.wamp_2ehpc.4711.0.1.8000"
SECTION = """
[plugins.wamp]
listen = "ws://127.0.0.1:0/ws"
anonymous = true
users = [
    { authid = "driver", ticket = "t", publish = ["up.wamp_2ehpc.", "com.", "up.car."] },
]
"""
DEADLINE_S = 30.0


class Car:
    """A streamer with the authorities `hpc` and `car` on one local network, `cloud` on another, and sessions."""

    def __init__(
        self,
        directory: Path,
        *more: str,
        section: str = SECTION,
        plugins: str = "",
        living: str = '"hpc", "car"',
        in_process: bool = False,
    ) -> None:
        """`living` are the authorities on the inner network; `more` is inserted before the sections of plugins.

        `in_process`: the sessions have a process of their own.
        """
        self.path = directory / "car.toml"
        self.networks = [LocalNetwork.named(f"{directory.name}/{name}") for name in ("inside", "outside")]
        inside, outside = (each.name for each in self.networks)
        self.path.write_text(
            "\n".join(
                [
                    'authority = "hpc"\nstate_dir = "state"',
                    f'[endpoints.inside]\ntransport = "local"\nnetwork = "{inside}"\nauthorities = [{living}]',
                    f'[endpoints.outside]\ntransport = "local"\nnetwork = "{outside}"\nauthorities = ["cloud"]',
                    *more,
                    plugins
                    or '[plugins.usubscription]\nmay_reset = ["//cloud/0/FF/0"]\n[plugins.throttle]\ntolerance = 0.1',
                    section,
                    f"process = {str(in_process).lower()}",
                ]
            ),
            encoding="utf-8",
        )
        self.ids = UuidSource(SYSTEM_CLOCK.wall_ms)
        self.inside = LocalTransport(self.networks[0], "car")
        self.outside = LocalTransport(self.networks[1], "cloud")
        for each in (self.inside, self.outside):
            each.open()
        self.streamer: Streamer = process.load(self.path).streamer()
        self.streamer.start()

    @property
    def wamp(self) -> WampTransport:
        found = self.streamer.transports["wamp"]
        assert isinstance(found, WampTransport)
        return found

    @property
    def process(self) -> SessionsProcess:
        """The sessions in a process of their own."""
        found = self.wamp.sessions
        assert isinstance(found, SessionsProcess)
        return found

    @property
    def local(self) -> LocalSessions:
        """The sessions in the process of the test."""
        found = self.wamp.sessions
        if not isinstance(found, LocalSessions):
            pytest.skip("this test looks into the sessions")
        return found

    def peer(self, serializer: str = "json") -> Peer:
        sessions = self.wamp.sessions
        urls = self.process.urls if isinstance(sessions, SessionsProcess) else self.local.router.server.urls
        return Peer(urls[0], serializer)

    def subscriptions(self) -> list[tuple[UUri, UUri]]:
        """(topic, subscriber) of all subscriptions in uSubscription."""
        rpc = RpcClient(self.inside, UUri("car", 0x77, 1, 0), self.ids)
        answer = rpc.call(UUri("hpc", 0, 3, 3), ttl=5000)
        rpc.close()
        found = pb.FetchSubscriptionsResponse.FromString(answer.payload).subscriptions
        return [(UUri.from_pb(each.topic), UUri.from_pb(each.subscriber.uri)) for each in found]

    def publish(
        self, topic: UUri, payload: bytes, form: UPayloadFormat = UPayloadFormat.RAW, **more: Any
    ) -> UMessage:
        message = publish(self.ids.next(), topic, payload, form, **more)
        self.inside.send(message)
        return message

    def stop(self) -> None:
        """Stop, and see that nothing is unaccounted for, and that nothing waits for a sender that has ended."""
        self.streamer.stop()
        ledger = self.streamer.ledger()
        assert (ledger.unaccounted, ledger.queued) == (0, 0)
        for each in (self.inside, self.outside):
            each.close()


def subscribed(peer: Peer, topic: str, options: dict[str, Any] | None = None) -> int:
    answer = peer.request(32, 1, options or {}, topic)
    assert answer[:2] == [33, 1], answer
    return int(answer[2])
