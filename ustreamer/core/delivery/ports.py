# SPDX-License-Identifier: Apache-2.0
"""The interfaces around a delivery: filters in front of it, the egress behind it, taps that observe its verdicts.

Plugins implement `Filter` and `Tap`, the host implements `Egress`, a transport supplies `SendOne` and `SendBatch`.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ustreamer.core.delivery.ledger import Ledger, Verdict
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatus
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from ustreamer.core.delivery.delivery import Delivery


class Filter:
    """Decides for one delivery target, message by message. A plugin subclasses it; calls never overlap.

    `Delivery.topic` shows the kind of messages: a topic for its publications; None for notifications, requests and
    responses, also those of uSubscription. A filter that refuses a response of uSubscription breaks the subscription;
    the streamer logs `plugins.subscription_answer_refused`.
    """

    def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
        """Return None to let the message pass. Any other verdict stops the message here:

        * THROTTLED or DENIED: the message is dropped and counted, and never becomes a dead letter. The requester of a
          Request receives RESOURCE_EXHAUSTED or PERMISSION_DENIED;
        * QUEUED: the filter holds the message and has called `Delivery.wake_at` to schedule `release_due`. A held
          message that a newer one replaces is reported with `Delivery.dropped_held`.

        A filter that raises or returns another value has failed: the message becomes a dead letter (INTERNAL). If
        `release_due` raises, so do all messages that the filter holds.
        """
        raise TypeError(f"{type(self).__name__} has no verdict: define admit(message, now_ns)")

    def release_due(self, now_ns: int) -> UMessage | None:
        """Return the held message if it is due, else None."""
        return None

    def may_depart_at(self, when_ns: int) -> bool:
        """Whether a held message may leave at the wake-up of `when_ns`. False: only the state of the filter changes then.

        A replay asks: a recording has the times at which messages left, and no other times of timers.
        """
        return True


class Tap(Protocol):
    """Observes every verdict on the messages of one ingress endpoint. It runs on the message path (budget: 0.5 us), and
    several threads may call it at once.

    An exception of a tap does not affect delivery. After `plugin_errors.MAX_TAP_ERRORS` exceptions the tap is disabled
    at that endpoint.
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
        """Record one verdict. `delivery` is None for a message without target. Times are monotonic ns.

        `attempts` is the number of sends. `received_ns` is the time of the last filter decision: the arrival, or the
        release of a held message. Both are the times that the filters were given. `first_attempt_ns` is 0 if no send
        was tried. An endpoint that sends inline reads no clock: first attempt and settling are at `received_ns`.
        """


class BackloggedEgress(Protocol):
    """An egress that can slow its input down."""

    def wait_backlog(self) -> None:
        """Wait while the egress is slower than its input, but not for a slow receiver. Called without locks."""
        ...


class BatchTap(Tap, Protocol):
    """A tap that records a batch in one call. Detected by its method `on_delivered_batch`."""

    def on_delivered_batch(
        self, messages: Sequence[UMessage], delivery: "Delivery", times_ns: Sequence[int]
    ) -> None:
        """Equal to one call per message: DELIVERED at the first attempt, all four times equal to its arrival.

        `times_ns` never decreases. The tap must not keep the sequences.
        """
        ...


class DeliveryOwner(Protocol):
    """What a delivery needs from its ingress; keeps `delivery` free of an import of the dispatcher."""

    name: str
    ledger: Ledger
    taps: tuple[Tap, ...]
    held: int

    def wake_at(self, when_ns: int, delivery: "Delivery", holder: Filter) -> None: ...

    def is_paused(self, delivery: "Delivery") -> bool:
        """Whether all subscribers of the target have stopped the dispatch of its topic. From any thread."""
        ...

    def on_filter_stop(
        self, message: UMessage, delivery: "Delivery", verdict: Verdict, reason: UStatus
    ) -> None:
        """A filter ended a delivery. A requester may need an error response. The delivery is settled already."""
        ...

    def on_filter_error(self, plugin: object, error: BaseException) -> None: ...

    def on_backlog(self, egress: "BackloggedEgress") -> None:
        """The queue of `egress` has a backlog. Before it accepts more messages the owner calls `wait_backlog`."""
        ...

    def on_tap_error(self, tap: Tap, error: BaseException) -> None:
        """Called from any thread, with the caller's lock held."""
        ...


class SendOne(Protocol):
    """Sends one message to one target. Raises UStatusError, with UNAVAILABLE where a retry can help."""

    def __call__(self, message: UMessage, /) -> None: ...


class Egress(Protocol):
    """The interface of the egress stage for routing: it accepts a message and must settle it with a verdict.

    `unicast` is True if each subscriber behind the endpoint is a target of its own, False if all share one target.
    """

    name: str
    unicast: bool

    def offer(self, delivery: "Delivery", message: UMessage, now_ns: int) -> None: ...

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        """Return the function that sends to one subscriber, or with None to the recipient that the message names."""
        ...


@runtime_checkable
class ListenerEgress(Protocol):
    """An egress that knows whether there are listeners behind it."""

    def has_listener(self, attributes: UAttributes) -> bool:
        """Whether a publication would be received; True if that is not known. Called for broadcast topics only."""
        ...


class SendBatch(Protocol):
    """Sends messages to one target in order, stops at the first refused one, returns the number sent. Never raises.

    The caller offers the refused message again alone, and that send raises the reason. Ids and attributes are valid.
    The iterable yields each message just before its send, and ends when the next message is too old. A `MessageBatch`
    with a ttl is valid for `expiry.BATCH_SEND_MS`.
    """

    def __call__(self, messages: Iterable[UMessage], /) -> int: ...


@runtime_checkable
class BatchEgress(Protocol):
    """An egress that takes several messages for one target in one call, each with its own delivery."""

    def offer_batch(
        self,
        deliveries: "Sequence[Delivery]",
        messages: Sequence[UMessage],
        times_ns: Sequence[int],
        *,
        has_ttl: bool,
    ) -> None:
        """Equal to `offer` of each message at its time. Without `has_ttl`, no message has a ttl.

        All deliveries have the same ingress and subscriber. Those of a `MessageBatch` are all the same.
        """
        ...

    def batch_transmitter(self, subscriber: UUri | None) -> SendBatch: ...
