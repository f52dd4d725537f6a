# SPDX-License-Identifier: Apache-2.0
"""The dispatcher as its ingresses see it, so that they do not import it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from ustreamer.core.base.clock import Clock
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.expiry import Expiry
from ustreamer.core.delivery.ports import Egress, Filter
from ustreamer.core.routing.router import Router, RoutingDecision
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatus

FilterFactory = Callable[[Delivery], Iterable[Filter]]
Schedule = Callable[[int, Callable[[], None]], None]
"""Schedules a call at a monotonic time in ns."""


class DispatcherPort(Protocol):
    """The services of a dispatcher for its ingresses."""

    authority: str
    clock: Clock
    expiry: Expiry
    router: Router
    egress: Mapping[str, Egress]
    filters: FilterFactory
    schedule: Schedule

    def on_denied(self, ingress: str, attributes: UAttributes, decision: RoutingDecision) -> None: ...

    def respond_error(self, message: UMessage, status: UStatus, endpoint: str) -> None: ...

    def dead_letter(
        self,
        message: UMessage,
        status: UStatus,
        endpoint: str,
        attempts: int,
        first_ns: int,
        last_ns: int,
        ingress: str,
    ) -> None: ...
