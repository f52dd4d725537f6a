# SPDX-License-Identifier: Apache-2.0
"""A delivery target and its filter chain: routed messages go in, verdicts and messages for the egress go out.

Hooks create the filters when a route is built. Per message a tuple of bound methods runs. That costs 0.1 us; a hook
call costs 1 to 3 us.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeGuard, cast

from ustreamer.core.delivery.ledger import Ledger, Verdict
from ustreamer.core.delivery.outgoing_batch import OutgoingBatch
from ustreamer.core.delivery.plugin_errors import (
    FOREIGN_ERRORS,
    describe_error,
    is_subscription_answer,
    warn_of_refused_answer,
)
from ustreamer.core.delivery.ports import (
    BackloggedEgress,
    BatchEgress,
    BatchTap,
    DeliveryOwner,
    Egress,
    Filter,
    Tap,
)
from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri


def _is_batch_tap(tap: Tap) -> TypeGuard[BatchTap]:
    return hasattr(tap, "on_delivered_batch")  # 0.05 us; isinstance of a Protocol costs 8 us


FilterCall = Callable[[UMessage, int], Verdict | None]


_NS_PER_MS: Final = 1_000_000
_FILTER_STATUS: Final = {
    Verdict.THROTTLED: UStatus(UCode.RESOURCE_EXHAUSTED, "the limit of a filter was exceeded"),
    Verdict.DENIED: UStatus(UCode.PERMISSION_DENIED, "refused by a filter"),
}
"""The status of the error response to a Request that a filter dropped."""


class Delivery:
    """One target of one topic: its endpoint, its period and its filters.

    `subscriber` is None for a multicast domain, which is one target for all its listeners, and for unicast messages.
    `topic` is None for messages routed by sink (Notification, Request, Response). `period_ns` 0 means no limit.
    The object survives a rebuild of its route, so a filter may key its state by it. `period_since_ns` is the time
    from which the period applies: a rebuild of the route, or a reload.
    """

    __slots__ = (
        "__weakref__",
        "_arrival_ns",
        "_filters",
        "_held",
        "_owner",
        "_unpaused",
        "broadcast",
        "delivered",
        "egress",
        "filter_calls",
        "outgoing",
        "paused",
        "period_ns",
        "period_since_ns",
        "received",
        "subscriber",
        "throttled",
        "topic",
        "transmit",
        "transmit_batch",
    )

    def __init__(
        self,
        owner: DeliveryOwner,
        egress: Egress,
        topic: UUri | None = None,
        subscriber: UUri | None = None,
        period_ns: int = 0,
        outgoing: OutgoingBatch | None = None,
    ) -> None:
        """`outgoing` is shared by the deliveries of one ingress to one endpoint, or to one subscriber behind it."""
        self._owner = owner
        self.egress = egress
        self.transmit = egress.transmitter(subscriber)
        self.outgoing = OutgoingBatch(egress) if outgoing is None else outgoing
        batch_egress = self.outgoing.batch_egress
        self.transmit_batch = None if batch_egress is None else batch_egress.batch_transmitter(subscriber)
        self.paused = False
        """The subscribers have stopped the dispatch: each message is queued, and the send thread blocks it."""
        self._unpaused = self.transmit_batch, self.outgoing
        self.broadcast = False
        """A multicast domain without a subscriber: a message goes to its listeners, or has the verdict NO_SUBSCRIBER."""
        self.topic = topic
        self.subscriber = subscriber
        self.period_ns = period_ns
        self.period_since_ns = 0
        # Held messages: filter, message, arrival time. When a filter fails, its messages are still here to be settled.
        self._held: list[tuple[Filter, UMessage, int]] = []
        # Arrival times of released messages, until they are settled. Only taps need them. By id: a durable queue may
        # write a message to disk, and read another object.
        self._arrival_ns: dict[UUID, int] = {}
        self._filters: tuple[Filter, ...] = ()
        self.filter_calls: tuple[FilterCall, ...] = ()
        self.received = self.delivered = self.throttled = 0

    @property
    def ingress(self) -> str:
        """The endpoint that the messages come from."""
        return self._owner.name

    @property
    def endpoint(self) -> str:
        """The endpoint that the messages go to."""
        return self.egress.name

    @property
    def has_taps(self) -> bool:
        """Whether a tap observes the verdicts."""
        return bool(self._owner.taps)

    def set_filters(self, filters: tuple[Filter, ...], now_ns: int = 0) -> None:
        """Replace the filter chain; the filters run in this order.

        The messages that a removed filter holds run through the new chain first: no newer message overtakes them.
        """
        if not filters and not self._filters:
            return  # most deliveries have no filter: 0.1 us instead of 1.3
        removed = [each for each in self._filters if each not in filters]
        held = self._pop_held(lambda holder: holder in removed)
        self._filters = filters
        self.filter_calls = tuple(each.admit for each in filters)
        for message in held:
            self._offer_from(0, message, now_ns)

    def set_paused(self, paused: bool) -> None:
        """Pause or resume. Called under the owner's lock, or before the first dispatch.

        A paused delivery has an outgoing batch of its own: no message of it leaves with those of others.
        """
        if paused is self.paused:
            return
        self.paused = paused
        if paused:
            self.transmit_batch, self.outgoing = None, OutgoingBatch(self.egress)
        else:
            self.outgoing.flush(has_ttl=True)  # before later messages in the shared batch
            self.transmit_batch, self.outgoing = self._unpaused

    def is_still_paused(self) -> bool:
        """Whether its subscribers have the dispatch stopped, also if no route is left to update it. From any thread."""
        return self.paused and self._owner.is_paused(self)

    def offer(self, message: UMessage, now_ns: int) -> None:
        """Run the filters on `message` and offer it to the egress. Called under the owner's lock.

        `Ingress.dispatch` does the same without this call.
        """
        self.received += 1
        if self.apply_filters(message, now_ns):
            self.egress.offer(self, message, now_ns)

    def apply_filters(self, message: UMessage, now_ns: int, first: int = 0) -> bool:
        """Return True if `message` passes the filters from `first` on; otherwise it is settled or held.

        A filter that fails does not let its message pass.
        """
        admit = verdict = None
        try:
            for admit in self.filter_calls[first:] if first else self.filter_calls:
                verdict = admit(message, now_ns)
                if verdict is not None:
                    break
        except FOREIGN_ERRORS as error:  # foreign code
            self._on_filter_error(self._filter_of(admit), error, [message], now_ns)
            return False
        if verdict is None:
            return True
        self._on_filter_verdict(self._filter_of(admit), message, verdict, now_ns)
        return False

    # Fast path of Delivery.offer (oracle), as is apply_filters with OutgoingBatch; compared by
    # tests/core/dispatch/test_batches.py::test_a_batch_has_the_results_of_its_single_messages
    def offer_batch(self, batch: MessageBatch, now_ns: int) -> None:
        """Equal to `offer` of each message, for a delivery without filters. Called under the owner's lock."""
        self.received += len(batch)
        if self.transmit_batch is not None and len(batch) > 1:
            egress = cast("BatchEgress", self.egress)
            count = len(batch)
            egress.offer_batch((self,) * count, batch, (now_ns,) * count, has_ttl=bool(batch.attributes.ttl))
            return
        for message in batch:
            self.egress.offer(self, message, now_ns)

    def _offer_from(self, first: int, message: UMessage, now_ns: int) -> None:
        """`offer` of a message that a filter held, to the filters from this index on."""
        # Within a batch: not before the messages that it has already collected.
        if self.apply_filters(message, now_ns, first) and not self.outgoing.append_if_open(
            self, message, now_ns
        ):
            self.egress.offer(self, message, now_ns)

    def _filter_of(self, admit: FilterCall | None) -> Filter:
        assert admit is not None  # only a filter raises or returns a verdict
        return self._filters[self.filter_calls.index(admit)]

    def wake_at(self, when_ns: int, holder: Filter) -> None:
        """Called by a filter that holds a message: schedule `holder.release_due` for `when_ns`."""
        self._owner.wake_at(when_ns, self, holder)

    def dropped_held(self, message: UMessage, now_ns: int) -> None:
        """Called by a filter that replaces the held `message` by a newer one: settle it as THROTTLED."""
        if self._remove_held(message) is not None:
            self._settle_dropped(message, Verdict.THROTTLED, now_ns)

    def release_held(self, holder: Filter, now_ns: int, *, subscribed: bool = True) -> None:
        """Offer the message that `holder` releases to the next filters; NO_SUBSCRIBER unless still `subscribed`."""
        if holder not in self._filters:
            return  # replaced since: its message ran through the new chain
        try:
            message = holder.release_due(now_ns)
        except FOREIGN_ERRORS as error:  # foreign code: its held messages do not pass
            self._on_filter_error(holder, error, self._remove_held_by(holder), now_ns)
            return
        arrived_ns = None if message is None else self._remove_held(message)
        if message is None or arrived_ns is None:
            return
        if not subscribed:
            self.settle(self._owner.ledger, message, Verdict.NO_SUBSCRIBER, now_ns, now_ns)
            return
        ttl = message.attributes.ttl
        # At its arrival it had at most its ttl left. The wall clock, which the egress asks, may have stepped back.
        if ttl and now_ns - arrived_ns > ttl * _NS_PER_MS:
            self._expire(message, ttl, now_ns)
            return
        self._offer_from(self._filters.index(holder) + 1, message, now_ns)

    def report_backlog(self, egress: BackloggedEgress) -> None:
        """Called by the egress under the owner's lock: more messages wait for it than one batch has."""
        self._owner.on_backlog(egress)

    # --- held and stopped messages ------------------------------------------------------------------------------------

    def _on_filter_verdict(self, holder: Filter, message: UMessage, verdict: Verdict, now_ns: int) -> None:
        if verdict is Verdict.THROTTLED or verdict is Verdict.DENIED:
            self._settle_dropped(message, verdict, now_ns)
            if self.topic is None and is_subscription_answer(message):
                warn_of_refused_answer(holder, self.endpoint, message)
        elif verdict is Verdict.NO_SUBSCRIBER and self.broadcast:
            self.settle(self._owner.ledger, message, verdict, now_ns, now_ns)
        elif verdict is Verdict.QUEUED:
            self._held.append((holder, message, self._arrival_ns.pop(message.id, now_ns)))
            self._owner.held += 1
        else:
            error_text = f"admit returned {verdict!r}: expected None, THROTTLED, DENIED or QUEUED"
            self._on_filter_error(holder, TypeError(error_text), [message], now_ns)

    def _remove_held(self, message: UMessage) -> int | None:
        """Remove `message` from the held ones; returns its arrival time.

        None if it is not held: a filter can only release held messages.
        """
        for index, (_, held, arrived_ns) in enumerate(self._held):
            if held is message:
                del self._held[index]
                self._count_released(message, arrived_ns)
                return arrived_ns
        return None

    def _count_released(self, message: UMessage, arrived_ns: int) -> None:
        self._owner.held -= 1
        if self._owner.taps:
            self._arrival_ns[message.id] = arrived_ns

    def clear_arrivals(self) -> None:
        """Drop the arrival times after the last tap is removed. Called under the owner's lock."""
        self._arrival_ns.clear()

    @property
    def holds_messages(self) -> bool:
        """Whether a filter holds a message of it."""
        return bool(self._held)

    def abandon_held(self, now_ns: int, reason: UStatus) -> list[UMessage]:
        """Dead-letter all held messages, respond to requesters, and return the messages. Under the owner's lock."""
        abandoned = self._pop_held(lambda _: True)
        self._dead_letter(abandoned, now_ns, reason)
        return abandoned

    def _remove_held_by(self, holder: Filter) -> list[UMessage]:
        """Remove and return all messages that `holder` holds."""
        return self._pop_held(lambda by: by is holder)

    def _pop_held(self, is_holder: Callable[[Filter], bool]) -> list[UMessage]:
        removed = [each for each in self._held if is_holder(each[0])]
        self._held = [each for each in self._held if not is_holder(each[0])]
        for _, message, arrived_ns in removed:
            self._count_released(message, arrived_ns)
        return [message for _, message, _ in removed]

    def _settle_dropped(self, message: UMessage, verdict: Verdict, now_ns: int) -> None:
        self.settle(self._owner.ledger, message, verdict, now_ns, now_ns)
        # A message without topic may be a Request. A throttled publication must cost nothing more.
        if self.topic is None:
            self._owner.on_filter_stop(message, self, verdict, _FILTER_STATUS[verdict])

    def _expire(self, message: UMessage, ttl: int, now_ns: int) -> None:
        reason = UStatus(UCode.DEADLINE_EXCEEDED, f"ttl of {ttl} ms ran out while a filter held the message")
        self.settle(self._owner.ledger, message, Verdict.EXPIRED, now_ns, now_ns, reason)
        self._owner.on_filter_stop(message, self, Verdict.EXPIRED, reason)

    def _on_filter_error(
        self, plugin: Filter, error: BaseException, messages: list[UMessage], now_ns: int
    ) -> None:
        self._owner.on_filter_error(plugin, error)
        self._dead_letter(
            messages, now_ns, UStatus(UCode.INTERNAL, f"filter {describe_error(plugin, error)}")
        )

    def _dead_letter(self, messages: list[UMessage], now_ns: int, reason: UStatus) -> None:
        for message in messages:
            self.settle(self._owner.ledger, message, Verdict.DEAD_LETTERED, now_ns, now_ns, reason)
            self._owner.on_filter_stop(message, self, Verdict.DEAD_LETTERED, reason)

    # --- restored from disk -------------------------------------------------------------------------------------------

    def count_restored(self) -> None:
        """Count a restored message as received: an earlier process filtered it. Called before the first dispatch."""
        self.received += 1
        self._owner.ledger.received += 1

    # --- settling -----------------------------------------------------------------------------------------------------

    def settle(
        self,
        ledger: Ledger,
        message: UMessage,
        verdict: Verdict,
        received_ns: int,
        settled_ns: int,
        reason: UStatus | None = None,
        attempts: int = 0,
        first_attempt_ns: int = 0,
    ) -> None:
        """Record the verdict of one delivery. Every delivery ends here; `ledger` belongs to the caller."""
        ledger.settled[verdict] += 1
        if verdict is Verdict.DELIVERED:
            self.delivered += 1
        elif verdict is Verdict.THROTTLED:
            self.throttled += 1
        if self._owner.taps:
            self._notify_taps(
                self._owner.taps,
                message,
                verdict,
                received_ns,
                settled_ns,
                reason,
                attempts,
                first_attempt_ns,
            )

    def _notify_taps(
        self,
        taps: Iterable[Tap],
        message: UMessage,
        verdict: Verdict,
        received_ns: int,
        settled_ns: int,
        reason: UStatus | None,
        attempts: int,
        first_attempt_ns: int,
    ) -> None:
        arrived_ns = self._arrival_ns.pop(message.id, received_ns) if self._arrival_ns else received_ns
        for tap in taps:
            try:
                tap(
                    message,
                    self,
                    verdict,
                    reason,
                    attempts,
                    arrived_ns,
                    received_ns,
                    first_attempt_ns,
                    settled_ns,
                )
            except FOREIGN_ERRORS as error:  # foreign code; does not affect delivery
                self._owner.on_tap_error(tap, error)

    # Fast path of Delivery.settle, which is its oracle; compared by
    # tests/core/delivery/test_plugin_errors.py::test_settling_a_batch_equals_settling_each_message
    def settle_delivered(self, ledger: Ledger, messages: Sequence[UMessage], times_ns: Sequence[int]) -> None:
        """Equal to `settle` of each message as DELIVERED at the first attempt, at its arrival time."""
        ledger.settled[Verdict.DELIVERED] += len(messages)
        self.delivered += len(messages)
        if self._owner.taps:
            self._notify_taps_of_batch(messages, times_ns)

    def _notify_taps_of_batch(self, messages: Sequence[UMessage], times_ns: Sequence[int]) -> None:
        """Notify batch taps once and other taps per message. With held messages all taps are notified per message."""
        taps = self._owner.taps  # read once: an error below may remove a batch tap
        batch_taps = [] if self._arrival_ns else [each for each in taps if _is_batch_tap(each)]
        for tap in batch_taps:
            try:
                tap.on_delivered_batch(messages, self, times_ns)
            except FOREIGN_ERRORS as error:  # as in `_notify_taps`
                self._owner.on_tap_error(tap, error)
        if len(batch_taps) == len(taps):
            return
        for message, at_ns in zip(messages, times_ns, strict=True):
            single_taps = [each for each in self._owner.taps if each not in batch_taps]
            self._notify_taps(single_taps, message, Verdict.DELIVERED, at_ns, at_ns, None, 1, at_ns)

    def __repr__(self) -> str:
        what = self.topic or "unicast"
        recipient = f" for {self.subscriber}" if self.subscriber else ""
        return f"<Delivery {what} {self.ingress} -> {self.endpoint}{recipient} period_ns={self.period_ns}>"


# Fast path of Delivery.settle, which is its oracle; compared by tests/core/delivery/test_outgoing_batch.py::
# test_settling_messages_with_their_deliveries_equals_settling_each
def settle_all_delivered(
    deliveries: Sequence[Delivery], ledger: Ledger, messages: Sequence[UMessage], times_ns: Sequence[int]
) -> None:
    """`Delivery.settle_delivered` of each message with its own delivery. All deliveries have one owner."""
    first = deliveries[0]
    if deliveries.count(first) == len(deliveries):
        first.settle_delivered(ledger, messages, times_ns)
        return
    if first.has_taps:
        for delivery, message, at_ns in zip(deliveries, messages, times_ns, strict=True):
            delivery.settle(ledger, message, Verdict.DELIVERED, at_ns, at_ns, None, 1, at_ns)
        return
    ledger.settled[Verdict.DELIVERED] += len(messages)
    for delivery in deliveries:
        delivery.delivered += 1
