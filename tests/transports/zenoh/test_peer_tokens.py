# SPDX-License-Identifier: Apache-2.0
"""Announcements as liveliness tokens: their keys, and real sessions on the loopback interface."""

import json
import logging
import string
from collections.abc import Iterator
from contextlib import closing
from threading import Condition

import pytest
import zenoh
from hypothesis import given
from hypothesis import strategies as st

from tests.e2e.rigs.entities import wait_declared
from tests.transports.zenoh.sessions import CLOCK, endpoint, free_locator, plain_session
from tests.waiting import wait_until
from ustreamer.core.peers.election import Announcement, AnnouncementRole, PeerRouters
from ustreamer.core.peers.topic_advertisements import TopicAdvertisement
from ustreamer.testing.mailbox import Mailbox
from ustreamer.transports.zenoh.tokens import peer_tokens
from ustreamer.transports.zenoh.tokens.token_keys import advertisement_key, announcement_key, parse_token
from ustreamer.transports.zenoh.transport import ZenohTransport
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import ANY

G1, G2 = "1" * 16, "2" * 16
AUTHORITIES = st.one_of(
    st.text(string.ascii_lowercase + string.digits + "-._~", min_size=1, max_size=128),
    st.just("[fe80::1]"),
)


def announcements_of(authority: str = "g1.vin", instance: str = G1) -> frozenset[Announcement]:
    streamer = PeerRouters(authority, instance)
    streamer.configure({"backbone": ["a"], "link": ["*"]})
    return streamer.own_announcements("backbone")


class AnnouncementRecorder:
    """The last notification of a watcher."""

    def __init__(self) -> None:
        self.now: frozenset[Announcement] = frozenset()
        self.times = 0
        self._condition = Condition()

    def __call__(self, announcements: frozenset[Announcement]) -> None:
        with self._condition:
            self.now, self.times = announcements, self.times + 1
            self._condition.notify_all()

    def wait(self, announcements: frozenset[Announcement]) -> None:
        with self._condition:
            assert self._condition.wait_for(lambda: self.now == announcements, 30), self.now


# --- keys -------------------------------------------------------------------------------------------------------------


@given(AUTHORITIES, st.sampled_from(AnnouncementRole), st.one_of(AUTHORITIES, st.just("*")))
def test_announcements_and_token_keys_are_one_to_one(own: str, role: AnnouncementRole, subject: str) -> None:
    announcement = Announcement(G1, "back-bone_1", own, role, subject)
    key = announcement_key(announcement)
    assert parse_token(key) == announcement
    assert str(zenoh.KeyExpr(key)) == key
    assert not zenoh.KeyExpr(f"up-streamer/1/{G1}/back-bone_1/other/is/other").intersects(key)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (f"up-streamer/2/{G1}/one/g1/is/g1", "expected up-streamer/1/instance/"),
        (f"up-streamer/1/{G1}/one/g1/is", "expected up-streamer/1/instance/"),
        (f"up-streamer/1/{G1}/one/g1/is/g1/more", "expected up-streamer/1/instance/"),
        ("up-streamer/1/1/one/g1/is/g1", "expected up-streamer/1/instance/"),
        (f"up-streamer/1/{G1}/One/g1/is/g1", "expected up-streamer/1/instance/"),
        (f"up-streamer/1/{G1}/one/g1/was/g1", "role 'was' (have: is, carries, here)"),
        (f"up-streamer/1/{G1}/one/%2A/is/g1", "'*' is not the authority of a streamer"),
        (f"up-streamer/1/{G1}/one/g1/here/%2a", "'%2a' is not percent-encoded as expected"),
        (f"up-streamer/1/{G1}/one/g1/here/%67", "'%67' is not percent-encoded as expected"),
        (f"up-streamer/1/{G1}/one/g1/here/%FF", "'%FF' is not percent-encoded as expected"),
        (f"up-streamer/1/{G1}/one/g1/here/%2F", "authority '/' is not"),
        (f"up-streamer/1/{G1}/one/G1/here/a", "authority 'G1' is not"),
        (f"up-streamer/1/{G1}/one/g1/here/{'a' * 129}", "characters of a-z"),
    ],
)
def test_an_invalid_token_is_refused_with_a_reason(key: str, why: str) -> None:
    with pytest.raises(UStatusError) as caught:
        parse_token(key)
    assert caught.value.code is UCode.INVALID_ARGUMENT
    assert why in caught.value.message
    assert key in caught.value.message


@given(st.text(max_size=100))
def test_any_key_is_a_token_or_an_invalid_argument(text: str) -> None:
    one = f"up-streamer/1/{G1}/one"
    for key in (text, f"{one}/{text}/is/{text}", f"{one}/g1/puts/{text}/{text}"):
        try:
            announcement = parse_token(key)
            assert (
                advertisement_key(announcement)
                if isinstance(announcement, TopicAdvertisement)
                else announcement_key(announcement)
            ) == key
        except UStatusError as error:
            assert error.code is UCode.INVALID_ARGUMENT  # noqa: PT017  # most are, and some are not


# --- sessions ---------------------------------------------------------------------------------------------------------


class TokenNetwork:
    """Rig: a network with `watcher` on it, and streamers that connect later."""

    def __init__(self, locator: str, **keys: object) -> None:
        self._locator = locator
        self.watched = AnnouncementRecorder()
        self.observer = endpoint("g0.vin", listen=(locator,), **keys)  # type: ignore[arg-type]
        self.observer.watch_peers(self.watched)
        self.observer.open()
        self._open = [self.observer]

    def streamer(self, authority: str = "g1.vin", **keys: object) -> ZenohTransport:
        made = endpoint(authority, connect=(self._locator,), **keys)  # type: ignore[arg-type]
        made.open()
        self._open.append(made)
        return made

    def close(self) -> None:
        for each in reversed(self._open):
            each.close()


@pytest.fixture
def locator() -> str:
    return free_locator()


@pytest.fixture
def street(locator: str) -> Iterator[TokenNetwork]:
    street = TokenNetwork(locator)
    yield street
    street.close()


def test_an_announcement_is_visible_to_peers_until_withdrawn(street: TokenNetwork) -> None:
    one = street.streamer()
    one.announce(announcements_of())
    street.watched.wait(announcements_of())
    fewer = frozenset(each for each in announcements_of() if each.subject != "a")
    one.announce(fewer)
    street.watched.wait(fewer)
    one.announce(announcements_of())
    street.watched.wait(announcements_of())


def test_a_late_peer_sees_earlier_announcements_and_its_own(street: TokenNetwork, locator: str) -> None:
    street.observer.announce(announcements_of("g0.vin", G2))
    street.watched.wait(announcements_of("g0.vin", G2))
    late = AnnouncementRecorder()
    transport = endpoint("g1.vin", connect=(locator,))
    transport.watch_peers(late)
    transport.open()
    try:
        transport.announce(announcements_of())
        late.wait(announcements_of() | announcements_of("g0.vin", G2))
    finally:
        transport.close()


def test_stop_receiving_and_close_withdraw_all_announcements(street: TokenNetwork) -> None:
    one, other = street.streamer(), street.streamer()
    one.announce(announcements_of())
    other.announce(announcements_of("g2.vin", G2))
    street.watched.wait(announcements_of() | announcements_of("g2.vin", G2))
    one.stop_receiving()
    street.watched.wait(announcements_of("g2.vin", G2))
    one.announce(announcements_of())  # too late
    other.close()
    street.watched.wait(frozenset())


def test_an_announced_streamer_already_listens(street: TokenNetwork) -> None:
    """A put without subscriber is lost, but a peer that sees the token may send."""
    inbox = Mailbox()
    one = endpoint("g1.vin", connect=(street._locator,))
    one.register_listener(ANY, None, inbox)
    one.open()
    street._open.append(one)
    one.announce(announcements_of())
    street.watched.wait(announcements_of())
    assert street.observer._session is not None
    key = "up/g0.vin/1/0/1/8000/{}/{}/{}/{}/{}"
    assert street.observer._session.declare_publisher(key).matching_status.matching  # type: ignore[attr-defined]


def test_an_identity_is_announced_last_and_withdrawn_first(street: TokenNetwork, locator: str) -> None:
    """A peer that has the identity has all other announcements."""
    order: list[str] = []
    with plain_session("client", connect=[locator]) as unknown_sender:
        unknown_sender.liveliness().declare_subscriber(
            "up-streamer/1/**", lambda sample: order.append(str(sample.key_expr).split("/")[5])
        )
        wait_declared(unknown_sender)
        one = street.streamer()
        one.announce(announcements_of())
        wait_until(lambda: len(order) == len(announcements_of()), "all tokens are declared")
        one.announce(frozenset())
        wait_until(lambda: len(order) == 2 * len(announcements_of()), "all is taken back")
    middle = len(announcements_of())
    assert [number for number, role in enumerate(order) if role == "is"] == [middle - 1, middle]


def test_configured_peers_are_trusted(locator: str) -> None:
    street = TokenNetwork(locator, peers=("g1.vin",))
    try:
        street.streamer().announce(announcements_of())
        street.streamer().announce(announcements_of("g2.vin", G2))
        wait_until(lambda: len(street.watched.now) == 2 * len(announcements_of()), "both")
        assert {each.authority for each in street.watched.now if each.trusted} == {"g1.vin"}
        assert all(each.trusted is (each.authority == "g1.vin") for each in street.watched.now)
    finally:
        street.close()


def test_with_peers_false_a_streamer_neither_watches_nor_announces(street: TokenNetwork) -> None:
    seen = AnnouncementRecorder()
    shy = endpoint("g2.vin", connect=(street._locator,), peers=False)
    shy.watch_peers(seen)
    shy.open()
    street._open.append(shy)
    shy.announce(announcements_of("g2.vin", G2))
    street.streamer().announce(announcements_of())
    street.watched.wait(announcements_of())
    assert seen.times == 0


def test_access_control_restricts_the_declaration_of_tokens(locator: str) -> None:
    """See docs/configuration.md: without access control a name proves nothing."""
    rules = {
        "enabled": True,
        "default_permission": "allow",
        "rules": [
            {
                "id": "no-g1-from-here",
                "messages": ["liveliness_token"],
                "flows": ["ingress"],
                "permission": "deny",
                "key_exprs": ["up-streamer/1/*/*/g1.vin/**"],
            }
        ],
        "subjects": [{"id": "all"}],
        "policies": [{"rules": ["no-g1-from-here"], "subjects": ["all"]}],
    }
    config = zenoh.Config()
    for path, value in {
        "mode": "router",
        "listen/endpoints": [locator],
        "scouting/multicast/enabled": False,
        "access_control": rules,
    }.items():
        config.insert_json5(path, json.dumps(value))
    seen = AnnouncementRecorder()
    watcher = endpoint("g0.vin", mode="client", connect=(locator,))
    watcher.watch_peers(seen)
    impostor, other = (endpoint(name, mode="client", connect=(locator,)) for name in ("g1.vin", "g2.vin"))
    with zenoh.open(config), closing(watcher), closing(impostor), closing(other):
        for each in (watcher, impostor, other):
            each.open()
        impostor.announce(announcements_of("g1.vin"))
        other.announce(announcements_of("g2.vin", G2))
        seen.wait(announcements_of("g2.vin", G2))


def test_invalid_tokens_are_refused_counted_and_logged_once(
    street: TokenNetwork, locator: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "ustreamer.zenoh"),
        plain_session("client", connect=[locator]) as unknown_sender,
    ):
        tokens = [unknown_sender.liveliness().declare_token(f"up-streamer/1/rubbish/{n}") for n in range(3)]
        wait_until(lambda: street.observer.statistics()["refused_announcement"] == 3, "all are refused")
        street.streamer().announce(announcements_of())
        street.watched.wait(announcements_of())
        assert tokens
    assert [each.message for each in caplog.records].count("zenoh.refused_announcement") == 1


def test_the_number_of_announcements_is_bounded(
    street: TokenNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_tokens, "MAX_ANNOUNCEMENTS", 5)
    one = street.streamer()
    one.announce(announcements_of())
    street.watched.wait(announcements_of())
    street.streamer().announce(announcements_of("g2.vin", G2))
    wait_until(lambda: street.observer.statistics()["refused_announcement_limit"] > 0, "no more room")
    assert len(street.watched.now) <= 5


def test_watchers_are_notified_at_most_50_times_a_second(street: TokenNetwork, locator: str) -> None:
    with plain_session("client", connect=[locator]) as unknown_sender:
        key = announcement_key(Announcement(G2, "x", "g2.vin", AnnouncementRole.IDENTITY, "g2.vin"))
        until_ns = CLOCK.monotonic_ns() + 500_000_000
        while CLOCK.monotonic_ns() < until_ns or street.watched.times < 2:
            unknown_sender.liveliness().declare_token(key).undeclare()  # type: ignore[no-untyped-call]
        street.streamer().announce(announcements_of())
        street.watched.wait(announcements_of())
    times = street.watched.times  # queued tokens may still cause a notification
    took_s = (CLOCK.monotonic_ns() - until_ns) / 1e9 + 0.5
    assert 1 < times <= 50 * took_s + 2


def test_a_watcher_that_raises_is_notified_again(locator: str, caplog: pytest.LogCaptureFixture) -> None:
    street = TokenNetwork(locator)
    try:
        notified: list[int] = []

        def clumsy(announcements: frozenset[Announcement]) -> None:
            notified.append(len(announcements))
            raise RuntimeError("clumsy")

        street.observer.watch_peers(clumsy)
        one = street.streamer()
        one.announce(announcements_of())
        wait_until(lambda: notified[-1:] == [len(announcements_of())], "the notification")
        one.announce(frozenset())
        wait_until(lambda: notified[-1:] == [0], "the second notification")
    finally:
        street.close()
    assert [each.message for each in caplog.records].count("zenoh.peer_watcher_failed") == 1
