# SPDX-License-Identifier: Apache-2.0
"""The messages that an endpoint has denied lately, by their addresses, with times: for diagnosis.

In: each denied message. Out: bounded records. Nothing here is called for a message that is accepted.
"""

from collections import OrderedDict
from typing import Final

import msgspec

from ustreamer.core.base.recent_failures import CURRENT_MS, series_goes_on
from ustreamer.core.routing.router import RoutingDecision
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.uuri import UUri

MAX_DENIALS: Final = 256


class RecentDenial(msgspec.Struct, frozen=True):
    """A series of denied messages from `source` to `sink` at the endpoint `ingress`. Times are ms since the epoch.

    `denied_as` and `reason` are those of the last one. A minute without a denial ends the series.
    """

    ingress: str
    source: UUri
    sink: UUri | None
    denied_as: str
    reason: str
    count: int
    first_ms: int
    last_ms: int

    def is_current(self, now_ms: int) -> bool:
        """Whether the last one was within `CURRENT_MS`."""
        return now_ms - self.last_ms <= CURRENT_MS

    def goes_on(self, now_ms: int) -> bool:
        """Whether the next one may still come, by the mean interval of the series."""
        return series_goes_on(self.count, self.first_ms, self.last_ms, now_ms)


class RecentDenials:
    """The denials of one endpoint: `MAX_DENIALS` series, those that ended first are forgotten. Not locked."""

    def __init__(self, ingress: str) -> None:
        self._ingress = ingress
        self._series: OrderedDict[tuple[UUri, UUri | None], RecentDenial] = OrderedDict()

    def add(self, attributes: UAttributes, decision: RoutingDecision, now_ms: int) -> None:
        """Count a message that was denied by `decision`."""
        key = (attributes.source, attributes.sink)
        before = self._series.pop(key, None)
        if before is not None and not before.is_current(now_ms):
            before = None
        reason = "" if decision.reason is None else decision.reason.message
        self._series[key] = RecentDenial(
            self._ingress,
            *key,
            decision.denied_as,
            reason,
            1 if before is None else before.count + 1,
            now_ms if before is None else before.first_ms,
            now_ms,
        )
        if len(self._series) > MAX_DENIALS:
            self._series.popitem(last=False)

    def clear(self) -> None:
        """Forget all: other rules are in force."""
        self._series.clear()

    def about(self, address: UUri) -> list[RecentDenial]:
        """The denials of messages from `address` or to it, the latest last."""
        return [each for key, each in self._series.items() if address in key]
