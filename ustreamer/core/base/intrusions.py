# SPDX-License-Identifier: Apache-2.0
"""Counts refused input by its peer, and finds peers that are refused again and again: an attack, or a wrong setting.

In: the counts of refusals of each endpoint, by reason and peer, once a second. Out: log events at the begin and at the
end of an intrusion, and a bounded list for `ustreamer top` and metrics. Nothing here is called for an accepted message.

    reason            an intrusion begins at       and ends after
    login_failed      5 in 60 s                    60 s below
    any other         20 in 5 s                    30 s below

A network that does not name the sender of a refused message has one peer, `UNKNOWN`. So do all peers below the limit
together, at ten times the limit: an attack from many addresses.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import Final, NamedTuple

import msgspec

UNKNOWN: Final = "unknown"
LOGIN_FAILED: Final = "login_failed"
MAX_PEERS: Final = 256
"""Pairs of reason and peer that are counted."""
MAX_TRACKED: Final = 2048
"""Endpoints, reasons and peers that are watched; the one without refusals for the longest time is forgotten."""
MAX_LISTED: Final = 50
_NO_INTRUSION: Final = frozenset({"deferred_to_peer", "duplicate", "stopping", "overload"})
"""Reasons that are part of the normal work of a streamer."""
_REFUSED: Final = "refused_"
_FAILED_LOGINS: Final = "authentications_denied"
_MANY: Final = 10
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


_LIMITS: Final = {LOGIN_FAILED: _Limit(5, 60 * _NS_PER_S, 60 * _NS_PER_S)}
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
        self._before: Mapping[str, Mapping[tuple[str, str], int]] = {}
        """The refusals by peer a second ago."""
        self._begun: Counter[tuple[str, str]] = Counter()
        self._totals: dict[tuple[str, str], int] = {}
        self._others: Counter[tuple[str, str]] = Counter()
        """By endpoint and reason: the refusals of peers that are no intrusions of their own."""

    def observe(
        self,
        counters: Mapping[str, Mapping[str, int]],
        by_peer: Mapping[str, Mapping[tuple[str, str], int]],
        now_ns: int,
        wall_ms: int,
    ) -> None:
        """Take the counters of each endpoint, and its refusals by (reason, peer)."""
        with self._lock:
            for endpoint, counts in counters.items():
                totals = {
                    name.removeprefix(_REFUSED): count
                    for name, count in counts.items()
                    if name.startswith(_REFUSED)
                }
                if _FAILED_LOGINS in counts:
                    totals[LOGIN_FAILED] = counts[_FAILED_LOGINS]
                named: Counter[str] = Counter()
                """By reason: the new refusals of peers that are intrusions of their own."""
                for (reason, peer), count in by_peer.get(endpoint, {}).items():
                    named[reason] += self._observe_one((endpoint, reason, peer), count, now_ns, wall_ms)
                for reason, total in totals.items():
                    before = self._totals.get((endpoint, reason), 0)
                    self._totals[endpoint, reason] = total
                    new = total - before if total >= before else total
                    self._others[endpoint, reason] += max(0, new - named[reason])
                    key = (endpoint, reason, UNKNOWN)
                    scale = _MANY if reason in named else 1
                    self._observe_one(key, self._others[endpoint, reason], now_ns, wall_ms, scale)
            self._before = by_peer

    def _observe_one(self, key: _Key, count: int, now_ns: int, wall_ms: int, scale: int = 1) -> int:
        """The new refusals if the peer is an intrusion now, else 0. `scale` is a factor of the limit."""
        if key[1] in _NO_INTRUSION:
            return 0
        watched = self._watched.get(key)
        if watched is None:
            if count <= 0:
                return 0
            # All refusals of a new peer are new. Those of one that was forgotten are not.
            known = self._before.get(key[0], {}).get(key[1:], 0)
            watched = self._watched[key] = _Watched(known, known, now_ns)
            if len(self._watched) > MAX_TRACKED:
                self._watched.popitem(last=False)
        if count != watched.count:
            self._watched.move_to_end(key)
        if count < watched.base:  # it was forgotten, and counts from 0 again; or a process was restarted
            watched.base = watched.began_count = 0
        new, watched.count = max(0, count - watched.count), count
        limit = _LIMITS.get(key[1], _DEFAULT)
        elapsed_ns = now_ns - watched.since_ns
        if count - watched.base >= limit.refusals * scale:
            if watched.began_ns is None:
                self._begin(key, watched, now_ns, wall_ms)
            watched.last_ns = now_ns
        elif watched.began_ns is not None and now_ns - watched.last_ns >= limit.calm_ns:
            self._end(key, watched, now_ns)
        if elapsed_ns >= limit.window_ns or (watched.last_ns == now_ns and elapsed_ns >= _NS_PER_S):
            watched.per_s = (count - watched.base) * _NS_PER_S / elapsed_ns
            watched.base, watched.since_ns = count, now_ns
        return 0 if watched.began_ns is None else new

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
