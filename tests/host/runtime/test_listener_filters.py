# SPDX-License-Identifier: Apache-2.0
"""The listeners of a streamer at its endpoints."""

from collections.abc import Sequence
from typing import ClassVar

import pytest

from tests.host.streamer_bench import OWN, Bench, NoConfig, fake, link
from ustreamer.core.routing.router import SELF
from ustreamer.hooks import HostedService, PluginContext, hookimpl
from ustreamer.host.runtime.listener_filters import listener_filters
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.utransport import UTransport
from ustreamer.uprotocol.uuri import ANY, UUri

HERE_AND_THERE = {"a": [OWN, "car"], "b": ["cloud"]}
WITH_STAR = {"a": [OWN], "b": ["*"], "c": ["cloud"]}
RECEIVED: list[tuple[str, dict[str, list[str]], str, UMessageType, UUri, int]] = [
    ("to elsewhere", HERE_AND_THERE, "a", UMessageType.NOTIFICATION, UUri("cloud", 1, 1, 0), 1),
    ("to elsewhere", HERE_AND_THERE, "a", UMessageType.RESPONSE, UUri("cloud", 1, 1, 0), 1),
    ("to elsewhere", HERE_AND_THERE, "a", UMessageType.REQUEST, UUri("cloud", 1, 1, 1), 1),
    ("to elsewhere", HERE_AND_THERE, "b", UMessageType.NOTIFICATION, UUri("car", 1, 1, 0), 1),
    ("to elsewhere", HERE_AND_THERE, "b", UMessageType.REQUEST, UUri(OWN, 1, 1, 1), 1),
    ("among themselves", HERE_AND_THERE, "a", UMessageType.NOTIFICATION, UUri("car", 1, 1, 0), 0),
    ("among themselves", HERE_AND_THERE, "a", UMessageType.RESPONSE, UUri(OWN, 1, 1, 0), 0),
    ("among themselves", HERE_AND_THERE, "b", UMessageType.RESPONSE, UUri("cloud", 1, 1, 0), 0),
    ("to a hosted service", HERE_AND_THERE, "a", UMessageType.NOTIFICATION, UUri(OWN, 7, 1, 0), 1),
    ("to a hosted service", HERE_AND_THERE, "a", UMessageType.REQUEST, UUri(OWN, 7, 3, 1), 1),
    ("to a hosted service", HERE_AND_THERE, "b", UMessageType.RESPONSE, UUri(OWN, 7, 9, 0), 1),
    ("to a foreign authority", HERE_AND_THERE, "b", UMessageType.RESPONSE, UUri("mars", 7, 1, 0), 1),
    ("to a foreign authority", HERE_AND_THERE, "a", UMessageType.REQUEST, UUri("mars", 7, 1, 1), 1),
    (
        "to an unknown authority, with an error response",
        HERE_AND_THERE,
        "b",
        UMessageType.REQUEST,
        UUri("venus", 1, 1, 1),
        1,
    ),
    (
        "to an authority named next to the wildcard",
        WITH_STAR,
        "a",
        UMessageType.RESPONSE,
        UUri("cloud", 1, 1, 0),
        1,
    ),
    ("to wherever", WITH_STAR, "a", UMessageType.NOTIFICATION, UUri("venus", 1, 1, 0), 1),
    ("to wherever", WITH_STAR, "c", UMessageType.RESPONSE, UUri("venus", 1, 1, 0), 1),
    ("to wherever", WITH_STAR, "c", UMessageType.REQUEST, UUri("venus", 1, 1, 1), 1),
    ("from the star", WITH_STAR, "b", UMessageType.NOTIFICATION, UUri("cloud", 1, 1, 0), 1),
    ("from the star", WITH_STAR, "b", UMessageType.RESPONSE, UUri(OWN, 1, 1, 0), 1),
    ("from the star to a hosted service", WITH_STAR, "b", UMessageType.RESPONSE, UUri("mars", 7, 1, 0), 1),
    ("from star to star", WITH_STAR, "b", UMessageType.NOTIFICATION, UUri("venus", 1, 1, 0), 0),
]


class Hosted:
    """A service at two authorities; one has no endpoint."""

    entities: ClassVar = [UUri(OWN, 7, 1, 0), UUri("mars", 7, 1, 0)]

    def start(self, bus: UTransport) -> None: ...

    def stop(self) -> None: ...


class HostingPlugin:
    Config = NoConfig

    def __init__(self, config: NoConfig, context: PluginContext) -> None: ...

    @hookimpl
    def ustreamer_services(self) -> Sequence[HostedService]:
        return [Hosted()]


@pytest.mark.parametrize(
    ("authorities", "endpoint", "kind", "sink", "times"),
    [pytest.param(*row[1:], id=f"{row[0]}: {row[3].name} {row[2]} -> {row[4]}") for row in RECEIVED],
)
def test_an_endpoint_receives_messages_for_elsewhere_once_and_no_local_ones(
    bench: Bench,
    authorities: dict[str, list[str]],
    endpoint: str,
    kind: UMessageType,
    sink: UUri,
    times: int,
) -> None:
    streamer = bench.started(
        *(fake(name, *who) for name, who in authorities.items()), extra={"hosting": HostingPlugin}
    )
    filters = link(streamer, endpoint).listeners
    lives_here = authorities[endpoint][0]
    source = UUri("earth" if lives_here == "*" else lives_here, 2, 1, 0)
    if kind is not UMessageType.REQUEST:
        source = source.with_resource(0x8000 if kind is UMessageType.NOTIFICATION else 3)
    received = [
        pair for pair in filters if pair[0].matches(source) and pair[1] is not None and pair[1].matches(sink)
    ]
    assert len(received) == times
    assert {listener for _, _, listener in filters} == {streamer.dispatcher.ingress(endpoint)}


def test_every_endpoint_receives_every_publication_once(bench: Bench) -> None:
    streamer = bench.started(*(fake(name, *who) for name, who in WITH_STAR.items()))
    for name in WITH_STAR:
        assert [pair[0] for pair in link(streamer, name).listeners if pair[1] is None] == [ANY]


@pytest.mark.parametrize(
    "sink", [UUri("cloud", 1, 1, 0), UUri("venus", 1, 1, 0), UUri(OWN, 7, 1, 0)], ids=str
)
def test_the_own_endpoint_receives_replies_to_every_authority_once(sink: UUri) -> None:
    """A reply of a hosted service to an authority without an endpoint becomes a dead letter."""
    filters = listener_filters(SELF, {SELF: (), **HERE_AND_THERE}, [UUri(OWN, 7, 1, 0)])
    assert sum(other is not None and other.matches(sink) for _, other in filters if other != ANY) == 1


@pytest.mark.parametrize("source", [UUri("x", 7, 1, 0), UUri("x", 7, 1, 3), UUri("x", 7, 1, 0x8000)])
def test_no_two_filters_of_an_endpoint_match_the_same_message(source: UUri) -> None:
    behind = {"self": (), **HERE_AND_THERE, "c": ["*"]}
    entities = [UUri(OWN, 7, 1, 0), UUri("mars", 7, 1, 0), UUri("moon", 7, 1, 0)]
    resource = int(source.resource_id == 0)  # a request is addressed to a method, all else to an entity
    for endpoint in behind:
        filters = listener_filters(endpoint, behind, entities)
        for authority in ("cloud", "car", OWN, "mars", "moon", "venus"):
            address = UUri(authority, 7, 1, resource)
            hearing = [
                (one, other)
                for one, other in filters
                if one.matches(source) and other is not None and other.matches(address)
            ]
            assert len(hearing) <= 1, (endpoint, authority)


@pytest.mark.parametrize("endpoints", [2, 5, 6, 64])
def test_the_filters_of_an_endpoint_do_not_grow_with_the_number_of_endpoints(endpoints: int) -> None:
    behind = {"self": (), **{f"e{n}": [f"net{n}"] for n in range(endpoints)}}
    for endpoint in behind:
        filters = listener_filters(endpoint, behind, [UUri("net0", 7, 1, 0)])
        assert len(filters) <= 7, endpoint
        # However they are grouped, a reply for each other network is received.
        for number in range(endpoints):
            if endpoint != f"e{number}":
                reply_address = UUri(f"net{number}", 1, 1, 0)
                assert any(sink is not None and sink.matches(reply_address) for _, sink in filters[2:])
