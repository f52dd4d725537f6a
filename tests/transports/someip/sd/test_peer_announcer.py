# SPDX-License-Identifier: Apache-2.0
"""Announcements of streamers by service discovery: their start, their changes and their end."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transports.someip.sd.network import (
    OTHER,
    OWN,
    PEER,
    Network,
    Node,
    of_kind,
    read,
    refusals,
)
from ustreamer.core.peers.election import Announcement, AnnouncementRole, RouterId
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.sd.actions import Action, PeerAnnouncementsChanged, SdRefusal, Send
from ustreamer.transports.someip.sd.codec import ANY_INSTANCE, ANY_MAJOR, ANY_MINOR, EntryType, ServiceEntry
from ustreamer.transports.someip.sd.config import SdLimits
from ustreamer.transports.someip.sd.options import Configuration
from ustreamer.transports.someip.sd.peer_announcer import MAX_ANNOUNCEMENTS, MAX_PEER_STREAMERS
from ustreamer.transports.someip.sd.peer_options import MAX_PARTS, encode_announcements, streamer_mark
from ustreamer.transports.someip.sd.settings import PeerDiscoverySettings

SERVICE = 0xFFFE


def router_id(number: int) -> RouterId:
    return RouterId(f"g{number}", f"{number:016x}")


def streamer(number: int, **more: Any) -> PeerDiscoverySettings:
    return PeerDiscoverySettings(own_id=router_id(number), service=SERVICE, **more)


def announcements(number: int, *carried: str, trusted: bool = False) -> frozenset[Announcement]:
    me = router_id(number)
    words = [
        (AnnouncementRole.IDENTITY, me.authority),
        *((AnnouncementRole.CARRIES, each) for each in carried),
    ]
    return frozenset(Announcement(me.instance, "net", me.authority, *each, trusted) for each in words)


def reported(actions: Iterable[Action]) -> list[frozenset[Announcement]]:
    return [each.announcements for each in of_kind(PeerAnnouncementsChanged, actions)]


def announced_by(
    number: int, *carried: str, generation: int = 1, ttl: int = 3, room: int = 1_000
) -> list[ServiceEntry]:
    """The entries of an announcing streamer."""
    words = [
        (AnnouncementRole.IDENTITY, router_id(number).authority),
        *((AnnouncementRole.CARRIES, each) for each in carried),
    ]
    options, _ = encode_announcements(router_id(number), "net", generation, words, room)
    return [
        ServiceEntry(EntryType.OFFER, SERVICE, 1 + place, 1, 0, ttl, (option,))
        for place, option in enumerate(options)
    ]


def listening() -> Node:
    node = Node(streamer=streamer(1))
    node.up()
    node.advance(10_000)
    return node


# --- two streamers ----------------------------------------------------------------------------------------------------


class Pair:
    """Two streamers on one network."""

    def __init__(self) -> None:
        self.network = Network()
        self.first = self.network.add(OWN[0], lambda: 0.2, streamer=streamer(1))
        self.second = self.network.add(PEER[0], lambda: 0.7, streamer=streamer(2))
        for own, node, words in (
            (OWN, self.first, announcements(1, "a")),
            (PEER, self.second, announcements(2, "b")),
        ):
            self.network.do(own, node.link_up(0))
            self.network.do(own, node.announce(words, 0))
        self.network.advance(1_000)

    def reported(self, own: Address) -> list[frozenset[Announcement]]:
        return reported(self.network.pop_actions(own))


# [utest->SD-500]
def test_two_streamers_exchange_announcements() -> None:
    pair = Pair()
    assert pair.reported(OWN) == [announcements(2, "b")]
    assert pair.reported(PEER) == [announcements(1, "a")]
    pair.network.advance(60_000)
    assert pair.reported(OWN) == []  # a repetition is not a change


def test_a_changed_announcement_replaces_the_previous_one() -> None:
    pair = Pair()
    pair.reported(PEER)
    pair.network.do(OWN, pair.first.announce(announcements(1, "c", "d"), pair.network.now))
    pair.network.advance(100)
    assert pair.reported(PEER) == [announcements(1, "c", "d")]


def test_a_stop_removes_a_streamer_immediately() -> None:
    pair = Pair()
    pair.reported(PEER)
    pair.network.do(OWN, pair.first.close())
    pair.network.advance(100)
    assert pair.reported(PEER) == [frozenset()]


def test_an_empty_announcement_removes_a_streamer_immediately() -> None:
    pair = Pair()
    pair.reported(PEER)
    pair.network.do(OWN, pair.first.announce(frozenset(), pair.network.now))
    pair.network.advance(100)
    assert pair.reported(PEER) == [frozenset()]


def test_a_killed_streamer_is_removed_after_its_ttl() -> None:
    pair = Pair()
    pair.reported(PEER)
    del pair.network.nodes[OWN]
    pair.network.advance(1_900)
    assert pair.reported(PEER) == []
    pair.network.advance(1_200)
    assert pair.reported(PEER) == [frozenset()]


def test_a_link_loss_removes_all_streamers_and_its_return_restores_them() -> None:
    pair = Pair()
    pair.reported(OWN)
    pair.network.is_lost = lambda _of, _to: True
    pair.network.do(OWN, pair.first.link_down())
    assert pair.reported(OWN) == [frozenset()]
    pair.network.advance(500)
    pair.network.is_lost = lambda _of, _to: False
    pair.network.do(OWN, pair.first.link_up(pair.network.now))
    pair.network.advance(200)  # the answer to its Find: the next cyclic Offer may be a second away
    assert pair.reported(OWN) == [announcements(2, "b")]


# --- received announcements -------------------------------------------------------------------------------------------


def test_an_announcement_in_parts_is_valid_when_complete() -> None:
    node = listening()
    carried = [f"authority-{number}" for number in range(50)]
    parts = announced_by(2, *carried, room=600)
    assert len(parts) > 2
    for part in parts[1:]:
        node.receive(part)
    assert reported(node.advance(100)) == []
    node.receive(parts[0])
    assert reported(node.advance(100)) == [announcements(2, *carried)]


def test_the_previous_announcement_is_valid_until_the_new_one_is_complete() -> None:
    node = listening()
    node.receive(*announced_by(2, "a"))
    carried = [f"authority-{number}" for number in range(50)]
    parts = announced_by(2, *carried, generation=2, room=600)
    node.receive(*parts[:-1])
    assert reported(node.advance(100)) == [announcements(2, "a")]
    node.receive(parts[-1])
    assert reported(node.advance(100)) == [announcements(2, *carried)]


def test_a_reboot_voids_announcements_until_the_next_one() -> None:
    node = listening()
    node.receive(*announced_by(2, "a"), session=5)
    node.advance(100)
    node.receive(session=1)
    assert reported(node.advance(100)) == [frozenset()]


def test_many_changes_are_reported_as_one() -> None:
    node = listening()
    reports = []
    for generation in range(1, 51):
        node.receive(*announced_by(2, f"a{generation}", generation=generation))
        reports += reported(node.advance(1))
    reports += reported(node.advance(100))
    assert len(reports) <= 3  # one in 20 ms
    assert reports[-1] == announcements(2, "a50")


def test_a_streamer_is_not_evicted_by_new_peers() -> None:
    node = Node(streamer=streamer(1), limits=SdLimits(peers=2))
    node.up()
    node.receive(*announced_by(2, "a"), session=5)
    node.advance(100)
    for number in range(50, 60):
        node.receive(peer=(f"10.0.0.{number}", 30490))
    node.receive(session=1)
    assert reported(node.advance(100)) == [frozenset()]


def test_a_configured_streamer_is_trusted() -> None:
    node = Node(streamer=streamer(1, trusted_authorities=frozenset({"g2"})))
    node.up()
    node.receive(*announced_by(2, "a"))
    node.receive(*announced_by(3, "a"), peer=OTHER)
    assert reported(node.advance(100)) == [announcements(2, "a", trusted=True) | announcements(3, "a")]


def test_a_find_for_streamers_is_answered() -> None:
    node = listening()
    node.discovery.announce(announcements(1, "a"), node.now)
    node.advance(100)
    node.receive(ServiceEntry(EntryType.FIND, SERVICE, ANY_INSTANCE, ANY_MAJOR, ANY_MINOR, 3), multicast=True)
    answers = [send for send in of_kind(Send, node.advance(60)) if send.to == PEER]
    [(message, _)] = map(read, answers)
    assert {entry.service for entry in message.entries} == {SERVICE}


def test_announcements_respect_the_datagram_size() -> None:
    node = Node(streamer=streamer(1), limits=SdLimits(datagram=600))
    node.up()
    node.discovery.announce(announcements(1, *(f"authority-{n}" for n in range(200))), node.now)
    sends = of_kind(Send, node.advance(150))
    assert len(sends) > 8
    assert max(len(send.datagram) for send in sends) <= 600


def test_without_peer_discovery_a_streamers_offer_is_an_ecus() -> None:
    node = Node()
    node.up()
    assert refusals(node.receive(*announced_by(2, "a"))) == []
    assert node.discovery.statistics()["sd_unwanted_offers"] == 1


# --- limits -----------------------------------------------------------------------------------------------------------


def test_malformed_announcements_are_refused_and_valid_ones_accepted() -> None:
    node = listening()
    wrong = ServiceEntry(EntryType.OFFER, SERVICE, 1, 1, 0, 3, (streamer_mark(router_id(3)),))
    worse = ServiceEntry(EntryType.OFFER, SERVICE, 1, 1, 0, 3, (Configuration((b"up-streamer=x",)),))
    assert (
        refusals(node.receive(wrong, worse, *announced_by(2, "a")))
        == [SdRefusal.SD_ANNOUNCEMENT_MALFORMED] * 2
    )
    assert reported(node.advance(100)) == [announcements(2, "a")]


def test_the_number_of_streamers_is_limited() -> None:
    node = listening()
    refused = [
        refusals(node.receive(*announced_by(number, "a"), peer=(f"10.0.0.{number}", 30490)))
        for number in range(2, 200)
    ]
    assert refused == [[]] * MAX_PEER_STREAMERS + [[SdRefusal.SD_STREAMER_LIMIT]] * (198 - MAX_PEER_STREAMERS)
    assert node.discovery.statistics()["sd_streamers"] == MAX_PEER_STREAMERS


def test_the_number_of_announcements_is_limited() -> None:
    node = listening()
    most = MAX_ANNOUNCEMENTS - 1
    carried = [f"a{number}" for number in range(most)]
    for part in announced_by(2, *carried, room=1_350):
        assert refusals(node.receive(part)) == []
    assert refusals(node.receive(*announced_by(3, "a"), peer=OTHER)) == [SdRefusal.SD_STREAMER_LIMIT]
    for part in announced_by(2, *carried, room=1_350):  # a repetition, without effect
        assert refusals(node.receive(part)) == []
    [reports] = reported(node.advance(100))
    assert len(reports) == most + 1


parts = st.builds(
    lambda number, place, of, generation, names: ServiceEntry(
        EntryType.OFFER,
        SERVICE,
        1,
        1,
        0,
        3,
        (
            Configuration(
                (
                    b"up-streamer=1/%s/g%d" % (router_id(number).instance.encode(), number),
                    b"up-part=net/%d/%d/%d" % (generation, place, of),
                    *(b"up-carries=" + each for each in names),
                )
            ),
        ),
    ),
    st.integers(1, 40),
    st.integers(0, 70),
    st.integers(0, 70),
    st.integers(0, 3),
    st.lists(st.from_regex(rb"[a-z*]{1,3}", fullmatch=True), max_size=8),
)


@settings(max_examples=60)
@given(st.lists(st.tuples(parts, st.integers(1, 60), st.integers(0, 4_000)), max_size=60))
def test_no_sequence_of_parts_exceeds_a_limit(steps: list[tuple[ServiceEntry, int, int]]) -> None:
    node = listening()
    for entry, host, pause_ms in steps:
        node.receive(entry, peer=(f"10.0.0.{host + 1}", 30490))
        node.advance(pause_ms)
        streamers = node.discovery._announcer
        assert streamers is not None
        assert len(streamers._peers) <= MAX_PEER_STREAMERS
        assert all(len(each.parts) <= MAX_PARTS for each in streamers._peers.values())
        assert sum(each.size for each in streamers._peers.values()) <= MAX_ANNOUNCEMENTS
        assert len(node.discovery._actions.deadlines) <= MAX_PEER_STREAMERS + 4
    node.advance(4_000)
    assert node.discovery.statistics()["sd_streamers"] == 0


# [utest->SD-1227]
@pytest.mark.parametrize("number", [1, 2])
def test_the_parts_of_two_streamers_are_different_instances(number: int) -> None:
    node = Node(streamer=streamer(number))
    node.up()
    node.discovery.announce(announcements(number, *(f"authority-{n}" for n in range(200))), node.now)
    entries = {entry for send in of_kind(Send, node.advance(100)) for entry in read(send)[0].entries}
    offered = [e for e in entries if isinstance(e, ServiceEntry) and e.type == EntryType.OFFER]
    assert len({each.instance for each in offered}) == len(offered) > 1
