# SPDX-License-Identifier: Apache-2.0
"""The election of the forwarding streamer.

In a `PeerNetwork` all streamers receive the announcements of all others.
"""

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
"""The authorities behind each endpoint of a streamer; an endpoint has the name of its network."""

ONE_TWO: Homes = {"one": ["a", "a2"], "two": ["b"]}


class PeerNetwork:
    """Streamers that receive all announcements on each of their networks, their own included."""

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
            for name, router in self.streamers.items()
            if network in self._homes[name]
            for each in router.own_announcements(network)
        ]
        return frozenset(
            Announcement(a.instance, a.endpoint, a.authority, a.role, a.subject, self._trusted)
            for a in everything
        )

    def exchange(self) -> None:
        for name, router in self.streamers.items():
            for network in self._homes[name]:
                router.on_announcements(network, self.announcements(network))

    def remove(self, name: str) -> None:
        del self.streamers[name]
        self.exchange()

    def has(
        self,
        network: str,
        source: str,
        sink: str | None,
        expected_role: ForwardingRole = ForwardingRole.FORWARD,
    ) -> list[str]:
        """The streamers on a network with this role for a message received there."""
        return [
            name
            for name, router in self.streamers.items()
            if network in self._homes[name] and router.forwarding_role(network, source, sink) is expected_role
        ]


def side_by_side(count: int, homes: Homes = ONE_TWO) -> PeerNetwork:
    return PeerNetwork({f"g{number}": homes for number in range(count)})


# ------------------------------------------------------------------------------------------------ one streamer forwards


def test_a_streamer_without_peers_forwards_everything() -> None:
    peers = side_by_side(1)
    for source, sink in (("a", "b"), ("b", "a"), ("mars", "b"), ("a", "mars"), ("a", None)):
        assert peers.has("one", source, sink) == ["g0"]


def test_one_of_two_peers_forwards_a_message_with_a_sink_and_both_forward_publications() -> None:
    peers = side_by_side(2)
    assert len(peers.has("one", "a", "b")) == 1
    assert len(peers.has("one", "a", "b", ForwardingRole.DEFER)) == 1
    assert peers.has("one", "a", None) == ["g0", "g1"]


def test_a_message_that_a_peer_forwarded_is_deferred() -> None:
    peers = side_by_side(2)
    for sink in ("b", None):
        assert peers.has("two", "a", sink, ForwardingRole.DEFER) == ["g0", "g1"]


def test_no_streamer_forwards_to_a_local_authority() -> None:
    peers = PeerNetwork({"g0": {"one": ["a", "a2"], "two": ["b"]}, "g1": {"one": ["a"], "three": ["c"]}})
    assert peers.has("one", "a", "a2") == ["g0"]  # it then finds that the sink is local
    assert peers.has("one", "a", "a2", ForwardingRole.DEFER) == ["g1"]


def test_the_streamer_of_the_sink_authority_has_precedence() -> None:
    homes = {"one": ["a"], "two": [f"g{number}" for number in range(8)]}
    peers = side_by_side(8, homes)
    for number in range(8):
        assert peers.has("one", "a", f"g{number}") == [f"g{number}"]


def test_a_named_authority_has_precedence_over_the_star() -> None:
    for names in (("g0", "g1"), ("g1", "g0")):
        peers = PeerNetwork({names[0]: {"one": ["a"], "two": ["b"]}, names[1]: {"one": ["a"], "two": ["*"]}})
        assert peers.has("one", "a", "b") == [names[0]]
        assert peers.has("one", "a", "c") == [names[1]]


def test_a_peer_without_the_source_does_not_compete() -> None:
    peers = PeerNetwork({"g0": {"one": ["a", "new"], "two": ["b"]}, "g1": {"one": ["a"], "two": ["b"]}})
    assert peers.has("one", "new", "b") == ["g0"]
    assert peers.has("one", "new", "b", ForwardingRole.FORWARD_SILENTLY) == ["g1"]


def test_a_peer_without_the_source_sends_no_error_response_for_any_sink() -> None:
    sinks = [f"b{number}" for number in range(16)]  # for about half of them it would be the responder
    peers = PeerNetwork({"g0": {"one": ["a", "new"], "two": sinks}, "g1": {"one": ["a"], "two": sinks}})
    for sink in sinks:
        assert peers.has("one", "new", sink) == ["g0"]
        assert peers.has("one", "new", sink, ForwardingRole.FORWARD_SILENTLY) == ["g1"]


# ------------------------------------------------------------------------------------------------------ error responses


def test_a_streamer_without_a_route_defers_to_a_peer_with_one() -> None:
    sinks = [f"b{number}" for number in range(20)]  # for any tie-break
    peers = PeerNetwork({"g0": {"one": ["a"], "two": sinks}, "g1": {"one": ["a"], "three": ["c"]}})
    for sink in sinks:
        assert peers.has("one", "a", sink) == ["g0"]
        assert peers.has("one", "a", sink, ForwardingRole.DEFER) == ["g1"]


def test_one_of_several_streamers_without_a_route_sends_the_error_response() -> None:
    peers = side_by_side(4)
    responders = {tuple(peers.has("one", "a", f"mars{number}")) for number in range(50)}
    assert all(len(each) == 1 for each in responders)
    assert len(responders) == 4


def test_all_streamers_deny_a_spoofed_message_and_one_responds() -> None:
    peers = side_by_side(3)
    [responder] = peers.has("one", "mars", "b")
    assert sorted([responder, *peers.has("one", "mars", "b", ForwardingRole.FORWARD_SILENTLY)]) == [
        "g0",
        "g1",
        "g2",
    ]
    assert peers.has("one", "mars", None) == ["g0", "g1", "g2"]


# -------------------------------------------------------------------------------------------- random networks

AUTHORITIES = ("a", "b", "c", ANY_AUTHORITY)


@st.composite
def peer_networks(draw: st.DrawFn) -> dict[str, Homes]:
    """Streamers between two networks. Each has each authority on one of the networks, or has no route to it."""
    streamers: dict[str, Homes] = {}
    for name in draw(
        st.lists(st.sampled_from(["g0", "g1", "g2", "a", "b"]), min_size=1, max_size=5, unique=True)
    ):
        places = [draw(st.sampled_from(["one", "two", None])) for _ in AUTHORITIES]
        streamers[name] = {
            network: [
                each_name for each_name, where in zip(AUTHORITIES, places, strict=True) if where == network
            ]
            for network in ("one", "two")
        }
    return streamers


def carriers(streamers: Mapping[str, Homes], source: str, sink: str) -> list[str]:
    """The streamers that would forward from "one" without peers."""

    def home(homes: Homes, each_name: str) -> str | None:
        named = {each: network for network, here in homes.items() for each in here}
        return named.get(each_name, named.get(ANY_AUTHORITY))

    return [
        name
        for name, homes in streamers.items()
        if home(homes, source) == "one" and home(homes, sink) == "two"
    ]


MESSAGES = st.tuples(st.sampled_from(["a", "b", "c", "mars"]), st.sampled_from(["a", "b", "c", "mars"]))


@given(peer_networks(), MESSAGES)
def test_exactly_one_streamer_forwards_if_any_can(
    streamers: dict[str, Homes], message: tuple[str, str]
) -> None:
    able = carriers(streamers, *message)
    forwarding = [name for name in PeerNetwork(streamers).has("one", *message) if name in able]
    assert len(forwarding) == bool(able)


@given(peer_networks(), MESSAGES)
def test_no_other_streamer_responds_to_a_forwarded_message(
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
        assert set(others) <= set(residents)  # the sink is local for them, so they do not respond


@given(st.integers(2, 6), st.integers(0, 5))
def test_when_a_streamer_leaves_only_its_share_moves(count: int, leaving: int) -> None:
    homes = {"one": ["a"], "two": [f"b{number}" for number in range(40)]}
    peers, name = side_by_side(count, homes), f"g{leaving % count}"
    before = {sink: peers.has("one", "a", sink)[0] for sink in homes["two"]}
    peers.remove(name)
    after = {sink: peers.has("one", "a", sink)[0] for sink in homes["two"]}
    assert {sink for sink in before if before[sink] != after[sink]} == {
        sink for sink, each_name in before.items() if each_name == name
    }


def test_shares_are_fair_and_stable_over_a_restart() -> None:
    homes = {"one": ["a"], "two": [f"b{number}" for number in range(300)]}
    first, again = side_by_side(3, homes), PeerNetwork(dict.fromkeys(("g2", "g0", "g1"), homes))
    shares = dict.fromkeys(("g0", "g1", "g2"), 0)
    for sink in homes["two"]:
        [each_name] = first.has("one", "a", sink)
        shares[each_name] += 1
        assert again.has("one", "a", sink) == [each_name]
    assert min(shares.values()) > 60


# ---------------------------------------------------------------------------------------------------------------- trust


def claim(role: AnnouncementRole, subject: str, name: str = "evil", instance: str = "e" * 16) -> Announcement:
    return Announcement(instance, "x", name, role, subject)


def test_an_untrusted_peer_does_not_stop_forwarding() -> None:
    """Otherwise any node could stop the forwarding by a false announcement."""
    me = PeerRouters("me", "0" * 16)
    me.configure(ONE_TWO)
    for number in range(100):  # for any tie-break
        name = f"evil{number}"
        claims = [
            claim(AnnouncementRole.IDENTITY, name, name),
            claim(AnnouncementRole.CARRIES, "b", name),
            claim(AnnouncementRole.LOCAL, "a", name),
        ]
        me.on_announcements("one", frozenset(claims))
        assert me.forwarding_role("one", "a", "b") is ForwardingRole.FORWARD
    # Also a peer with the name of the sink, or one on the other network that does not announce b as local there.
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


def test_an_untrusted_peer_does_not_hide_a_spoofed_source() -> None:
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
    )  # denied and counted without a response
    assert me.forwarding_role("one", "b", None) is ForwardingRole.FORWARD


def test_a_peer_trusted_by_the_transport_needs_no_second_network() -> None:
    """A ring: two streamers carry from A to c, one of them through B."""
    ring: dict[str, Homes] = {
        "ab": {"A": ["a"], "B": ["b", "c"]},
        "bc": {"B": ["b", "a"], "C": ["c"]},
        "ca": {"C": ["c"], "A": ["a", "b"]},
    }
    assert PeerNetwork(ring).has("A", "a", "c") == ["ab", "ca"]
    assert len(PeerNetwork(ring, trusted=True).has("A", "a", "c")) == 1


def test_a_trusted_peer_counts_only_for_its_announcements() -> None:
    me = PeerRouters("me", "0" * 16)
    me.configure({"one": ["a"], "two": ["*"]})
    for number in range(20):
        claims = [
            (AnnouncementRole.IDENTITY, f"g{number}"),
            (AnnouncementRole.CARRIES, "*"),
            (AnnouncementRole.LOCAL, "a"),
            (AnnouncementRole.LOCAL, "b"),
        ]
        me.on_announcements(
            "one",
            frozenset(Announcement("e" * 16, "x", f"g{number}", *each, trusted=True) for each in claims),
        )
        assert me.forwarding_role("one", "a", "b") is ForwardingRole.FORWARD  # the peer announced b as local


def test_a_peer_without_its_identity_announcement_does_not_count() -> None:
    me = PeerRouters("me", "0" * 16)
    me.configure({"one": ["a"], "two": ["*"]})
    competitor = [claim(AnnouncementRole.CARRIES, "b", "b"), claim(AnnouncementRole.LOCAL, "a", "b")]
    there = frozenset([claim(AnnouncementRole.IDENTITY, "b", "b"), claim(AnnouncementRole.LOCAL, "b", "b")])
    me.on_announcements("two", there)
    assert me.on_announcements("one", frozenset(competitor)).joined == ()
    assert me.forwarding_role("one", "a", "b") is ForwardingRole.FORWARD
    assert me.on_announcements(
        "one", frozenset([*competitor, claim(AnnouncementRole.IDENTITY, "b", "b")])
    ).joined == (RouterId("b", "e" * 16),)
    assert me.forwarding_role("one", "a", "b") is ForwardingRole.DEFER
    # An identity announcement with another name does not count.
    assert me.on_announcements(
        "one", frozenset([*competitor, claim(AnnouncementRole.IDENTITY, "c", "b")])
    ).departed == (RouterId("b", "e" * 16),)


def test_only_changed_announcements_are_reported() -> None:
    me = PeerRouters("me", "0" * 16)
    me.configure(ONE_TWO)
    announced = frozenset([claim(AnnouncementRole.IDENTITY, "evil"), *me.own_announcements("one")])
    assert me.on_announcements("one", announced).changed
    assert not me.on_announcements("one", announced).changed
    assert me.peers_at("one") == (RouterId("evil", "e" * 16),)
    assert me.on_announcements("one", announced | {claim(AnnouncementRole.CARRIES, "b")}) == (
        (),
        (),
        (),
        True,
    )
    removed = me.on_announcements("one", frozenset())
    assert (removed.joined, removed.departed) == ((), (RouterId("evil", "e" * 16),))


def test_the_role_cache_is_bounded() -> None:
    peers = side_by_side(2)
    me = peers.streamers["g0"]
    for number in range(10_000):
        me.forwarding_role("one", "a", f"mars{number}")
    assert len(me._view.cached_roles) <= 4096


def test_a_new_configuration_is_announced_and_used_at_once() -> None:
    peers = side_by_side(2)
    one = peers.streamers["g0"]
    one.configure({"one": ["a"], "two": ["b", "new"]})
    assert AnnouncementRole.CARRIES in {
        each.role for each in one.own_announcements("one") if each.subject == "new"
    }
    assert one.forwarding_role("one", "a", "new") is ForwardingRole.FORWARD
    assert one.own_announcements("elsewhere") == frozenset()


# ---------------------------------------------------------------------------------------------------------------- loops


def test_two_endpoints_on_one_network_are_detected_and_echoes_deferred() -> None:
    me = PeerRouters("me", "0" * 16)
    me.configure({"first": ["a"], "second": ["b"], "third": ["c"]})
    both = me.own_announcements("first") | me.own_announcements("second")
    assert not me.on_announcements("first", both).changed  # any node there may have forged it
    assert me.loop_endpoints() == frozenset()
    assert set(me.on_announcements("second", both).shared_endpoints) == {"first", "second"}
    assert me.on_announcements("second", both).shared_endpoints == ()
    me.on_announcements("third", me.own_announcements("third"))
    assert me.loop_endpoints() == {"first", "second"}
    assert me.shared_network_endpoints() == {"first": {"second"}, "second": {"first"}}
    assert me.forwarding_role("second", "a", "c") is ForwardingRole.DEFER  # also received at "first"
    assert me.forwarding_role("first", "a", "c") is ForwardingRole.FORWARD
    assert me.forwarding_role("second", "c", "b") is ForwardingRole.FORWARD  # spoofed


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
def test_only_endpoints_in_a_loop_need_a_dedup_window(streamers: dict[str, Homes], loops: set[str]) -> None:
    assert PeerNetwork(streamers).streamers["g0"].loop_endpoints() == loops


# ------------------------------------------------------------------------------------------------------ in a dispatcher


def world_with_peer(build: "type[World]", *claims: tuple[AnnouncementRole, str]) -> "World":
    """A world with a trusted peer `other` on its backbone, which has precedence for its own authority."""
    router = PeerRouters("hpc", "0" * 16)
    router.configure({"backbone": ["hpc", "cloud"], "chassis": ["chassis", "other"], "dash": ["dash"]})
    announced = [(AnnouncementRole.IDENTITY, "other"), *claims]
    router.on_announcements(
        "backbone", frozenset(Announcement("1" * 16, "x", "other", *each, trusted=True) for each in announced)
    )
    return build(
        peers=router,
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
        pytest.param(UUri("cloud", 1, 1, 0), UUri("other", 1, 1, 1), id="the peer carries it"),
        pytest.param(UUri("cloud", 1, 1, 0), UUri("mars", 1, 1, 1), id="only the peer has a route"),
        pytest.param(UUri("chassis", 1, 1, 0), UUri("cloud", 1, 1, 1), id="the peer forwarded it"),
        pytest.param(
            UUri("chassis", 1, 1, 0), UUri("hpc", 0, 3, 1), id="the peer forwarded it to this streamer"
        ),
        pytest.param(UUri("cloud", 1, 1, 5), UUri("other", 1, 1, 1), id="an invalid message"),
    ],
)
def test_a_deferred_message_is_counted_and_has_no_other_effect(
    build: "type[World]", source: UUri, sink: UUri
) -> None:
    world = world_with_peer(build, *CARRIER)
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
    assert all(egress.messages == [] for egress in world.egress.values())


def test_a_message_that_this_streamer_forwards_is_handled_as_without_peers(build: "type[World]") -> None:
    world = world_with_peer(build, *CARRIER)
    to_ourselves = request(world.id(), UUri("cloud", 1, 1, 0), UUri("hpc", 0, 3, 1), ttl=1000)
    world.receive("backbone", to_ourselves)
    world.receive("dash", notification(world.id(), UUri("dash", 7, 1, 0x8000), UUri("cloud", 1, 1, 0)))
    world.send()
    assert world.egress[SELF].messages == [to_ourselves]
    assert len(world.egress["backbone"].messages) == 1


def test_an_echo_of_an_own_message_is_not_spoofed(build: "type[World]") -> None:
    router = PeerRouters("hpc", "0" * 16)
    router.configure({"backbone": ["hpc", "cloud"], "chassis": ["chassis"], "dash": ["dash"]})
    world = build(peers=router)
    for count in (1, 0):
        call = request(world.id(), UUri("hpc", 0, 3, 0), UUri("chassis", 0, 3, 1), ttl=1000)
        world.receive("backbone", call)
        world.run()
        refused = world.dispatcher.refused_counts()["backbone"]
        assert (refused["spoofed"], refused["deferred_to_peer"]) == (1, 1 - count)
        both = router.own_announcements("backbone") | router.own_announcements("chassis")
        for endpoint in ("backbone", "chassis"):
            router.on_announcements(endpoint, both)
        world.dispatcher.invalidate_routes()


def test_a_request_from_a_source_of_a_peer_is_denied_without_a_response(build: "type[World]") -> None:
    world = world_with_peer(
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
