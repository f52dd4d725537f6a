# SPDX-License-Identifier: Apache-2.0
"""Of several streamers that offer one service, one does; what it offers is no ECU's."""

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
from tests.transports.someip.sd.test_streamers import streamer, who
from ustreamer.core.peers.election import weight
from ustreamer.transports.someip.sd.actions import (
    Ended,
    OfferTurned,
    Refusal,
    ServiceFound,
    SubscriptionAsked,
    SubscriptionEnded,
)
from ustreamer.transports.someip.sd.codec import EntryType, ServiceEntry
from ustreamer.transports.someip.sd.discovery import Discovery
from ustreamer.transports.someip.sd.options import Configuration
from ustreamer.transports.someip.sd.peer_options import mark
from ustreamer.transports.someip.sd.phases import Phase
from ustreamer.transports.someip.sd.settings import Limits, WantedService
from ustreamer.transports.someip.sd.standby import MAX_RIVALS

FIRST, LAST = sorted((1, 2), key=lambda number: weight(who(number), str(KEY)), reverse=True)
"""Numbers of streamers: the one that goes on if both offer, and the one that gives way."""


def marked(number: int, ttl: int = 3) -> ServiceEntry:
    """The Offer of another streamer."""
    return offer(ttl, (*REMOTE, mark(who(number))))


def node_of(number: int, limits: Limits | None = None, **more: Any) -> Node:
    node = Node(streamer=streamer(number, **more), limits=limits or Limits())
    node.discovery.offer(SERVICE, node.now)
    node.up()
    return node


def offering(number: int, **more: Any) -> Node:
    node = node_of(number, **more)
    node.wait(1_000)
    assert node.discovery.offer_phase(KEY) in {Phase.REPETITION, Phase.MAIN}
    return node


def standing_by(number: int, **more: Any) -> Node:
    node = node_of(number, **more)
    node.wait(80)
    node.hear(marked(3 - number))
    assert of_kind(OfferTurned, node.wait(120)) == [OfferTurned(KEY, ours=False)]
    assert node.discovery.offer_phase(KEY) is Phase.STANDBY
    return node


# ------------------------------------------------------------------------------------------------- whose it is


def test_before_the_first_offer_it_is_asked_whether_another_one_offers() -> None:
    node = node_of(1)
    times = [(at, entries) for at, action in node.timed(300) for entries in sent([action], None)]
    first, *others = [each for _, entries in times for each in entries if each.service == KEY.service]
    assert first.type == EntryType.FIND
    assert {each.type for each in others} == {EntryType.OFFER}
    assert mark(who(1)) in others[0].options
    offered = [at for at, entries in times if any(each.type == EntryType.OFFER for each in entries)]
    assert offered[0] == 55 + 50 + 50  # the initial delay, the time for an answer, and some for who is late


def test_who_comes_later_stands_by_and_says_nothing() -> None:
    node = standing_by(FIRST)
    for _ in range(20):
        node.hear(marked(LAST))
        assert [
            e for entries in sent(node.wait(1_000), None) for e in entries if e.service == KEY.service
        ] == []
        assert node.hear(find(), of=OTHER) == []
    assert node.discovery.statistics()["sd_offers_standby"] == 1


@pytest.mark.parametrize("how", ["stops", "is silent", "reboots"])
def test_when_the_one_that_offers_is_gone_the_other_offers(how: str) -> None:
    node = standing_by(FIRST)
    if how == "stops":
        node.hear(marked(LAST, ttl=0))
    elif how == "reboots":
        node.hear(session=1, reboot=True)
    else:
        assert of_kind(OfferTurned, node.wait(2_500)) == []
    actions = node.wait(1_000)
    assert of_kind(OfferTurned, actions) == [OfferTurned(KEY, ours=True)]
    assert node.discovery.offer_phase(KEY) in {Phase.REPETITION, Phase.MAIN}


def test_who_stands_by_does_not_offer_if_a_third_was_faster() -> None:
    node = standing_by(FIRST)
    node.hear(marked(LAST, ttl=0))
    node.wait(40)
    node.hear(marked(3), of=OTHER)
    node.wait(500)
    assert node.discovery.offer_phase(KEY) is Phase.STANDBY


def test_when_the_link_was_away_nobody_offers_until_that_is_heard_again() -> None:
    node = standing_by(FIRST)
    assert of_kind(OfferTurned, node.discovery.link_down()) == [OfferTurned(KEY, ours=True)]
    node.up()
    node.wait(500)
    assert node.discovery.offer_phase(KEY) in {Phase.REPETITION, Phase.MAIN}


def test_one_that_we_stand_by_for_is_not_forgotten_for_newcomers() -> None:
    node = standing_by(FIRST, limits=Limits(peers=2))
    for number in range(50, 60):
        node.hear(find(WantedService(7)), of=(f"10.0.0.{number}", 30490))
    node.hear(session=1)
    assert node.discovery.statistics()["sd_reboots"] == 1


def test_of_two_that_both_offer_one_gives_way_and_its_subscribers_go_with_it() -> None:
    node = offering(LAST)
    [asked] = of_kind(SubscriptionAsked, node.hear(subscribe()))
    node.discovery.decide([asked.subscription])
    actions = node.hear(marked(FIRST), of=OTHER)
    assert [entry.ttl for entries in sent(actions, None) for entry in entries] == [0]
    assert of_kind(SubscriptionEnded, actions) == [SubscriptionEnded(asked.subscription, Ended.WITHDRAWN)]
    assert of_kind(OfferTurned, actions) == [OfferTurned(KEY, ours=False)]
    assert refusals(node.hear(subscribe())) == [Refusal.SD_SUBSCRIBE_UNKNOWN]


def test_and_the_other_one_goes_on_and_tells_it_so() -> None:
    node = offering(FIRST)
    assert of_kind(OfferTurned, node.hear(marked(LAST))) == []
    [answer] = sent(node.wait(60), PEER)
    assert [(entry.type, entry.service) for entry in answer] == [(EntryType.OFFER, KEY.service)]


def test_our_own_offer_at_another_endpoint_is_no_rival() -> None:
    node = node_of(LAST)
    node.wait(80)
    node.hear(marked(LAST))
    node.wait(200)
    assert node.discovery.offer_phase(KEY) in {Phase.REPETITION, Phase.MAIN}


# ------------------------------------------------------------------------------------------------- who is believed


def test_who_offers_does_not_give_way_to_one_that_is_not_believed() -> None:
    node = offering(LAST)
    node.discovery.believe(lambda _who, _authority: False, node.now)
    node.hear(marked(FIRST))
    assert node.discovery.offer_phase(KEY) in {Phase.REPETITION, Phase.MAIN}
    assert sent(node.wait(60), PEER) == []


def test_one_that_is_not_believed_keeps_nobody_waiting_for_longer_than_a_ttl() -> None:
    node = standing_by(FIRST)
    node.discovery.believe(lambda _who, _authority: False, node.now)
    for _ in range(28):
        node.hear(marked(LAST), marked(3))
        node.wait(100)
        assert node.discovery.offer_phase(KEY) is Phase.STANDBY
    for _ in range(4):
        node.hear(marked(LAST), marked(4))
        node.wait(100)
    assert node.discovery.offer_phase(KEY) in {Phase.REPETITION, Phase.MAIN}


def test_one_that_turns_out_to_be_believed_within_that_time_goes_on_offering() -> None:
    node = standing_by(FIRST)
    node.discovery.believe(lambda _who, _authority: False, node.now)
    asked = []

    def brings(rival: object, authority: str) -> bool:
        asked.append((rival, authority))
        return True

    node.hear(marked(LAST))
    node.wait(1_500)
    node.discovery.believe(brings, node.now)
    for _ in range(10):
        node.hear(marked(LAST))
        node.wait(1_000)
    assert node.discovery.offer_phase(KEY) is Phase.STANDBY
    assert set(asked) == {(who(LAST), SERVICE.authority)}


def test_one_that_is_named_is_believed() -> None:
    node = offering(LAST, vouched=frozenset({who(FIRST).authority}))
    node.discovery.believe(lambda _who, _authority: False, node.now)
    node.hear(marked(FIRST))
    assert node.discovery.offer_phase(KEY) is Phase.STANDBY


# ------------------------------------------------------------------------------------------------- no ECU's


def test_what_another_streamer_offers_is_not_what_is_looked_for() -> None:
    node = Node(streamer=streamer(1))
    node.discovery.want(WANTED, node.now)
    node.up()
    actions = node.hear(marked(2))
    assert (of_kind(ServiceFound, actions), refusals(actions)) == ([], [Refusal.SD_RELAYED])
    assert len(of_kind(ServiceFound, node.hear(offer()))) == 1


def test_nor_what_comes_from_an_address_that_is_known_as_a_streamers() -> None:
    node = Node(streamer=streamer(1, hosts=frozenset({PEER[0]})))
    node.discovery.want(WANTED, node.now)
    node.up()
    assert refusals(node.hear(offer())) == [Refusal.SD_RELAYED]


def test_unless_the_service_may_be_relayed() -> None:
    node = Node(streamer=streamer(1, relayed=frozenset({KEY})))
    node.discovery.want(WANTED, node.now)
    node.up()
    assert len(of_kind(ServiceFound, node.hear(marked(2)))) == 1


def test_nobody_minds_a_streamers_offer_that_nobody_wants() -> None:
    node = Node(streamer=streamer(1))
    node.up()
    assert refusals(node.hear(marked(2))) == []


def test_a_mark_that_cannot_be_read_takes_its_offer_along() -> None:
    node = Node(streamer=streamer(1))
    node.discovery.want(WANTED, node.now)
    node.up()
    actions = node.hear(offer(3, (*REMOTE, Configuration((b"up-streamer=9",)))))
    assert (of_kind(ServiceFound, actions), refusals(actions)) == ([], [Refusal.SD_STREAMER_WORDS])


# ------------------------------------------------------------------------------------------------- whatever happens


def test_there_is_a_bound_to_rivals() -> None:
    node = offering(FIRST)
    refused = [
        refusals(node.hear(marked(number), of=(f"10.0.0.{number}", 30490))) for number in range(3, 100)
    ]
    assert refused == [[]] * MAX_RIVALS + [[Refusal.SD_STREAMER_LIMIT]] * (97 - MAX_RIVALS)


class Street(Network):
    """Streamers that offer the same, and come and go."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.dice = random.Random(seed)

    def start(self, number: int) -> None:
        host = f"10.0.0.{number}"
        own = (host, 30490)
        node = self.add(host, self.dice.random, streamer=streamer(number))
        self.do(own, node.offer(SERVICE, self.now))
        self.do(own, node.link_up(self.now))

    def of(self, number: int) -> Discovery | None:
        return self.nodes.get((f"10.0.0.{number}", 30490))

    def offering(self) -> list[int]:
        phases = {number: node.offer_phase(KEY) for number in range(1, 5) if (node := self.of(number))}
        return [number for number, phase in phases.items() if phase in {Phase.REPETITION, Phase.MAIN}]


steps = st.lists(
    st.tuples(
        st.sampled_from(["start", "stop", "kill", "lose", "hear"]), st.integers(1, 4), st.integers(0, 3_000)
    ),
    max_size=30,
)


@settings(max_examples=100)
@given(steps, st.integers(0, 1_000))
def test_whatever_happens_in_the_end_one_of_those_that_are_there_offers(
    story: list[tuple[str, int, int]], seed: int
) -> None:
    street = Street(seed)
    street.start(1)
    for what, number, pause_ms in story:
        node, own = street.of(number), (f"10.0.0.{number}", 30490)
        if what == "start" and node is None:
            street.start(number)
        elif what == "stop" and node is not None:
            street.do(own, node.close())
            del street.nodes[own]
        elif what == "kill":
            street.nodes.pop(own, None)
        elif what in {"lose", "hear"}:
            deaf = what == "lose"
            street.lost = lambda of, to, deaf=deaf, own=own: deaf and own in {of, to}  # type: ignore[misc]
        street.wait(pause_ms)
    street.lost = lambda _of, _to: False
    street.wait(8_000)
    held = street.offering()
    assert len(held) == bool(street.nodes)
    street.wait(8_000)
    assert street.offering() == held  # and it stays with that one
