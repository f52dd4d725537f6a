# SPDX-License-Identifier: Apache-2.0
"""core.ustreamer says that it has no methods; nobody waits for an answer that never comes."""

from collections.abc import Iterator

import pytest

from ustreamer.core.clock import ManualClock
from ustreamer.host.own_entity import OwnEntity
from ustreamer.transports.local.transport import LocalNetwork, LocalTransport
from ustreamer.uprotocol import UCode, UMessage, UStatusError, UuidSource, UUri
from ustreamer.uprotocol.rpc import RpcClient
from ustreamer.uprotocol.umessage import notification

APP = UUri("app", 0x10, 1, 0)


@pytest.fixture
def app() -> Iterator[LocalTransport]:
    network = LocalNetwork()
    bus, transport = LocalTransport(network, "hpc"), LocalTransport(network, "app")
    for each in (bus, transport):
        each.open()
    entity = OwnEntity("hpc", ManualClock().clock())
    entity.start(bus)
    yield transport
    entity.stop()
    for each in (transport, bus):
        each.close()


@pytest.mark.parametrize(
    "method", [UUri("hpc", 4, 1, 1), UUri("hpc", 4, 1, 0x7FFF), UUri("hpc", 4, 2, 1)], ids=str
)
def test_every_call_is_answered_with_unimplemented(app: LocalTransport, method: UUri) -> None:
    client = RpcClient(app, APP, UuidSource(ManualClock().clock().wall_ms))
    with pytest.raises(UStatusError, match="has no methods yet") as answer:
        client.call(method, ttl=100)
    assert answer.value.code is UCode.UNIMPLEMENTED


def test_what_is_no_request_is_not_answered(app: LocalTransport) -> None:
    heard: list[UMessage] = []
    app.register_listener(UUri("*", 0xFFFFFFFF, 0xFF, 0xFFFF), APP, heard.append)
    source = APP.with_resource(0x8000)
    app.send(notification(UuidSource(ManualClock().clock().wall_ms).next(), source, UUri("hpc", 4, 1, 0)))
    assert heard == []
