# SPDX-License-Identifier: Apache-2.0
"""Topic advertisements: targets of a publication and advertisements of peers go in, this streamer's share goes out.

Only the streamer that granted a subscription knows it. If subscribers on one network use several streamers for one
topic, the first one advertises there that it forwards the topic, and at which period. A streamer that sees such an
advertisement at its own rate or a higher one advertises nothing and leaves that network out. So a running topic does
not change hands when another streamer is asked for it too, or comes back. If several streamers advertise a topic, the
highest rate forwards, because a multicast domain gets the highest subscribed rate anyway. Equal rates are decided by
`election_key`. The decision is part of a route; nothing runs per message.

No message is lost: a streamer defers a topic only to a peer with an advertisement, and only if the peer is trusted to
receive the topic at its source (`PeerRouters.is_trusted`). All streamers that advertise use one order, so the peer
either forwards or defers to one with higher precedence. A streamer that withdraws an advertisement, or lowers its
rate, keeps its share for `GRACE_PERIOD_NS`. One that forwards already yields to a peer when it has read the messages
that the peer may have read before its own subscription (`yield_to`). A hand-over can duplicate messages but loses none.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from threading import Lock
from typing import Final, Protocol

import msgspec

from ustreamer.core.peers.election import PeerRouters, RouterId, election_key
from ustreamer.core.routing.forwarding import ForwardingShare, Target
from ustreamer.uprotocol.uuri import UUri

MAX_OWN_ADVERTISEMENTS: Final = 4096
"""The limit of own advertisements per network. Under a wildcard subscription the sender chooses the topics."""

MAX_ADVERTISEMENTS_PER_TOPIC: Final = 16
"""The limit of peer advertisements per topic and network: a route compares all of them (10 us each), and a hostile node
could send thousands. An honest streamer has one, and two while its rate changes."""

YIELD_DELAY_NS: Final = 20_000_000
"""The time from the advertisement of a peer until the messages that the peer read before have arrived here too.

A peer that is asked for a topic advertises it, and does not forward what it read before. This streamer may read those
messages later than the peer. To defer them would lose them."""

MAX_YIELD_DELAY_NS: Final = 1_000_000_000
"""The longest wait for the receiving thread. Only further messages show what it has read, and there may be none."""

GRACE_PERIOD_NS: Final = 1_000_000_000
"""The time to keep forwarding after a withdrawal. Peers receive it within 50 ms, on a busy machine later."""

_NEVER_NS: Final = 1 << 62


class TopicAdvertisement(msgspec.Struct, frozen=True):
    """A streamer forwards `topic` to the network of its `endpoint`, at most every `period_ns` (0: each message)."""

    instance: str
    endpoint: str
    authority: str
    topic: UUri
    period_ns: int = 0


class _Grace(msgspec.Struct, frozen=True):
    period_ns: int
    until_ns: int


class OnChange(Protocol):
    """Called when the own advertisements at `endpoint` changed; `urgent`: a topic was added."""

    def __call__(self, endpoint: str, /, *, urgent: bool) -> None: ...


def _ignore_change(endpoint: str, /, *, urgent: bool) -> None:
    pass


class TopicAdvertisements:
    """The advertisements of this streamer and of its peers, by network. Safe from any thread; its lock is a leaf."""

    def __init__(self, peers: PeerRouters, on_change: OnChange = _ignore_change) -> None:
        """`on_change` is called when `advertised` changed, under the caller's locks; it returns at once."""
        self.suppressed = Counter[str]()
        """Routes whose topic was not advertised because of the limit, by endpoint."""
        self.over_limit = Counter[str]()
        """Advertisements of peers over the limit of a topic, by endpoint."""
        self._peers = peers
        self._on_change = on_change
        self._lock = Lock()
        self._shutting_down = False
        self._settled_ns = 0
        """Until then no topic is added: the advertisements of a peer that joined arrive after its identity."""
        self._relied_on_until_ns = 0
        """Until then peers may defer to advertisements of the configuration before."""
        self._advertised: dict[str, dict[UUri, int]] = {}
        self._grace: dict[UUri, dict[str, _Grace]] = {}
        self._peer_advertisements: dict[str, dict[UUri, dict[TopicAdvertisement, int]]] = {}
        """With the time when each was received; 0 as soon as this streamer yields to it."""

    # --- own advertisements -------------------------------------------------------------------------------------------

    def assign(self, topic: UUri, targets: tuple[Target, ...], now_ns: int) -> ForwardingShare:
        """The share of this streamer in the targets of a publication. Advertises or withdraws the topic accordingly."""
        periods_ns = {each.endpoint: each.period_ns for each in targets if each.subscriber is None}
        contested = [
            name for name in periods_ns if self._peers.may_arrive_via_peer(name, topic.authority_name)
        ]
        if not contested and not self._advertised and not self._grace:
            return ForwardingShare(targets)
        deferred, changed_endpoints, until_ns = set(), [], 0
        with self._lock:
            advertised = [name for name, topics in self._advertised.items() if topic in topics]
            for name in dict.fromkeys((*contested, *advertised, *self._grace.get(topic, ()))):
                wanted_ns = periods_ns.get(name)
                advertised_ns = self._advertised.get(name, {}).get(topic)
                until_ns = self._start_grace(name, topic, advertised_ns, wanted_ns, now_ns) or until_ns
                offered_ns = None if self._shutting_down or name not in contested else wanted_ns
                if advertised_ns is None:
                    covering = self._covering(name, topic, offered_ns, now_ns)
                    if covering and self._may_defer_at_once(name, max(covering)):
                        deferred.add(name)
                        continue
                    if covering or now_ns < self._settled_ns:
                        offered_ns = None
                if self._advertise(name, topic, advertised_ns, offered_ns):
                    changed_endpoints.append((name, offered_ns is not None))
                if self._peer_has_precedence(name, topic, self._graced_period(name, topic, wanted_ns)):
                    deferred.add(name)
            grace = dict(self._grace.get(topic, {}))
        for name, urgent in changed_endpoints:
            self._on_change(name, urgent=urgent)
        return ForwardingShare(_with_grace(targets, grace), frozenset(deferred), until_ns)

    def _advertise(
        self, endpoint: str, topic: UUri, advertised_ns: int | None, wanted_ns: int | None
    ) -> bool:
        """Advertise `wanted_ns`, or withdraw with None; whether the advertisements changed."""
        if wanted_ns == advertised_ns:
            return False
        advertised = self._advertised.setdefault(endpoint, {})
        if wanted_ns is not None and (advertised_ns is not None or len(advertised) < MAX_OWN_ADVERTISEMENTS):
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
        """Start a grace period if an advertisement ends or slows down; returns its end, or 0.

        Also without a known peer: a peer may have deferred to this streamer with an advertisement still on its way.
        And also if a peer has precedence: that peer may have withdrawn its advertisement already.
        """
        if advertised_ns is None or (
            wanted_ns is not None and wanted_ns <= advertised_ns
        ):  # 0, no limit, is the fastest
            return 0
        grace = self._grace.setdefault(topic, {})
        known = grace.get(endpoint)
        period_ns = advertised_ns if known is None else min(known.period_ns, advertised_ns)
        grace[endpoint] = _Grace(period_ns, now_ns + GRACE_PERIOD_NS)
        return now_ns + GRACE_PERIOD_NS

    def _graced_period(self, endpoint: str, topic: UUri, wanted_ns: int | None) -> int | None:
        """The period of the topic there, grace period included; None if this streamer does not forward it."""
        grace = self._grace.get(topic, {}).get(endpoint)
        if grace is None:
            return wanted_ns
        return grace.period_ns if wanted_ns is None else min(grace.period_ns, wanted_ns)

    def _covering(self, endpoint: str, topic: UUri, wanted_ns: int | None, now_ns: int) -> list[int]:
        """The arrival times of trusted advertisements at this rate or a higher one; _NEVER_NS after `yield_to`.

        Empty right after an own advertisement ended: those peers may still defer to it.
        """
        if wanted_ns is None or now_ns < self._relied_on_until_ns or endpoint in self._grace.get(topic, ()):
            return []
        return [
            received_ns or _NEVER_NS
            for each, _, received_ns in self._trusted_advertisements(endpoint, topic)
            if each.period_ns <= wanted_ns
        ]

    def _may_defer_at_once(self, endpoint: str, received_ns: int) -> bool:
        """Whether this streamer yields to an advertisement, or cannot have forwarded the topic before it arrived.

        It forwards without advertising while it starts, and at the limit.
        """
        is_full = len(self._advertised.get(endpoint, ())) >= MAX_OWN_ADVERTISEMENTS
        return received_ns == _NEVER_NS or (received_ns >= self._settled_ns and not is_full)

    def _peer_has_precedence(self, endpoint: str, topic: UUri, period_ns: int | None) -> bool:
        """Whether this streamer yields to a trusted peer there, which has precedence at this rate."""
        if period_ns is None or not self._peer_advertisements.get(endpoint, {}).get(topic):
            return False
        text = str(topic)
        own_key = (-period_ns, *election_key(self._peers.local_id, text))
        return any(
            not received_ns and (-each.period_ns, *election_key(router, text)) > own_key
            for each, router, received_ns in self._trusted_advertisements(endpoint, topic)
        )

    def _trusted_advertisements(
        self, endpoint: str, topic: UUri
    ) -> Iterator[tuple[TopicAdvertisement, RouterId, int]]:
        for each, received_ns in self._peer_advertisements.get(endpoint, {}).get(topic, {}).items():
            router = RouterId(each.authority, each.instance)
            if self._peers.is_trusted(endpoint, router, topic.authority_name):
                yield each, router, received_ns

    def end_grace(self, topic: UUri, now_ns: int) -> None:
        """End the grace periods of `topic` that are over."""
        with self._lock:
            grace = self._grace.get(topic, {})
            still = {name: each for name, each in grace.items() if each.until_ns > now_ns}
            if still:
                self._grace[topic] = still
            else:
                self._grace.pop(topic, None)

    def withdraw(self, topics: AbstractSet[UUri], now_ns: int) -> int:
        """Withdraw the advertisements of these topics; the caller builds their routes again.

        Returns the end of the grace periods that start, or 0.
        """
        until_ns, changed_endpoints = 0, []
        with self._lock:
            for name, advertised in list(self._advertised.items()):
                for topic in advertised.keys() & topics:
                    until_ns = self._start_grace(name, topic, advertised[topic], None, now_ns)
                    self._advertise(name, topic, advertised[topic], None)
                    changed_endpoints.append(name)
        for name in dict.fromkeys(changed_endpoints):
            self._on_change(name, urgent=False)
        return until_ns

    def withdraw_all(self, now_ns: int) -> None:
        """Withdraw all advertisements, before a new configuration; the caller builds all routes again."""
        with self._lock:
            self._relied_on_until_ns = now_ns + GRACE_PERIOD_NS
            changed_endpoints, self._advertised, self._grace = list(self._advertised), {}, {}
        for name in changed_endpoints:
            self._on_change(name, urgent=False)

    def withdraw_all_for_shutdown(self) -> bool:
        """Withdraw all advertisements for good but keep forwarding; whether peers may defer to this streamer.

        For a stop: peers receive the withdrawal after some 50 ms and take over. So they do after an earlier withdrawal,
        whose grace period is not over.
        """
        with self._lock:
            self._shutting_down = True
            changed_endpoints, self._advertised = list(self._advertised), {}
            has_grace = bool(self._grace)
        for name in changed_endpoints:
            self._on_change(name, urgent=False)
        return bool(changed_endpoints) or has_grace

    def on_peer_joined(self, settled_ns: int) -> None:
        """Add no topic until `settled_ns`. Then the caller builds all routes again."""
        with self._lock:
            self._settled_ns = settled_ns

    def advertised(self, endpoint: str) -> frozenset[TopicAdvertisement]:
        """The advertisements of this streamer on the network of `endpoint`."""
        local_id = self._peers.local_id
        with self._lock:
            advertised = list(self._advertised.get(endpoint, {}).items())
        return frozenset(
            TopicAdvertisement(local_id.instance, endpoint, local_id.authority, *each) for each in advertised
        )

    # --- advertisements of peers --------------------------------------------------------------------------------------

    def on_advertisements(
        self,
        endpoint: str,
        added: Iterable[TopicAdvertisement],
        removed: Iterable[TopicAdvertisement],
        received_ns: int = 0,
    ) -> frozenset[UUri]:
        """Record added and removed advertisements on the network of `endpoint`; returns the changed topics.

        The caller builds the routes of those topics again, and later calls `yield_to` for the added ones, with the same
        `received_ns`; 0 yields at once. Own advertisements are ignored.
        """
        own_instance = self._peers.local_id.instance
        changed = set()
        with self._lock:
            by_topic = self._peer_advertisements.setdefault(endpoint, {})
            for each in removed:
                advertisements = by_topic.get(each.topic)
                if advertisements is not None and each in advertisements:
                    changed.add(each.topic)
                    del advertisements[each]
                    if not advertisements:
                        del by_topic[each.topic]
            for each in added:
                if each.instance == own_instance:
                    continue
                advertisements = by_topic.setdefault(each.topic, {})
                if len(advertisements) >= MAX_ADVERTISEMENTS_PER_TOPIC:
                    self.over_limit[endpoint] += 1
                    continue
                advertisements[each] = received_ns
                changed.add(each.topic)
        return frozenset(changed)

    def yield_to(
        self, endpoint: str, advertisements: Iterable[TopicAdvertisement], received_ns: int
    ) -> frozenset[UUri]:
        """Let these, received at `received_ns`, take over topics that this streamer forwards; returns changed topics.

        For the time when this streamer has read all messages that had arrived `YIELD_DELAY_NS` later, or after
        `MAX_YIELD_DELAY_NS`. The caller builds the routes of the returned topics again.
        """
        changed = set()
        with self._lock:
            by_topic = self._peer_advertisements.get(endpoint, {})
            for each in advertisements:
                known = by_topic.get(each.topic, {})
                # Else it was withdrawn meanwhile, or this is a repeated call.
                if received_ns and known.get(each) == received_ns:
                    known[each] = 0
                    changed.add(each.topic)
        return frozenset(changed)


def _with_grace(targets: tuple[Target, ...], grace: Mapping[str, _Grace]) -> tuple[Target, ...]:
    """The targets during grace periods: ended targets included, and slowed targets at their old rate."""
    if not grace:
        return targets
    adjusted = []
    for target in targets:
        found = grace.get(target.endpoint) if target.subscriber is None else None
        period_ns = target.period_ns if found is None else min(found.period_ns, target.period_ns)
        adjusted.append(msgspec.structs.replace(target, period_ns=period_ns))
    endpoints = {each.endpoint for each in targets}
    ended = [Target(name, None, each.period_ns) for name, each in grace.items() if name not in endpoints]
    return (*ended, *adjusted)
