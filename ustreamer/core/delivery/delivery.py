# SPDX-License-Identifier: Apache-2.0
"""Hop 6: a delivery target and the filters in front of it.

Hooks make the filters when a plan is built; per message a tuple of bound methods runs (0.1 us, a hook call costs 1-3).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, TypeGuard, runtime_checkable

from ustreamer.core.delivery.ledger import Ledger, Verdict
from ustreamer.core.delivery.plugin_errors import describe_error
from ustreamer.uprotocol.batch import MIN_BATCH, MessageBatch
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuri import UUri


class Filter:
    """Decides for one delivery target, message by message. Subclass it in a plugin; calls never overlap."""

    def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
        """None lets the message pass. Any other answer takes it out of the path:

        * THROTTLED or DENIED: it is dropped and counted so (neither is ever dead-lettered). The requester of a Request
          is told: RESOURCE_EXHAUSTED or PERMISSION_DENIED;
        * QUEUED: the filter keeps it and has asked `DeliveryConfig.wake_at` for a call of `release`. What it drops later in
          favour of a newer message it reports with `DeliveryConfig.dropped_held`.

        A filter that raises, or answers anything else, has failed: its message is a dead letter (INTERNAL) and goes no
        further. So is what it held if `release` raises.
        """
        raise TypeError(f"{type(self).__name__} does not say what it admits: define admit(message, now_ns)")

    def release_due(self, now_ns: int) -> UMessage | None:
        """Hand back the held message if its time has come; None otherwise."""
        return None


class Tap(Protocol):
    """Sees every verdict on what came in at one endpoint; runs on the path, so it must only take notes (aim: 0.5 us).

    What it raises disturbs nobody; after `faults.TAP_FAILURES` times it is switched off at that endpoint.
    """

    def __call__(
        self,
        message: UMessage,
        delivery: "Delivery | None",
        verdict: Verdict,
        reason: UStatus | None,
        attempts: int,
        arrived_ns: int,
        received_ns: int,
        first_attempt_ns: int,
        settled_ns: int,
    ) -> None:
        """`delivery` is None for a message that had no target; DELIVERED took `attempts`. Times are monotonic ns.

        `received_ns` is when the filters had their last word: on arrival, but for what a filter held until then. Both are
        as the filters were told. `first_attempt_ns` is 0 if sending was not tried. An endpoint that sends inline reads no
        clock for it: first attempt and settling are at `received_ns`.
        """


class BatchTap(Tap, Protocol):
    """A tap that takes many notes at once: where that is cheaper than one by one. Found by its method, `delivered`."""

    def on_delivered_batch(
        self, messages: Sequence[UMessage], delivery: "Delivery", times_ns: Sequence[int]
    ) -> None:
        """As a call for each: DELIVERED at the first attempt, with all four times that at which it came.

        No time is before that of the message in front of it. Nothing of the sequences may be kept.
        """
        ...


def _is_batch_tap(tap: Tap) -> TypeGuard[BatchTap]:
    return hasattr(tap, "on_delivered_batch")  # 0.05 us; isinstance of a Protocol costs 8


class DeliveryOwner(Protocol):
    """What a delivery needs of the ingress whose messages it takes; `chain` does not import the dispatcher."""

    name: str
    ledger: Ledger
    taps: tuple[Tap, ...]
    held: int

    def wake_at(self, when_ns: int, delivery: "Delivery", holder: Filter) -> None: ...

    def on_filter_stop(
        self, message: UMessage, delivery: "Delivery", verdict: Verdict, reason: UStatus
    ) -> None:
        """A filter's verdict ended a delivery for a reason that somebody may have to be told. It is settled already."""
        ...

    def on_filter_error(self, plugin: object, error: Exception) -> None: ...

    def on_tap_error(self, tap: Tap, error: Exception) -> None:
        """From any thread, with the caller's lock held."""
        ...


FilterCall = Callable[[UMessage, int], Verdict | None]


_FILTER_STATUS: Final = {
    Verdict.THROTTLED: UStatus(UCode.RESOURCE_EXHAUSTED, "the limit of a filter was exceeded"),
    Verdict.DENIED: UStatus(UCode.PERMISSION_DENIED, "refused by a filter"),
}
"""What the requester is told of a Request that a filter has dropped."""


class SendOne(Protocol):
    """Sends one message to one target; raises UStatusError, UNAVAILABLE where trying again can help."""

    def __call__(self, message: UMessage, /) -> None: ...


class Egress(Protocol):
    """Hop 7 as routing sees it: takes a message over, and from then on owes it a verdict.

    `unicast` tells whether each subscriber behind it is a target of its own, or all of them together are one.
    """

    name: str
    unicast: bool

    def offer(self, delivery: "Delivery", message: UMessage, now_ns: int) -> None: ...

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        """What sends to one subscriber, or (None) to whoever the message itself names."""
        ...


class SendBatch(Protocol):
    """Sends messages to one target, in their order, and stops at the first that is not taken; how many were. Raises nothing.

    What is not taken is offered again by itself, and then says why. Ids and attributes are valid. The iterable is asked for
    each message just before it is sent, and ends when the next is too old; a `MessageBatch` with a ttl is good for `SOON_MS`.
    """

    def __call__(self, messages: Iterable[UMessage], /) -> int: ...


@runtime_checkable
class BatchEgress(Protocol):
    """An egress that takes several messages of one delivery at once."""

    def offer_batch(
        self, delivery: "Delivery", messages: Sequence[UMessage], times_ns: Sequence[int], *, ageing: bool
    ) -> None:
        """As `offer` of each at its time; unless they are `ageing`, none has a ttl."""
        ...

    def batch_transmitter(self, subscriber: UUri | None) -> SendBatch: ...


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
