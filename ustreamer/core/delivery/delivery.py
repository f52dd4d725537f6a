# SPDX-License-Identifier: Apache-2.0
"""Hop 6: a delivery target and the filters in front of it.

Hooks make the filters when a plan is built; per message a tuple of bound methods runs (0.1 us, a hook call costs 1-3).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, TypeGuard, runtime_checkable

from ustreamer.core.delivery.ledger import Ledger, Verdict
from ustreamer.core.delivery.plugin_errors import described
from ustreamer.uprotocol.batch import MANY, Run
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuri import UUri


class Filter:
    """Decides for one delivery target, message by message. Subclass it in a plugin; calls never overlap."""

    def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
        """None lets the message pass. Any other answer takes it out of the path:

        * THROTTLED or DENIED: it is dropped and counted so (neither is ever dead-lettered). The requester of a Request
          is told: RESOURCE_EXHAUSTED or PERMISSION_DENIED;
        * QUEUED: the filter keeps it and has asked `Delivery.wake_at` for a call of `release`. What it drops later in
          favour of a newer message it reports with `Delivery.superseded`.

        A filter that raises, or answers anything else, has failed: its message is a dead letter (INTERNAL) and goes no
        further. So is what it held if `release` raises.
        """
        raise TypeError(f"{type(self).__name__} does not say what it admits: define admit(message, now_ns)")

    def release(self, now_ns: int) -> UMessage | None:
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


class BulkTap(Tap, Protocol):
    """A tap that takes many notes at once: where that is cheaper than one by one. Found by its method, `delivered`."""

    def delivered(self, messages: Sequence[UMessage], delivery: "Delivery", times_ns: Sequence[int]) -> None:
        """As a call for each: DELIVERED at the first attempt, with all four times that at which it came.

        No time is before that of the message in front of it. Nothing of the sequences may be kept.
        """
        ...


def _takes_many(tap: Tap) -> TypeGuard[BulkTap]:
    return hasattr(tap, "delivered")  # 0.05 us; isinstance of a Protocol costs 8


class Owner(Protocol):
    """What a delivery needs of the ingress whose messages it takes; `chain` does not import the dispatcher."""

    name: str
    ledger: Ledger
    taps: tuple[Tap, ...]
    held: int

    def wake_at(self, when_ns: int, delivery: "Delivery", holder: Filter) -> None: ...

    def stopped(self, message: UMessage, delivery: "Delivery", verdict: Verdict, reason: UStatus) -> None:
        """A filter's verdict ended a delivery for a reason that somebody may have to be told. It is settled already."""
        ...

    def filter_failed(self, plugin: object, error: Exception) -> None: ...

    def tap_failed(self, tap: Tap, error: Exception) -> None:
        """From any thread, with the caller's lock held."""
        ...


Admit = Callable[[UMessage, int], Verdict | None]


_ANSWERS: Final = {
    Verdict.THROTTLED: UStatus(UCode.RESOURCE_EXHAUSTED, "the limit of a filter was exceeded"),
    Verdict.DENIED: UStatus(UCode.PERMISSION_DENIED, "refused by a filter"),
}
"""What the requester is told of a Request that a filter has dropped."""


class Transmit(Protocol):
    """Sends one message to one target; raises UStatusError, UNAVAILABLE where trying again can help."""

    def __call__(self, message: UMessage, /) -> None: ...


class Egress(Protocol):
    """Hop 7 as routing sees it: takes a message over, and from then on owes it a verdict.

    `unicast` tells whether each subscriber behind it is a target of its own, or all of them together are one.
    """

    name: str
    unicast: bool

    def offer(self, delivery: "Delivery", message: UMessage, now_ns: int) -> None: ...

    def transmitter(self, subscriber: UUri | None) -> Transmit:
        """What sends to one subscriber, or (None) to whoever the message itself names."""
        ...


class BulkTransmit(Protocol):
    """Sends messages to one target, in their order, and stops at the first that is not taken; how many were. Raises nothing.

    What is not taken is offered again by itself, and then says why. Ids and attributes are valid. The iterable is asked for
    each message just before it is sent, and ends when the next is too old; a `Run` with a ttl is good for `SOON_MS`.
    """

    def __call__(self, messages: Iterable[UMessage], /) -> int: ...


@runtime_checkable
class BulkEgress(Protocol):
    """An egress that takes several messages of one delivery at once."""

    def offer_all(
        self, delivery: "Delivery", messages: Sequence[UMessage], times_ns: Sequence[int], *, ageing: bool
    ) -> None:
        """As `offer` of each at its time; unless they are `ageing`, none has a ttl."""
        ...

    def bulk_transmitter(self, subscriber: UUri | None) -> BulkTransmit: ...


class Delivery:
    """One target of one topic: where to, how often, and through which filters.

    `subscriber` is None where the endpoint is a multicast domain, which is one target for all who listen there, and for
    unicast messages. `topic` is None for what is routed by sink (Notification, Request, Response). `period_ns` 0 is no
    limit. The object stays the same when its plan is made again, so a filter's state may be keyed by it. `tuned_ns` is
    since when its filters go by this period: the time of the message that brought the change, or of a reload.
    """

    __slots__ = (
        "__weakref__",
        "_arrived",
        "_bulk",
        "_egress",
        "_filters",
        "_held",
        "_owner",
        "admits",
        "delivered",
        "leaving",
        "leaving_ns",
        "period_ns",
        "received",
        "subscriber",
        "throttled",
        "topic",
        "transmit",
        "transmit_all",
        "tuned_ns",
    )

    def __init__(
        self,
        owner: Owner,
        egress: Egress,
        topic: UUri | None = None,
        subscriber: UUri | None = None,
        period_ns: int = 0,
    ) -> None:
        self._owner = owner
        self._egress = egress
        self.transmit = egress.transmitter(subscriber)
        self._bulk = egress if isinstance(egress, BulkEgress) else None
        self.transmit_all = self._bulk.bulk_transmitter(subscriber) if self._bulk else None
        # What of a helping has passed the filters and leaves with the rest of it, and when it came.
        self.leaving: list[UMessage] = []
        self.leaving_ns: list[int] = []
        self.topic = topic
        self.subscriber = subscriber
        self.period_ns = period_ns
        self.tuned_ns = 0
        # What the filters have kept, which of them and since when: so that one that fails loses nothing without a trace.
        self._held: list[tuple[Filter, UMessage, int]] = []
        # When that which was held had arrived, by the message's identity, until it is settled; only for taps.
        self._arrived: dict[int, int] = {}
        self.use(())
        self.received = self.delivered = self.throttled = 0

    @property
    def ingress(self) -> str:
        """The endpoint that the messages come from."""
        return self._owner.name

    @property
    def endpoint(self) -> str:
        """The endpoint that the messages go to."""
        return self._egress.name

    def use(self, filters: tuple[Filter, ...]) -> None:
        """Put these filters in front of the target, in this order."""
        self._filters = filters
        self.admits: tuple[Admit, ...] = tuple(each.admit for each in filters)

    def offer(self, message: UMessage, now_ns: int) -> None:
        """Pass `message` through the filters and hand it to the egress. Called under the owner's lock.

        A filter that fails fails closed: what it could not decide about does not pass.
        """
        self.received += 1
        # As `_pass`, which costs another call: 0.05 us of the 1.0 that a message takes.
        admit = verdict = None
        try:
            for admit in self.admits:
                verdict = admit(message, now_ns)
                if verdict is not None:
                    break
        except Exception as error:  # noqa: BLE001  # foreign code
            self._failed(self._filter_of(admit), error, [message], now_ns)
            return
        if verdict is None:
            self._egress.offer(self, message, now_ns)
        else:
            self._stop(self._filter_of(admit), message, verdict, now_ns)

    def passes(self, message: UMessage, now_ns: int) -> bool:
        """The filters' word on `message`; what does not pass has been seen to. As the first half of `offer`."""
        admit = verdict = None
        try:
            for admit in self.admits:
                verdict = admit(message, now_ns)
                if verdict is not None:
                    break
        except Exception as error:  # noqa: BLE001  # foreign code
            self._failed(self._filter_of(admit), error, [message], now_ns)
            return False
        if verdict is None:
            return True
        self._stop(self._filter_of(admit), message, verdict, now_ns)
        return False

    def leave(self, *, ageing: bool) -> None:
        """Hand what is `leaving` to the egress, as the second half of `offer` for each; `ageing`: some may have a ttl."""
        messages, self.leaving = self.leaving, []
        times_ns, self.leaving_ns = self.leaving_ns, []
        self._hand_over(messages, times_ns, ageing=ageing)

    def take(self, run: Run, now_ns: int) -> None:
        """As `offer` of each, where there is no filter. Called under the owner's lock."""
        self.received += len(run)
        self._hand_over(run, [now_ns] * len(run), ageing=bool(run.attributes.ttl))

    def _hand_over(self, messages: Sequence[UMessage], times_ns: Sequence[int], *, ageing: bool) -> None:
        if self._bulk is not None and len(messages) > 1:
            alike = Run.of(messages) if len(messages) >= MANY else None
            self._bulk.offer_all(self, alike or messages, times_ns, ageing=ageing)
            return
        for message, at_ns in zip(messages, times_ns, strict=True):
            self._egress.offer(self, message, at_ns)

    def _pass(self, filters: tuple[Filter, ...], message: UMessage, now_ns: int) -> None:
        for each in filters:
            try:
                verdict = each.admit(message, now_ns)
            except Exception as error:  # noqa: BLE001  # foreign code
                self._failed(each, error, [message], now_ns)
                return
            if verdict is not None:
                self._stop(each, message, verdict, now_ns)
                return
        self._egress.offer(self, message, now_ns)

    def _filter_of(self, admit: Admit | None) -> Filter:
        assert admit is not None  # none raises or answers where there is none
        return self._filters[self.admits.index(admit)]

    def wake_at(self, when_ns: int, holder: Filter) -> None:
        """For a filter that holds a message: have `holder.release` called at `when_ns`."""
        self._owner.wake_at(when_ns, self, holder)

    def superseded(self, message: UMessage, now_ns: int) -> None:
        """For a filter that held `message` and drops it in favour of a newer one."""
        if self._let_go(message):
            self._end(message, Verdict.THROTTLED, now_ns)

    def resume(self, holder: Filter, now_ns: int, *, wanted: bool = True) -> None:
        """Send on what `holder` releases, through the filters behind it; NO_SUBSCRIBER if nobody wants it any more."""
        try:
            message = holder.release(now_ns)
        except Exception as error:  # noqa: BLE001  # foreign code: what it held does not pass
            self._failed(holder, error, self._taken_from(holder), now_ns)
            return
        if message is None or not self._let_go(message):
            return
        if not wanted:
            self.settle(self._owner.ledger, message, Verdict.NO_SUBSCRIBER, now_ns, now_ns)
            return
        # A holder that a change of the wish has put out of the chain still owes what it holds.
        behind = self._filters.index(holder) + 1 if holder in self._filters else len(self._filters)
        self._pass(self._filters[behind:], message, now_ns)

    # --- what the filters hold, and what they stop ----------------------------------------------------------------------

    def _stop(self, by: Filter, message: UMessage, verdict: Verdict, now_ns: int) -> None:
        if verdict is Verdict.THROTTLED or verdict is Verdict.DENIED:
            self._end(message, verdict, now_ns)
        elif verdict is Verdict.QUEUED:
            self._held.append((by, message, self._arrived.pop(id(message), now_ns)))
            self._owner.held += 1
        else:
            wrong = f"{verdict!r} is no answer of admit: expected None, THROTTLED, DENIED or QUEUED"
            self._failed(by, TypeError(wrong), [message], now_ns)

    def _let_go(self, message: UMessage) -> bool:
        """Whether `message` was among those held, of which it is no more; a filter may only hand back what it kept."""
        for index, (_, held, arrived_ns) in enumerate(self._held):
            if held is message:
                del self._held[index]
                self._free(message, arrived_ns)
                return True
        return False

    def _free(self, message: UMessage, arrived_ns: int) -> None:
        self._owner.held -= 1
        if self._owner.taps:
            self._arrived[id(message)] = arrived_ns

    def forget_arrivals(self) -> None:
        """No tap is left to be told: what was noted for them will not be asked for. Under the owner's lock."""
        self._arrived.clear()

    def give_up(self, now_ns: int, reason: UStatus) -> list[UMessage]:
        """Make a dead letter of all that the filters hold, and answer who asked; what that was. Under the owner's lock."""
        given_up = self._taken(lambda _: True)
        self._bury(given_up, now_ns, reason)
        return given_up

    def _taken_from(self, holder: Filter) -> list[UMessage]:
        """Everything that `holder` kept, of which it owes nothing any more."""
        return self._taken(lambda by: by is holder)

    def _taken(self, is_holder: Callable[[Filter], bool]) -> list[UMessage]:
        taken = [each for each in self._held if is_holder(each[0])]
        self._held = [each for each in self._held if not is_holder(each[0])]
        for _, message, arrived_ns in taken:
            self._free(message, arrived_ns)
        return [message for _, message, _ in taken]

    def _end(self, message: UMessage, verdict: Verdict, now_ns: int) -> None:
        self.settle(self._owner.ledger, message, verdict, now_ns, now_ns)
        if (
            self.topic is None
        ):  # it may be a Request; and a publication that is throttled must cost nothing more
            self._owner.stopped(message, self, verdict, _ANSWERS[verdict])

    def _failed(self, plugin: Filter, error: Exception, messages: list[UMessage], now_ns: int) -> None:
        self._owner.filter_failed(plugin, error)
        self._bury(messages, now_ns, UStatus(UCode.INTERNAL, f"filter {described(plugin, error)}"))

    def _bury(self, messages: list[UMessage], now_ns: int, reason: UStatus) -> None:
        for message in messages:
            self.settle(self._owner.ledger, message, Verdict.DEAD_LETTERED, now_ns, now_ns, reason)
            self._owner.stopped(message, self, Verdict.DEAD_LETTERED, reason)

    # --- from an earlier process ----------------------------------------------------------------------------------------

    def readmit(self) -> None:
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
            self._tell(
                self._owner.taps,
                message,
                verdict,
                received_ns,
                settled_ns,
                reason,
                attempts,
                first_attempt_ns,
            )

    def _tell(
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
        arrived_ns = self._arrived.pop(id(message), received_ns) if self._arrived else received_ns
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
                self._owner.tap_failed(tap, error)

    def settle_delivered(self, ledger: Ledger, messages: Sequence[UMessage], times_ns: Sequence[int]) -> None:
        """As `settle` of each as DELIVERED at the first attempt, at the time it came."""
        ledger.settled[Verdict.DELIVERED] += len(messages)
        self.delivered += len(messages)
        if self._owner.taps:
            self._tell_delivered(messages, times_ns)

    def _tell_delivered(self, messages: Sequence[UMessage], times_ns: Sequence[int]) -> None:
        """Tell the taps: those that can of all at once, unless a filter has held some, which came before they left."""
        together = [] if self._arrived else [each for each in self._owner.taps if _takes_many(each)]
        for tap in together:
            try:
                tap.delivered(messages, self, times_ns)
            except Exception as error:  # noqa: BLE001  # as in `_tell`
                self._owner.tap_failed(tap, error)
        if len(together) == len(self._owner.taps):
            return
        for message, at_ns in zip(messages, times_ns, strict=True):
            alone = [each for each in self._owner.taps if each not in together]
            self._tell(alone, message, Verdict.DELIVERED, at_ns, at_ns, None, 1, at_ns)

    def __repr__(self) -> str:
        what = self.topic or "unicast"
        whom = f" for {self.subscriber}" if self.subscriber else ""
        return f"<Delivery {what} {self.ingress} -> {self.endpoint}{whom} period_ns={self.period_ns}>"
