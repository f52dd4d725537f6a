# SPDX-License-Identifier: Apache-2.0
"""Several streamers offer one service: exactly one sends Offers, and its Offer is not an ECU's."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transports.someip.sd.network import (
    KEY,
    OTHER,
    PEER,
    REMOTE,
    SERVICE,
    WANTED,
    Network,
    Node,
    find,
    of_kind,
    offer,
    refusals,
    sent,
    subscribe,
)
from tests.transports.someip.sd.test_peer_announcer import router_id, streamer
from ustreamer.core.peers.election import election_key
from ustreamer.transports.someip.sd.actions import (
    EndReason,
    OfferRoleChanged,
    SdRefusal,
    ServiceFound,
    SubscriptionEnded,
    SubscriptionRequested,
)
from ustreamer.transports.someip.sd.codec import EntryType, ServiceEntry
from ustreamer.transports.someip.sd.config import SdLimits
from ustreamer.transports.someip.sd.discovery import Discovery
from ustreamer.transports.someip.sd.options import Configuration
from ustreamer.transports.someip.sd.peer_options import streamer_mark
from ustreamer.transports.someip.sd.phases import Phase
from ustreamer.transports.someip.sd.settings import WantedService
from ustreamer.transports.someip.sd.standby import MAX_COMPETING_OFFERS

FIRST, LAST = sorted((1, 2), key=lambda number: election_key(router_id(number), str(KEY)), reverse=True)
"""Numbers of streamers: the winner of the tie-break, and the loser."""


def marked(number: int, ttl: int = 3) -> ServiceEntry:
    """The Offer of another streamer."""
    return offer(ttl, (*REMOTE, streamer_mark(router_id(number))))


def node_of(number: int, limits: SdLimits | None = None, **more: Any) -> Node:
    node = Node(streamer=streamer(number, **more), limits=limits or SdLimits())
    node.discovery.offer_service(SERVICE, node.now)
    node.up()
    return node


def offering(number: int, **more: Any) -> Node:
    node = node_of(number, **more)
    node.advance(1_000)
    assert node.discovery.offer_phase(KEY) in {Phase.REPETITION, Phase.MAIN}
    return node


def standing_by(number: int, **more: Any) -> Node:
    node = node_of(number, **more)
    node.advance(80)
    node.receive(marked(3 - number))
    assert of_kind(OfferRoleChanged, node.advance(120)) == [OfferRoleChanged(KEY, ours=False)]
    assert node.discovery.offer_phase(KEY) is Phase.STANDBY
    return node


# --- precedence -------------------------------------------------------------------------------------------------------


def test_a_find_for_competing_offers_precedes_the_first_offer() -> None:
    node = node_of(1)
    times = [(at, entries) for at, action in node.advance_timed(300) for entries in sent([action], None)]
    first, *others = [each for _, entries in times for each in entries if each.service == KEY.service]
    assert first.type == EntryType.FIND
    assert {each.type for each in others} == {EntryType.OFFER}
    assert streamer_mark(router_id(1)) in others[0].options
    offered = [at for at, entries in times if any(each.type == EntryType.OFFER for each in entries)]
    assert offered[0] == 55 + 50 + 50  # the initial delay, the answer time and a margin


def test_a_later_streamer_stands_by_without_offers() -> None:
    node = standing_by(FIRST)
    for _ in range(20):
        node.receive(marked(LAST))
        assert [
            e for entries in sent(node.advance(1_000), None) for e in entries if e.service == KEY.service
        ] == []
        assert node.receive(find(), peer=OTHER) == []
    assert node.discovery.statistics()["sd_offers_standby"] == 1


@pytest.mark.parametrize("how", ["stops", "is silent", "reboots"])
def test_the_standby_streamer_offers_when_the_other_ends(how: str) -> None:
    node = standing_by(FIRST)
    if how == "stops":
        node.receive(marked(LAST, ttl=0))
    elif how == "reboots":
        node.receive(session=1, reboot=True)
    else:
        assert of_kind(OfferRoleChanged, node.advance(2_500)) == []
    actions = node.advance(1_000)
    assert of_kind(OfferRoleChanged, actions) == [OfferRoleChanged(KEY, ours=True)]
    assert node.discovery.offer_phase(KEY) in {Phase.REPETITION, Phase.MAIN}


def test_a_standby_streamer_stays_if_a_third_one_was_faster() -> None:
    node = standing_by(FIRST)
    node.receive(marked(LAST, ttl=0))
    node.advance(40)
    node.receive(marked(3), peer=OTHER)
    node.advance(500)
    assert node.discovery.offer_phase(KEY) is Phase.STANDBY


def test_after_a_link_loss_competing_offers_are_detected_again() -> None:
    node = standing_by(FIRST)
    assert of_kind(OfferRoleChanged, node.discovery.link_down()) == [OfferRoleChanged(KEY, ours=True)]
    node.up()
    node.advance(500)
    assert node.discovery.offer_phase(KEY) in {Phase.REPETITION, Phase.MAIN}


def test_a_competing_streamer_is_not_evicted_by_new_peers() -> None:
    node = standing_by(FIRST, limits=SdLimits(peers=2))
    for number in range(50, 60):
        node.receive(find(WantedService(7)), peer=(f"10.0.0.{number}", 30490))
    node.receive(session=1)
    assert node.discovery.statistics()["sd_reboots"] == 1


def test_of_two_offering_streamers_the_loser_stops_and_ends_its_subscriptions() -> None:
    node = offering(LAST)
    [requested] = of_kind(SubscriptionRequested, node.receive(subscribe()))
    node.discovery.decide_subscriptions([requested.subscription])
    actions = node.receive(marked(FIRST), peer=OTHER)
    assert [entry.ttl for entries in sent(actions, None) for entry in entries] == [0]
    assert of_kind(SubscriptionEnded, actions) == [
        SubscriptionEnded(requested.subscription, EndReason.WITHDRAWN)
    ]
    assert of_kind(OfferRoleChanged, actions) == [OfferRoleChanged(KEY, ours=False)]
    assert refusals(node.receive(subscribe())) == [SdRefusal.SD_SUBSCRIBE_UNKNOWN]


def test_the_winner_of_the_tie_break_continues_to_offer() -> None:
    node = offering(FIRST)
    assert of_kind(OfferRoleChanged, node.receive(marked(LAST))) == []
    [answer] = sent(node.advance(60), PEER)
    assert [(entry.type, entry.service) for entry in answer] == [(EntryType.OFFER, KEY.service)]


def test_an_own_offer_at_another_endpoint_is_not_competing() -> None:
    node = node_of(LAST)
    node.advance(80)
    node.receive(marked(LAST))
    node.advance(200)
    assert node.discovery.offer_phase(KEY) in {Phase.REPETITION, Phase.MAIN}


# --- trust ------------------------------------------------------------------------------------------------------------


def test_an_offering_streamer_ignores_an_untrusted_offer() -> None:
    node = offering(LAST)
    node.discovery.set_trust_check(lambda _who, _authority: False, node.now)
    node.receive(marked(FIRST))
    assert node.discovery.offer_phase(KEY) in {Phase.REPETITION, Phase.MAIN}
    assert sent(node.advance(60), PEER) == []


def test_an_untrusted_offer_delays_at_most_one_ttl() -> None:
    node = standing_by(FIRST)
    node.discovery.set_trust_check(lambda _who, _authority: False, node.now)
    for _ in range(28):
        node.receive(marked(LAST), marked(3))
        node.advance(100)
        assert node.discovery.offer_phase(KEY) is Phase.STANDBY
    for _ in range(4):
        node.receive(marked(LAST), marked(4))
        node.advance(100)
    assert node.discovery.offer_phase(KEY) in {Phase.REPETITION, Phase.MAIN}


def test_an_offer_trusted_within_the_timeout_has_precedence() -> None:
    node = standing_by(FIRST)
    node.discovery.set_trust_check(lambda _who, _authority: False, node.now)
    requested = []

    def brings(competitor: object, authority: str) -> bool:
        requested.append((competitor, authority))
        return True

    node.receive(marked(LAST))
    node.advance(1_500)
    node.discovery.set_trust_check(brings, node.now)
    for _ in range(10):
        node.receive(marked(LAST))
        node.advance(1_000)
    assert node.discovery.offer_phase(KEY) is Phase.STANDBY
    assert set(requested) == {(router_id(LAST), SERVICE.authority)}


def test_a_configured_competing_streamer_is_trusted() -> None:
    node = offering(LAST, trusted_authorities=frozenset({router_id(FIRST).authority}))
    node.discovery.set_trust_check(lambda _who, _authority: False, node.now)
    node.receive(marked(FIRST))
    assert node.discovery.offer_phase(KEY) is Phase.STANDBY


# --- not an ECU's offer -----------------------------------------------------------------------------------------------


def test_a_streamers_offer_does_not_match_a_request() -> None:
    node = Node(streamer=streamer(1))
    node.discovery.request_service(WANTED, node.now)
    node.up()
    actions = node.receive(marked(2))
    assert (of_kind(ServiceFound, actions), refusals(actions)) == ([], [SdRefusal.SD_RELAYED])
    assert len(of_kind(ServiceFound, node.receive(offer()))) == 1


def test_an_offer_from_a_streamer_host_does_not_match_a_request() -> None:
    node = Node(streamer=streamer(1, streamer_hosts=frozenset({PEER[0]})))
    node.discovery.request_service(WANTED, node.now)
    node.up()
    assert refusals(node.receive(offer())) == [SdRefusal.SD_RELAYED]


def test_a_relayed_service_matches_a_streamers_offer() -> None:
    node = Node(streamer=streamer(1, accept_relayed=frozenset({KEY})))
    node.discovery.request_service(WANTED, node.now)
    node.up()
    assert len(of_kind(ServiceFound, node.receive(marked(2)))) == 1


def test_an_unrequested_streamers_offer_is_not_counted() -> None:
    node = Node(streamer=streamer(1))
    node.up()
    assert refusals(node.receive(marked(2))) == []


def test_a_malformed_mark_refuses_its_offer() -> None:
    node = Node(streamer=streamer(1))
    node.discovery.request_service(WANTED, node.now)
    node.up()
    actions = node.receive(offer(3, (*REMOTE, Configuration((b"up-streamer=9",)))))
    assert (of_kind(ServiceFound, actions), refusals(actions)) == ([], [SdRefusal.SD_ANNOUNCEMENT_MALFORMED])


# --- random events ----------------------------------------------------------------------------------------------------


def test_the_number_of_competing_offers_is_limited() -> None:
    node = offering(FIRST)
    refused = [
        refusals(node.receive(marked(number), peer=(f"10.0.0.{number}", 30490))) for number in range(3, 100)
    ]
    assert refused == [[]] * MAX_COMPETING_OFFERS + [[SdRefusal.SD_STREAMER_LIMIT]] * (
        97 - MAX_COMPETING_OFFERS
    )


class SharedNetwork(Network):
    """Streamers with equal services that start and stop."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = random.Random(seed)

    def start(self, number: int) -> None:
        host = f"10.0.0.{number}"
        own = (host, 30490)
        node = self.add(host, self.rng.random, streamer=streamer(number))
        self.do(own, node.offer_service(SERVICE, self.now))
        self.do(own, node.link_up(self.now))

    def discovery_of(self, number: int) -> Discovery | None:
        return self.nodes.get((f"10.0.0.{number}", 30490))

    def offering_numbers(self) -> list[int]:
        phases = {
            number: node.offer_phase(KEY) for number in range(1, 5) if (node := self.discovery_of(number))
        }
        return [number for number, phase in phases.items() if phase in {Phase.REPETITION, Phase.MAIN}]


steps = st.lists(
    st.tuples(
        st.sampled_from(["start", "stop", "kill", "lose", "hear"]), st.integers(1, 4), st.integers(0, 3_000)
    ),
    max_size=30,
)


@settings(max_examples=100)
@given(steps, st.integers(0, 1_000))
def test_in_the_end_exactly_one_running_streamer_offers(story: list[tuple[str, int, int]], seed: int) -> None:
    shared = SharedNetwork(seed)
    shared.start(1)
    for what, number, pause_ms in story:
        node, own = shared.discovery_of(number), (f"10.0.0.{number}", 30490)
        if what == "start" and node is None:
            shared.start(number)
        elif what == "stop" and node is not None:
            shared.do(own, node.close())
            del shared.nodes[own]
        elif what == "kill":
            shared.nodes.pop(own, None)
        elif what in {"lose", "hear"}:
            deaf = what == "lose"
            shared.is_lost = lambda of, to, deaf=deaf, own=own: deaf and own in {of, to}  # type: ignore[misc]
        shared.advance(pause_ms)
    shared.is_lost = lambda _of, _to: False
    shared.advance(8_000)
    held = shared.offering_numbers()
    assert len(held) == bool(shared.nodes)
    shared.advance(8_000)
    assert shared.offering_numbers() == held  # the winner does not change
