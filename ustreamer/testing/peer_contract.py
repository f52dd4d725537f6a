# SPDX-License-Identifier: Apache-2.0
"""The contract of a transport on whose network other streamers can be: subclass `PeerContract`, as `TransportContract`.

It checks `PeerTransport`, and `PeerTopicTransport` if the transport has it.
"""

import threading

import pytest

from ustreamer.core.peers.election import Announcement, AnnouncementRole
from ustreamer.core.peers.topic_advertisements import TopicAdvertisement
from ustreamer.testing.messages import ALPHA, OTHER_TOPIC, TOPIC
from ustreamer.testing.pair import Pair, PairContract
from ustreamer.testing.waiting import wait_until
from ustreamer.transport_port import EndpointTransport, PeerTopicTransport, PeerTransport

INSTANCE = "1" * 16
ENDPOINT = "backbone"


def _announcement(role: AnnouncementRole, subject: str) -> Announcement:
    return Announcement(INSTANCE, ENDPOINT, ALPHA, role, subject)


BOTH = frozenset(
    {
        _announcement(AnnouncementRole.CARRIES, "cloud"),
        _announcement(AnnouncementRole.LOCAL, "*"),
        _announcement(AnnouncementRole.IDENTITY, ALPHA),
    }
)
OTHER = frozenset(
    {_announcement(AnnouncementRole.CARRIES, "car"), _announcement(AnnouncementRole.IDENTITY, ALPHA)}
)
SLOW = TopicAdvertisement(INSTANCE, ENDPOINT, ALPHA, TOPIC, 100_000_000)
FAST = TopicAdvertisement(INSTANCE, ENDPOINT, ALPHA, TOPIC, 0)
SECOND = TopicAdvertisement(INSTANCE, ENDPOINT, ALPHA, OTHER_TOPIC, 0)


class PeerRecorder:
    """What the watchers at `b` have received."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.announcements: frozenset[Announcement] = frozenset()
        self.advertisements: frozenset[TopicAdvertisement] = frozenset()
        self.wrong: list[object] = []

    def on_announcements(self, announcements: frozenset[Announcement]) -> None:
        """Record the announcements in force."""
        self.announcements = announcements

    def on_advertisements(
        self, added: frozenset[TopicAdvertisement], removed: frozenset[TopicAdvertisement]
    ) -> None:
        """Record a change of the topic advertisements, and whether it fits what was before."""
        with self._lock:
            if added & self.advertisements or removed - self.advertisements:
                self.wrong.append((added, removed))
            self.advertisements = self.advertisements - removed | added

    def wait_announcements(self, wanted: frozenset[Announcement]) -> None:
        """Wait until exactly these announcements are in force."""
        wait_until(lambda: self.announcements == wanted, f"the announcements {set(wanted)}")

    def wait_advertisements(self, wanted: frozenset[TopicAdvertisement]) -> None:
        """Wait until exactly these topic advertisements are in force."""
        wait_until(lambda: self.advertisements == wanted, f"the advertisements {set(wanted)}")


def peer(transport: EndpointTransport) -> PeerTransport:
    """The transport as a PeerTransport. AssertionError if it is none."""
    assert isinstance(transport, PeerTransport), f"{transport} has not all methods of PeerTransport"
    return transport


class PeerContract(PairContract):
    """The contract. `a` announces and advertises; `b` watches, and announces nothing."""

    @pytest.fixture
    def seen(self, unopened: Pair) -> PeerRecorder:
        """The recorder at `b`; both ends are open."""
        recorder = PeerRecorder()
        peer(unopened.b).watch_peers(recorder.on_announcements)
        if isinstance(unopened.b, PeerTopicTransport):
            unopened.b.watch_topic_advertisements(recorder.on_advertisements)
        unopened.b.open()
        unopened.a.open()
        return recorder

    def test_announcements_reach_the_peers(self, unopened: Pair, seen: PeerRecorder) -> None:
        peer(unopened.a).announce(BOTH)
        seen.wait_announcements(BOTH)

    def test_announcements_replace_earlier_ones(self, unopened: Pair, seen: PeerRecorder) -> None:
        peer(unopened.a).announce(BOTH)
        seen.wait_announcements(BOTH)
        peer(unopened.a).announce(OTHER)
        seen.wait_announcements(OTHER)
        peer(unopened.a).announce(frozenset())
        seen.wait_announcements(frozenset())

    @pytest.mark.parametrize("step", ["stop_receiving", "close"])
    def test_the_end_of_an_endpoint_withdraws_all_that_it_announced(
        self, unopened: Pair, seen: PeerRecorder, step: str
    ) -> None:
        peer(unopened.a).announce(BOTH)
        seen.wait_announcements(BOTH)
        if isinstance(unopened.a, PeerTopicTransport):
            unopened.a.advertise_topics(frozenset({SLOW}))
            seen.wait_advertisements(frozenset({SLOW}))
        getattr(unopened.a, step)()
        seen.wait_announcements(frozenset())
        seen.wait_advertisements(frozenset())

    def test_trust_can_be_given_at_any_time(self, unopened: Pair, seen: PeerRecorder) -> None:
        peer(unopened.a).announce(BOTH)
        for trusted in (False, True):
            peer(unopened.a).trust_peers(lambda router, authority, answer=trusted: answer)  # type: ignore[misc]
        seen.wait_announcements(BOTH)

    def test_advertisements_are_changed_by_what_was_added_and_removed(
        self, unopened: Pair, seen: PeerRecorder
    ) -> None:
        if not isinstance(unopened.a, PeerTopicTransport):
            return
        peer(unopened.a).announce(BOTH)
        for wanted in ({SLOW}, {SLOW, SECOND}, {FAST, SECOND}, set[TopicAdvertisement](), {SLOW}):
            unopened.a.advertise_topics(frozenset(wanted))
            seen.wait_advertisements(frozenset(wanted))
        assert seen.wrong == [], "added what was there, or removed what was not"
