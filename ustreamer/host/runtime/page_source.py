# SPDX-License-Identifier: Apache-2.0
"""What the operator's page shows. A running streamer and its control in, values of JSON out.

The frames are those of `ustreamer top`, the answers those of `why`, `explain` and `dead-letters`.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from ustreamer import __version__
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.dispatch.explain import explain
from ustreamer.core.routing.router import SELF
from ustreamer.host.admin.server import RedriveRequest, TopRequest, WhyRequest, to_json_value
from ustreamer.host.admin.top_frame import TopFrame
from ustreamer.host.runtime.control import Control
from ustreamer.host.runtime.recent_events import recent_log
from ustreamer.host.runtime.streamer import Streamer
from ustreamer.host.runtime.top_stream import TopStream
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPriority
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

MAX_LETTERS: Final = 100
MAX_LINES: Final = 50
_INTERVAL_S: Final = 0.5
"""Less than that of the page, so that each of its frames is a new one."""
_TTL_MS: Final = 10_000


class PageFrame(msgspec.Struct, frozen=True):
    """The state at one moment. Rates are differences of two frames."""

    authority: str
    version: str
    top: TopFrame | None
    ledger: Mapping[str, int]
    networks: Mapping[str, Sequence[str]]
    """By endpoint: the authorities behind it."""
    stored_letters: int
    log: Sequence[Mapping[str, Any]]


class StreamerPageSource:
    """A `PageSource`. `open` and `close` are paired; the rest also works while it is closed."""

    def __init__(self, streamer: Streamer, control: Control) -> None:
        self._streamer = streamer
        self._control = control
        self._stream: TopStream | None = None
        self._top: TopFrame | None = None

    def open(self) -> None:
        stream = self._control.handle_request(TopRequest(_INTERVAL_S))
        assert isinstance(stream, TopStream)
        self._stream = stream

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def frame(self) -> PageFrame:
        if self._stream is not None:
            for each in self._stream.wait_lines(_INTERVAL_S):
                self._top = each
        routes = self._streamer.endpoint_authorities()
        return PageFrame(
            self._streamer.context.authority,
            __version__,
            self._top,
            {} if self._top is None else _ledger(self._top),
            routes,
            self._streamer.dead_letter_writer.statistics()["stored"],
            [
                {"time_ms": each.time_ms, "level": each.level, "event": each.event, "fields": each.fields}
                for each in recent_log().lines()[-MAX_LINES:]
            ],
        )

    def dead_letters(self) -> list[dict[str, Any]]:
        """The newest ones, newest first."""
        store = self._streamer.dead_letter_writer.store
        found = []
        for number in islice(reversed(store.numbers()), MAX_LETTERS):
            try:
                letter = store.get(number)
            except UStatusError:
                continue  # redriven meanwhile
            attributes = letter.message.attributes
            found.append(
                {
                    "number": number,
                    "type": attributes.type.name.lower(),
                    "source": str(attributes.source),
                    "sink": None if attributes.sink is None else str(attributes.sink),
                    "endpoint": letter.endpoint,
                    "code": letter.status.code.name.lower(),
                    "reason": letter.reason,
                    "attempts": letter.attempts,
                    "time_ms": letter.last_attempt_ms,
                }
            )
        return found

    def why(self, subject: str) -> Any:
        address = self._address(subject, "subject")
        return to_json_value(self._control.handle_request(WhyRequest(str(address))))

    def explain(self, source: str, sink: str) -> Any:
        sender = self._address(source, "source")
        receiver = self._address(sink, "sink") if sink else None
        router = self._streamer.dispatcher.router
        ingress = router.authority_table.endpoint_of(sender) or SELF
        return to_json_value(explain(router, ingress, _attributes(sender, receiver)))

    def redrive(self, numbers: tuple[int, ...] | None) -> Any:
        return to_json_value(self._control.handle_request(RedriveRequest(numbers)))

    def _address(self, text: str, name: str) -> UUri:
        try:
            address = UUri.parse(text)
        except UStatusError as error:
            raise UStatusError(UCode.INVALID_ARGUMENT, f"{name}: {error.message}") from error
        own = self._streamer.context.authority
        return address if address.authority_name else address.with_authority(own)


def _ledger(top: TopFrame) -> dict[str, int]:
    """The ledger law, from the counters of one frame."""
    counts = {
        verdict.name.lower(): sum(each.verdicts[verdict] for each in top.endpoints)
        for verdict in Verdict
        if verdict is not Verdict.QUEUED
    }
    return {
        "received": sum(each.received for each in top.endpoints),
        **counts,
        "queued": sum(each.queued for each in top.endpoints),
        "unaccounted": top.unaccounted,
    }


def _attributes(source: UUri, sink: UUri | None) -> UAttributes:
    """The header of a message from `source` to `sink`; its type follows from the two addresses."""
    if sink is None:
        return UAttributes(type=UMessageType.PUBLISH, source=source)
    if sink.is_method:
        kind, reqid = UMessageType.REQUEST, None
    elif source.is_method:
        kind, reqid = UMessageType.RESPONSE, UUID(0x7000, 0b10 << 62)
    else:
        kind, reqid = UMessageType.NOTIFICATION, None
    return UAttributes(type=kind, source=source, sink=sink, priority=UPriority.CS4, ttl=_TTL_MS, reqid=reqid)
