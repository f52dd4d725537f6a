# SPDX-License-Identifier: Apache-2.0
"""Desired subscriptions against acknowledged ones: decides which call to a peer is due. Sends nothing.

In: desired values by key, answers, link changes, the monotonic time, jitter. Out: entries for which a call is due. The
owner encodes and sends the call, decodes the answer and reports the outcome.

The retry policy: one call per key at a time; a value that changes during a call is requested after its answer; a failed
call is repeated after a pause that doubles; a link that comes up repeats every call of its peer at once, within a limit:
else a node that connects again and again would supersede each call before its answer.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Final, Generic, TypeVar

import msgspec

from ustreamer.core.base.backoff import backoff_ns, jittered_ns
from ustreamer.core.base.deadline_queue import DeadlineQueue
from ustreamer.core.base.links import LinkState

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
C = TypeVar("C", bound=Hashable)

_NS_PER_MS: Final = 1_000_000
_NEVER_NS: Final = 1 << 62
_LINK_UP: Final = LinkState(up=True, up_count=0)


class ReconcilerPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and retry times of the calls to one peer.

    `opposite_supersedes`: a Subscribe abandons a pending Unsubscribe and is sent at once, and the other way round.
    Without this option a call waits for the answer to the one before. `suspicion_burst` suspicions of an entry may
    cause calls in a row; later ones cause one call per `suspicion_interval_ms`. `link_burst` and `link_interval_ms`
    limit in the same way how often a link that comes up repeats all calls of its peer. While a link does not stay up,
    answers that take longer than this interval come too late.
    """

    call_timeout_ms: int
    max_in_flight: int
    initial_backoff_ms: int = 1_000
    max_backoff_ms: int = 60_000
    opposite_supersedes: bool = False
    suspicion_burst: int = 16
    suspicion_interval_ms: int = 10_000
    link_burst: int = 16
    link_interval_ms: int = 1_000


class _Limit:
    """A burst of events, then one per interval."""

    __slots__ = ("_allowed_ns",)

    def __init__(self) -> None:
        self._allowed_ns = 0

    def delay_ns(self, now_ns: int, burst: int, interval_ms: int) -> int:
        """Count one more event; the time before it is allowed."""
        interval_ns = interval_ms * _NS_PER_MS
        allowed_ns = max(self._allowed_ns, now_ns)
        self._allowed_ns = allowed_ns + interval_ns
        return max(0, allowed_ns - now_ns - (burst - 1) * interval_ns)


class SubscriptionEntry(Generic[K, V, C]):
    """The values of one key: `desired`, `requested` by the last call, `acknowledged`; None is "no subscription".

    `confirmed`: the last call was answered and the peer is not suspected to have another state.
    """

    __slots__ = (
        "acknowledged",
        "confirmed",
        "desired",
        "failures",
        "key",
        "pending_call",
        "requested",
        "suspected_ns",
        "suspicion_limit",
        "suspicions",
    )

    def __init__(self, key: K, desired: V | None) -> None:
        self.key = key
        self.desired = desired
        self.requested: V | None = None
        self.acknowledged: V | None = None
        self.pending_call: C | None = None
        self.confirmed = False
        self.failures = 0
        self.suspicions = 0
        self.suspected_ns: int | None = None
        self.suspicion_limit = _Limit()


class _Peer(Generic[K, V, C]):
    """The entries of one peer, and those ready to be called, in order."""

    def __init__(self, up_count: int) -> None:
        self.entries: dict[K, SubscriptionEntry[K, V, C]] = {}
        # Not a dict: after n removals at the front, its first key takes O(n) to find.
        self.ready: OrderedDict[K, None] = OrderedDict()
        self.in_flight = 0
        self.up_count = up_count
        self.repeat_limit = _Limit()
        self.repeat_ns = _NEVER_NS
        """When to repeat all calls: the link has come up."""


class SubscriptionReconciler(Generic[K, V, C]):
    """The calls to all peers. Belongs to one thread, except `is_pending` and `on_link_changed`."""

    def __init__(
        self,
        policy: ReconcilerPolicy,
        peer_of: Callable[[K], str] = lambda key: "",
        link_of: Callable[[str], LinkState] = lambda peer: _LINK_UP,
    ) -> None:
        """`peer_of` names the peer that is called about a key, `link_of` whether that peer can be reached.

        The default is one peer that can always be reached: the uSubscription in the same process.
        """
        self._policy = policy
        self._peer_of = peer_of
        self._link_of = link_of
        self._peers: dict[str, _Peer[K, V, C]] = {}
        # Only these are examined: the names of peers come from subscribers, and there may be many unreachable ones.
        self._ready_peers: dict[str, None] = {}
        self._link_changed = False
        self._repeat_ns = _NEVER_NS
        self._pending: dict[C, SubscriptionEntry[K, V, C]] = {}
        self._deadlines: DeadlineQueue[K] = DeadlineQueue()

    # --- desired values -----------------------------------------------------------------------------------------------

    def set_desired(self, key: K, desired: V | None, *, force: bool = False) -> None:
        """Request `desired` for `key`, None to unsubscribe; with `force`, even if that value is acknowledged.

        [impl->LIF-20] A changed value is requested like a new one.
        """
        entry = self.find(key)
        if entry is None or (
            self._policy.opposite_supersedes and (entry.desired is None) is not (desired is None)
        ):
            self.forget(key)
            self._make_ready(self._add(SubscriptionEntry(key, desired)))
            return
        if (entry.desired is None) is not (desired is None):
            entry.failures = 0
        entry.desired = desired
        if entry.confirmed and (force or entry.requested != desired):
            self._make_ready(entry)

    def assume_acknowledged(self, key: K, value: V | None) -> None:
        """Add `key` with `value` both desired and acknowledged, without a call. `key` has no entry yet."""
        entry = self._add(SubscriptionEntry(key, value))
        entry.requested = entry.acknowledged = value
        entry.confirmed = True

    def revert_desired(self, key: K) -> None:
        """Desire the acknowledged value again; a pending call is still waited for."""
        entry = self.find(key)
        if entry is not None:
            entry.desired = entry.acknowledged

    def forget(self, key: K) -> None:
        """Drop the entry of `key`; the answer to a pending call is ignored.

        [impl->req~usubscription-remote-retry-indefinitely~1] [impl->LIF-17] This alone ends the retries.
        """
        name = self._peer_of(key)
        peer = self._peers.get(name)
        if peer is None or (entry := peer.entries.pop(key, None)) is None:
            return
        self._clear_pending(entry)
        peer.ready.pop(key, None)
        if not peer.entries:
            del self._peers[name]

    def find(self, key: K) -> SubscriptionEntry[K, V, C] | None:
        peer = self._peers.get(self._peer_of(key))
        return None if peer is None else peer.entries.get(key)

    # --- answers ------------------------------------------------------------------------------------------------------

    def is_pending(self, call: C) -> bool:
        """Whether `call` is a pending call. Safe from any thread."""
        return call in self._pending

    def pending_entry(self, call: C) -> SubscriptionEntry[K, V, C] | None:
        """The entry of a pending call."""
        return self._pending.get(call)

    def unconfirmed_entries(self, peer: str) -> list[SubscriptionEntry[K, V, C]]:
        """The entries of `peer` that wait for an answer or for a call."""
        known = self._peers.get(peer)
        return [] if known is None else [each for each in known.entries.values() if not each.confirmed]

    def on_response(self, call: C) -> SubscriptionEntry[K, V, C] | None:
        """The entry of `call`, which is no longer pending; None if `call` is unknown, superseded or answered.

        The owner reports the outcome with `on_success`, `on_failure` or `settle`, at once or after a commit.
        """
        entry = self._pending.get(call)
        if entry is not None:
            self._clear_pending(entry)
        return entry

    def on_success(
        self,
        entry: SubscriptionEntry[K, V, C],
        now_ns: int,
        jitter: float = 0.0,
        *,
        refresh_ms: int = 0,
        changed: bool = False,
    ) -> None:
        """The peer acknowledged the last call. A value that changed meanwhile is requested at once.

        After `refresh_ms` (0: never) the call is repeated: a peer may lose its state while its link stays up.
        `jitter` (0 to 1) shortens the time by up to half. `changed`: the answer differs from the one before, so a
        suspicion was right.
        """
        if not self._is_current(entry):
            return
        entry.failures = 0
        if changed:
            entry.suspicions = 0
        entry.acknowledged = entry.requested
        self.settle(entry)
        if entry.confirmed and refresh_ms:
            self._deadlines.schedule(entry.key, now_ns + jittered_ns(refresh_ms, jitter))

    def settle(self, entry: SubscriptionEntry[K, V, C]) -> None:
        """Keep the acknowledged value, without a further call unless another value is desired.

        For a call that was refused for good, and for a ready entry that turned out to need no call.
        """
        if not self._is_current(entry):
            return
        entry.requested = entry.acknowledged
        entry.confirmed = entry.requested == entry.desired
        if not entry.confirmed:
            self._make_ready(entry)

    def on_failure(
        self, entry: SubscriptionEntry[K, V, C], now_ns: int, jitter: float = 0.0, min_pause_ms: int = 0
    ) -> bool:
        """Repeat the last call after a pause of at least `min_pause_ms`; False if the entry was replaced meanwhile.

        The pause doubles up to `max_backoff_ms`. `jitter` (0 to 1) shortens it by up to half, as in
        `core.base.backoff`.
        """
        if not self._is_current(entry):
            return False
        policy = self._policy
        pause_ns = backoff_ns(policy.initial_backoff_ms, policy.max_backoff_ms, entry.failures, jitter)
        entry.failures += 1
        entry.confirmed = False
        self._clear_pending(entry)
        self._deadlines.schedule(entry.key, now_ns + max(pause_ns, min_pause_ms * _NS_PER_MS))
        return True

    def suspect(self, key: K, now_ns: int, jitter: float = 0.0, *, at_once: bool = False) -> bool:
        """The peer announced a state that differs from its answer: repeat the call. True if that takes a pause.

        The pause is that of `on_failure` and doubles with each wrong suspicion, so that a peer that contradicts all its
        answers is called less and less often. With `at_once` the first suspicion causes no pause. The burst limit of the
        policy applies to right and wrong suspicions.
        """
        entry = self.find(key)
        if entry is None or not entry.confirmed:
            return False
        quiet_ns = 2 * self._policy.max_backoff_ms * _NS_PER_MS
        if entry.suspected_ns is None or now_ns - entry.suspected_ns > quiet_ns:
            entry.suspicions = 0
        entry.failures, entry.suspected_ns = entry.suspicions, now_ns
        entry.suspicions += 1
        min_pause_ms = self._suspicion_delay_ms(entry, now_ns)
        if at_once and entry.suspicions == 1 and not min_pause_ms:
            self._make_ready(entry)
            return False
        return self.on_failure(entry, now_ns, jitter, min_pause_ms)

    # --- calls --------------------------------------------------------------------------------------------------------

    def pop_timeouts(self, now_ns: int) -> list[SubscriptionEntry[K, V, C]]:
        """The entries without an answer in `call_timeout_ms`; their calls are no longer pending.

        Entries whose pause is over become ready and are not returned.
        The owner passes each returned entry to `retry`, `on_failure` or `settle`, or its key to `forget`.

        [impl->LIF-18] Every entry of a peer whose link has come up becomes ready: calls may be lost, and the peer may have
        restarted without its state.
        """
        if self._link_changed or now_ns >= self._repeat_ns:
            self._link_changed = False  # before the check: a change during the check is checked again
            self._check_links(now_ns)
        timed_out = []
        while (key := self._deadlines.pop_due(now_ns)) is not None:
            entry = self._peers[self._peer_of(key)].entries[key]
            if entry.pending_call is None:
                self._make_ready(entry)
            else:
                self._clear_pending(entry)
                timed_out.append(entry)
        return timed_out

    def retry(self, entry: SubscriptionEntry[K, V, C]) -> None:
        """Repeat the call of `entry` without a pause."""
        if self._is_current(entry):
            self._make_ready(entry)

    def pop_ready(self) -> Iterator[SubscriptionEntry[K, V, C]]:
        """The entries to call now; pass each to `begin_call` or `settle` before taking the next.

        [impl->LIF-18] Yields no entry of a peer whose link is down.
        """
        for name in list(self._ready_peers):
            self._ready_peers.pop(name, None)
            peer = self._peers.get(name)
            while (
                peer and peer.ready and peer.in_flight < self._policy.max_in_flight and self._link_of(name).up
            ):
                key, _ = peer.ready.popitem(last=False)
                yield peer.entries[key]

    def begin_call(self, entry: SubscriptionEntry[K, V, C], call: C, now_ns: int) -> None:
        """Note the call for the desired value as pending. Comes before the send: the answer may be immediate."""
        entry.pending_call, entry.requested, entry.confirmed = call, entry.desired, False
        self._pending[call] = entry
        self._peers[self._peer_of(entry.key)].in_flight += 1
        self._deadlines.schedule(entry.key, now_ns + self._policy.call_timeout_ms * _NS_PER_MS)

    def on_link_changed(self) -> None:
        """A link came up or went down; `pop_timeouts` is due. Safe from any thread."""
        self._link_changed = True

    def next_due_ns(self) -> int | None:
        """The monotonic time of the next timeout or retry."""
        due_ns = self._deadlines.next_due
        if self._repeat_ns == _NEVER_NS:
            return due_ns
        return self._repeat_ns if due_ns is None else min(due_ns, self._repeat_ns)

    @property
    def in_flight_count(self) -> int:
        """Pending calls to all peers."""
        return len(self._pending)

    # --- one entry ----------------------------------------------------------------------------------------------------

    def _add(self, entry: SubscriptionEntry[K, V, C]) -> SubscriptionEntry[K, V, C]:
        name = self._peer_of(entry.key)
        peer = self._peers.get(name)
        if peer is None:
            peer = self._peers[name] = _Peer(self._link_of(name).up_count)
        peer.entries[entry.key] = entry
        return entry

    def _is_current(self, entry: SubscriptionEntry[K, V, C]) -> bool:
        return self.find(entry.key) is entry

    def _make_ready(self, entry: SubscriptionEntry[K, V, C]) -> None:
        self._clear_pending(entry)
        entry.confirmed = False
        name = self._peer_of(entry.key)
        self._peers[name].ready[entry.key] = None
        self._ready_peers[name] = None

    def _clear_pending(self, entry: SubscriptionEntry[K, V, C]) -> None:
        """End the wait for an answer and for a time."""
        if entry.pending_call is not None:
            name = self._peer_of(entry.key)
            del self._pending[entry.pending_call]
            self._peers[name].in_flight -= 1
            self._ready_peers[name] = None  # one more call fits
            entry.pending_call = None
        self._deadlines.cancel(entry.key)

    def _check_links(self, now_ns: int) -> None:
        for name, peer in self._peers.items():
            link = self._link_of(name)
            if link.up_count != peer.up_count:
                peer.up_count = link.up_count
                if peer.repeat_ns == _NEVER_NS:
                    policy = self._policy
                    delay_ns = peer.repeat_limit.delay_ns(now_ns, policy.link_burst, policy.link_interval_ms)
                    peer.repeat_ns = now_ns + delay_ns
            if peer.repeat_ns <= now_ns:
                peer.repeat_ns = _NEVER_NS
                for entry in peer.entries.values():
                    entry.failures = 0
                    self._make_ready(entry)
            if peer.ready:
                self._ready_peers[name] = None
        self._repeat_ns = min((each.repeat_ns for each in self._peers.values()), default=_NEVER_NS)

    def _suspicion_delay_ms(self, entry: SubscriptionEntry[K, V, C], now_ns: int) -> int:
        """Count one more suspicion; the ms before it may cause a call."""
        policy = self._policy
        delay_ns = entry.suspicion_limit.delay_ns(
            now_ns, policy.suspicion_burst, policy.suspicion_interval_ms
        )
        return delay_ns // _NS_PER_MS
