# SPDX-License-Identifier: Apache-2.0
"""Remote topics: requests to the uSubscriptions of other devices, and the meaning of their answers.

The subscriber is core.usubscription of this device, for all its clients: a publication is transferred once and
distributed here [impl->dsn~usubscription-subscribe-remote-subscriber-change~1]
[impl->dsn~usubscription-unsubscribe-remote-subscriber-change~1] [impl->LIF-15].
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from google.protobuf.message import Message

from ustreamer.core.base.links import LinkStates
from ustreamer.core.routing.subscriptions import fastest_period
from ustreamer.core.routing.usubscription_codec import (
    NOT_DELIVERED,
    USUBSCRIPTION,
    Status,
    UsubscriptionMethod,
    subscription_update_in,
)
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, request
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import ANY_INSTANCE, UUri
from ustreamer.uprotocol.wire import decode_status
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.model.lifecycle import LifecycleEvent
from ustreamer_usubscription.model.subscription import SubscriptionRecord
from ustreamer_usubscription.remote.earlier_upstreams import EarlierUpstreams
from ustreamer_usubscription.remote.peer_versions import OTHER_VERSION, PeerVersions
from ustreamer_usubscription.remote.remote_calls import (
    CALL_TIMEOUT_MS,
    RemoteCall,
    RemoteCalls,
    method_of,
)
from ustreamer_usubscription.remote.version_probes import FETCH_INTERVAL_MS, VersionProbe, VersionProbes
from ustreamer_usubscription.requests import v3
from ustreamer_usubscription.requests.remote_codec import (
    CLIENT_CODECS,
    FETCH_SUBSCRIPTIONS,
    subscribe_status_in,
)
from ustreamer_usubscription.requests.requests import MAX_DETAILS
from ustreamer_usubscription.store.transaction import ServiceState, Transaction

MAX_REMOTE_REASON: Final = 256
"""Characters of another device's reason that are passed on to all subscribers of the topic."""

MAX_ORPHANS: Final = 4_000
MAX_ORPHANS_OF_DEVICE: Final = 1_000
"""Subscriptions that exist only at other devices and are being ended. Further ones wait for the device's next Update."""

_MS_PER_S: Final = 1000
_DESIRED_STATUSES: Final = (Status.SUBSCRIBE_PENDING, Status.SUBSCRIBED)

_EVENT_OF_STATUS: Final[Mapping[Status, LifecycleEvent]] = {
    Status.SUBSCRIBED: LifecycleEvent.REMOTE_SUBSCRIBED,
    Status.SUBSCRIBE_PENDING: LifecycleEvent.REMOTE_PENDING,
    Status.UNSUBSCRIBED: LifecycleEvent.REMOTE_REFUSED,
}
_STATUS_AFTER_EVENT: Final[Mapping[LifecycleEvent, Status]] = {
    LifecycleEvent.REMOTE_SUBSCRIBED: Status.SUBSCRIBED,
    LifecycleEvent.REMOTE_PENDING: Status.SUBSCRIBE_PENDING,
}
"""The state of a topic after this answer alone; none after all other answers."""

log = logging.getLogger("ustreamer.usubscription")


class RemoteReply(msgspec.Struct, frozen=True):
    """The meaning of an answer: a lifecycle event with a reason, or None: repeat the call."""

    event: LifecycleEvent | None
    reason: str = ""


class _StatusHint(msgspec.Struct, frozen=True):
    """The status of a topic by an Update, and its time."""

    status: Status
    now_ns: int
    jitter: float


class RemoteTopics:
    """Requests the subscriptions of remote topics from their devices. Belongs to the service's thread.

    An answer takes two steps, `on_response` before the commit and `on_transaction_end` after it: a call is complete
    when its effect is on disk.
    """

    def __init__(
        self,
        state: ServiceState,
        authority: str,
        links: LinkStates,
        ids: UuidSource,
        config: UsubscriptionConfig,
        via_file: Path,
    ) -> None:
        """`via_file` has the `via` of the last start."""
        self._state = state
        self._authority = authority
        self._ids = ids
        self._name_subscriber = config.legacy_subscriber_field
        self._upstream_of = config.upstream_of
        self._calls = RemoteCalls(links.state_of, config.remote_refresh_s * _MS_PER_S, config.upstream_of)
        self._peer_versions = PeerVersions(links.state_of, config.upstream_of)
        self._probes = VersionProbes(links.state_of)
        self._earlier = EarlierUpstreams(via_file, config.via, links)
        self._call_versions: dict[UUri, int] = {}  # of the last call about each topic
        self._responses: list[tuple[RemoteCall, RemoteReply, UUID]] = []
        self._hints: dict[UUri, _StatusHint] = {}  # the last one for each topic with a pending call
        # Topics with a subscription at the other device only, which is being ended, and their number for each device.
        self._orphans: set[UUri] = set()
        self._orphan_counts: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()

    # --- messages -----------------------------------------------------------------------------------------------------

    def expects(self, message: UMessage) -> bool:
        """Whether a Response answers a pending call or a probe. Safe from any thread."""
        reqid = message.attributes.reqid
        return reqid is not None and (
            self._calls.is_pending(reqid)
            or self._earlier.is_pending(reqid)
            or self._probes.find(message.attributes) is not None
        )

    def on_response(self, message: UMessage, transaction: Transaction, now_ns: int) -> None:
        """Apply the Response to a call to the transaction, for all subscribers of the topic."""
        reqid, source = message.attributes.reqid, message.attributes.source
        remote_call = None
        probe = self._probes.find(message.attributes)
        if probe is not None:
            self._on_probe_answer(probe, message, now_ns)
            return
        if reqid is not None and _is_valid_responder(message):
            remote_call = self._calls.on_response(reqid, source.authority_name)
        if reqid is not None and self._earlier.is_pending(reqid):
            if _is_valid_responder(message):
                self._earlier.on_response(message, now_ns, _jitter(reqid))
            return
        if reqid is None or remote_call is None:
            self._counts["remote_late"] += 1
            return
        version = self._call_versions[remote_call.key]
        if self._is_for_other_version(message, remote_call.key, version):
            self._calls.repeat(remote_call)
            return
        try:
            reply = _decode_reply(remote_call, message, version, source.authority_name)
        except UStatusError as error:
            if self._is_first("remote_unreadable"):
                extra = {"topic": str(remote_call.key), "why": str(error)}
                log.warning("usubscription.unreadable_response", extra=extra)
            reply = RemoteReply(None)
        self._responses.append((remote_call, reply, reqid))
        if reply.event is not None:
            transaction.apply_remote_event(remote_call.key, reply.event, reply.reason)

    def _on_probe_answer(self, probe: VersionProbe, response: UMessage, now_ns: int) -> None:
        """Use the version of the probe, if the device knows that version."""
        code = response.attributes.commstatus or UCode.OK
        if code in NOT_DELIVERED or not _is_valid_responder(response):
            return  # the call may still be answered
        if code is UCode.UNIMPLEMENTED:  # as above, and the device may know no lists
            self._probes.postpone(probe, now_ns, CALL_TIMEOUT_MS)
            return
        is_other = probe.version != self._peer_versions.version_for(probe.topic)
        if is_other and self._peer_versions.is_settled(probe.topic):
            self._probes.on_answer_in_other_version(probe, now_ns)
        else:
            self._use_version(probe)

    def _use_version(self, probe: VersionProbe) -> None:
        """Settle the version of a device by its probe, and repeat the pending calls that have the other version."""
        self._on_version_answer(probe.topic, probe.version)
        for each in self._calls.unconfirmed_calls(probe.authority):
            if self._peer_versions.version_for(each.key) != self._call_versions.get(each.key):
                self._calls.repeat(each)

    def _on_version_answer(self, topic: UUri, version: int) -> None:
        """The device of `topic` knows `version`: it needs no probes."""
        self._peer_versions.on_answer(topic, version)
        self._probes.end(self._upstream_of(topic.authority_name))

    def _is_for_other_version(self, response: UMessage, topic: UUri, version: int) -> bool:
        """Note whether the device knows `version`, by a Response; True to repeat the call in the other version."""
        code = response.attributes.commstatus or UCode.OK
        if code in NOT_DELIVERED:
            self._peer_versions.on_undelivered(topic, version)
            if not self._peer_versions.is_settled(topic):
                self._probes.on_undelivered(self._upstream_of(topic.authority_name))
            return False
        if code is UCode.UNIMPLEMENTED:
            return self._peer_versions.on_unimplemented(topic, version)
        self._on_version_answer(topic, version)
        return False

    def on_notification(self, message: UMessage, now_ns: int) -> None:
        """Note the Update of another device: where it contradicts the known status, the call is repeated.

        Its status is a hint only: an Update may be older than the last answer, which has another priority. The other
        device may have been reset, have ended the subscription, have got what it waited for, or have an orphan
        subscription.
        """
        update = subscription_update_in(message)
        if update is None:
            return
        if self._upstream_of(update.topic.authority_name) != message.attributes.source.authority_name:
            return
        if update.subscriber.with_resource(0) not in (self._own_uuri(version) for version in CLIENT_CODECS):
            return
        if self._state.is_remote(update.topic):
            self._hints[update.topic] = _StatusHint(update.status, now_ns, _jitter(message.id))

    # --- desired subscriptions ----------------------------------------------------------------------------------------

    def load_stored(self) -> None:
        """Request every remote topic again after a start: pending work continues, granted ones are confirmed.

        What an earlier `via` subscribed at another device ends there.
        """
        self._earlier.load(self._state.remote_states)
        for topic in self._state.remote_states:
            self._update_desired(topic)

    def on_transaction_end(self, transaction: Transaction, now_ns: int, *, committed: bool) -> None:
        """Process the changes of a committed transaction, and complete the calls whose responses caused the changes."""
        if committed:
            for topic in self._affected_topics(transaction):
                # A client that left and returned within one transaction waits for an answer, too.
                self._update_desired(
                    topic, force=transaction.remote_states.changes.get(topic) is Status.SUBSCRIBE_PENDING
                )
        for remote_call, reply, reqid in self._responses:
            if committed and reply.event is not None:
                pending, changed = (
                    reply.event is LifecycleEvent.REMOTE_PENDING,
                    remote_call.key in transaction.remote_states.changes,
                )
                self._calls.on_success(remote_call, now_ns, _jitter(reqid), pending=pending, changed=changed)
                # A client that subscribed or left in the same transaction has no answer yet, though the state may be
                # unchanged.
                if self._state.remote_states.find(remote_call.key) is not _STATUS_AFTER_EVENT.get(
                    reply.event
                ):
                    self._update_desired(remote_call.key, force=True)
                elif self._state.remote_states.find(remote_call.key) is None:
                    self._forget(remote_call.key)
            else:
                self._calls.on_failure(remote_call, now_ns, _jitter(reqid))
        self._responses.clear()
        self._check_hints()

    def _check_hints(self) -> None:
        """Repeat the call where a hint contradicts the known status.

        A hint that arrived during a call, or together with its answer, is compared with the answer.
        """
        for topic in [each for each in self._hints if not self._calls.in_flight(each)]:
            hint, known = self._hints.pop(topic), self._state.remote_states.find(topic)
            if known in _DESIRED_STATUSES and known is not hint.status:
                while_pending = known is Status.SUBSCRIBE_PENDING
                self._calls.suspect(topic, hint.now_ns, hint.jitter, while_pending=while_pending)
            elif known is None and hint.status in _DESIRED_STATUSES and self._add_orphan(topic):
                # A Subscribe arrived after the Unsubscribe that should undo it: two methods have no order.
                self._calls.set_desired(topic, None)

    def _add_orphan(self, topic: UUri) -> bool:
        """False if too many are being ended."""
        device = self._upstream_of(topic.authority_name)
        if topic in self._orphans:
            return True
        if len(self._orphans) >= MAX_ORPHANS or self._orphan_counts[device] >= MAX_ORPHANS_OF_DEVICE:
            return False
        self._orphans.add(topic)
        self._orphan_counts[device] += 1
        return True

    def _remove_orphan(self, topic: UUri) -> None:
        if topic in self._orphans:
            self._orphans.remove(topic)
            device = self._upstream_of(topic.authority_name)
            self._orphan_counts[device] -= 1
            if not self._orphan_counts[device]:
                del self._orphan_counts[device]

    def _affected_topics(self, transaction: Transaction) -> Iterable[UUri]:
        subscribed = (topic for topic, _ in transaction.subscriptions.changes if self._state.is_remote(topic))
        return dict.fromkeys(
            [*transaction.reconciled_topics, *transaction.remote_states.changes, *subscribed]
        )

    def _update_desired(self, topic: UUri, *, force: bool = False) -> None:
        self._remove_orphan(topic)
        status = self._state.remote_states.find(topic)
        if status is None:
            self._forget(topic)
        elif status is Status.UNSUBSCRIBE_PENDING or not self._state.directory.exact_subscriptions(topic):
            # A salvaged store may have the topic without its subscriptions, until it is reconciled.
            self._calls.set_desired(topic, None, force=force)
        else:
            self._calls.set_desired(topic, self._desired_subscription(topic), force=force)

    def _forget(self, topic: UUri) -> None:
        self._remove_orphan(topic)
        self._calls.clear_desired(topic)
        self._call_versions.pop(topic, None)

    def _desired_subscription(self, topic: UUri) -> SubscriptionRecord:
        """The union of all subscriptions of `topic`: the fastest rate with headroom, the latest expiry, all details.

        [impl->LIF-20]
        """
        entries = self._state.directory.exact_subscriptions(topic)
        ends = [entry.expire_ms for entry in entries]
        details = b""
        for each in sorted({entry.details for entry in entries}):
            # Concatenated protobuf messages are merged.
            details += each if len(details) + len(each) <= MAX_DETAILS else b""
        return SubscriptionRecord(
            topic,
            self._own_uuri(v3.VERSION),
            _upstream_period_ns(fastest_period(entry.period_ns for entry in entries)),
            None if None in ends else max(end for end in ends if end is not None),
            details,
        )

    def _own_uuri(self, version: int) -> UUri:
        return UUri(self._authority, USUBSCRIPTION, version, 0)

    # --- calling ------------------------------------------------------------------------------------------------------

    def send_due_calls(self, send: Callable[[UMessage], None], now_ns: int) -> None:
        """Make the calls that are due. `send` raises UStatusError.

        [impl->req~usubscription-subscribe-remote~1] [impl->req~usubscription-unsubscribe-last-remote~1]
        """
        self._send_due_probes(send, now_ns)  # first, because they may settle the version of the calls
        for remote_call in self._calls.pop_due(now_ns, self._on_timeout):
            topic = remote_call.key
            version = self._call_versions[topic] = self._peer_versions.version_for(topic)
            message = self._encode_request(remote_call, version)
            if topic.ue_instance != ANY_INSTANCE:
                self._probes.on_call(self._upstream_of(topic.authority_name), now_ns)
            self._hints.pop(topic, None)  # it is older than this call
            self._calls.begin_call(remote_call, message.id, now_ns)
            try:
                send(message)
            except UStatusError as error:
                if self._is_first("remote_unsent"):
                    extra = {"topic": str(topic), "why": str(error)}
                    log.warning("usubscription.call_not_sent", extra=extra)
                self._calls.on_failure(remote_call, now_ns, _jitter(message.id))
        self._end_earlier_subscriptions(send, now_ns)

    def _end_earlier_subscriptions(self, send: Callable[[UMessage], None], now_ns: int) -> None:
        """Send the Unsubscribes that are due to devices of an earlier `via`."""
        for key, version in self._earlier.pop_due(now_ns):
            device, topic = key
            sink = UUri(device, USUBSCRIPTION, version, UsubscriptionMethod.UNSUBSCRIBE)
            body = CLIENT_CODECS[version].encode_unsubscribe(topic)
            message = self._new_request(sink, body, CALL_TIMEOUT_MS)
            self._earlier.begin_call(key, message.id, now_ns)
            self._counts["remote_earlier"] += 1
            try:
                send(message)
            except UStatusError:
                self._earlier.on_unsent(key, now_ns, _jitter(message.id))

    def _on_timeout(self, topic: UUri) -> None:
        self._peer_versions.on_undelivered(topic, self._call_versions[topic])

    def _send_due_probes(self, send: Callable[[UMessage], None], now_ns: int) -> None:
        """Send probes to each device that has not answered for a while."""
        for authority in self._probes.pop_due(now_ns):
            answered = self._probes.answered(authority)
            if answered is not None:
                self._use_version(answered)
                continue
            calls = self._calls.unconfirmed_calls(authority)
            remote_call = next(filter(self._may_change_version, calls), None)
            if remote_call is None:
                self._probes.end(authority)
                continue
            topic, messages, next_ms = remote_call.key, *self._new_probes(remote_call)
            probes = [VersionProbe(each.id, authority, topic, version) for version, each in messages.items()]
            self._probes.begin(probes, now_ns, next_ms)
            self._counts["remote_probes"] += 1
            for each in messages.values():
                with suppress(UStatusError):  # as for the call that waits, whose error is logged
                    send(each)

    def _may_change_version(self, remote_call: RemoteCall) -> bool:
        topic = remote_call.key
        return topic.ue_instance != ANY_INSTANCE and topic in self._call_versions

    def _new_probes(self, remote_call: RemoteCall) -> tuple[Mapping[int, UMessage], int]:
        """Probes next to a pending call: the messages by version, and the ms until the next ones."""
        topic = remote_call.key
        version = self._call_versions[topic]
        if not self._peer_versions.is_settled(topic):
            other = OTHER_VERSION[version]
            return {other: self._encode_request(remote_call, other)}, CALL_TIMEOUT_MS
        return {each: self._encode_fetch(topic, each) for each in OTHER_VERSION}, FETCH_INTERVAL_MS

    def _encode_fetch(self, topic: UUri, version: int) -> UMessage:
        sink = UUri(self._upstream_of(topic.authority_name), USUBSCRIPTION, version, FETCH_SUBSCRIPTIONS)
        return self._new_request(sink, CLIENT_CODECS[version].encode_fetch(topic), FETCH_INTERVAL_MS)

    def _encode_request(self, remote_call: RemoteCall, version: int) -> UMessage:
        topic, desired = remote_call.key, remote_call.desired
        codec = CLIENT_CODECS[version]
        body = codec.encode_unsubscribe(topic) if desired is None else codec.encode_subscribe(desired)
        upstream = self._upstream_of(topic.authority_name)
        sink = UUri(upstream, USUBSCRIPTION, version, method_of(remote_call))
        return self._new_request(sink, body, CALL_TIMEOUT_MS)

    def _new_request(self, sink: UUri, body: Message, ttl: int) -> UMessage:
        """A request of this service in the version of `sink`."""
        own_uuri = self._own_uuri(sink.ue_version_major)
        if self._name_subscriber and isinstance(body, pb.SubscriptionRequest | pb.UnsubscribeRequest):
            body.subscriber.uri.CopyFrom(own_uuri.to_pb())
        payload = body.SerializeToString()
        return request(self._ids.next(), own_uuri, sink, payload, UPayloadFormat.PROTOBUF, ttl=ttl)

    def on_link_changed(self) -> None:
        """A link changed: `send_due_calls` is due. Safe from any thread."""
        self._calls.on_link_changed()
        self._earlier.on_link_changed()

    def next_due_ns(self) -> int | None:
        """The monotonic time of the next timeout, retry or probe."""
        due = (self._calls.next_due_ns(), self._earlier.next_due_ns(), self._probes.next_due_ns())
        return min((each for each in due if each is not None), default=None)

    def statistics(self) -> Mapping[str, int]:
        """`remote_calls`, `remote_open` of them, `remote_timeouts`, `remote_retries` (with a pause), `remote_late`.

        `remote_probes` counts probes for the version of a device, which were sent next to a call without an answer.
        `remote_earlier` are calls to devices of an earlier `via`.
        `remote_unsent` are calls that no transport accepted, `remote_unreadable` are answers that cannot be decoded.
        """
        return {**self._calls.counts, **self._counts, "remote_open": self._calls.in_flight_count}

    def _is_first(self, counter: str) -> bool:
        """Count it. True the first time: only that is logged, as there may be one for each remote topic."""
        self._counts[counter] += 1
        return self._counts[counter] == 1


def _upstream_period_ns(period_ns: int) -> int:
    """The period to request, so that the limit here, the last on the path, is exact.

    Two equal limits in series lose up to 3 %, and up to 9 % of bunched messages: what the first one passes has gaps
    longer than the period. With half as much again, three streamers in series deliver 0.999 of the limit.
    """
    return period_ns * 2 // 3


def _decode_reply(remote_call: RemoteCall, response: UMessage, version: int, authority: str) -> RemoteReply:
    """The meaning of an answer of `authority` to a call in `version`; that of a dispatcher on the path is "repeat".

    INVALID_ARGUMENT if it cannot be decoded.

    [impl->req~usubscription-remote-retry-indefinitely~1] [impl->LIF-19]
    """
    code = response.attributes.commstatus or UCode.OK
    if code in NOT_DELIVERED:
        return RemoteReply(None)
    if method_of(remote_call) is UsubscriptionMethod.UNSUBSCRIBE:
        return RemoteReply(LifecycleEvent.REMOTE_UNSUBSCRIBED)
    responder = f"core.usubscription of {authority!r}"
    if code is not UCode.OK:
        return RemoteReply(
            LifecycleEvent.REMOTE_REFUSED, f"{responder}: {code.name}: {_status_text(response)}"
        )
    event = _EVENT_OF_STATUS.get(subscribe_status_in(response, version))
    return RemoteReply(
        event, f"{responder} answered UNSUBSCRIBED" if event is LifecycleEvent.REMOTE_REFUSED else ""
    )


def _is_valid_responder(response: UMessage) -> bool:
    """A dispatcher on the path may answer that a call was not delivered; all else must come from a uSubscription."""
    attributes = response.attributes
    return attributes.source.ue_id == USUBSCRIPTION or attributes.commstatus in NOT_DELIVERED


def _status_text(response: UMessage) -> str:
    try:
        return decode_status(response.payload).message[:MAX_REMOTE_REASON]
    except UStatusError:
        return "without a reason"


def _jitter(id: UUID) -> float:
    """A number from 0 to 1 that differs between devices: the last bits of an id are random."""
    return (id.lsb & 0xFFFF) / 0xFFFF
