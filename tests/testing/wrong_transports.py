# SPDX-License-Identifier: Apache-2.0
"""Transports with one defect each, and the test of the contract that must find it. Run by test_wrong_transports.py."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, TypeVar

import msgspec

from tests.testing.queued_transport import (
    CuttableNetwork,
    DurableTransport,
    PeeredTransport,
    QueuedTransport,
)
from ustreamer.core.delivery.ports import SendBatch, SendOne
from ustreamer.core.peers.election import Announcement, RouterId
from ustreamer.core.peers.topic_advertisements import TopicAdvertisement
from ustreamer.testing.contract import Pair, TransportContract
from ustreamer.testing.durable_contract import DurableContract
from ustreamer.testing.messages import ALPHA, BETA, PROBE, new_id
from ustreamer.testing.pair import PairContract
from ustreamer.testing.peer_contract import PeerContract
from ustreamer.transport_port import ReceivingThread, SentStore, Unconfirmed
from ustreamer.transports.local.transport import LocalNetwork, LocalTransport
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.utransport import Listener, batch_listener_of
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri, check_filters

T = TypeVar("T", bound=type[LocalTransport])

DEFECTS: dict[str, tuple[type[LocalTransport], str]] = {}
"""By name: the wrong transport, and the test that finds its defect."""


def found_by(test: str) -> Callable[[T], T]:
    def register(cls: T) -> T:
        assert any(hasattr(each, test) for each in (TransportContract, PeerContract, DurableContract)), test
        DEFECTS[cls.__name__] = cls, test
        return cls

    return register


def with_attributes(message: UMessage, **changes: Any) -> UMessage:
    return msgspec.structs.replace(message, attributes=msgspec.structs.replace(message.attributes, **changes))


UNCHANGED = "test_every_message_arrives_unchanged"
ORDER = "test_messages_of_one_topic_keep_their_order"
SIZE = "test_a_payload_of_any_size_is_untouched"
OPAQUE = "test_a_payload_is_never_read"
THREADS = "test_messages_of_several_threads_arrive_each_in_the_order_of_its_thread"
FILTERS = "test_a_listener_receives_exactly_the_messages_that_its_filters_match"
RAISING = "test_a_listener_that_raises_is_counted_and_affects_no_other"
RULES = "test_a_message_that_breaks_the_rules_of_its_type_is_not_sent"
CLOSED = "test_before_opening_and_after_closing_a_send_is_unavailable"
STOPPED = "test_after_stop_receiving_no_message_arrives_and_sending_works"
REPEATED = "test_closing_may_be_repeated_and_leaves_no_thread"
SNAPSHOT = "test_statistics_are_a_snapshot"
PROGRESS = "test_a_listener_that_hangs_stops_the_progress_of_a_receiving_thread"
TYPES = "test_the_answers_of_an_endpoint_have_the_types_of_the_port"
BATCH = "test_a_batch_arrives_in_order_and_the_number_of_sent_messages_is_returned"
WITHDRAWN = "test_the_end_of_an_endpoint_withdraws_all_that_it_announced"
ADVERTISED = "test_advertisements_are_changed_by_what_was_added_and_removed"
KEPT = "test_what_may_not_have_arrived_is_kept_until_it_has"
SAFE = "test_an_id_is_added_when_its_message_is_safe"
FIRST_STATE = "test_the_first_state_of_a_link_is_reported_by_open"


# --- what a message loses on its way ----------------------------------------------------------------------------------


class Changing(QueuedTransport):
    """Changes a message before it is delivered; None loses it."""

    def change(self, message: UMessage) -> UMessage | None:
        return message

    def _receive(self, message: UMessage) -> bool:
        changed = self.change(message)
        return False if changed is None else super()._receive(changed)


@found_by(ORDER)
class LosesOneOfTen(Changing):
    count = 0

    def change(self, message: UMessage) -> UMessage | None:
        self.count += message.attributes.source != PROBE
        return None if self.count % 10 == 9 else message


@found_by(ORDER)
class Repeats(Changing):
    def change(self, message: UMessage) -> UMessage | None:
        self.inbox.put(message)
        return message


@found_by(ORDER)
class SwapsAdjacentMessages(Changing):
    kept: UMessage | None = None

    def change(self, message: UMessage) -> UMessage | None:
        if message.attributes.source == PROBE:
            return message
        if self.kept is None:
            self.kept = message
            return None
        self.inbox.put(message)
        message, self.kept = self.kept, None
        return message


@found_by("test_messages_that_differ_in_one_attribute_arrive_unchanged")
class KeepsTheFirstAttributesOfATopic(Changing):
    def __init__(self, network: LocalNetwork, authority: str) -> None:
        super().__init__(network, authority)
        self.first: dict[UUri, UAttributes] = {}

    def change(self, message: UMessage) -> UMessage | None:
        attributes = self.first.setdefault(message.attributes.source, message.attributes)
        return msgspec.structs.replace(message, attributes=attributes)


@found_by(UNCHANGED)
class LosesNotifications(Changing):
    def change(self, message: UMessage) -> UMessage | None:
        return None if message.attributes.type is UMessageType.NOTIFICATION else message


@found_by(UNCHANGED)
class LosesRequests(Changing):
    def change(self, message: UMessage) -> UMessage | None:
        return None if message.attributes.type is UMessageType.REQUEST else message


@found_by(UNCHANGED)
class MakesNewIds(Changing):
    def change(self, message: UMessage) -> UMessage | None:
        return msgspec.structs.replace(message, id=new_id())


@found_by(UNCHANGED)
class DropsTokens(Changing):
    def change(self, message: UMessage) -> UMessage | None:
        return with_attributes(message, token=None)


@found_by(UNCHANGED)
class DropsTraces(Changing):
    def change(self, message: UMessage) -> UMessage | None:
        return with_attributes(message, traceparent=None)


@found_by(UNCHANGED)
class DropsPermissionLevels(Changing):
    def change(self, message: UMessage) -> UMessage | None:
        return with_attributes(message, permission_level=None)


@found_by(UNCHANGED)
class DropsTtl(Changing):
    def change(self, message: UMessage) -> UMessage | None:
        is_publication = message.attributes.type is UMessageType.PUBLISH
        return with_attributes(message, ttl=None) if is_publication else message


@found_by(UNCHANGED)
class HasOnePriority(Changing):
    def change(self, message: UMessage) -> UMessage | None:
        return with_attributes(message, priority=UPriority.CS4)


@found_by(OPAQUE)
class LosesThePayloadFormat(Changing):
    def change(self, message: UMessage) -> UMessage | None:
        return with_attributes(message, payload_format=UPayloadFormat.RAW)


@found_by(OPAQUE)
class OpensPayloads(Changing):
    """Writes JSON in its own form."""

    def change(self, message: UMessage) -> UMessage | None:
        if message.attributes.payload_format is UPayloadFormat.JSON:
            with suppress(ValueError):
                payload = json.dumps(json.loads(message.payload)).encode()
                return msgspec.structs.replace(message, payload=payload)
        return message


@found_by(OPAQUE)
class StripsText(Changing):
    def change(self, message: UMessage) -> UMessage | None:
        if message.attributes.payload_format is UPayloadFormat.TEXT:
            return msgspec.structs.replace(message, payload=message.payload.strip())
        return message


@found_by(OPAQUE)
class StopsPayloadsAtAZero(Changing):
    def change(self, message: UMessage) -> UMessage | None:
        return msgspec.structs.replace(message, payload=message.payload.partition(b"\x00")[0])


@found_by(SIZE)
class CutsLargePayloads(Changing):
    def change(self, message: UMessage) -> UMessage | None:
        return msgspec.structs.replace(message, payload=message.payload[:65_536])


@found_by(SIZE)
class RefusesLargePayloads(QueuedTransport):
    def send(self, message: UMessage) -> None:
        if len(message.payload) > 65_536:
            raise UStatusError(UCode.RESOURCE_EXHAUSTED, "too large")
        super().send(message)


@found_by("test_an_empty_authority_means_the_sender")
class KeepsAnEmptyAuthority(QueuedTransport):
    def send(self, message: UMessage) -> None:
        if message.attributes.source.authority_name:
            return super().send(message)
        for other in self.network.attached:
            if isinstance(other, QueuedTransport) and other is not self:
                other.inbox.put(message)
        return None


@found_by("test_the_sink_that_a_streamer_adds_to_a_publication_is_not_transmitted")
class TransmitsTheSinkOfAPublication(Changing):
    def send(self, message: UMessage) -> None:
        self.sink = message.attributes.sink
        super().send(message)

    def change(self, message: UMessage) -> UMessage | None:
        sinks = [each.sink for each in self.network.attached if isinstance(each, type(self))]
        return with_attributes(message, sink=message.attributes.sink or next(filter(None, sinks), None))

    sink: UUri | None = None


@found_by("test_own_messages_are_not_returned")
class ReturnsOwnMessages(QueuedTransport):
    def send(self, message: UMessage) -> None:
        super().send(message)
        self.inbox.put(message)


@found_by(THREADS)
class SendsFromASharedBuffer(QueuedTransport):
    """A buffer that all senders share."""

    buffer: UMessage | None = None

    def send(self, message: UMessage) -> None:
        self.buffer = message
        if threading.active_count() > 5:
            for _ in range(10):
                time.sleep(0)  # another thread may write it now
            message = self.buffer
        super().send(message)


@found_by("test_a_streamer_carries_messages_both_ways_and_accounts_for_each")
class SendsNothingAsAnEndpoint(QueuedTransport):
    def transmitter(self, subscriber: UUri | None) -> SendOne:
        return lambda message: None

    def batch_transmitter(self, subscriber: UUri | None) -> SendBatch:
        return lambda messages: len(list(messages))


# --- listeners --------------------------------------------------------------------------------------------------------


@found_by("test_no_call_follows_an_unregistration")
class CallsAfterUnregistration(QueuedTransport):
    def unregister_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        check_filters(source_filter, sink_filter)


@found_by("test_no_waiting_message_reaches_a_listener_after_its_unregistration")
class SelectsListenersTooEarly(QueuedTransport):
    """The listeners of a message are those of its arrival."""

    def __init__(self, network: LocalNetwork, authority: str) -> None:
        super().__init__(network, authority)
        self.registered: list[tuple[UUri, UUri | None, Listener]] = []
        self.selected: list[list[Listener]] = []

    def register_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        super().register_listener(source_filter, sink_filter, listener)
        self.registered.append((source_filter, sink_filter, listener))

    def unregister_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        super().unregister_listener(source_filter, sink_filter, listener)
        self.registered.remove((source_filter, sink_filter, listener))

    def _receive(self, message: UMessage) -> bool:
        source = message.attributes.source
        self.selected.append([call for pattern, sink, call in self.registered if pattern.matches(source)])
        return super()._receive(message)

    def deliver(self, message: UMessage) -> None:
        for call in self.selected.pop(0):
            call(message)


@found_by("test_unregistering_an_unknown_listener_is_not_found")
class UnregistersAnything(QueuedTransport):
    def unregister_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        check_filters(source_filter, sink_filter)
        with suppress(UStatusError):
            super().unregister_listener(source_filter, sink_filter, listener)


@found_by("test_registering_again_changes_nothing")
class CountsRegistrations(QueuedTransport):
    def __init__(self, network: LocalNetwork, authority: str) -> None:
        super().__init__(network, authority)
        self.calls: list[Listener] = []

    def register_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        super().register_listener(source_filter, sink_filter, listener)
        self.calls.append(listener)

    def deliver(self, message: UMessage) -> None:
        for call in self.calls:
            call(message)


class KnowsListeners(QueuedTransport):
    """Selects the listeners itself."""

    def __init__(self, network: LocalNetwork, authority: str) -> None:
        super().__init__(network, authority)
        self.filters: list[tuple[UUri, UUri | None, Listener]] = []

    def register_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        super().register_listener(source_filter, sink_filter, listener)
        if (source_filter, sink_filter, listener) not in self.filters:
            self.filters.append((source_filter, sink_filter, listener))

    def unregister_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        super().unregister_listener(source_filter, sink_filter, listener)
        self.filters.remove((source_filter, sink_filter, listener))

    def matches(self, source: UUri, sink: UUri | None, message: UMessage) -> bool:
        attributes = message.attributes
        if sink is None or attributes.sink is None:
            return sink is attributes.sink and source.matches(attributes.source)
        return sink.matches(attributes.sink) and source.matches(attributes.source)

    def deliver(self, message: UMessage) -> None:
        found = [call for source, sink, call in self.filters if self.matches(source, sink, message)]
        self.call(list(dict.fromkeys(found)), message)

    def call(self, listeners: Sequence[Listener], message: UMessage) -> None:
        self._listeners.received += bool(listeners)
        for each in listeners:
            try:
                each(message)
            except Exception:  # noqa: BLE001  # as a correct transport
                self._listeners.listener_errors += 1


@found_by("test_a_listener_is_called_once_however_many_of_its_filters_match")
class CallsOncePerFilter(KnowsListeners):
    def deliver(self, message: UMessage) -> None:
        self.call([c for source, sink, c in self.filters if self.matches(source, sink, message)], message)


@found_by("test_every_listener_of_the_same_filters_is_called")
class CallsTheFirstListenerOnly(KnowsListeners):
    def call(self, listeners: Sequence[Listener], message: UMessage) -> None:
        super().call(listeners[:1], message)


@found_by(FILTERS)
class GivesPublicationsToListenersWithASink(KnowsListeners):
    def matches(self, source: UUri, sink: UUri | None, message: UMessage) -> bool:
        if message.attributes.sink is None:
            return source.matches(message.attributes.source)
        return super().matches(source, sink, message)


@found_by(FILTERS)
class GivesAddressedMessagesToListenersWithoutASink(KnowsListeners):
    def matches(self, source: UUri, sink: UUri | None, message: UMessage) -> bool:
        if sink is None:
            return source.matches(message.attributes.source)
        return super().matches(source, sink, message)


@found_by(FILTERS)
class KnowsNoWildcardInAVersion(KnowsListeners):
    def matches(self, source: UUri, sink: UUri | None, message: UMessage) -> bool:
        same = source.ue_version_major == message.attributes.source.ue_version_major
        return super().matches(source, sink, message) and (same or source.authority_name == "*")


@found_by(FILTERS)
class IgnoresInstances(KnowsListeners):
    def matches(self, source: UUri, sink: UUri | None, message: UMessage) -> bool:
        of_any = UUri(
            source.authority_name, source.ue_id | 0xFFFF0000, source.ue_version_major, source.resource_id
        )
        return super().matches(of_any, sink, message)


@found_by("test_filters_that_match_no_message_are_refused")
class AcceptsEveryFilter(KnowsListeners):
    def register_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        with suppress(UStatusError):
            super().register_listener(source_filter, sink_filter, listener)


@found_by("test_the_number_of_listeners_is_bounded")
class HasRoomForEveryListener(QueuedTransport):
    def __init__(self, network: LocalNetwork, authority: str) -> None:
        super().__init__(network, authority)
        self._listeners._max_listeners = 1 << 30


@found_by(RAISING)
class StopsAtAListenerThatRaises(KnowsListeners):
    def call(self, listeners: Sequence[Listener], message: UMessage) -> None:
        try:
            for each in listeners:
                each(message)
        except ValueError:
            self._listeners.listener_errors += 1


@found_by(RAISING)
class CountsNoErrorsOfListeners(KnowsListeners):
    def call(self, listeners: Sequence[Listener], message: UMessage) -> None:
        for each in listeners:
            with suppress(Exception):
                each(message)


@found_by(RAISING)
class RaisesErrorsOfListenersToTheSender(LocalTransport):
    def _receive(self, message: UMessage) -> bool:
        before = self._listeners.listener_errors
        found = super()._receive(message)
        if self._listeners.listener_errors > before:
            raise ValueError("a listener raised")
        return found


@found_by("test_a_batch_listener_receives_each_message_once_in_order")
class LosesTheLastOfABatch(KnowsListeners):
    def call(self, listeners: Sequence[Listener], message: UMessage) -> None:
        for each in listeners:
            on_batch = batch_listener_of(each)
            if on_batch is None:
                super().call([each], message)
            elif self.inbox.qsize() % 7 != 3:
                on_batch([message])


@found_by("test_a_listener_may_register_send_and_unregister")
class HoldsALockWhileItCalls(QueuedTransport):
    def __init__(self, network: LocalNetwork, authority: str) -> None:
        super().__init__(network, authority)
        self.calling = threading.Lock()

    def deliver(self, message: UMessage) -> None:
        with self.calling:
            super().deliver(message)

    def unregister_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        if not self.calling.acquire(timeout=0.2):
            raise RuntimeError("a deadlock, if it waited longer")
        self.calling.release()
        super().unregister_listener(source_filter, sink_filter, listener)


# --- sending ----------------------------------------------------------------------------------------------------------


class Unchecked(QueuedTransport):
    """Sends what it is given."""

    def send_unchecked(self, message: UMessage) -> None:
        self._sent += 1
        for other in self.network.attached:
            if isinstance(other, QueuedTransport) and other is not self:
                other._receive(message)


@found_by(RULES)
class SendsInvalidMessages(Unchecked):
    def send(self, message: UMessage) -> None:
        if self._state == "new":
            raise UStatusError(UCode.UNAVAILABLE, "not open")
        self.send_unchecked(message)


@found_by(RULES)
class CountsRefusedMessagesAsSent(QueuedTransport):
    def send(self, message: UMessage) -> None:
        try:
            super().send(message)
        except UStatusError:
            self._sent += 1
            raise


@found_by(RULES)
class DropsInvalidMessagesSilently(QueuedTransport):
    def send(self, message: UMessage) -> None:
        try:
            super().send(message)
        except UStatusError as error:
            if error.code is not UCode.INVALID_ARGUMENT:
                raise


@found_by("test_a_type_that_the_protocol_does_not_support_is_unimplemented")
class DropsUnsupportedTypesSilently(QueuedTransport):
    """Its contract supports no notifications."""

    def send(self, message: UMessage) -> None:
        if message.attributes.type is not UMessageType.NOTIFICATION:
            super().send(message)


@found_by("test_a_refused_message_is_refused_again")
class ChecksAHeaderOnce(Unchecked):
    checked: Any = None

    def send(self, message: UMessage) -> None:
        if self.checked == message.attributes:
            return self.send_unchecked(message)
        self.checked = message.attributes
        return super().send(message)


@found_by("test_no_transport_supports_receive")
class ReceivesNothing(QueuedTransport):
    def receive(self, source_filter: UUri, sink_filter: UUri | None = None) -> UMessage:
        return UMessage(new_id(), None)  # type: ignore[arg-type]


@found_by(CLOSED)
class SendsNowhereWhenClosed(QueuedTransport):
    def send(self, message: UMessage) -> None:
        try:
            super().send(message)
        except UStatusError as error:
            if error.code is not UCode.UNAVAILABLE:
                raise


@found_by(CLOSED)
class RaisesOtherErrorsWhenClosed(QueuedTransport):
    def send(self, message: UMessage) -> None:
        if self._state == "closed":
            raise OSError("Bad file descriptor")
        super().send(message)


@found_by(CLOSED)
class ChecksNothingWhenClosed(QueuedTransport):
    def send(self, message: UMessage) -> None:
        if self._state == "closed":
            raise UStatusError(UCode.UNAVAILABLE, "closed")
        super().send(message)


@found_by("test_a_send_next_to_a_close_succeeds_or_is_unavailable")
class BreaksASendNextToAClose(QueuedTransport):
    def send(self, message: UMessage) -> None:
        if self._state == "closed":
            raise AttributeError("'NoneType' object has no attribute 'sendall'")
        super().send(message)


@found_by("test_a_message_for_a_closed_end_fails_with_a_status_or_not_at_all")
class RaisesWhenTheOtherEndIsClosed(QueuedTransport):
    def send(self, message: UMessage) -> None:
        super().send(message)
        if len(self.network.attached) < 2:
            raise ConnectionResetError


# --- life -------------------------------------------------------------------------------------------------------------


@found_by("test_listeners_registered_before_opening_get_messages")
class ForgetsEarlyListeners(QueuedTransport):
    def register_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        if self._state != "new":
            super().register_listener(source_filter, sink_filter, listener)


@found_by(STOPPED)
class ReceivesAfterAStop(QueuedTransport):
    def stop_receiving(self) -> None:
        """Goes on."""


@found_by(STOPPED)
class SendsNothingAfterAStop(QueuedTransport):
    def send(self, message: UMessage) -> None:
        if self._state == "sending":
            raise UStatusError(UCode.UNAVAILABLE, "stopped")
        super().send(message)


@found_by(STOPPED)
class StopsOnce(QueuedTransport):
    def stop_receiving(self) -> None:
        if self._state == "sending":
            raise RuntimeError("stopped already")
        super().stop_receiving()


@found_by(REPEATED)
class ClosesOnce(QueuedTransport):
    closed = 0

    def close(self) -> None:
        super().close()
        self.closed += 1
        if self.closed == 2:
            raise RuntimeError("closed already")


@found_by(REPEATED)
class LeavesAThread(QueuedTransport):
    def close(self) -> None:
        thread, self.thread = self.thread, None
        super().close()
        self.thread = thread


@found_by("test_closing_leaves_no_open_file")
class LeavesAFileOpen(QueuedTransport):
    left: ClassVar[list[socket.socket]] = []

    def open(self) -> None:
        super().open()
        self.left.append(socket.socket())


@found_by("test_a_transport_that_was_never_opened_can_be_closed")
class ClosesOnlyAfterOpen(QueuedTransport):
    def close(self) -> None:
        if self._state == "new":
            super().close()
            raise RuntimeError("not open")
        super().close()


@found_by("test_closing_does_not_wait_forever_for_a_listener")
class BlocksInClose(QueuedTransport):
    def join(self, thread: threading.Thread) -> None:
        thread.join()


@found_by("test_after_closing_no_listener_is_called")
class CallsAfterClose(QueuedTransport):
    def close(self) -> None:
        was_open = self._state == "open"
        super().close()
        if was_open:
            self.network._attached = (*self.network.attached, self)

    def _receive(self, message: UMessage) -> bool:
        if self._state == "closed":
            self.deliver(message)
            return True
        return super()._receive(message)


@found_by(SNAPSHOT)
class ReturnsLiveCounters(QueuedTransport):
    def __init__(self, network: LocalNetwork, authority: str) -> None:
        super().__init__(network, authority)
        self.live: dict[str, int] = {}

    def statistics(self) -> Mapping[str, int]:
        self.live.update(super().statistics())
        return self.live


@found_by(SNAPSHOT)
class CountsInFloats(QueuedTransport):
    def statistics(self) -> Mapping[str, int]:
        return {**super().statistics(), "seconds": 0.5}  # type: ignore[dict-item]


@found_by(SNAPSHOT)
class CountsPerListener(QueuedTransport):
    def deliver(self, message: UMessage) -> None:
        super().deliver(message)
        self._listeners.received += 1


@found_by("test_counters_of_unregistered_listeners_are_kept")
class ForgetsCountersOfListeners(QueuedTransport):
    def unregister_listener(self, source_filter: UUri, sink_filter: UUri | None, listener: Listener) -> None:
        super().unregister_listener(source_filter, sink_filter, listener)
        self._listeners.received = 0


@found_by("test_a_counter_never_decreases")
class ForgetsCountersAtClose(QueuedTransport):
    def statistics(self) -> Mapping[str, int]:
        return dict.fromkeys(super().statistics(), 0) if self._state == "closed" else super().statistics()


@found_by("test_a_counter_never_decreases")
class CountsLinksAsACounter(QueuedTransport):
    def statistics(self) -> Mapping[str, int]:
        found = dict(super().statistics())
        return {**found, "links": found.pop("links_now")}


@found_by("test_a_name_of_a_counter_is_a_metric_name")
class NamesCountersFreely(QueuedTransport):
    def statistics(self) -> Mapping[str, int]:
        return {**super().statistics(), "Refused-Full": 0}


@found_by(PROGRESS)
class AlwaysWaits(QueuedTransport):
    def receiving_threads(self) -> Sequence[ReceivingThread]:
        return [msgspec.structs.replace(each, waiting=True) for each in super().receiving_threads()]


@found_by(PROGRESS)
class AlwaysTurns(QueuedTransport):
    def receiving_threads(self) -> Sequence[ReceivingThread]:
        self.turns += 2
        return super().receiving_threads()


@found_by(PROGRESS)
class HasThreadsAfterClose(QueuedTransport):
    def receiving_threads(self) -> Sequence[ReceivingThread]:
        thread = self.thread
        return [] if thread is None else [ReceivingThread(thread.name, self.turns, self.waiting)]


@found_by("test_a_receiving_thread_without_input_does_not_look_as_if_it_hangs")
class NeverWaits(QueuedTransport):
    def receiving_threads(self) -> Sequence[ReceivingThread]:
        return [msgspec.structs.replace(each, waiting=False) for each in super().receiving_threads()]


@found_by("test_each_message_is_progress_of_each_receiving_thread")
class CountsOneTurnOnly(QueuedTransport):
    def receiving_threads(self) -> Sequence[ReceivingThread]:
        return [msgspec.structs.replace(each, turns=each.turns & 1) for each in super().receiving_threads()]


# --- the port ---------------------------------------------------------------------------------------------------------


@found_by(TYPES)
class HasANegativeWindow(QueuedTransport):
    def send_window(self) -> int:
        return -1


@found_by(TYPES)
class HasTopicsAsText(QueuedTransport):
    def topics(self) -> Sequence[UUri]:
        return ["//alpha/1/1/8001"]  # type: ignore[list-item]


@found_by(TYPES)
class HasSubscriptionsAsPairs(QueuedTransport):
    def subscriptions(self) -> Sequence[Any]:
        return [(UUri("alpha", 1, 1, 0x8001), UUri("beta", 1, 1, 0))]


@found_by(TYPES)
class HasProblemsAsErrors(QueuedTransport):
    def problems(self) -> Sequence[str]:
        return [OSError("port in use")]  # type: ignore[list-item]


@found_by("test_an_endpoint_that_never_waits_has_a_send_window")
class NeverWaitsWithoutAWindow(QueuedTransport):
    inline = True

    def send_window(self) -> int:
        return 0


@found_by("test_a_check_of_the_environment_has_no_side_effect")
class BindsInACheck(QueuedTransport):
    kept: list[socket.socket]

    def problems(self) -> Sequence[str]:
        self.kept = [*getattr(self, "kept", ()), socket.create_server(("127.0.0.1", 0))]
        return ()

    def close(self) -> None:
        super().close()
        for each in getattr(self, "kept", ()):
            each.close()


@found_by("test_a_topic_can_be_prepared_at_any_time")
class PreparesOnlyWhenOpen(QueuedTransport):
    def prepare_topic(self, topic: UUri) -> None:
        if self._state == "new":
            raise UStatusError(UCode.UNAVAILABLE, "not open")


@found_by("test_a_listener_that_receives_a_topic_is_not_denied")
class DeniesItsListeners(QueuedTransport):
    def has_listener(self, attributes: UAttributes) -> bool:
        return False


@found_by("test_the_end_of_reading_is_reported_at_most_once")
class ReportsTheEndOfReadingTwice(QueuedTransport):
    def call_when_read(self, action: Callable[[], None]) -> None:
        action()
        action()


@found_by("test_finishing_returns_what_is_unconfirmed_and_closes")
class FinishesWithNothing(QueuedTransport):
    def finish(self) -> Unconfirmed:
        return None  # type: ignore[return-value]


@found_by("test_a_transmitter_sends_one_message")
class TransmitsNothing(QueuedTransport):
    def transmitter(self, subscriber: UUri | None) -> SendOne:
        return lambda message: None


@found_by(BATCH)
class CountsOneMoreInABatch(QueuedTransport):
    def batch_transmitter(self, subscriber: UUri | None) -> SendBatch:
        transmit = super().batch_transmitter(subscriber)
        return lambda messages: transmit(messages) + 1


@found_by(BATCH)
class ReversesABatch(QueuedTransport):
    def batch_transmitter(self, subscriber: UUri | None) -> SendBatch:
        transmit = super().batch_transmitter(subscriber)
        return lambda messages: transmit(list(messages)[::-1])


@found_by(BATCH)
class SendsHalfABatch(QueuedTransport):
    def batch_transmitter(self, subscriber: UUri | None) -> SendBatch:
        transmit = super().batch_transmitter(subscriber)

        def half(messages: Iterable[UMessage], /) -> int:
            every = list(messages)
            transmit(every[: len(every) // 2])
            return len(every)

        return half


@found_by("test_a_batch_of_a_closed_endpoint_sends_nothing_and_raises_nothing")
class RaisesInABatch(QueuedTransport):
    def batch_transmitter(self, subscriber: UUri | None) -> SendBatch:
        def transmit(messages: Iterable[UMessage], /) -> int:
            every = list(messages)
            for message in every:
                self.send(message)
            return len(every)

        return transmit


@found_by(FIRST_STATE)
class ReportsALinkBeforeOpen(QueuedTransport):
    def watch_link(self, changed: Callable[[bool], None]) -> None:
        super().watch_link(changed)
        changed(False)


@found_by(FIRST_STATE)
class ReportsNoFirstState(QueuedTransport):
    def report(self, *, up: bool) -> None:
        if up:
            super().report(up=up)


@found_by(FIRST_STATE)
class ReportsNumbers(QueuedTransport):
    def report(self, *, up: bool) -> None:
        for changed in self.watchers:
            changed(int(up))  # type: ignore[arg-type]


@found_by("test_a_link_that_is_up_accepts_messages")
class ReportsALinkTooEarly(QueuedTransport):
    def open(self) -> None:
        self.report(up=True)
        super().open()


@found_by("test_a_watcher_of_links_that_raises_does_no_harm")
class FailsWithAWatcher(QueuedTransport):
    def report(self, *, up: bool) -> None:
        for changed in self.watchers:
            changed(up)


@found_by("test_nothing_is_reported_after_a_close")
class ReportsALinkAfterClose(QueuedTransport):
    def close(self) -> None:
        before = self.network.attached
        super().close()
        for each in (*before, *getattr(self.network, "gone", ())):
            if isinstance(each, QueuedTransport) and each is not self:
                each.report(up=False)
        vars(self.network)["gone"] = before


# --- peers ------------------------------------------------------------------------------------------------------------


@found_by("test_announcements_reach_the_peers")
class AnnouncesAllButOne(PeeredTransport):
    def announce(self, announcements: frozenset[Announcement]) -> None:
        super().announce(frozenset(sorted(announcements, key=str)[1:]))


@found_by("test_announcements_replace_earlier_ones")
class KeepsEarlierAnnouncements(PeeredTransport):
    def announce(self, announcements: frozenset[Announcement]) -> None:
        super().announce(announcements | self.announced)


@found_by(WITHDRAWN)
class AnnouncesAfterItsEnd(PeeredTransport):
    def stop_receiving(self) -> None:
        self.peer_watchers = []
        LocalTransport.stop_receiving(self)


@found_by(WITHDRAWN)
class WithdrawsAtTheCloseOnly(PeeredTransport):
    def stop_receiving(self) -> None:
        LocalTransport.stop_receiving(self)

    def close(self) -> None:
        if self._state == "sending":
            self._state = "open"
        super().stop_receiving()
        QueuedTransport.close(self)


@found_by(WITHDRAWN)
class AdvertisesAfterItsEnd(PeeredTransport):
    def advertise_topics(self, advertisements: frozenset[TopicAdvertisement]) -> None:
        if advertisements:
            super().advertise_topics(advertisements)


@found_by("test_trust_can_be_given_at_any_time")
class NeedsTrustOnce(PeeredTransport):
    trusted = False

    def trust_peers(self, is_trusted: Callable[[RouterId, str], bool]) -> None:
        if self.trusted:
            raise RuntimeError("given already")
        self.trusted = True


@found_by(ADVERTISED)
class ReportsEveryAdvertisementAsAdded(PeeredTransport):
    def advertise_topics(self, advertisements: frozenset[TopicAdvertisement]) -> None:
        removed = self.advertised - advertisements
        self.advertised = advertisements
        for each in self.peers():
            for changed in each.topic_watchers:
                changed(advertisements, removed)


@found_by(ADVERTISED)
class NeverRemovesAdvertisements(PeeredTransport):
    def advertise_topics(self, advertisements: frozenset[TopicAdvertisement]) -> None:
        super().advertise_topics(advertisements | self.advertised)


@found_by(ADVERTISED)
class KnowsOneRatePerTopic(PeeredTransport):
    def advertise_topics(self, advertisements: frozenset[TopicAdvertisement]) -> None:
        known = {each.topic: each for each in self.advertised}
        super().advertise_topics(frozenset(known.get(each.topic, each) for each in advertisements))


# --- for durable endpoints --------------------------------------------------------------------------------------------


@found_by(KEPT)
class KeepsNothing(DurableTransport):
    def keep_sent(self) -> None:
        return


@found_by(KEPT)
class KeepsTheNewestFirst(DurableTransport):
    def keep_sent(self) -> None:
        if self.store is not None and len(self.sent) > 10 and not self.kept:
            self.store.keep("all", list(reversed(self.sent.values())))
            self.kept = set(self.sent)
        super().keep_sent()


@found_by(KEPT)
class AwaitsNothing(DurableTransport):
    def awaits_receipt(self, id: UUID) -> bool:
        return False


@found_by(KEPT)
class NeverReleases(DurableTransport):
    def keep_unconfirmed(self, store: SentStore) -> None:
        super().keep_unconfirmed(store)
        store.release = lambda route, ids=None: True  # type: ignore[method-assign]


@found_by(KEPT)
class SendsTheNewestFirstAgain(DurableTransport):
    def send_again(self) -> None:
        if not self.network.is_cut:
            self.sent = dict(reversed(self.sent.items()))
        super().send_again()


@found_by("test_a_busy_store_is_asked_again")
class AsksABusyStoreOnce(DurableTransport):
    def keep_sent(self) -> None:
        super().keep_sent()
        self.kept |= self.sent.keys()


@found_by("test_what_is_unconfirmed_at_the_end_is_returned_in_order")
class ReturnsNothingAtTheEnd(DurableTransport):
    def finish(self) -> Unconfirmed:
        self.close()
        return Unconfirmed()


@found_by(SAFE)
class AddsIdsAtOnce(DurableTransport):
    def is_safe(self, received_ns: int) -> bool:
        return True


@found_by(SAFE)
class LeavesTheStoreOpen(DurableTransport):
    def close(self) -> None:
        store, self.received = self.received, None
        super().close()
        self.received = store


@found_by("test_copies_of_what_an_earlier_process_received_are_dropped")
class ReadsNoIds(DurableTransport):
    def open(self) -> None:
        super().open()
        self.known = set()


@found_by("test_copies_of_a_restored_message_are_dropped")
class ReadsNoRestoredMessages(DurableTransport):
    def open(self) -> None:
        super().open()
        if self.received is not None:
            self.known = set(self.received.load())


# --- the contract of each ---------------------------------------------------------------------------------------------


def contract_of(cls: type[LocalTransport]) -> type[PairContract]:
    base: Any = TransportContract
    for kind, contract in ((PeeredTransport, PeerContract), (DurableTransport, DurableContract)):
        base = contract if issubclass(cls, kind) else base

    class Contract(base):  # type: ignore[misc]
        close_within_s = 1.0

        @contextmanager
        def make_pair(self) -> Iterator[Pair]:
            self.network = CuttableNetwork()
            yield Pair(cls(self.network, ALPHA), cls(self.network, BETA))

        @contextmanager
        def outage(self) -> Iterator[None]:
            self.network.is_cut = True
            yield
            self.network.is_cut = False

        def messages(self) -> Sequence[UMessage]:
            found: Sequence[UMessage] = super().messages()
            if cls is DropsUnsupportedTypesSilently:
                return [each for each in found if each.attributes.type is not UMessageType.NOTIFICATION]
            return found

    return Contract


for name, (cls, _) in DEFECTS.items():
    globals()[f"Test{name}"] = contract_of(cls)
