# SPDX-License-Identifier: Apache-2.0
"""Topic advertisements as liveliness tokens: their keys, and real sessions on the loopback interface."""

import logging
from collections.abc import Iterator
from threading import Condition

import pytest
import zenoh
from hypothesis import given
from hypothesis import strategies as st

from tests.transports.zenoh.sessions import endpoint, free_locator, plain_session
from tests.waiting import wait_until
from ustreamer.core.peers.election import Announcement
from ustreamer.core.peers.topic_advertisements import TopicAdvertisement
from ustreamer.core.routing.subscriptions import MAX_PERIOD_NS
from ustreamer.transports.zenoh.tokens import topic_tokens
from ustreamer.transports.zenoh.tokens.token_keys import advertisement_key, parse_token
from ustreamer.transports.zenoh.transport import ZenohTransport
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import ANY_ENTITY, ANY_VERSION, UUri

G1, G2 = "1" * 16, "2" * 16


def advertisement(number: int = 1, period_ns: int = 0, instance: str = G1) -> TopicAdvertisement:
    return TopicAdvertisement(instance, "link", "g1.vin", UUri("a.vin", number, 1, 0x8001), period_ns)


class AdvertisementRecorder:
    """The advertisements in the notifications to a watcher."""

    def __init__(self) -> None:
        self.now: frozenset[TopicAdvertisement] = frozenset()
        self.history: list[tuple[frozenset[TopicAdvertisement], frozenset[TopicAdvertisement]]] = []
        self._condition = Condition()

    def __call__(self, added: frozenset[TopicAdvertisement], removed: frozenset[TopicAdvertisement]) -> None:
        with self._condition:
            assert not added & removed
            self.now = self.now - removed | added
            self.history.append((added, removed))
            self._condition.notify_all()

    def wait(self, expected: frozenset[TopicAdvertisement]) -> None:
        with self._condition:
            assert self._condition.wait_for(lambda: self.now == expected, 30), self.now


# --- keys -------------------------------------------------------------------------------------------------------------

TOPICS = st.builds(
    UUri,
    st.sampled_from(["a", "a.vin", "10.0.0.1", "[fe80::1]", "a~b_c-d"]),
    st.integers(0, ANY_ENTITY).filter(lambda id: id & 0xFFFF != 0xFFFF and id >> 16 != 0xFFFF),
    st.integers(0, ANY_VERSION - 1),
    st.integers(0x8000, 0xFFFE),
)


@given(TOPICS, st.one_of(st.just(0), st.integers(1, MAX_PERIOD_NS)))
def test_advertisements_and_token_keys_are_one_to_one(topic: UUri, period_ns: int) -> None:
    put = TopicAdvertisement(G1, "back-bone_1", "g1", topic, period_ns)
    key = advertisement_key(put)
    assert parse_token(key) == put
    assert str(zenoh.KeyExpr(key)) == key
    assert not zenoh.KeyExpr(
        advertisement_key(TopicAdvertisement(G1, "back-bone_1", "g1", topic, period_ns + 1))
    ).intersects(key)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("up%3A%2F%2Fa%2F1%2F1%2F8001", "role 'puts' (have: is, carries, here)"),
        ("up%3A%2F%2Fa%2F1%2F1%2F8001/-1", "expected up-streamer/1/instance/"),
        ("up%3A%2F%2Fa%2F1%2F1%2F8001/01", "expected up-streamer/1/instance/"),
        ("up%3A%2F%2Fa%2F1%2F1%2F8001/1000000000000000001", "a period of 1000000000000000001 ns, expected 10"),
        ("up%3A%2F%2Fa%2F1%2F1%2F8001/0/0", "expected up-streamer/1/instance/"),
        ("up%3a%2F%2Fa%2F1%2F1%2F8001/0", "is not percent-encoded as expected"),
        ("%2F%2Fa%2F1%2F1%2F8001/0", "is not the canonical form of one topic"),
        ("up%3A%2F%2Fa%2F01%2F1%2F8001/0", "is not the canonical form of one topic"),
        ("up%3A%2F%2Fa%2F1%2F1%2F7FFF/0", "is not the canonical form of one topic"),
        ("up%3A%2F%2Fa%2F1%2F1%2FFFFF/0", "is not the canonical form of one topic"),
        ("up%3A%2F%2F%2A%2F1%2F1%2F8001/0", "is not the canonical form of one topic"),
        ("up%3A%2F1%2F1%2F8001/0", "is not the canonical form of one topic"),
        ("up%3A%2F%2FA%2F1%2F1%2F8001/0", "authority 'A' is not"),
        ("a/0", "UUri 'a': expected"),
    ],
)  # fmt: skip
def test_an_invalid_advertisement_is_refused_with_a_reason(what: str, why: str) -> None:
    key = f"up-streamer/1/{G1}/one/g1/puts/{what}"
    with pytest.raises(UStatusError) as caught:
        parse_token(key)
    assert caught.value.code is UCode.INVALID_ARGUMENT
    assert why in caught.value.message


# --- sessions ---------------------------------------------------------------------------------------------------------


class TopicTokenNetwork:
    """Rig: a network with `watcher` on it, and streamers that connect later."""

    def __init__(self, **keys: object) -> None:
        self.locator = free_locator()
        self.watched = AdvertisementRecorder()
        self.observer = endpoint("g0.vin", listen=(self.locator,), **keys)  # type: ignore[arg-type]
        self.observer.watch_peers(self._ignore)
        self.observer.watch_topic_advertisements(self.watched)
        self.observer.open()
        self._open = [self.observer]

    @staticmethod
    def _ignore(announcements: frozenset[Announcement]) -> None:
        pass

    def streamer(self, **keys: object) -> ZenohTransport:
        made = endpoint("g1.vin", connect=(self.locator,), **keys)  # type: ignore[arg-type]
        made.open()
        self._open.append(made)
        return made

    def close(self) -> None:
        for each in reversed(self._open):
            each.close()


@pytest.fixture
def street() -> Iterator[TopicTokenNetwork]:
    street = TopicTokenNetwork()
    yield street
    street.close()


def test_an_advertisement_is_visible_to_peers_until_withdrawn(street: TopicTokenNetwork) -> None:
    one = street.streamer()
    one.advertise_topics(frozenset([advertisement(1), advertisement(2)]))
    street.watched.wait(frozenset([advertisement(1), advertisement(2)]))
    one.advertise_topics(frozenset([advertisement(2), advertisement(3)]))
    street.watched.wait(frozenset([advertisement(2), advertisement(3)]))
    one.advertise_topics(frozenset())
    street.watched.wait(frozenset())
    one.advertise_topics(frozenset([advertisement(2)]))
    street.watched.wait(frozenset([advertisement(2)]))
    one.close()
    street.watched.wait(frozenset())


def test_a_changed_rate_is_advertised_before_the_old_one_is_withdrawn(street: TopicTokenNetwork) -> None:
    one = street.streamer()
    for period_ns in range(20):
        one.advertise_topics(frozenset([advertisement(1, period_ns)]))
        street.watched.wait(frozenset([advertisement(1, period_ns)]))
    known: set[TopicAdvertisement] = set()
    for arrived, went in street.watched.history:
        known = (known | arrived) - went
        assert known  # at every moment at least one advertisement is visible


def test_a_late_peer_sees_earlier_advertisements_and_its_own(street: TopicTokenNetwork) -> None:
    street.observer.advertise_topics(frozenset([advertisement(1, instance=G2)]))
    street.watched.wait(frozenset([advertisement(1, instance=G2)]))
    late = AdvertisementRecorder()
    transport = endpoint("g1.vin", connect=(street.locator,))
    transport.watch_peers(street._ignore)
    transport.watch_topic_advertisements(late)
    transport.open()
    try:
        transport.advertise_topics(frozenset([advertisement(1)]))
        late.wait(frozenset([advertisement(1), advertisement(1, instance=G2)]))
    finally:
        transport.close()


def test_stop_receiving_withdraws_all_advertisements(street: TopicTokenNetwork) -> None:
    one, other = street.streamer(), street.streamer()
    one.advertise_topics(frozenset([advertisement(1)]))
    street.watched.wait(frozenset([advertisement(1)]))
    one.stop_receiving()
    one.advertise_topics(frozenset([advertisement(2)]))  # too late
    other.advertise_topics(frozenset([advertisement(3)]))
    street.watched.wait(frozenset([advertisement(3)]))
    other.close()
    street.watched.wait(frozenset())


def test_with_peers_false_topics_are_neither_watched_nor_advertised(street: TopicTokenNetwork) -> None:
    seen = AdvertisementRecorder()
    shy = endpoint("g2.vin", connect=(street.locator,), peers=False)
    shy.watch_topic_advertisements(seen)
    shy.open()
    street._open.append(shy)
    shy.advertise_topics(frozenset([advertisement(1)]))
    street.streamer().advertise_topics(frozenset([advertisement(2)]))
    street.watched.wait(frozenset([advertisement(2)]))
    assert seen.history == []


def test_hundreds_of_topics_are_advertised_and_withdrawn(street: TopicTokenNetwork) -> None:
    announcement = frozenset(advertisement(number) for number in range(500))
    one = street.streamer()
    one.advertise_topics(announcement)
    street.watched.wait(announcement)
    one.advertise_topics(frozenset())
    street.watched.wait(frozenset())


def test_the_number_of_advertisements_is_bounded(
    street: TopicTokenNetwork, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(topic_tokens, "MAX_ADVERTISEMENTS", 5)
    with caplog.at_level(logging.WARNING, "ustreamer.zenoh"):
        street.streamer().advertise_topics(frozenset(advertisement(number) for number in range(10)))
        wait_until(lambda: street.observer.statistics()["refused_advertisement_limit"] == 5, "no more room")
    assert len(street.watched.now) <= 5
    assert [each.message for each in caplog.records].count("zenoh.advertisement_limit") == 1


def test_invalid_advertisements_are_refused_and_counted(street: TopicTokenNetwork) -> None:
    with plain_session("client", connect=[street.locator]) as unknown_sender:
        tokens = [unknown_sender.liveliness().declare_token(f"up-streamer/1/{G1}/one/g1/puts/x/0")]
        wait_until(lambda: street.observer.statistics()["refused_announcement"] == 1, "it is refused")
        street.streamer().advertise_topics(frozenset([advertisement(1)]))
        street.watched.wait(frozenset([advertisement(1)]))
        assert tokens


def test_an_advertisement_refused_by_zenoh_is_counted_and_affects_no_other(
    street: TopicTokenNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    one = street.streamer()
    wrong = TopicAdvertisement(G1, "a//b", "g1.vin", UUri("a.vin", 1, 1, 0x8001))
    with caplog.at_level(logging.WARNING, "ustreamer.zenoh"):
        one.advertise_topics(frozenset([wrong, advertisement(1)]))
        street.watched.wait(frozenset([advertisement(1)]))
        wait_until(lambda: one.statistics()["advertisements_failed"] == 1, "it is counted")
        one.advertise_topics(frozenset([advertisement(2)]))
        street.watched.wait(frozenset([advertisement(2)]))
    assert [each.message for each in caplog.records].count("zenoh.advertisement_failed") == 1
