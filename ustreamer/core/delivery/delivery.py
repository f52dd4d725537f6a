# SPDX-License-Identifier: Apache-2.0
"""Hop 6: a delivery target and the filters in front of it.

Hooks make the filters when a plan is built; per message a tuple of bound methods runs (0.1 us, a hook call costs 1-3).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeGuard

from ustreamer.core.delivery.ledger import Ledger, Verdict
from ustreamer.core.delivery.plugin_errors import describe_error
from ustreamer.core.delivery.ports import BatchEgress, BatchTap, DeliveryOwner, Egress, Filter, Tap
from ustreamer.uprotocol.batch import MIN_BATCH, MessageBatch
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuri import UUri


def _is_batch_tap(tap: Tap) -> TypeGuard[BatchTap]:
    return hasattr(tap, "on_delivered_batch")  # 0.05 us; isinstance of a Protocol costs 8


FilterCall = Callable[[UMessage, int], Verdict | None]


_FILTER_STATUS: Final = {
    Verdict.THROTTLED: UStatus(UCode.RESOURCE_EXHAUSTED, "the limit of a filter was exceeded"),
    Verdict.DENIED: UStatus(UCode.PERMISSION_DENIED, "refused by a filter"),
}
"""What the requester is told of a Request that a filter has dropped."""


class Delivery:
    """One target of one topic: where to, how often, and through which filters.

    `subscriber` is None where the endpoint is a multicast domain, which is one target for all who listen there, and for
    unicast messages. `topic` is None for what is routed by sink (Notification, Request, Response). `period_ns` 0 is no
    limit. The object stays the same when its plan is made again, so a filter's state may be keyed by it. `tuned_ns` is
    since when its filters go by this period: the time of the message that brought the change, or of a reload.
    """

    __slots__ = (
        "__weakref__",
        "_arrival_ns",
        "_batch_egress",
        "_egress",
        "_filters",
        "_held",
        "_owner",
        "batch",
        "batch_times_ns",
        "delivered",
        "filter_calls",
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
    ) -> None:
        self._owner = owner
        self._egress = egress
        self.transmit = egress.transmitter(subscriber)
        self._batch_egress = egress if isinstance(egress, BatchEgress) else None
        self.transmit_batch = self._batch_egress.batch_transmitter(subscriber) if self._batch_egress else None
        # What of a helping has passed the filters and leaves with the rest of it, and when it came.
        self.batch: list[UMessage] = []
        self.batch_times_ns: list[int] = []
        self.topic = topic
        self.subscriber = subscriber
        self.period_ns = period_ns
        self.period_since_ns = 0
        # What the filters have kept, which of them and since when: so that one that fails loses nothing without a trace.
        self._held: list[tuple[Filter, UMessage, int]] = []
        # When that which was held had arrived, by the message's identity, until it is settled; only for taps.
        self._arrival_ns: dict[int, int] = {}
        self.set_filters(())
        self.received = self.delivered = self.throttled = 0

    @property
    def ingress(self) -> str:
        """The endpoint that the messages come from."""
        return self._owner.name

    @property
    def endpoint(self) -> str:
        """The endpoint that the messages go to."""
        return self._egress.name

    def set_filters(self, filters: tuple[Filter, ...]) -> None:
        """Put these filters in front of the target, in this order."""
        self._filters = filters
        self.filter_calls: tuple[FilterCall, ...] = tuple(each.admit for each in filters)

    def offer(self, message: UMessage, now_ns: int) -> None:
        """Pass `message` through the filters and hand it to the egress. Called under the owner's lock.

        A filter that fails fails closed: what it could not decide about does not pass.
        """
        self.received += 1
        # As `_pass`, which costs another call: 0.05 us of the 1.0 that a message takes.
        admit = verdict = None
        try:
            for admit in self.filter_calls:
                verdict = admit(message, now_ns)
                if verdict is not None:
                    break
        except Exception as error:  # noqa: BLE001  # foreign code
            self._on_filter_error(self._filter_of(admit), error, [message], now_ns)
            return
        if verdict is None:
            self._egress.offer(self, message, now_ns)
        else:
            self._on_filter_verdict(self._filter_of(admit), message, verdict, now_ns)

    def apply_filters(self, message: UMessage, now_ns: int) -> bool:
        """The filters' word on `message`; what does not pass has been seen to. As the first half of `offer`."""
        admit = verdict = None
        try:
            for admit in self.filter_calls:
                verdict = admit(message, now_ns)
                if verdict is not None:
                    break
        except Exception as error:  # noqa: BLE001  # foreign code
            self._on_filter_error(self._filter_of(admit), error, [message], now_ns)
            return False
        if verdict is None:
            return True
        self._on_filter_verdict(self._filter_of(admit), message, verdict, now_ns)
        return False

    def flush_batch(self, *, ageing: bool) -> None:
        """Hand what is `leaving` to the egress, as the second half of `offer` for each; `ageing`: some may have a ttl."""
        messages, self.batch = self.batch, []
        times_ns, self.batch_times_ns = self.batch_times_ns, []
        self._offer_to_egress(messages, times_ns, ageing=ageing)

    def offer_batch(self, batch: MessageBatch, now_ns: int) -> None:
        """As `offer` of each, where there is no filter. Called under the owner's lock."""
        self.received += len(batch)
        self._offer_to_egress(batch, [now_ns] * len(batch), ageing=bool(batch.attributes.ttl))

    def _offer_to_egress(
        self, messages: Sequence[UMessage], times_ns: Sequence[int], *, ageing: bool
    ) -> None:
        if self._batch_egress is not None and len(messages) > 1:
            batch = MessageBatch.from_messages(messages) if len(messages) >= MIN_BATCH else None
            self._batch_egress.offer_batch(self, batch or messages, times_ns, ageing=ageing)
            return
        for message, at_ns in zip(messages, times_ns, strict=True):
            self._egress.offer(self, message, at_ns)

    def _offer_through(self, filters: tuple[Filter, ...], message: UMessage, now_ns: int) -> None:
        for each in filters:
            try:
                verdict = each.admit(message, now_ns)
            except Exception as error:  # noqa: BLE001  # foreign code
                self._on_filter_error(each, error, [message], now_ns)
                return
            if verdict is not None:
                self._on_filter_verdict(each, message, verdict, now_ns)
                return
        self._egress.offer(self, message, now_ns)

    def _filter_of(self, admit: FilterCall | None) -> Filter:
        assert admit is not None  # none raises or answers where there is none
        return self._filters[self.filter_calls.index(admit)]

    def wake_at(self, when_ns: int, holder: Filter) -> None:
        """For a filter that holds a message: have `holder.release` called at `when_ns`."""
        self._owner.wake_at(when_ns, self, holder)

    def dropped_held(self, message: UMessage, now_ns: int) -> None:
        """For a filter that held `message` and drops it in favour of a newer one."""
        if self._remove_held(message):
            self._settle_dropped(message, Verdict.THROTTLED, now_ns)

    def release_held(self, holder: Filter, now_ns: int, *, subscribed: bool = True) -> None:
        """Send on what `holder` releases, through the filters behind it; NO_SUBSCRIBER if nobody wants it any more."""
        try:
            message = holder.release_due(now_ns)
        except Exception as error:  # noqa: BLE001  # foreign code: what it held does not pass
            self._on_filter_error(holder, error, self._remove_held_by(holder), now_ns)
            return
        if message is None or not self._remove_held(message):
            return
        if not subscribed:
            self.settle(self._owner.ledger, message, Verdict.NO_SUBSCRIBER, now_ns, now_ns)
            return
        # A holder that a change of the wish has put out of the chain still owes what it holds.
        next_filter = self._filters.index(holder) + 1 if holder in self._filters else len(self._filters)
        self._offer_through(self._filters[next_filter:], message, now_ns)

    # --- what the filters hold, and what they stop ----------------------------------------------------------------------

    def _on_filter_verdict(self, holder: Filter, message: UMessage, verdict: Verdict, now_ns: int) -> None:
        if verdict is Verdict.THROTTLED or verdict is Verdict.DENIED:
            self._settle_dropped(message, verdict, now_ns)
        elif verdict is Verdict.QUEUED:
            self._held.append((holder, message, self._arrival_ns.pop(id(message), now_ns)))
            self._owner.held += 1
        else:
            error_text = f"{verdict!r} is no answer of admit: expected None, THROTTLED, DENIED or QUEUED"
            self._on_filter_error(holder, TypeError(error_text), [message], now_ns)

    def _remove_held(self, message: UMessage) -> bool:
        """Whether `message` was among those held, of which it is no more; a filter may only hand back what it kept."""
        for index, (_, held, arrived_ns) in enumerate(self._held):
            if held is message:
                del self._held[index]
                self._count_released(message, arrived_ns)
                return True
        return False

    def _count_released(self, message: UMessage, arrived_ns: int) -> None:
        self._owner.held -= 1
        if self._owner.taps:
            self._arrival_ns[id(message)] = arrived_ns

    def clear_arrivals(self) -> None:
        """No tap is left to be told: what was noted for them will not be asked for. Under the owner's lock."""
        self._arrival_ns.clear()

    def abandon_held(self, now_ns: int, reason: UStatus) -> list[UMessage]:
        """Make a dead letter of all that the filters hold, and answer who asked; what that was. Under the owner's lock."""
        abandoned = self._remove_held_where(lambda _: True)
        self._dead_letter(abandoned, now_ns, reason)
        return abandoned

    def _remove_held_by(self, holder: Filter) -> list[UMessage]:
        """Everything that `holder` kept, of which it owes nothing any more."""
        return self._remove_held_where(lambda by: by is holder)

    def _remove_held_where(self, is_holder: Callable[[Filter], bool]) -> list[UMessage]:
        removed = [each for each in self._held if is_holder(each[0])]
        self._held = [each for each in self._held if not is_holder(each[0])]
        for _, message, arrived_ns in removed:
            self._count_released(message, arrived_ns)
        return [message for _, message, _ in removed]

    def _settle_dropped(self, message: UMessage, verdict: Verdict, now_ns: int) -> None:
        self.settle(self._owner.ledger, message, verdict, now_ns, now_ns)
        if (
            self.topic is None
        ):  # it may be a Request; and a publication that is throttled must cost nothing more
            self._owner.on_filter_stop(message, self, verdict, _FILTER_STATUS[verdict])

    def _on_filter_error(
        self, plugin: Filter, error: Exception, messages: list[UMessage], now_ns: int
    ) -> None:
        self._owner.on_filter_error(plugin, error)
        self._dead_letter(
            messages, now_ns, UStatus(UCode.INTERNAL, f"filter {describe_error(plugin, error)}")
        )

    def _dead_letter(self, messages: list[UMessage], now_ns: int, reason: UStatus) -> None:
        for message in messages:
            self.settle(self._owner.ledger, message, Verdict.DEAD_LETTERED, now_ns, now_ns, reason)
            self._owner.on_filter_stop(message, self, Verdict.DEAD_LETTERED, reason)

    # --- from an earlier process ----------------------------------------------------------------------------------------

    def count_restored(self) -> None:
        """Count a message that an earlier process accepted, past the filters, as received. Before anything is dispatched."""
        self.received += 1
        self._owner.ledger.received += 1

    # --- the end --------------------------------------------------------------------------------------------------------

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
        """The one place where a delivery ends; `ledger` is the caller's own."""
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
        arrived_ns = self._arrival_ns.pop(id(message), received_ns) if self._arrival_ns else received_ns
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
            except Exception as error:  # noqa: BLE001  # foreign code, and no party to what happens
                self._owner.on_tap_error(tap, error)

    def settle_delivered(self, ledger: Ledger, messages: Sequence[UMessage], times_ns: Sequence[int]) -> None:
        """As `settle` of each as DELIVERED at the first attempt, at the time it came."""
        ledger.settled[Verdict.DELIVERED] += len(messages)
        self.delivered += len(messages)
        if self._owner.taps:
            self._notify_taps_of_batch(messages, times_ns)

    def _notify_taps_of_batch(self, messages: Sequence[UMessage], times_ns: Sequence[int]) -> None:
        """Tell the taps: those that can of all at once, unless a filter has held some, which came before they left."""
        batch_taps = [] if self._arrival_ns else [each for each in self._owner.taps if _is_batch_tap(each)]
        for tap in batch_taps:
            try:
                tap.on_delivered_batch(messages, self, times_ns)
            except Exception as error:  # noqa: BLE001  # as in `_tell`
                self._owner.on_tap_error(tap, error)
        if len(batch_taps) == len(self._owner.taps):
            return
        for message, at_ns in zip(messages, times_ns, strict=True):
            single_taps = [each for each in self._owner.taps if each not in batch_taps]
            self._notify_taps(single_taps, message, Verdict.DELIVERED, at_ns, at_ns, None, 1, at_ns)

    def __repr__(self) -> str:
        what = self.topic or "unicast"
        recipient = f" for {self.subscriber}" if self.subscriber else ""
        return f"<Delivery {what} {self.ingress} -> {self.endpoint}{recipient} period_ns={self.period_ns}>"
