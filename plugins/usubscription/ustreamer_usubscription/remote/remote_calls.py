# SPDX-License-Identifier: Apache-2.0
"""The calls to uSubscriptions of other devices: timeouts, retries and bounds of the standard. Sends nothing.

`SubscriptionReconciler` decides; this module sets its policy and counts. A call is repeated until a response arrives:
after a timeout of 5 minutes, after a pause if it was not delivered, at once when the link becomes available. It is
never sent while the link is down.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from ustreamer.core.base.links import LinkState
from ustreamer.core.routing.subscription_reconciler import (
    ReconcilerPolicy,
    SubscriptionEntry,
    SubscriptionReconciler,
)
from ustreamer.core.routing.usubscription_codec import UsubscriptionMethod
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer_usubscription.model.subscription import SubscriptionRecord

CALL_TIMEOUT_MS: Final = 300_000
"""[impl->req~usubscription-remote-max-timeout~1] [impl->LIF-16] At least and at most 5 minutes: exactly 5 (X-1)."""

MAX_IN_FLIGHT: Final = 64
"""Pending calls to one device: a restart causes one call per remote topic."""

INITIAL_BACKOFF_MS: Final = 1_000
MAX_BACKOFF_MS: Final = 60_000

SUSPICION_BURST: Final = 16
SUSPICION_INTERVAL_MS: Final = 10_000
"""Bound of the calls caused by contradicting Updates of one topic: a burst, then one per interval.

A reboot of an ECU causes two calls. Without the limit, an ECU that reboots repeatedly caused 2 to 4 calls per second
for each topic. Each response is a commit to the disk.
"""

CALL_POLICY: Final = ReconcilerPolicy(
    call_timeout_ms=CALL_TIMEOUT_MS,
    max_in_flight=MAX_IN_FLIGHT,
    initial_backoff_ms=INITIAL_BACKOFF_MS,
    max_backoff_ms=MAX_BACKOFF_MS,
    opposite_supersedes=True,  # an answer may take 5 minutes
    suspicion_burst=SUSPICION_BURST,
    suspicion_interval_ms=SUSPICION_INTERVAL_MS,
)

RemoteCall: TypeAlias = SubscriptionEntry[UUri, SubscriptionRecord, UUID]
"""The desired subscription of a remote topic, and the progress of its calls; a desired None is an Unsubscribe."""


def method_of(remote_call: RemoteCall) -> UsubscriptionMethod:
    """The method that requests the desired subscription."""
    return UsubscriptionMethod.UNSUBSCRIBE if remote_call.desired is None else UsubscriptionMethod.SUBSCRIBE


class RemoteCalls:
    """The calls to all devices. Belongs to one thread, except `is_pending` and `on_link_changed`."""

    def __init__(
        self,
        link_of: Callable[[str], LinkState],
        refresh_ms: int = 0,
        upstream_of: Callable[[str], str] = str,
    ) -> None:
        """`link_of` is the link state of an authority; after `refresh_ms` (0: never) an answered call is repeated.

        `upstream_of` is the device to call about topics of an authority; by default that authority itself.
        """
        self._refresh_ms = refresh_ms
        self._upstream_of = upstream_of
        self._reconciler: SubscriptionReconciler[UUri, SubscriptionRecord, UUID] = SubscriptionReconciler(
            CALL_POLICY, lambda topic: upstream_of(topic.authority_name), link_of
        )
        self.set_desired = self._reconciler.set_desired
        self.repeat = self._reconciler.retry
        self.clear_desired = self._reconciler.forget
        self.is_pending = self._reconciler.is_pending
        self.unconfirmed_calls = self._reconciler.unconfirmed_entries
        self.on_link_changed = self._reconciler.on_link_changed
        self.next_due_ns = self._reconciler.next_due_ns
        self.counts: Counter[str] = Counter()

    @property
    def in_flight_count(self) -> int:
        """Pending calls."""
        return self._reconciler.in_flight_count

    def in_flight(self, topic: UUri) -> bool:
        """Whether a call about `topic` is pending."""
        remote_call = self._reconciler.find(topic)
        return remote_call is not None and remote_call.pending_call is not None

    def on_response(self, reqid: UUID, authority: str) -> RemoteCall | None:
        """The pending call `reqid`, which is no longer pending.

        None if there is no such call, or if `authority` is not that of the called device: only that one answers.
        """
        remote_call = self._reconciler.pending_entry(reqid)
        if remote_call is None or self._upstream_of(remote_call.key.authority_name) != authority:
            return None
        return self._reconciler.on_response(reqid)

    def on_success(
        self,
        remote_call: RemoteCall,
        now_ns: int,
        jitter: float,
        *,
        pending: bool = False,
        changed: bool = False,
    ) -> None:
        """The answer is committed.

        `pending`: the device waits for another device, and is called again after a timeout.

        `changed`: the answer differs from the one before. `jitter` (0 to 1) takes up to half of the time to the
        refresh off.
        """
        refresh_ms = CALL_TIMEOUT_MS if pending else self._refresh_ms
        self._reconciler.on_success(remote_call, now_ns, jitter, refresh_ms=refresh_ms, changed=changed)

    def on_failure(self, remote_call: RemoteCall, now_ns: int, jitter: float) -> None:
        """The call was not delivered, or its answer could not be stored: repeat it after a pause."""
        self.counts["remote_retries"] += self._reconciler.on_failure(remote_call, now_ns, jitter)

    def suspect(self, topic: UUri, now_ns: int, jitter: float, *, while_pending: bool = False) -> None:
        """The device announced a state other than the one it answered: repeat the call after a pause.

        After a SUBSCRIBE_PENDING (`while_pending`) the first call has no pause: an ECU is subscribed within
        milliseconds.
        """
        self.counts["remote_retries"] += self._reconciler.suspect(
            topic, now_ns, jitter, at_once=while_pending
        )

    def pop_due(
        self, now_ns: int, on_timeout: Callable[[UUri], None] = lambda _: None
    ) -> Iterator[RemoteCall]:
        """The calls to make now; pass each to `begin_call` before taking the next.

        `on_timeout` gets the topic of each call that had no answer.
        """
        for remote_call in self._reconciler.pop_timeouts(now_ns):
            self.counts["remote_timeouts"] += 1
            on_timeout(remote_call.key)
            self._reconciler.retry(remote_call)
        yield from self._reconciler.pop_ready()

    def begin_call(self, remote_call: RemoteCall, reqid: UUID, now_ns: int) -> None:
        """Record the call as pending. Called before the send, because the response can be immediate."""
        self.counts["remote_calls"] += 1
        self._reconciler.begin_call(remote_call, reqid, now_ns)
