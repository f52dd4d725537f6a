# SPDX-License-Identifier: Apache-2.0
"""The contract of every transport, at a real broker."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest
from ustreamer_mqtt.config import MqttEndpoint
from ustreamer_mqtt.transport import MqttTransport

from tests.mqtt_rig import Mosquitto
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.testing.contract import Pair, TransportContract
from ustreamer.testing.messages import ALPHA, BETA
from ustreamer.transport_port import EndpointContext

_numbers = count()


class TestContract(TransportContract):
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
