# SPDX-License-Identifier: Apache-2.0
"""ECUs of which the configuration says nothing at all: subscribed and called by their addresses alone, with Zenoh on the other side."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.e2e import wire
from tests.e2e.ecu import GROUP, Ecu, Seen
from tests.e2e.peers import ECHO, USUBSCRIPTION, ZenohPeer, eventually
from tests.e2e.ports import tcp_ports, udp_ports
from tests.e2e.streamer import StreamerProcess
from tests.e2e.wire import Uri

LAMPS: Final = 0x2222
BEAM: Final = Uri("chassis", LAMPS, 1, 0x8005)
SWITCH: Final = Uri("chassis", LAMPS, 1, ECHO)
PENDING: Final = 1

_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1"]
mode = "peer"
listen = ["tcp/127.0.0.1:{zenoh}"]

[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "127.0.0.1"
port = {data}

[endpoints.chassis.sd]
multicast = "{group}"
port = {sd}
interface = "127.0.0.1"
unlisted = {{ idle_ms = 500 }}

[endpoints.chassis.sd.timings]
initial_delay_min_ms = 1
initial_delay_max_ms = 10
repetitions_base_delay_ms = 20
ttl_subscribe_s = 1

[plugins.usubscription]
"""


class Car:
    """A streamer that knows of no service, an application, and ECUs as they come."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self._stack = stack
        [zenoh] = tcp_ports(1)
        self.data, self.sd = udp_ports(2)
        config = directory / "car.toml"
        config.write_text(
            _CONFIG.format(zenoh=zenoh, data=self.data, sd=self.sd, group=GROUP), encoding="utf-8"
        )
        self.process = stack.enter_context(StreamerProcess(config))
        self.app = stack.enter_context(ZenohPeer(zenoh, "hpc.vin1"))

    def ecu(self, host: str = "127.0.0.10") -> Ecu:
        return self._stack.enter_context(Ecu(host, self.sd))

    @property
    def address(self) -> tuple[str, int]:
        return ("127.0.0.1", self.data)

    def state_of(self, topic: Uri) -> int:
        """What the application is to a topic, as our uSubscription says."""
        answer = self.app.call(USUBSCRIPTION.at(wire.SUBSCRIBE), wire.subscription_request(topic))
        assert answer.head.commstatus in {None, wire.OK}, answer.status
        return wire.Subscribed.decode(answer.payload).state


@pytest.fixture
def car(tmp_path: Path) -> Iterator[Car]:
    with ExitStack() as stack:
        yield Car(stack, tmp_path)


def test_an_ecu_that_nobody_configured_is_subscribed_until_nobody_wants_it(car: Car) -> None:
    assert car.state_of(BEAM) == PENDING
    ecu = car.ecu()
    ecu.offer(LAMPS, BEAM.resource)
    ecu.seen.one(lambda seen: seen == Seen("subscribed", LAMPS, BEAM.resource))
    eventually(lambda: car.state_of(BEAM), wire.SUBSCRIBED)

    ecu.emit(LAMPS, BEAM.resource, b"lit", car.address)
    assert car.app.wait_events(BEAM)[0].payload == b"lit"

    car.app.unsubscribe(BEAM)
    ecu.seen.one(lambda seen: seen == Seen("unsubscribed", LAMPS, BEAM.resource))


def test_an_ecu_that_nobody_configured_is_called(car: Car) -> None:
    waiting = car.app.request(SWITCH, b"early")
    ecu = car.ecu()
    ecu.offer(LAMPS)
    assert car.app.answer(waiting).payload == b"early"  # it has waited until the service was there
    assert car.app.call(SWITCH, b"on").payload == b"on"


def test_an_ecu_that_comes_back_is_subscribed_again(car: Car) -> None:
    ecu = car.ecu()
    ecu.offer(LAMPS, BEAM.resource)
    eventually(lambda: car.state_of(BEAM), wire.SUBSCRIBED)
    ecu.vanish()
    eventually(lambda: car.state_of(BEAM), PENDING)

    again = car.ecu("127.0.0.11")
    again.offer(LAMPS, BEAM.resource)
    eventually(lambda: car.state_of(BEAM), wire.SUBSCRIBED)
    again.emit(LAMPS, BEAM.resource, b"back", car.address)
    assert car.app.wait_events(BEAM)[0].payload == b"back"
