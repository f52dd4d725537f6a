# SPDX-License-Identifier: Apache-2.0
"""A publication of a Zenoh application is sent as an event of the offered service."""

from collections.abc import Iterator

import pytest
from someip.header import SOMEIPMessageType, SOMEIPReturnCode

from tests.e2e.rigs.entities import ZenohEntity
from tests.e2e.rigs.vehicle import CLOUD_PROVIDER, OFFERED, OFFERED_FOR_CLOUD, PROVIDER, Vehicle


@pytest.fixture
def provider(vehicle: Vehicle) -> Iterator[ZenohEntity]:
    with ZenohEntity(vehicle.ports.backbone, PROVIDER.authority, PROVIDER.ue_id) as peer:
        yield peer


# [itest->SD-444]
def test_a_publication_reaches_the_configured_receiver(vehicle: Vehicle, provider: ZenohEntity) -> None:
    sent = [bytes(range(256)), b"", b"\xff" * 1400]
    for payload in sent:
        provider.publish(PROVIDER.at(0x8001), payload)
    frames = vehicle.receiver.inbox.wait_count(
        lambda frame: (frame.head.service_id, frame.head.method_id) == (OFFERED, 0x8001), len(sent)
    )
    heads = [frame.head for frame in frames]
    assert [head.payload for head in heads] == sent
    assert {frame.sender for frame in frames} == {("127.0.0.1", vehicle.ports.someip)}
    assert {(head.service_id, head.client_id, head.interface_version) for head in heads} == {(OFFERED, 0, 1)}
    assert {head.message_type for head in heads} == {SOMEIPMessageType.NOTIFICATION}
    assert {head.return_code for head in heads} == {SOMEIPReturnCode.E_OK}
    first = heads[0].session_id
    assert [head.session_id for head in heads] == [first, first + 1, first + 2]
    assert first > 0


def test_a_provider_may_be_in_any_network(vehicle: Vehicle) -> None:
    with ZenohEntity(vehicle.ports.cloud, CLOUD_PROVIDER.authority, CLOUD_PROVIDER.ue_id) as provider:
        provider.publish(CLOUD_PROVIDER.at(0x8001), b"from above")
    frame = vehicle.receiver.inbox.wait_one(lambda frame: frame.head.payload == b"from above")
    assert (frame.head.service_id, frame.head.method_id) == (OFFERED_FOR_CLOUD, 0x8001)


def test_a_publication_outside_the_service_is_not_sent(vehicle: Vehicle, provider: ZenohEntity) -> None:
    provider.publish(PROVIDER.at(0x8003), b"not an event")
    provider.publish(PROVIDER._replace(ue_id=0x8402).at(0x8002), b"not the provider")
    provider.publish(PROVIDER.at(0x8002), b"the event")
    vehicle.receiver.inbox.wait_one(lambda frame: frame.head.method_id == 0x8002)
    assert {frame.head.payload for frame in vehicle.receiver.inbox.items()}.isdisjoint(
        {b"not an event", b"not the provider"}
    )
