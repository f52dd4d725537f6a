# SPDX-License-Identifier: Apache-2.0
"""The received events that have E2E protection: checked, counted, and then dropped, passed or marked.

In: an event and its attributes. Out: the attributes and the payload of its message, or the reason of its refusal.
Belongs to the receiving thread, but for `problem`.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final

import msgspec

from ustreamer.transports.someip.protocol.codec import SomeIpMessage
from ustreamer.transports.someip.protocol.e2e import E2eChecker, E2eResult, covered_header
from ustreamer.transports.someip.protocol.e2e_config import E2eConfig
from ustreamer.transports.someip.protocol.mapping import SomeipRefusal
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuri import UUri

_REFUSALS: Final = {
    E2eResult.ERROR: SomeipRefusal.E2E_ERROR,
    E2eResult.REPEATED: SomeipRefusal.E2E_REPEATED,
    E2eResult.WRONG_SEQUENCE: SomeipRefusal.E2E_WRONG_SEQUENCE,
}


_REMEMBERED: Final = 16
"""Latest checks of an event that `problem` is about."""
_OUTCOMES: Final = {"drop": "dropped", "pass": "passed", "mark": "marked"}


class _CheckedEvent:
    """A checker, and its latest failures; None stands for a valid event."""

    def __init__(self, config: E2eConfig) -> None:
        self.config = config
        self.checker = E2eChecker(config)
        self.latest: deque[E2eResult | None] = deque(maxlen=_REMEMBERED)


class E2eEvents:
    """One checker for each event."""

    def __init__(self, events: Mapping[UUri, E2eConfig]) -> None:
        self._events: dict[UUri, _CheckedEvent] = {}
        self._counts = dict.fromkeys(E2eResult, 0)
        self.add_events(events)

    def add_events(self, events: Mapping[UUri, E2eConfig]) -> None:
        """Check these events as well. Known events keep their checkers."""
        for topic, config in events.items():
            if topic not in self._events:
                self._events[topic] = _CheckedEvent(config)

    def __contains__(self, topic: UUri) -> bool:
        return topic in self._events

    def check(
        self, message: SomeIpMessage, attributes: UAttributes
    ) -> tuple[UAttributes, bytes] | SomeipRefusal:
        """Check an event. With `on_error = "mark"`, a message that fails has the commstatus DATA_LOSS."""
        event = self._events[attributes.source]
        config, checker = event.config, event.checker
        header = covered_header(
            message.request_id, message.interface_version, message.message_type, message.return_code
        )
        result = checker.check(header, message.payload)
        self._counts[result] += 1
        event.latest.append(None if result.is_valid else result)
        if not result.is_valid:
            if config.on_error == "drop":
                return _REFUSALS[result]
            if config.on_error == "mark":
                attributes = msgspec.structs.replace(attributes, commstatus=UCode.DATA_LOSS)
        return attributes, checker.stripped(message.payload)

    def problem(self, topic: UUri) -> str:
        """A sentence about failures among the latest events of `topic`; "" if there are none. From any thread."""
        event = self._events.get(topic)
        latest = () if event is None else tuple(event.latest)
        failures = [each for each in latest if each is not None]
        if event is None or not failures:
            return ""
        outcome = _OUTCOMES[event.config.on_error]
        return (
            f"{len(failures)} of the last {len(latest)} events of {topic} failed their E2E check and were {outcome}, "
            f"the latest one by e2e_{failures[-1]}"
        )

    def statistics(self) -> dict[str, int]:
        """`e2e_<result>` of the checked events; nothing if no event is checked."""
        return {f"e2e_{result}": number for result, number in self._counts.items()} if self._events else {}
