# SPDX-License-Identifier: Apache-2.0
"""What the families send. Their effect is shown by the end-to-end test, on a streamer that holds and on one that does not."""

import random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ustreamer.host.attack.families import (
    discovery,
    floods,
    local_access,
    messages,
    someip_datagrams,
    someip_streams,
    sources,
    subscriptions,
    wamp,
)
from ustreamer.host.attack.scene import Scene
from ustreamer.transports.someip.config import EventConfig, ServiceConfig
from ustreamer.transports.someip.protocol.codec import MAX_REFUSALS, split
from ustreamer.uprotocol.umessage import error_response, request
from ustreamer.uprotocol.umessage import response as response_to
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

FAMILIES = (
    sources,
    subscriptions,
    messages,
    floods,
    someip_datagrams,
    someip_streams,
    discovery,
    wamp,
    local_access,
)
_MAX_DATAGRAM = 65_507


def scene() -> Any:
    service = ServiceConfig(service=0x1234, major=1, events=(EventConfig(id=0x8001),), remote="127.0.0.1:9")
    offered = ServiceConfig(
        service=0x4001,
        major=1,
        methods=(1,),
        events=(EventConfig(id=0x8001),),
        offered=True,
        provider="//a/1/1/0",
    )
    someip = SimpleNamespace(ecu_services=(service,), offered=(offered,))
    event = SimpleNamespace(service=0x1234, event=0x8001, major=1)
    return SimpleNamespace(rng=random.Random(1), someip=someip, target=SimpleNamespace(event=event))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda each: each.__name__.rpartition(".")[2])
def test_a_file_has_one_family(family: ModuleType) -> None:
    assert {each.family for each in family.ATTACKS} == {family.FAMILY}


@pytest.mark.parametrize(
    "make",
    [
        someip_datagrams.malformed_messages,
        someip_datagrams.unknown_requests,
        someip_datagrams.foreign_events,
        someip_datagrams.random_bytes,
        someip_datagrams.mutated_event,
        someip_datagrams.wrong_lengths,
        someip_datagrams.other_protocols,
        someip_datagrams.error_replies,
        someip_datagrams.huge_event,
        someip_datagrams.open_segments,
        someip_datagrams.scattered_segments,
        someip_datagrams.fill_segments,
    ],
)
def test_a_datagram_fits_into_udp(make: Any) -> None:
    assert all(len(make(scene(), number)) <= _MAX_DATAGRAM for number in range(200))


def test_malformed_messages_reach_the_limit_of_refusals() -> None:
    _, refused = split(someip_datagrams.malformed_messages(scene(), 0))
    assert len(refused) == MAX_REFUSALS + 1


@pytest.mark.parametrize(
    "make",
    [
        discovery.offers,
        discovery.stop_offers,
        discovery.reboots,
        discovery.finds,
        discovery.many_entries,
        discovery.many_messages,
        discovery.huge_options,
        discovery.corrupt,
        discovery.subscribes,
    ],
)
def test_a_message_of_service_discovery_fits_into_udp(make: Any) -> None:
    assert all(len(make(scene(), number, "127.0.66.1")) <= _MAX_DATAGRAM for number in range(50))


def test_a_response_without_an_error_is_a_success() -> None:
    call = request(UUID(0x7000, 2 << 62), UUri("a", 1, 1, 0), UUri("b", 1, 1, 1), ttl=1)
    refused = error_response(call.id, call, UStatus(UCode.PERMISSION_DENIED, "no"))
    assert subscriptions.succeeded(response_to(call.id, call))
    assert not subscriptions.succeeded(refused)
    assert not subscriptions.succeeded(None)


def test_a_paced_attack_ends_with_its_window() -> None:
    paced = Scene.__new__(Scene)
    paced.seconds = 0.1
    assert list(paced.paced(50)) == [0, 1, 2, 3, 4]
    assert list(paced.paced(1)) == [0]
