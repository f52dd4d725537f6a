# SPDX-License-Identifier: Apache-2.0
"""Counts refused input by its peer, and finds peers that are refused again and again: an attack, or a wrong setting.

In: the counts of refusals of each endpoint, by reason and peer, once a second. Out: log events at the begin and at the
end of an intrusion, and a bounded list for `ustreamer top` and metrics. Nothing here is called for a message.

    reason            an intrusion begins at       and ends after
    login_failed      5 in 60 s                    60 s below
    any other         20 in 5 s                    30 s below

A network that does not name the sender of a refused message has one peer, `UNKNOWN`. So do the peers above the limit of
`PeerRefusals`: an attack from many addresses.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import Final, NamedTuple

import msgspec

UNKNOWN: Final = "unknown"
MAX_PEERS: Final = 256
"""Pairs of reason and peer that are counted."""
MAX_TRACKED: Final = 2048
"""Endpoints, reasons and peers that are watched; the one without refusals for the longest time is forgotten."""
MAX_LISTED: Final = 50
_NO_INTRUSION: Final = frozenset({"deferred_to_peer", "duplicate", "stopping", "overload"})
"""Reasons that are part of the normal work of a streamer."""
_REFUSED: Final = "refused_"
_NS_PER_S: Final = 1_000_000_000
_Key = tuple[str, str, str]
"""Endpoint, reason, peer."""

log = logging.getLogger("ustreamer.intrusions")


class Intrusion(msgspec.Struct, frozen=True):
    """A peer that is refused again and again, since `since_ms` (ms since the epoch); `per_s` of late."""

    endpoint: str
    reason: str
    peer: str
    refusals: int
    per_s: float
    since_ms: int


class PeerRefusals:
    """Refusals by (reason, peer). From any thread; a refusal costs 0.3 us."""

    __slots__ = ("_counts", "_lock")

    def __init__(self) -> None:
        self._counts: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._lock = Lock()

    def add(self, reason: str, peer: str) -> None:
        key = (reason, peer)
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + 1
            self._counts.move_to_end(key)
            if len(self._counts) > MAX_PEERS:
                self._counts.popitem(last=False)

    def counts(self) -> Mapping[tuple[str, str], int]:
        """A copy."""
        with self._lock:
            return dict(self._counts)


class _Limit(NamedTuple):
    """`refusals` in `window_ns` are an intrusion; it ends after `calm_ns` without as many."""

    refusals: int
    window_ns: int
    calm_ns: int


_LIMITS: Final = {"login_failed": _Limit(5, 60 * _NS_PER_S, 60 * _NS_PER_S)}
_DEFAULT: Final = _Limit(20, 5 * _NS_PER_S, 30 * _NS_PER_S)


class _Watched(msgspec.Struct):
    """`base` is the count at `since_ns`, the start of the window. `began_ns` None: no intrusion."""

    count: int
    base: int
    since_ns: int
    began_ns: int | None = None
    began_ms: int = 0
    began_count: int = 0
    last_ns: int = 0
    per_s: float = 0.0


class IntrusionMonitor:
    """`observe` is called on one thread, the others from any."""

    def __init__(self) -> None:
        self._watched: OrderedDict[_Key, _Watched] = OrderedDict()
        self._lock = Lock()
        self._begun: Counter[tuple[str, str]] = Counter()

    def observe(
        self,
        counters: Mapping[str, Mapping[str, int]],
        by_peer: Mapping[str, Mapping[tuple[str, str], int]],
        now_ns: int,
        wall_ms: int,
    ) -> None:
        """Take the counters of each endpoint, and its refusals by (reason, peer)."""
        found: dict[_Key, int] = {}
        for endpoint, counts in counters.items():
            rest = Counter(
                {
                    name.removeprefix(_REFUSED): count
                    for name, count in counts.items()
                    if name.startswith(_REFUSED)
                }
            )
            for (reason, peer), count in by_peer.get(endpoint, {}).items():
                found[endpoint, reason, peer] = count
                if reason in rest:
                    rest[reason] -= count
            found |= {(endpoint, reason, UNKNOWN): count for reason, count in rest.items()}
        with self._lock:
            for key, count in found.items():
                if key[1] not in _NO_INTRUSION:
                    self._observe_one(key, count, now_ns, wall_ms)

    def _observe_one(self, key: _Key, count: int, now_ns: int, wall_ms: int) -> None:
        watched = self._watched.get(key)
        if watched is None:
            if count <= 0:
                return
            # A named peer is new with its first refusal. The sum of the others is new with the streamer.
            watched = self._watched[key] = _Watched(0, 0, now_ns)
            if len(self._watched) > MAX_TRACKED:
                self._watched.popitem(last=False)
        if count != watched.count:
            self._watched.move_to_end(key)
        if count < watched.base:  # it was forgotten, and counts from 0 again; or a process was restarted
            watched.base = watched.began_count = 0
        watched.count = count
        limit = _LIMITS.get(key[1], _DEFAULT)
        elapsed_ns = now_ns - watched.since_ns
        if count - watched.base >= limit.refusals:
            if watched.began_ns is None:
                self._begin(key, watched, now_ns, wall_ms)
            watched.last_ns = now_ns
        elif watched.began_ns is not None and now_ns - watched.last_ns >= limit.calm_ns:
            self._end(key, watched, now_ns)
        if elapsed_ns >= limit.window_ns or (watched.last_ns == now_ns and elapsed_ns >= _NS_PER_S):
            watched.per_s = (count - watched.base) * _NS_PER_S / elapsed_ns
            watched.base, watched.since_ns = count, now_ns

    def _begin(self, key: _Key, watched: _Watched, now_ns: int, wall_ms: int) -> None:
        endpoint, reason, peer = key
        watched.began_ns, watched.began_ms, watched.began_count = now_ns, wall_ms, watched.base
        watched.per_s = float(watched.count - watched.base)
        self._begun[endpoint, reason] += 1
        fields = {"endpoint": endpoint, "reason": reason, "peer": peer}
        log.warning("streamer.intrusion_began", extra={**fields, "refusals": watched.count - watched.base})

    def _end(self, key: _Key, watched: _Watched, now_ns: int) -> None:
        endpoint, reason, peer = key
        assert watched.began_ns is not None  # the caller checks it
        fields = {"endpoint": endpoint, "reason": reason, "peer": peer}
        seconds = round((now_ns - watched.began_ns) / _NS_PER_S)
        refusals = watched.count - watched.began_count
        log.warning("streamer.intrusion_ended", extra={**fields, "refusals": refusals, "seconds": seconds})
        watched.began_ns = None

    def present(self) -> tuple[Intrusion, ...]:
        """The intrusions of now, at most `MAX_LISTED`, those with the most refusals first."""
        with self._lock:
            found = [
                Intrusion(*key, each.count - each.began_count, round(each.per_s, 1), each.began_ms)
                for key, each in self._watched.items()
                if each.began_ns is not None
            ]
        return tuple(sorted(found, key=lambda each: -each.refusals)[:MAX_LISTED])

    def begun(self) -> Mapping[tuple[str, str], int]:
        """The number of intrusions since the start, by endpoint and reason."""
        with self._lock:
            return dict(self._begun)
