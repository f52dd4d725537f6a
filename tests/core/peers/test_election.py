# SPDX-License-Identifier: Apache-2.0
"""Which of several streamers has a message. A `Town` is streamers that know of each other by what they announce."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ustreamer.core.peers.election import Announcement, AnnouncementRole, PeerRouters, RouterId
from ustreamer.core.routing.forwarding import ForwardingRole
from ustreamer.core.routing.router import SELF
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPriority
from ustreamer.uprotocol.umessage import UMessage, notification, request
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, UUri

if TYPE_CHECKING:
    from tests.core.conftest import World

Homes = Mapping[str, Sequence[str]]
"""The authorities behind each endpoint of a streamer; an endpoint is called like its network."""

ONE_TWO: Homes = {"one": ["a", "a2"], "two": ["b"]}


class PeerNetwork:
    """Each streamer hears on each of its networks what all others there say, and itself."""

    def __init__(self, streamers: Mapping[str, Homes], trusted: bool = False) -> None:
        self.streamers = {name: PeerRouters(name, f"{number:016x}") for number, name in enumerate(streamers)}
        self._homes = streamers
        self._trusted = trusted
        for name, homes in streamers.items():
            self.streamers[name].configure(homes)
        self.exchange()

    def announcements(self, network: str) -> frozenset[Announcement]:
        everything = [
            each
            for name, neighbours in self.streamers.items()
            if network in self._homes[name]
            for each in neighbours.own_announcements(network)
        ]
        return frozenset(
            Announcement(a.instance, a.endpoint, a.authority, a.role, a.subject, self._trusted)
            for a in everything
        )

    def exchange(self) -> None:
        for name, neighbours in self.streamers.items():
            for network in self._homes[name]:
                neighbours.on_announcements(network, self.announcements(network))

    def remove(self, name: str) -> None:
        del self.streamers[name]
        self.exchange()

    def has(
        self, network: str, source: str, sink: str | None, standing: ForwardingRole = ForwardingRole.FORWARD
    ) -> list[str]:
        """The streamers on a network to whom a message heard there has this standing."""
        return [
            name
            for name, neighbours in self.streamers.items()
            if network in self._homes[name] and neighbours.forwarding_role(network, source, sink) is standing
        ]


def side_by_side(count: int, homes: Homes = ONE_TWO) -> PeerNetwork:
    return PeerNetwork({f"g{number}": homes for number in range(count)})


# ------------------------------------------------------------------------------------------------- one has it


def test_alone_everything_is_ours() -> None:
    town = side_by_side(1)
    for source, sink in (("a", "b"), ("b", "a"), ("mars", "b"), ("a", "mars"), ("a", None)):
        assert town.has("one", source, sink) == ["g0"]


def test_of_two_side_by_side_one_has_what_names_its_sink_and_both_have_publications() -> None:
    town = side_by_side(2)
    assert len(town.has("one", "a", "b")) == 1
    assert len(town.has("one", "a", "b", ForwardingRole.DEFER)) == 1
    assert town.has("one", "a", None) == ["g0", "g1"]


def test_what_another_has_brought_is_left_alone() -> None:
    town = side_by_side(2)
    for sink in ("b", None):
        assert town.has("two", "a", sink, ForwardingRole.DEFER) == ["g0", "g1"]


def test_what_lives_there_is_nobodys_to_carry_and_no_business_of_who_does_not_know_it() -> None:
    town = PeerNetwork({"g0": {"one": ["a", "a2"], "two": ["b"]}, "g1": {"one": ["a"], "three": ["c"]}})
    assert town.has("one", "a", "a2") == ["g0"]  # it finds that it lives where it came from
    assert town.has("one", "a", "a2", ForwardingRole.DEFER) == ["g1"]


def test_the_streamer_whose_own_authority_it_is_comes_first() -> None:
    homes = {"one": ["a"], "two": [f"g{number}" for number in range(8)]}
    town = side_by_side(8, homes)
    for number in range(8):
        assert town.has("one", "a", f"g{number}") == [f"g{number}"]


def test_a_name_comes_before_everyone_not_named() -> None:
    for names in (("g0", "g1"), ("g1", "g0")):
        town = PeerNetwork({names[0]: {"one": ["a"], "two": ["b"]}, names[1]: {"one": ["a"], "two": ["*"]}})
        assert town.has("one", "a", "b") == [names[0]]
        assert town.has("one", "a", "c") == [names[1]]


def test_who_does_not_know_the_source_is_no_rival() -> None:
    town = PeerNetwork({"g0": {"one": ["a", "new"], "two": ["b"]}, "g1": {"one": ["a"], "two": ["b"]}})
    assert town.has("one", "new", "b") == ["g0"]
    assert town.has("one", "new", "b", ForwardingRole.FORWARD_SILENTLY) == ["g1"]


# ------------------------------------------------------------------------------------------------- answers


def test_who_knows_no_way_leaves_a_request_to_who_does() -> None:
    sinks = [f"b{number}" for number in range(20)]  # whatever the lot
    town = PeerNetwork({"g0": {"one": ["a"], "two": sinks}, "g1": {"one": ["a"], "three": ["c"]}})
    for sink in sinks:
        assert town.has("one", "a", sink) == ["g0"]
        assert town.has("one", "a", sink, ForwardingRole.DEFER) == ["g1"]


def test_of_those_who_know_no_way_one_says_so() -> None:
    town = side_by_side(4)
    spokesmen = {tuple(town.has("one", "a", f"mars{number}")) for number in range(50)}
    assert all(len(each) == 1 for each in spokesmen)
    assert len(spokesmen) == 4


def test_a_spoof_is_denied_by_all_and_answered_by_one() -> None:
    town = side_by_side(3)
    [speaker] = town.has("one", "mars", "b")
    assert sorted([speaker, *town.has("one", "mars", "b", ForwardingRole.FORWARD_SILENTLY)]) == [
        "g0",
        "g1",
        "g2",
    ]
    assert town.has("one", "mars", None) == ["g0", "g1", "g2"]


# ------------------------------------------------------------------------------------------------- any town

AUTHORITIES = ("a", "b", "c", ANY_AUTHORITY)


@st.composite
def towns(draw: st.DrawFn) -> dict[str, Homes]:
    """Streamers between the same two networks; each places each authority on one of them, or knows it not at all."""
    streamers: dict[str, Homes] = {}
    for name in draw(
        st.lists(st.sampled_from(["g0", "g1", "g2", "a", "b"]), min_size=1, max_size=5, unique=True)
    ):
        places = [draw(st.sampled_from(["one", "two", None])) for _ in AUTHORITIES]
        streamers[name] = {
            network: [who for who, where in zip(AUTHORITIES, places, strict=True) if where == network]
            for network in ("one", "two")
        }
    return streamers


def carriers(streamers: Mapping[str, Homes], source: str, sink: str) -> list[str]:
    """Who would forward from "one" if alone."""

    def home(homes: Homes, who: str) -> str | None:
        named = {each: network for network, here in homes.items() for each in here}
        return named.get(who, named.get(ANY_AUTHORITY))

    return [
        name
        for name, homes in streamers.items()
        if home(homes, source) == "one" and home(homes, sink) == "two"
    ]


MESSAGES = st.tuples(st.sampled_from(["a", "b", "c", "mars"]), st.sampled_from(["a", "b", "c", "mars"]))


@given(towns(), MESSAGES)
def test_whatever_they_know_exactly_one_forwards_if_anybody_would(
    streamers: dict[str, Homes], message: tuple[str, str]
) -> None:
    able = carriers(streamers, *message)
    forwarding = [name for name in PeerNetwork(streamers).has("one", *message) if name in able]
    assert len(forwarding) == bool(able)


@given(towns(), MESSAGES)
def test_whatever_they_know_nobody_else_answers_what_one_forwards(
    streamers: dict[str, Homes], message: tuple[str, str]
) -> None:
    able = carriers(streamers, *message)
    residents = [
        name
        for name, homes in streamers.items()
        if message[1] in homes["one"] or ANY_AUTHORITY in homes["one"]
    ]
    if able:
        others = [name for name in PeerNetwork(streamers).has("one", *message) if name not in able]
        assert set(others) <= set(residents)  # to whom it lives there, and who say nothing


@given(st.integers(2, 6), st.integers(0, 5))
def test_when_one_leaves_only_its_share_moves(count: int, leaving: int) -> None:
    homes = {"one": ["a"], "two": [f"b{number}" for number in range(40)]}
    town, name = side_by_side(count, homes), f"g{leaving % count}"
    before = {sink: town.has("one", "a", sink)[0] for sink in homes["two"]}
    town.remove(name)
    after = {sink: town.has("one", "a", sink)[0] for sink in homes["two"]}
    assert {sink for sink in before if before[sink] != after[sink]} == {
        sink for sink, who in before.items() if who == name
    }


def test_the_share_is_a_fair_one_and_the_same_after_a_restart() -> None:
    homes = {"one": ["a"], "two": [f"b{number}" for number in range(300)]}
    first, again = side_by_side(3, homes), PeerNetwork(dict.fromkeys(("g2", "g0", "g1"), homes))
    shares = dict.fromkeys(("g0", "g1", "g2"), 0)
    for sink in homes["two"]:
        [who] = first.has("one", "a", sink)
        shares[who] += 1
        assert again.has("one", "a", sink) == [who]
    assert min(shares.values()) > 60


# ------------------------------------------------------------------------------------------------- who is believed


def claim(role: AnnouncementRole, subject: str, name: str = "evil", instance: str = "e" * 16) -> Announcement:
    return Announcement(instance, "x", name, role, subject)


def test_who_is_not_seen_on_the_other_side_keeps_nothing_from_being_forwarded() -> None:
    """Else any node could silence a route by saying that it carries it."""
    me = PeerRouters("me", "0" * 16)
    me.configure(ONE_TWO)
    for number in range(100):  # whatever its lot
        name = f"evil{number}"
        says = [
            claim(AnnouncementRole.IDENTITY, name, name),
            claim(AnnouncementRole.CARRIES, "b", name),
            claim(AnnouncementRole.LOCAL, "a", name),
        ]
        me.on_announcements("one", frozenset(says))
        assert me.forwarding_role("one", "a", "b") is ForwardingRole.FORWARD
    # ... nor does one that has taken the name of the sink, or that is on the other side and does not say that b lives there.
    for name, there in (
        ("b", []),
        ("evil", [claim(AnnouncementRole.IDENTITY, "evil"), claim(AnnouncementRole.CARRIES, "b")]),
    ):
        me.on_announcements(
            "one",
            frozenset(
                [
                    claim(AnnouncementRole.IDENTITY, name, name),
                    claim(AnnouncementRole.CARRIES, "b", name),
                    claim(AnnouncementRole.LOCAL, "a", name),
                ]
            ),
        )
        me.on_announcements("two", frozenset(there))
        assert me.forwarding_role("one", "a", "b") is ForwardingRole.FORWARD


def test_nor_makes_it_a_spoof_look_like_a_neighbours_message() -> None:
    me = PeerRouters("me", "0" * 16)
    me.configure(ONE_TWO)
    me.on_announcements(
        "one",
        frozenset(
            [
                claim(AnnouncementRole.IDENTITY, "evil"),
                claim(AnnouncementRole.CARRIES, "b"),
                claim(AnnouncementRole.LOCAL, "a"),
            ]
        ),
    )
    assert (
        me.forwarding_role("one", "b", "a") is ForwardingRole.FORWARD_SILENTLY
    )  # denied and counted, but not answered
    assert me.forwarding_role("one", "b", None) is ForwardingRole.FORWARD


def test_who_is_vouched_for_is_believed_wherever_it_is_seen() -> None:
    """A ring: both carry from A to c, one of them through B."""
    ring: dict[str, Homes] = {
        "ab": {"A": ["a"], "B": ["b", "c"]},
        "bc": {"B": ["b", "a"], "C": ["c"]},
        "ca": {"C": ["c"], "A": ["a", "b"]},
    }
    assert PeerNetwork(ring).has("A", "a", "c") == ["ab", "ca"]
    assert len(PeerNetwork(ring, trusted=True).has("A", "a", "c")) == 1


def test_but_not_of_what_it_does_not_say() -> None:
    me = PeerRouters("me", "0" * 16)
    me.configure({"one": ["a"], "two": ["*"]})
    for number in range(20):
        says = [
            (AnnouncementRole.IDENTITY, f"g{number}"),
            (AnnouncementRole.CARRIES, "*"),
            (AnnouncementRole.LOCAL, "a"),
            (AnnouncementRole.LOCAL, "b"),
        ]
        me.on_announcements(
            "one", frozenset(Announcement("e" * 16, "x", f"g{number}", *each, trusted=True) for each in says)
        )
        assert me.forwarding_role("one", "a", "b") is ForwardingRole.FORWARD  # which lives here, it says


def test_who_has_not_said_all_does_not_count() -> None:
    me = PeerRouters("me", "0" * 16)
    me.configure({"one": ["a"], "two": ["*"]})
    rival = [claim(AnnouncementRole.CARRIES, "b", "b"), claim(AnnouncementRole.LOCAL, "a", "b")]
    there = frozenset([claim(AnnouncementRole.IDENTITY, "b", "b"), claim(AnnouncementRole.LOCAL, "b", "b")])
    me.on_announcements("two", there)
    assert me.on_announcements("one", frozenset(rival)).joined == ()
    assert me.forwarding_role("one", "a", "b") is ForwardingRole.FORWARD
    assert me.on_announcements(
        "one", frozenset([*rival, claim(AnnouncementRole.IDENTITY, "b", "b")])
    ).joined == (RouterId("b", "e" * 16),)
    assert me.forwarding_role("one", "a", "b") is ForwardingRole.DEFER
    # Another one's name is not its own.
    assert me.on_announcements(
        "one", frozenset([*rival, claim(AnnouncementRole.IDENTITY, "c", "b")])
    ).departed == (RouterId("b", "e" * 16),)


def test_only_changes_are_news() -> None:
    me = PeerRouters("me", "0" * 16)
    me.configure(ONE_TWO)
    said = frozenset([claim(AnnouncementRole.IDENTITY, "evil"), *me.own_announcements("one")])
    assert me.on_announcements("one", said).changed
    assert not me.on_announcements("one", said).changed
    assert me.peers_at("one") == (RouterId("evil", "e" * 16),)
    assert me.on_announcements("one", said | {claim(AnnouncementRole.CARRIES, "b")}) == ((), (), (), True)
    gone = me.on_announcements("one", frozenset())
    assert (gone.joined, gone.departed) == ((), (RouterId("evil", "e" * 16),))


def test_a_million_senders_do_not_fill_the_memory() -> None:
    town = side_by_side(2)
    me = town.streamers["g0"]
    for number in range(10_000):
        me.forwarding_role("one", "a", f"mars{number}")
    assert len(me._view.cached_roles) <= 4096


def test_another_configuration_is_announced_and_decided_by_at_once() -> None:
    town = side_by_side(2)
    one = town.streamers["g0"]
    one.configure({"one": ["a"], "two": ["b", "new"]})
    assert AnnouncementRole.CARRIES in {
        each.role for each in one.own_announcements("one") if each.subject == "new"
    }
    assert one.forwarding_role("one", "a", "new") is ForwardingRole.FORWARD
    assert one.own_announcements("elsewhere") == frozenset()


# ------------------------------------------------------------------------------------------------- what goes round


def test_one_network_behind_two_endpoints_is_noticed_and_its_echo_left_alone() -> None:
    me = PeerRouters("me", "0" * 16)
    me.configure({"first": ["a"], "second": ["b"], "third": ["c"]})
    both = me.own_announcements("first") | me.own_announcements("second")
    assert not me.on_announcements("first", both).changed  # anybody there may have said so
    assert me.loop_endpoints() == frozenset()
    assert set(me.on_announcements("second", both).shared_endpoints) == {"first", "second"}
    assert me.on_announcements("second", both).shared_endpoints == ()
    me.on_announcements("third", me.own_announcements("third"))
    assert me.loop_endpoints() == {"first", "second"}
    assert me.shared_network_endpoints() == {"first": {"second"}, "second": {"first"}}
    assert me.forwarding_role("second", "a", "c") is ForwardingRole.DEFER  # heard at "first" as well
    assert me.forwarding_role("first", "a", "c") is ForwardingRole.FORWARD
    assert me.forwarding_role("second", "c", "b") is ForwardingRole.FORWARD  # a spoof is one


@pytest.mark.parametrize(
    ("streamers", "loops"),
    [
        pytest.param({"g0": ONE_TWO, "g1": ONE_TWO}, set(), id="side by side"),
        pytest.param(
            {"g0": {"one": ["*"], "two": ["b"]}, "g1": {"one": ["a"], "two": ["*"]}}, {"one"}, id="across"
        ),
        pytest.param({"g0": {"one": ["a"], "two": ["*"]}, "g1": {"two": ["a"], "three": ["*"]}}, set(), id="a line"),
        pytest.param(
            {
                "g0": {"A": ["*"], "B": ["b"]},
                "g1": {"B": ["*"], "C": ["c"]},
                "g2": {"C": ["*"], "A": ["a"]},
            },
            {"A"},
            id="a ring",
        ),
    ],
)  # fmt: skip
def test_a_window_is_needed_where_a_ring_may_close_and_nowhere_else(
    streamers: dict[str, Homes], loops: set[str]
) -> None:
    assert PeerNetwork(streamers).streamers["g0"].loop_endpoints() == loops


# ------------------------------------------------------------------------------------------------- what becomes of it


def beside(build: "type[World]", *claims: tuple[AnnouncementRole, str]) -> "World":
    """A streamer with another one, `other`, on its backbone, which is vouched for and first for whatever bears its name."""
    neighbours = PeerRouters("hpc", "0" * 16)
    neighbours.configure({"backbone": ["hpc", "cloud"], "chassis": ["chassis", "other"], "dash": ["dash"]})
    said = [(AnnouncementRole.IDENTITY, "other"), *claims]
    neighbours.on_announcements(
        "backbone", frozenset(Announcement("1" * 16, "x", "other", *each, trusted=True) for each in said)
    )
    return build(
        peers=neighbours,
        authorities={
            "hpc": "backbone",
            "cloud": "backbone",
            "chassis": "chassis",
            "other": "chassis",
            "dash": "dash",
        },
    )


CARRIER = [
    (AnnouncementRole.LOCAL, "cloud"),
    (AnnouncementRole.CARRIES, "other"),
    (AnnouncementRole.CARRIES, "mars"),
    (AnnouncementRole.CARRIES, "chassis"),
]


@pytest.mark.parametrize(
    ("source", "sink"),
    [
        pytest.param(UUri("cloud", 1, 1, 0), UUri("other", 1, 1, 1), id="it carries it"),
        pytest.param(UUri("cloud", 1, 1, 0), UUri("mars", 1, 1, 1), id="it knows the way"),
        pytest.param(UUri("chassis", 1, 1, 0), UUri("cloud", 1, 1, 1), id="it has brought it"),
        pytest.param(UUri("chassis", 1, 1, 0), UUri("hpc", 0, 3, 1), id="it has brought it, be it for us"),
        pytest.param(UUri("cloud", 1, 1, 5), UUri("other", 1, 1, 1), id="and be it invalid"),
    ],
)
def test_what_is_left_to_another_is_counted_and_nothing_else(
    build: "type[World]", source: UUri, sink: UUri
) -> None:
    world = beside(build, *CARRIER)
    attributes = UAttributes(
        type=UMessageType.REQUEST, source=source, sink=sink, priority=UPriority.CS4, ttl=1000
    )
    for _ in range(3):
        world.receive("backbone", UMessage(world.id(), attributes))
    world.run()
    assert {why: n for why, n in world.dispatcher.refused_counts()["backbone"].items() if n} == {
        "deferred_to_peer": 3
    }
    assert world.ledger().received == 0
    assert world.tap_calls == []
    assert all(lane.messages == [] for lane in world.egress.values())


def test_what_is_ours_whoever_is_there_is_dealt_with_as_ever(build: "type[World]") -> None:
    world = beside(build, *CARRIER)
    to_ourselves = request(world.id(), UUri("cloud", 1, 1, 0), UUri("hpc", 0, 3, 1), ttl=1000)
    world.receive("backbone", to_ourselves)
    world.receive("dash", notification(world.id(), UUri("dash", 7, 1, 0x8000), UUri("cloud", 1, 1, 0)))
    world.send()
    assert world.egress[SELF].messages == [to_ourselves]
    assert len(world.egress["backbone"].messages) == 1


def test_our_own_words_that_we_hear_back_are_no_spoof(build: "type[World]") -> None:
    neighbours = PeerRouters("hpc", "0" * 16)
    neighbours.configure({"backbone": ["hpc", "cloud"], "chassis": ["chassis"], "dash": ["dash"]})
    world = build(peers=neighbours)
    for count in (1, 0):
        call = request(world.id(), UUri("hpc", 0, 3, 0), UUri("chassis", 0, 3, 1), ttl=1000)
        world.receive("backbone", call)
        world.run()
        refused = world.dispatcher.refused_counts()["backbone"]
        assert (refused["spoofed"], refused["deferred_to_peer"]) == (1, 1 - count)
        both = neighbours.own_announcements("backbone") | neighbours.own_announcements("chassis")
        for endpoint in ("backbone", "chassis"):
            neighbours.on_announcements(endpoint, both)
        world.dispatcher.invalidate_routes()


def test_a_request_of_a_stranger_whom_another_knows_is_denied_in_silence(build: "type[World]") -> None:
    world = beside(
        build,
        (AnnouncementRole.LOCAL, "new"),
        (AnnouncementRole.CARRIES, "other"),
        (AnnouncementRole.CARRIES, "hpc"),
    )
    world.receive("backbone", request(world.id(), UUri("new", 1, 1, 0), UUri("other", 1, 1, 1), ttl=1000))
    world.receive("backbone", request(world.id(), UUri("new", 1, 1, 0), UUri("hpc", 0, 3, 1), ttl=1000))
    world.run()
    assert world.dispatcher.refused_counts()["backbone"]["spoofed"] == 2
    assert world.ledger().denied == 2
    [answer] = world.egress["backbone"].messages
    assert answer.attributes.source == UUri("hpc", 0, 3, 1)
