# SPDX-License-Identifier: Apache-2.0
"""Notes in, an OTLP request out: one span for each delivery, a child of the span in the message's `traceparent`."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from ustreamer import __version__
from ustreamer.core.base.clock import Clock
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer_tracing.span_queue import SpanNote

_NS_PER_MS: Final = 1_000_000
# Version ff and ids of all zeros are invalid (W3C Trace Context, 3.2.2).
_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})", re.ASCII
)
_REMOTE_PARENT: Final = 0x300
"""SpanFlags of OTLP: "the parent is in another process" is known, and true."""
_FAILED: Final = frozenset({Verdict.EXPIRED, Verdict.DEAD_LETTERED, Verdict.DENIED})


class WallTime:
    """The wall time of monotonic readings in ns. The clock has ms, so the error is up to 1 ms."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset_ns: int | None = None

    def offset_ns(self) -> int:
        """What to add to a monotonic reading.

        A wall time in ms is at most 1 ms too early, so the latest of several readings is the best one. An earlier one
        by more than 1 ms is a step of the clock.
        """
        found = self._clock.wall_ms() * _NS_PER_MS - self._clock.monotonic_ns()
        if self._offset_ns is None or not self._offset_ns - _NS_PER_MS <= found <= self._offset_ns:
            self._offset_ns = found
        return self._offset_ns


def export_request(
    authority: str, notes: Iterable[SpanNote], offset_ns: int, new_span_id: Callable[[], bytes]
) -> ExportTraceServiceRequest:
    """The spans of these notes. A message with an invalid `traceparent` has none."""
    spans = [span for note in notes if (span := _span(note, offset_ns, new_span_id)) is not None]
    resource = Resource(
        attributes=_key_values(
            {
                "service.name": "ustreamer",
                "service.version": __version__,
                "service.instance.id": authority,
            }
        )
    )
    scope = InstrumentationScope(name="ustreamer_tracing", version=__version__)
    return ExportTraceServiceRequest(
        resource_spans=[ResourceSpans(resource=resource, scope_spans=[ScopeSpans(scope=scope, spans=spans)])]
    )


def _span(note: SpanNote, offset_ns: int, new_span_id: Callable[[], bytes]) -> Span | None:
    id, attributes, endpoint, delivery, verdict, reason, attempts, arrived, received, first, settled = note
    context = _TRACEPARENT.fullmatch(attributes.traceparent or "")
    if context is None:
        return None
    trace_id, parent_id, flags = map(bytes.fromhex, context.groups())
    is_publication = attributes.type is UMessageType.PUBLISH
    span = Span(
        trace_id=trace_id,
        span_id=new_span_id(),
        parent_span_id=parent_id,
        flags=flags[0] | _REMOTE_PARENT,
        name=f"forward {attributes.source if is_publication else attributes.sink}",
        kind=Span.SPAN_KIND_CONSUMER,
        start_time_unix_nano=offset_ns + arrived,
        end_time_unix_nano=offset_ns + max(settled, arrived),
        attributes=_key_values(
            {
                "uprotocol.id": str(id),
                "uprotocol.type": attributes.type.name.lower(),
                "uprotocol.source": str(attributes.source),
                "uprotocol.sink": None if attributes.sink is None else str(attributes.sink),
                "ustreamer.ingress": endpoint,
                "ustreamer.endpoint": None if delivery is None else delivery.endpoint,
                "ustreamer.subscriber": _subscriber(delivery),
                "ustreamer.verdict": verdict.name.lower(),
                "ustreamer.attempts": attempts,
            }
        ),
        events=[
            Span.Event(name=name, time_unix_nano=offset_ns + at)
            for name, at in (("released", received if received > arrived else 0), ("first_attempt", first))
            if at
        ],
    )
    if verdict in _FAILED:
        text = "" if reason is None else str(reason)
        span.status.CopyFrom(Status(code=Status.STATUS_CODE_ERROR, message=text))
    return span


def _subscriber(delivery: Delivery | None) -> str | None:
    """The subscriber of a unicast target; a multicast target has none of its own."""
    return None if delivery is None or delivery.subscriber is None else str(delivery.subscriber)


def _key_values(values: Mapping[str, str | int | None]) -> Iterator[KeyValue]:
    for key, value in values.items():
        if value is not None:
            found = AnyValue(string_value=value) if isinstance(value, str) else AnyValue(int_value=value)
            yield KeyValue(key=key, value=found)
