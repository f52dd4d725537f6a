# SPDX-License-Identifier: Apache-2.0
"""Publications that several streamers could put onto one network, and which of them does. Decides; is told who is there.

A subscription is known to the streamer that granted it. If entities of one network have asked several streamers for one topic,
each of those announces on that network that it puts the topic there, and how often. One of them does: the one with the highest
rate, which is what a network gets anyway if its entities ask for several, and of equals one by lot. The others leave the network
out. It is decided when a plan is made, and nothing of it runs per message.

What keeps a message from being lost: a streamer leaves a topic only to one whose word it has, and who is believed to hear the
topic where it comes from (`PeerRouters.is_trusted`). All go by one order, so whoever is left to either puts, or has left it to
somebody still higher. Whoever takes its word back, or puts less often from now on, goes on as before for `LINGER_NS`, until the
others have heard of it. So a change of hands may double a message, and does not lose one.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from threading import Lock
from typing import Final, NamedTuple

import msgspec

from ustreamer.core.peers.election import PeerRouters, RouterId, election_key
from ustreamer.core.routing.forwarding import ForwardingShare, Target
from ustreamer.uprotocol.uuri import UUri

MAX_ADVERTISEMENTS: Final = 4096
"""Topics that are announced on one network. Under a wildcard subscription it is the sender who chooses how many there are."""

MAX_ADVERTISEMENTS_PER_TOPIC: Final = 16
"""On one topic of a network: all are compared when a plan is made (10 us each), and a hostile node could say thousands. An honest
streamer says one, and two while its rate changes."""

GRACE_PERIOD_NS: Final = 1_000_000_000
"""For how long what was promised is done after it was taken back: others hear of that within 50 ms, on a busy machine later."""


class TopicAdvertisement(msgspec.Struct, frozen=True):
    """A streamer's word that it puts `topic` onto the network of its `endpoint`, at most every `period_ns` (0: each message)."""

    instance: str
    endpoint: str
    authority: str
    topic: UUri
    period_ns: int = 0


class _Grace(NamedTuple):
    period_ns: int
    until_ns: int


def _ignore_change(endpoint: str) -> None:
    pass


class TopicAdvertisements:
    """What we and the other streamers on each network put there. Safe from any thread; its lock is a leaf."""

    def __init__(self, peers: PeerRouters, on_change: Callable[[str], None] = _ignore_change) -> None:
        """`changed` is called with an endpoint for which `announced` has changed, under the caller's locks: it takes a note."""
        self.suppressed = Counter[str]()
        """Plans whose topic was one too many to be announced, by endpoint."""
        self.over_limit = Counter[str]()
        """Words on a topic of which there were too many, by endpoint."""
        self._peers = peers
        self._on_change = on_change
        self._lock = Lock()
        self._shutting_down = False
        self._advertised: dict[str, dict[UUri, int]] = {}
        self._grace: dict[UUri, dict[str, _Grace]] = {}
        self._peer_advertisements: dict[str, dict[UUri, set[TopicAdvertisement]]] = {}

    # --- our own --------------------------------------------------------------------------------------------------------

    def assign(self, topic: UUri, targets: tuple[Target, ...], now_ns: int) -> ForwardingShare:
        """Which of the targets of a publication from a network are ours. Also gives, or takes back, our word on it."""
        periods_ns = {each.endpoint: each.period_ns for each in targets if each.subscriber is None}
        contested = [
            name for name in periods_ns if self._peers.may_arrive_via_peer(name, topic.authority_name)
        ]
        if not contested and not self._advertised and not self._grace:
            return ForwardingShare(targets)
        deferred, changed_endpoints, until_ns = set(), [], 0
        with self._lock:
            advertised = [name for name, topics in self._advertised.items() if topic in topics]
            for name in dict.fromkeys((*contested, *advertised)):
                wanted_ns = periods_ns.get(name)
                advertised_ns = self._advertised.get(name, {}).get(topic)
                until_ns = self._start_grace(name, topic, advertised_ns, wanted_ns, now_ns) or until_ns
                if self._advertise(
                    name,
                    topic,
                    advertised_ns,
                    None if self._shutting_down or name not in contested else wanted_ns,
                ):
                    changed_endpoints.append(name)
                if wanted_ns is not None and self._peer_has_precedence(name, topic, wanted_ns):
                    deferred.add(name)
            grace = dict(self._grace.get(topic, {}))
        for name in changed_endpoints:
            self._on_change(name)
        return ForwardingShare(_with_grace(targets, grace), frozenset(deferred - grace.keys()), until_ns)

    def _advertise(
        self, endpoint: str, topic: UUri, advertised_ns: int | None, wanted_ns: int | None
    ) -> bool:
        """Give our word for `wish`, or none any more; whether that is news."""
        if wanted_ns == advertised_ns:
            return False
        advertised = self._advertised.setdefault(endpoint, {})
        if wanted_ns is not None and (advertised_ns is not None or len(advertised) < MAX_ADVERTISEMENTS):
            advertised[topic] = wanted_ns
            return True
        if wanted_ns is not None:
            self.suppressed[endpoint] += 1
            return False
        del advertised[topic]
        if not advertised:
            del self._advertised[endpoint]
        return True

    def _start_grace(
        self, endpoint: str, topic: UUri, advertised_ns: int | None, wanted_ns: int | None, now_ns: int
    ) -> int:
        """Note that what we have promised is to be done for a while yet; until when.

        Also if nobody has said that it could do it: somebody may have, and left it to us, and we have not heard it yet.
        """
        if advertised_ns is None or (
            wanted_ns is not None and wanted_ns <= advertised_ns
        ):  # 0, no limit, is the fastest
            return 0
        if self._peer_has_precedence(endpoint, topic, advertised_ns):
            return 0
        grace = self._grace.setdefault(topic, {})
        known = grace.get(endpoint)
        period_ns = advertised_ns if known is None else min(known.period_ns, advertised_ns)
        grace[endpoint] = _Grace(period_ns, now_ns + GRACE_PERIOD_NS)
        return now_ns + GRACE_PERIOD_NS

    def _peer_has_precedence(self, endpoint: str, topic: UUri, period_ns: int) -> bool:
        """Whether somebody is believed to put the topic there who comes before us at this rate."""
        advertisements = self._peer_advertisements.get(endpoint, {}).get(topic)
        if not advertisements:
            return False
        text = str(topic)
        own_key = (-period_ns, *election_key(self._peers.local_id, text))
        return any(
            self._peers.is_trusted(endpoint, router, topic.authority_name)
            and (-each.period_ns, *election_key(router, text)) > own_key
            for each, router in ((each, RouterId(each.authority, each.instance)) for each in advertisements)
        )

    def end_grace(self, topic: UUri, now_ns: int) -> None:
        """End what has lingered for long enough."""
        with self._lock:
            grace = self._grace.get(topic, {})
            still = {name: each for name, each in grace.items() if each.until_ns > now_ns}
            if still:
                self._grace[topic] = still
            else:
                self._grace.pop(topic, None)

    def withdraw(self, topics: AbstractSet[UUri]) -> None:
        """Take back our word on these, at once; their plans are to be made again."""
        with self._lock:
            changed_endpoints = [
                name for name, advertised in self._advertised.items() if _remove_topics(advertised, topics)
            ]
            self._advertised = {name: each for name, each in self._advertised.items() if each}
        for name in changed_endpoints:
            self._on_change(name)

    def withdraw_all(self) -> None:
        """Take back every word: another configuration may not let us keep it. All plans are to be made again."""
        with self._lock:
            changed_endpoints, self._advertised, self._grace = list(self._advertised), {}, {}
        for name in changed_endpoints:
            self._on_change(name)

    def withdraw_all_for_shutdown(self) -> bool:
        """Take back every word for good, and go on as before; whether there was any.

        For a stop: when the others have heard of it, after some 50 ms, they do without us.
        """
        with self._lock:
            self._shutting_down = True
            changed_endpoints, self._advertised = list(self._advertised), {}
        for name in changed_endpoints:
            self._on_change(name)
        return bool(changed_endpoints)

    def advertised(self, endpoint: str) -> frozenset[TopicAdvertisement]:
        """What we have to say on the network of `endpoint`."""
        local_id = self._peers.local_id
        with self._lock:
            advertised = list(self._advertised.get(endpoint, {}).items())
        return frozenset(
            TopicAdvertisement(local_id.instance, endpoint, local_id.authority, *each) for each in advertised
        )

    # --- the others' ----------------------------------------------------------------------------------------------------

    def on_advertisements(
        self, endpoint: str, added: Iterable[TopicAdvertisement], removed: Iterable[TopicAdvertisement]
    ) -> frozenset[UUri]:
        """Take note of what is said on the network of `endpoint`, and is said no more; the topics it is about.

        Their plans are to be made again. What we say ourselves is no news.
        """
        own_instance = self._peers.local_id.instance
        changed = set()
        with self._lock:
            by_topic = self._peer_advertisements.setdefault(endpoint, {})
            for each in removed:
                advertisements = by_topic.get(each.topic)
                if advertisements is not None and each in advertisements:
                    changed.add(each.topic)
                    advertisements.discard(each)
                    if not advertisements:
                        del by_topic[each.topic]
            for each in added:
                if each.instance == own_instance:
                    continue
                advertisements = by_topic.setdefault(each.topic, set())
                if len(advertisements) >= MAX_ADVERTISEMENTS_PER_TOPIC:
                    self.over_limit[endpoint] += 1
                    continue
                advertisements.add(each)
                changed.add(each.topic)
        return frozenset(changed)


def _with_grace(targets: tuple[Target, ...], grace: Mapping[str, _Grace]) -> tuple[Target, ...]:
    """These targets as they are while something lingers: at the old rate, and those that are gone as well."""
    if not grace:
        return targets
    adjusted = []
    for target in targets:
        found = grace.get(target.endpoint) if target.subscriber is None else None
        period_ns = target.period_ns if found is None else min(found.period_ns, target.period_ns)
        adjusted.append(Target(target.endpoint, target.subscriber, period_ns))
    endpoints = {each.endpoint for each in targets}
    ended = [Target(name, None, each.period_ns) for name, each in grace.items() if name not in endpoints]
    return (*ended, *adjusted)


def _remove_topics(advertised: dict[UUri, int], topics: AbstractSet[UUri]) -> bool:
    known = advertised.keys() & topics
    for each in known:
        del advertised[each]
    return bool(known)
