# SPDX-License-Identifier: Apache-2.0
"""Publications that several streamers could put onto one network, and which of them does. Decides; is told who is there.

A subscription is known to the streamer that granted it. If entities of one network have asked several streamers for one topic,
each of those announces on that network that it puts the topic there, and how often. One of them does: the one with the highest
rate, which is what a network gets anyway if its entities ask for several, and of equals one by lot. The others leave the network
out. It is decided when a plan is made, and nothing of it runs per message.

What keeps a message from being lost: a streamer leaves a topic only to one whose word it has, and who is believed to hear the
topic where it comes from (`Neighbours.believes`). All go by one order, so whoever is left to either puts, or has left it to
somebody still higher. Whoever takes its word back, or puts less often from now on, goes on as before for `LINGER_NS`, until the
others have heard of it. So a change of hands may double a message, and does not lose one.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from threading import Lock
from typing import Final, NamedTuple

import msgspec

from ustreamer.core.peers.election import Neighbours, Who, weight
from ustreamer.core.routing.router import Target
from ustreamer.uprotocol.uuri import UUri

MAX_PROMISES: Final = 4096
"""Topics that are announced on one network. Under a wildcard subscription it is the sender who chooses how many there are."""

MAX_WORDS: Final = 16
"""On one topic of a network: all are compared when a plan is made (10 us each), and a hostile node could say thousands. An honest
streamer says one, and two while its rate changes."""

LINGER_NS: Final = 1_000_000_000
"""For how long what was promised is done after it was taken back: others hear of that within 50 ms, on a busy machine later."""


class Put(msgspec.Struct, frozen=True):
    """A streamer's word that it puts `topic` onto the network of its `endpoint`, at most every `period_ns` (0: each message)."""

    instance: str
    endpoint: str
    authority: str
    topic: UUri
    period_ns: int = 0


class Share(NamedTuple):
    """All targets of a topic, and the endpoints among theirs onto whose networks another streamer puts it.

    `until_ns` is when to `release` what has begun to linger; 0: nothing has.
    """

    targets: tuple[Target, ...]
    left: frozenset[str] = frozenset()
    until_ns: int = 0


class _Lingering(NamedTuple):
    period_ns: int
    until_ns: int


def _nobody(endpoint: str) -> None:
    pass


class Puts:
    """What we and the other streamers on each network put there. Safe from any thread; its lock is a leaf."""

    def __init__(self, neighbours: Neighbours, changed: Callable[[str], None] = _nobody) -> None:
        """`changed` is called with an endpoint for which `announced` has changed, under the caller's locks: it takes a note."""
        self.unannounced = Counter[str]()
        """Plans whose topic was one too many to be announced, by endpoint."""
        self.unheard = Counter[str]()
        """Words on a topic of which there were too many, by endpoint."""
        self._neighbours = neighbours
        self._changed = changed
        self._lock = Lock()
        self._resigned = False
        self._promised: dict[str, dict[UUri, int]] = {}
        self._lingering: dict[UUri, dict[str, _Lingering]] = {}
        self._heard: dict[str, dict[UUri, set[Put]]] = {}

    # --- our own --------------------------------------------------------------------------------------------------------

    def share(self, topic: UUri, targets: tuple[Target, ...], now_ns: int) -> Share:
        """Which of the targets of a publication from a network are ours. Also gives, or takes back, our word on it."""
        wished = {each.endpoint: each.period_ns for each in targets if each.subscriber is None}
        shared = [name for name in wished if self._neighbours.may_be_brought(name, topic.authority_name)]
        if not shared and not self._promised and not self._lingering:
            return Share(targets)
        left, news, until_ns = set(), [], 0
        with self._lock:
            promised = [name for name, topics in self._promised.items() if topic in topics]
            for name in dict.fromkeys((*shared, *promised)):
                wish = wished.get(name)
                before = self._promised.get(name, {}).get(topic)
                until_ns = self._linger(name, topic, before, wish, now_ns) or until_ns
                if self._promise(name, topic, before, None if self._resigned or name not in shared else wish):
                    news.append(name)
                if wish is not None and self._is_anothers(name, topic, wish):
                    left.add(name)
            lingering = dict(self._lingering.get(topic, {}))
        for name in news:
            self._changed(name)
        return Share(_with(targets, lingering), frozenset(left - lingering.keys()), until_ns)

    def _promise(self, endpoint: str, topic: UUri, before: int | None, wish: int | None) -> bool:
        """Give our word for `wish`, or none any more; whether that is news."""
        if wish == before:
            return False
        promises = self._promised.setdefault(endpoint, {})
        if wish is not None and (before is not None or len(promises) < MAX_PROMISES):
            promises[topic] = wish
            return True
        if wish is not None:
            self.unannounced[endpoint] += 1
            return False
        del promises[topic]
        if not promises:
            del self._promised[endpoint]
        return True

    def _linger(self, endpoint: str, topic: UUri, before: int | None, wish: int | None, now_ns: int) -> int:
        """Note that what we have promised is to be done for a while yet; until when.

        Also if nobody has said that it could do it: somebody may have, and left it to us, and we have not heard it yet.
        """
        if before is None or (wish is not None and wish <= before):  # 0, no limit, is the fastest
            return 0
        if self._is_anothers(endpoint, topic, before):
            return 0
        lingering = self._lingering.setdefault(topic, {})
        known = lingering.get(endpoint)
        period_ns = before if known is None else min(known.period_ns, before)
        lingering[endpoint] = _Lingering(period_ns, now_ns + LINGER_NS)
        return now_ns + LINGER_NS

    def _is_anothers(self, endpoint: str, topic: UUri, period_ns: int) -> bool:
        """Whether somebody is believed to put the topic there who comes before us at this rate."""
        said = self._heard.get(endpoint, {}).get(topic)
        if not said:
            return False
        text = str(topic)
        ours = (-period_ns, *weight(self._neighbours.me, text))
        return any(
            self._neighbours.believes(endpoint, who, topic.authority_name)
            and (-each.period_ns, *weight(who, text)) > ours
            for each, who in ((each, Who(each.authority, each.instance)) for each in said)
        )

    def release(self, topic: UUri, now_ns: int) -> None:
        """End what has lingered for long enough."""
        with self._lock:
            lingering = self._lingering.get(topic, {})
            still = {name: each for name, each in lingering.items() if each.until_ns > now_ns}
            if still:
                self._lingering[topic] = still
            else:
                self._lingering.pop(topic, None)

    def drop(self, topics: AbstractSet[UUri]) -> None:
        """Take back our word on these, at once; their plans are to be made again."""
        with self._lock:
            news = [name for name, promises in self._promised.items() if _remove(promises, topics)]
            self._promised = {name: each for name, each in self._promised.items() if each}
        for name in news:
            self._changed(name)

    def drop_all(self) -> None:
        """Take back every word: another configuration may not let us keep it. All plans are to be made again."""
        with self._lock:
            news, self._promised, self._lingering = list(self._promised), {}, {}
        for name in news:
            self._changed(name)

    def resign(self) -> bool:
        """Take back every word for good, and go on as before; whether there was any.

        For a stop: when the others have heard of it, after some 50 ms, they do without us.
        """
        with self._lock:
            self._resigned = True
            news, self._promised = list(self._promised), {}
        for name in news:
            self._changed(name)
        return bool(news)

    def announced(self, endpoint: str) -> frozenset[Put]:
        """What we have to say on the network of `endpoint`."""
        me = self._neighbours.me
        with self._lock:
            promises = list(self._promised.get(endpoint, {}).items())
        return frozenset(Put(me.instance, endpoint, me.authority, *each) for each in promises)

    # --- the others' ----------------------------------------------------------------------------------------------------

    def hear(self, endpoint: str, came: Iterable[Put], went: Iterable[Put]) -> frozenset[UUri]:
        """Take note of what is said on the network of `endpoint`, and is said no more; the topics it is about.

        Their plans are to be made again. What we say ourselves is no news.
        """
        mine = self._neighbours.me.instance
        changed = set()
        with self._lock:
            heard = self._heard.setdefault(endpoint, {})
            for each in went:
                said = heard.get(each.topic)
                if said is not None and each in said:
                    changed.add(each.topic)
                    said.discard(each)
                    if not said:
                        del heard[each.topic]
            for each in came:
                if each.instance == mine:
                    continue
                said = heard.setdefault(each.topic, set())
                if len(said) >= MAX_WORDS:
                    self.unheard[endpoint] += 1
                    continue
                said.add(each)
                changed.add(each.topic)
        return frozenset(changed)


def _with(targets: tuple[Target, ...], lingering: Mapping[str, _Lingering]) -> tuple[Target, ...]:
    """These targets as they are while something lingers: at the old rate, and those that are gone as well."""
    if not lingering:
        return targets
    kept = []
    for target in targets:
        found = lingering.get(target.endpoint) if target.subscriber is None else None
        period_ns = target.period_ns if found is None else min(found.period_ns, target.period_ns)
        kept.append(Target(target.endpoint, target.subscriber, period_ns))
    there = {each.endpoint for each in targets}
    gone = [Target(name, None, each.period_ns) for name, each in lingering.items() if name not in there]
    return (*gone, *kept)


def _remove(promises: dict[UUri, int], topics: AbstractSet[UUri]) -> bool:
    known = promises.keys() & topics
    for each in known:
        del promises[each]
    return bool(known)
