# SPDX-License-Identifier: Apache-2.0
"""When to call the uSubscription of another device about which topic. Decides; does not send, and is given the time.

What is to be true there is stated for each topic once (`require`) and holds until it is stated otherwise. It is called
for until it is answered: again when no answer came in 5 minutes, after a pause when the call was not delivered, at once
when the link comes up, and never while the link is known to be down.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Final

import msgspec

from ustreamer.core.base.deadline_queue import DeadlineQueue
from ustreamer.core.base.links import LinkState
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer_usubscription.model.subscription import SubscriptionRecord

CALL_TIMEOUT_MS: Final = 300_000
"""[impl->req~usubscription-remote-max-timeout~1] [impl->LIF-16] At least and at most 5 minutes, so exactly these (X-1)."""

MAX_IN_FLIGHT: Final = 64
"""Calls under way to one device at most: after a restart there may be as many to make as there are remote topics."""

INITIAL_BACKOFF_MS: Final = 1_000
MAX_BACKOFF_MS: Final = 60_000

SUSPICION_BURST: Final = 16
SUSPICION_INTERVAL_MS: Final = 10_000
"""How often a topic is asked about because its device says something else: so often in a row, and then once in this time.

An ECU that goes and comes is two doubts. Without this bound one that does nothing else was asked 2 to 4 times a second for each
of its topics, each answer a commit to the disk.
"""

_NS_PER_MS: Final = 1_000_000


class RemoteMethod(IntEnum):
    """What is called; the numbers are those of both versions of the interface."""

    SUBSCRIBE = 1
    UNSUBSCRIBE = 2


class RemoteCall(msgspec.Struct, eq=False):
    """What the uSubscription of a topic's device is to be told, and how far that has come.

    `wish` is the subscription that is wanted there, None for an Unsubscribe; `asked` is what the last call said. `open`
    is the call under way. Its deadline is when it times out or, if there is none, when the next one is to be made.
    """

    topic: UUri
    desired: SubscriptionRecord | None
    requested: SubscriptionRecord | None = None
    request_id: UUID | None = None
    failures: int = 0
    confirmed: bool = False
    suspicions: int = 0
    suspected_ns: int | None = None
    suspicion_allowed_ns: int = 0

    @property
    def method(self) -> RemoteMethod:
        return RemoteMethod.UNSUBSCRIBE if self.desired is None else RemoteMethod.SUBSCRIBE


class _RemoteDevice:
    """One device: its errands, and which of them are ready to be called, in order."""

    def __init__(self, up_count: int) -> None:
        self.calls: dict[UUri, RemoteCall] = {}
        # Not a dict, whose first key takes O(n) to find once n have gone.
        self.ready: OrderedDict[UUri, None] = OrderedDict()
        self.in_flight = 0
        self.up_count = up_count


class RemoteCalls:
    """The errands to all devices. Belongs to one thread, but for `is_open`."""

    def __init__(self, link_of: Callable[[str], LinkState], refresh_ms: int = 0) -> None:
        """`link_of` tells of an authority whether it can be reached; `refresh_ms` later an answer is confirmed, 0: never."""
        self._link_of = link_of
        self._refresh_ms = refresh_ms
        self._devices: dict[str, _RemoteDevice] = {}
        self._ready_authorities: dict[
            str, None
        ] = {}  # authorities of which something may be ready to be called
        self._link_changed = False  # whether a link has changed since it was last looked
        self._pending: dict[UUID, RemoteCall] = {}
        self._deadlines: DeadlineQueue[UUri] = DeadlineQueue()
        self.counts: Counter[str] = Counter()

    # --- what is to be true -------------------------------------------------------------------------------------------

    def set_desired(self, topic: UUri, desired: SubscriptionRecord | None, *, force: bool = False) -> None:
        """Have `topic` subscribed as `wish` says, or (None) unsubscribed; `again` even if that was granted before.

        A call of the other kind that is under way is given up: the new one comes after it and outdoes it. One of the same
        kind is waited for, then it shows whether what it asked for is still what is wanted.
        [impl->LIF-20] A changed wish is called for like a new one.
        """
        device = self._device(topic.authority_name)
        remote_call = device.calls.get(topic)
        if remote_call is None or (remote_call.desired is None) is not (desired is None):
            self.clear_desired(topic)
            device = self._device(topic.authority_name)
            remote_call = device.calls[topic] = RemoteCall(topic, desired)
            self._make_ready(remote_call)
            return
        remote_call.desired = desired
        if remote_call.confirmed and (force or remote_call.requested != desired):
            self._make_ready(remote_call)

    def clear_desired(self, topic: UUri) -> None:
        """Nothing is to be said about `topic` any more; an answer to a call under way is not waited for.

        [impl->req~usubscription-remote-retry-indefinitely~1] [impl->LIF-17] That is what ends retrying.
        """
        device = self._devices.get(topic.authority_name)
        if device is None or (remote_call := device.calls.pop(topic, None)) is None:
            return
        self._clear_pending(remote_call)
        device.ready.pop(topic, None)
        if not device.calls:
            del self._devices[topic.authority_name]

    # --- answers ------------------------------------------------------------------------------------------------------

    def is_pending(self, reqid: UUID) -> bool:
        """Whether this answers a call that is under way. Safe from any thread."""
        return reqid in self._pending

    def on_response(self, reqid: UUID, authority: str) -> RemoteCall | None:
        """The errand whose call `reqid` was, which is not under way any more.

        None if nobody waits for this answer, or not from `authority`: its own uSubscription speaks for a topic.
        """
        remote_call = self._pending.get(reqid)
        if remote_call is None or remote_call.topic.authority_name != authority:
            return None
        self._clear_pending(remote_call)
        return remote_call

    def on_success(
        self,
        remote_call: RemoteCall,
        now_ns: int,
        jitter: float,
        *,
        pending: bool = False,
        changed: bool = False,
    ) -> None:
        """The answer to the last call has been taken in.

        If another is wanted by now, that is called for at once; else the same once more some day, sooner by up to half of
        the time for `jitter` (0 to 1): a device may lose what it granted without a link that tells of it. `pending` says that
        it waits for another device in turn; what comes of that is asked after the time that a call has. `news`: it says
        something else than the one before, so whatever doubt there was of that was right.
        """
        if not self._is_current(remote_call):
            return
        remote_call.failures = 0
        if changed:
            remote_call.suspicions = 0
        remote_call.confirmed = remote_call.requested == remote_call.desired
        if not remote_call.confirmed:
            self._make_ready(remote_call)
        elif refresh_ms := CALL_TIMEOUT_MS if pending else self._refresh_ms:
            self._set_due(remote_call, now_ns + _jittered_ns(refresh_ms, jitter))

    def on_failure(self, remote_call: RemoteCall, now_ns: int, jitter: float, min_pause_ms: int = 0) -> None:
        """The last call was not delivered, or what it led to could not be kept: call again after a pause, of `least_ms` or more.

        The pause doubles up to a minute; `jitter` (0 to 1) takes up to half of it off, so that a fleet which lost its
        cloud does not come back all at once.
        """
        if not self._is_current(remote_call):
            return
        self.counts["remote_retries"] += 1
        pause_ms = min(INITIAL_BACKOFF_MS << min(remote_call.failures, 16), MAX_BACKOFF_MS)
        remote_call.failures += 1
        remote_call.confirmed = False
        self._clear_pending(remote_call)
        self._set_due(remote_call, now_ns + max(_jittered_ns(pause_ms, jitter), min_pause_ms * _NS_PER_MS))

    def suspect(self, topic: UUri, now_ns: int, jitter: float, *, while_pending: bool = False) -> None:
        """The other side says something else than it answered: ask again, though not at once.

        The pause is that of `failed`, and doubles as long as doubts come that are wrong: one who contradicts every answer of
        his is not asked once a second for ever, and an ECU that reboots once a minute is believed each time. What is `awaited`, an
        answer to come after SUBSCRIBE_PENDING, is asked for at once the first time: an ECU is subscribed within milliseconds.
        Right or wrong, there are no more of them than DOUBTS_AT_ONCE and DOUBTS_PAUSE_MS allow.
        """
        remote_call = self._find(topic)
        if remote_call is None or not remote_call.confirmed:
            return
        if (
            remote_call.suspected_ns is None
            or now_ns - remote_call.suspected_ns > 2 * MAX_BACKOFF_MS * _NS_PER_MS
        ):
            remote_call.suspicions = 0
        remote_call.failures, remote_call.suspected_ns = remote_call.suspicions, now_ns
        remote_call.suspicions += 1
        min_pause_ms = _suspicion_delay_ms(remote_call, now_ns)
        if while_pending and remote_call.suspicions == 1 and not min_pause_ms:
            self._make_ready(remote_call)
        else:
            self.on_failure(remote_call, now_ns, jitter, min_pause_ms)

    def in_flight(self, topic: UUri) -> bool:
        """Whether a call about `topic` is under way."""
        remote_call = self._find(topic)
        return remote_call is not None and remote_call.request_id is not None

    # --- calling ------------------------------------------------------------------------------------------------------

    def pop_due(self, now_ns: int) -> Iterator[RemoteCall]:
        """The errands to call for now; each must be passed to `called` before the next is taken.

        [impl->LIF-18] None to a device whose link is down, and all anew to one whose link has come up: what was on its
        way may be lost, and a device that was gone may have forgotten what it had granted.
        """
        for topic in self._deadlines.pop_all_due(now_ns):
            remote_call = self._devices[topic.authority_name].calls[topic]
            self.counts["remote_timeouts"] += remote_call.request_id is not None
            self._make_ready(remote_call)
        if self._link_changed:
            self._link_changed = False  # before the look: what changes meanwhile is looked at again
            self._check_links()
        for authority in list(self._ready_authorities):
            del self._ready_authorities[authority]
            device = self._devices.get(authority)
            while (
                device and device.ready and device.in_flight < MAX_IN_FLIGHT and self._link_of(authority).up
            ):
                topic, _ = device.ready.popitem(last=False)
                yield device.calls[topic]

    def on_link_changed(self) -> None:
        """Some link has come up or was lost. Safe from any thread; `due` is to be asked then."""
        self._link_changed = True

    def _check_links(self) -> None:
        for authority, device in self._devices.items():
            link = self._link_of(authority)
            if link.up_count != device.up_count:
                device.up_count = link.up_count
                for remote_call in device.calls.values():
                    remote_call.failures = 0
                    self._make_ready(remote_call)
            if device.ready:
                self._ready_authorities[authority] = None

    def begin_call(self, remote_call: RemoteCall, reqid: UUID, now_ns: int) -> None:
        """The call for `errand` is on its way as `reqid`. To be said before it is sent: the answer may be there at once."""
        self.counts["remote_calls"] += 1
        remote_call.request_id, remote_call.requested, remote_call.confirmed = (
            reqid,
            remote_call.desired,
            False,
        )
        self._pending[reqid] = remote_call
        self._devices[remote_call.topic.authority_name].in_flight += 1
        self._set_due(remote_call, now_ns + CALL_TIMEOUT_MS * _NS_PER_MS)

    def next_due_ns(self) -> int | None:
        """When something is due by the clock; answers and links come by themselves."""
        return self._deadlines.next_due

    @property
    def in_flight_count(self) -> int:
        """Calls under way."""
        return len(self._pending)

    # --- one errand ---------------------------------------------------------------------------------------------------

    def _device(self, authority: str) -> _RemoteDevice:
        device = self._devices.get(authority)
        if device is None:
            device = self._devices[authority] = _RemoteDevice(self._link_of(authority).up_count)
        return device

    def _find(self, topic: UUri) -> RemoteCall | None:
        device = self._devices.get(topic.authority_name)
        return None if device is None else device.calls.get(topic)

    def _is_current(self, remote_call: RemoteCall) -> bool:
        return self._find(remote_call.topic) is remote_call

    def _make_ready(self, remote_call: RemoteCall) -> None:
        self._clear_pending(remote_call)
        remote_call.confirmed = False
        authority = remote_call.topic.authority_name
        self._devices[authority].ready[remote_call.topic] = None
        self._ready_authorities[authority] = None

    def _clear_pending(self, remote_call: RemoteCall) -> None:
        """Wait for nothing: neither for an answer nor for a time."""
        if remote_call.request_id is not None:
            authority = remote_call.topic.authority_name
            del self._pending[remote_call.request_id]
            self._devices[authority].in_flight -= 1
            self._ready_authorities[authority] = None  # there is room for another
            remote_call.request_id = None
        self._deadlines.cancel(remote_call.topic)

    def _set_due(self, remote_call: RemoteCall, due_ns: int) -> None:
        self._deadlines.schedule(remote_call.topic, due_ns)


def _suspicion_delay_ms(remote_call: RemoteCall, now_ns: int) -> int:
    """How many ms one more doubt about this topic has to wait; it is one more from now on."""
    pause_ns = SUSPICION_INTERVAL_MS * _NS_PER_MS
    allowed_ns = max(remote_call.suspicion_allowed_ns, now_ns)
    remote_call.suspicion_allowed_ns = allowed_ns + pause_ns
    return max(0, allowed_ns - now_ns - (SUSPICION_BURST - 1) * pause_ns) // _NS_PER_MS


def _jittered_ns(pause_ms: int, jitter: float) -> int:
    """So many ms in ns, or up to half as many."""
    return round(pause_ms * (1 - jitter / 2) * _NS_PER_MS)
