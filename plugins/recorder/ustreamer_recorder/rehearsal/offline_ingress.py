# SPDX-License-Identifier: Apache-2.0
"""The streamer's own ingress on recorded time. Messages go in; each decision goes to a tap, and nothing to a network."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final

from ustreamer.core.base.clock import Clock
from ustreamer.core.base.timers import Timers
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.expiry import Expiry
from ustreamer.core.delivery.ledger import Ledger, Verdict
from ustreamer.core.delivery.ports import Egress, Filter, SendOne, Tap
from ustreamer.core.dispatch.dispatcher_port import FilterFactory, Schedule
from ustreamer.core.dispatch.ingress import Ingress
from ustreamer.core.routing.router import RoutingDecision
from ustreamer.hooks import OfflineRouting
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatus
from ustreamer.uprotocol.uuri import UUri
from ustreamer_recorder.rehearsal.recorded_traffic import Destination

_LATE_NS: Final = 100_000_000
"""How late a timer may have been in the recorded run."""

Releases = Mapping[tuple[str, UUri, Destination], Sequence[int]]


class AcceptingEgress:
    """The queue of an endpoint whose receivers are always ready."""

    def __init__(self, name: str, unicast: bool) -> None:
        self.name = name
        self.unicast = unicast
        self._ledger = Ledger()

    def offer(self, delivery: Delivery, message: UMessage, now_ns: int) -> None:
        delivery.settle(self._ledger, message, Verdict.DELIVERED, now_ns, now_ns, attempts=1)

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        return lambda message: None


class OfflineDispatcher:
    """A `DispatcherPort` without networks. `now_ns` is the time that all decisions are made at."""

    def __init__(self, authority: str, routing: OfflineRouting) -> None:
        self.now_ns = 0
        self.timers = Timers()
        self.authority = authority
        # The time on the wall is never after the creation of a message: whether it is too old, the caller decides.
        self.clock = Clock(lambda: self.now_ns, lambda: 0)
        self.expiry = Expiry(self.clock)
        self.router = routing.router
        self.egress: Mapping[str, Egress] = {
            name: AcceptingEgress(name, unicast) for name, unicast in routing.unicast.items()
        }
        self.filters: FilterFactory = routing.filters
        self.schedule: Schedule = self.timers.schedule

    def on_denied(self, ingress: str, attributes: UAttributes, decision: RoutingDecision) -> None:
        """Audit nothing."""

    def respond_error(self, message: UMessage, status: UStatus, endpoint: str) -> None:
        """Send nothing."""

    def dead_letter(
        self,
        message: UMessage,
        status: UStatus,
        endpoint: str,
        attempts: int,
        first_ns: int,
        last_ns: int,
        ingress: str,
    ) -> None:
        """Publish nothing."""


class OfflineIngress(Ingress):
    """An ingress whose timers are as late as those of the recorded run."""

    def __init__(self, name: str, dispatcher: OfflineDispatcher, tap: Tap, releases: Releases) -> None:
        super().__init__(name, dispatcher, (tap,))
        self._releases = releases

    def wake_at(self, when_ns: int, delivery: Delivery, holder: Filter) -> None:
        if holder.may_depart_at(when_ns):
            when_ns = self._recorded_release(when_ns, delivery)
        super().wake_at(when_ns, delivery, holder)

    def _recorded_release(self, when_ns: int, delivery: Delivery) -> int:
        """When the recorded run released the message that is due at `when_ns`; `when_ns` if it held none."""
        if delivery.topic is None:
            return when_ns
        place = self.name, delivery.topic, Destination(delivery.endpoint, delivery.subscriber)
        times_ns = self._releases.get(place, ())
        at = bisect_left(times_ns, when_ns)
        return times_ns[at] if at < len(times_ns) and times_ns[at] - when_ns < _LATE_NS else when_ns
