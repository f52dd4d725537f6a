# SPDX-License-Identifier: Apache-2.0
"""The contract of every transport, at a real broker."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest
from ustreamer_mqtt.config import MqttEndpoint
from ustreamer_mqtt.transport import MqttTransport

from tests.mqtt_rig import Mosquitto
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.testing.contract import Pair, TransportContract
from ustreamer.testing.durable_contract import DurableContract
from ustreamer.testing.messages import ALPHA, BETA
from ustreamer.transport_port import EndpointContext

_numbers = count()


class MqttPair:
    """Two endpoints at the broker of the tests."""

    @pytest.fixture(autouse=True)
    def _use(self, broker: Mosquitto) -> None:
        self.broker = broker

    @contextmanager
    def make_pair(self) -> Iterator[Pair]:
        yield Pair(self.endpoint(ALPHA), self.endpoint(BETA))

    def endpoint(self, authority: str) -> MqttTransport:
        config = MqttEndpoint(
            transport="mqtt",
            authorities=("*",),
            broker=self.broker.url,
            client_id=f"{authority}-{next(_numbers)}",
        )
        return MqttTransport(config, EndpointContext("net", authority, SYSTEM_CLOCK))


class TestContract(MqttPair, TransportContract):
    """All tests apply."""


class TestDurable(MqttPair, DurableContract):
    @contextmanager
    def outage(self) -> Iterator[None]:
        self.broker.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.broker.send_signal(signal.SIGCONT)
