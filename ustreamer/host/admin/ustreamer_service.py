# SPDX-License-Identifier: Apache-2.0
"""core.ustreamer, the streamer's own uEntity: `//<authority>/4/1`.

In: requests for the four methods of proto/uprotocol/core/ustreamer/v1/ustreamer.proto. Out: responses; dead
letters are published by `ustreamer.core.egress.dead_letter`.

Every client with a route to the uEntity may call it. A client can stop and start the dispatch to itself only.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, TypeVar

import msgspec
from google.protobuf.message import DecodeError, Message

from ustreamer.core.base.clock import Clock
from ustreamer.core.base.log_limit import limited
from ustreamer.core.dispatch.delivery_registry import TargetStatistics
from ustreamer.core.egress.dead_letter import USTREAMER, USTREAMER_VERSION
from ustreamer.core.routing.paused_subscriptions import PausedDirectory
from ustreamer.host.admin.status import StatusProvider, StreamerRoutes, StreamerStatistics
from ustreamer.host.egress.endpoint_queue import SubscriberQueueStatistics
from ustreamer.uprotocol.pb import uri as pb_uri
from ustreamer.uprotocol.pb import ustreamer_v1 as pb
from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, error_response, response
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError, invalid_argument
from ustreamer.uprotocol.utransport import UTransport
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, ANY_RESOURCE, ANY_VERSION, UUri

log = logging.getLogger("ustreamer.ustreamer_service")

M = TypeVar("M", bound=Message)
T = TypeVar("T")

PAGE: Final = 1_000
"""Routes or targets in one response: about 100 bytes each."""
_FORMATS: Final = (UPayloadFormat.UNSPECIFIED, UPayloadFormat.PROTOBUF)


class UStreamerService:
    """A `ustreamer.hooks.HostedService`. The constructor has no side effects; calls read `status` and `paused`."""

    _bus: UTransport  # set by `start`

    def __init__(
        self,
        authority: str,
        clock: Clock,
        status: StatusProvider,
        paused: PausedDirectory,
        on_paused: Callable[[UUri], None],
    ) -> None:
        """`on_paused` is called after each start or stop, with the topic or pattern."""
        self._address = UUri(authority, USTREAMER, USTREAMER_VERSION)
        self._ids = UuidSource(clock.wall_ms)
        self._status = status
        self._paused = paused
        self._on_paused = on_paused
        self._methods: Mapping[int, Callable[[UMessage], Message]] = {
            1: self._start_dispatching,
            2: self._stop_dispatching,
            3: self._fetch_routes,
            4: self._fetch_statistics,
        }

    @property
    def entities(self) -> Sequence[UUri]:
        return (self._address,)

    def start(self, bus: UTransport) -> None:
        self._bus = bus
        everything = UUri(self._address.authority_name, USTREAMER, ANY_VERSION, ANY_RESOURCE)
        bus.register_listener(ANY, everything, self._on_request)

    def stop(self) -> None:
        """No resources to release."""

    # --- calls -------------------------------------------------------------------------------------------------------

    def _on_request(self, message: UMessage) -> None:
        if message.attributes.type is not UMessageType.REQUEST:
            return
        try:
            payload = self._call_method(message).SerializeToString()
        except UStatusError as error:
            self._bus.send(error_response(self._ids.next(), message, error.status))
        except Exception as error:
            # The caller of a failed method gets an error response instead of a timeout.
            log.exception(
                "ustreamer_service.failed", extra={"sink": str(message.attributes.sink), **limited()}
            )
            status = UStatus(UCode.INTERNAL, f"{message.attributes.sink}: {type(error).__name__}")
            self._bus.send(error_response(self._ids.next(), message, status))
        else:
            self._bus.send(response(self._ids.next(), message, payload, UPayloadFormat.PROTOBUF))

    def _call_method(self, message: UMessage) -> Message:
        sink = message.attributes.sink
        assert sink is not None  # every request has one
        method = self._methods.get(sink.resource_id)
        if method is None or sink.ue_version_major != USTREAMER_VERSION:
            have = ", ".join(str(self._address.with_resource(number)) for number in self._methods)
            raise UStatusError(UCode.UNIMPLEMENTED, f"{sink}: expected one of {have}")
        return method(message)

    def _start_dispatching(self, message: UMessage) -> Message:
        topic = _topic(_unpack(pb.StartDispatchingRequest, message).topic, message)
        try:
            resumed = self._paused.resume(topic, message.attributes.source)
        except UStatusError as error:
            extra = {"topic": str(topic), "reason": str(error), **limited()}
            log.error("ustreamer_service.not_persisted", extra=extra)  # noqa: TRY400 - the reason is enough
            resumed = True  # in this process
        if resumed:
            self._on_paused(topic)
        return pb.StartDispatchingResponse()

    def _stop_dispatching(self, message: UMessage) -> Message:
        topic = _topic(_unpack(pb.StopDispatchingRequest, message).topic, message)
        if self._paused.pause(topic, message.attributes.source):
            self._on_paused(topic)
        return pb.StopDispatchingResponse()

    def _fetch_routes(self, message: UMessage) -> Message:
        request = _unpack(pb.FetchRoutesRequest, message)
        topics = _filter(request.topic_filter if request.HasField("topic_filter") else None, message)
        stopped = self._paused.paused_by(message.attributes.source)
        return _routes_response(self._status.routes(), stopped, topics, request.offset)

    def _fetch_statistics(self, message: UMessage) -> Message:
        request = _unpack(pb.FetchStatisticsRequest, message)
        topics = _filter(request.topic_filter if request.HasField("topic_filter") else None, message)
        return _statistics_response(self._status.statistics(), self._link_states(), topics, request.offset)

    def _link_states(self) -> Mapping[str, bool]:
        return {each.name: each.up for each in self._status.routes().endpoints}


# --- requests --------------------------------------------------------------------------------------------------------


def _unpack(shape: type[M], message: UMessage) -> M:
    """The request in a payload. Raises INVALID_ARGUMENT if there is none."""
    attributes = message.attributes
    if attributes.payload_format not in _FORMATS:
        raise invalid_argument(f"payload format {attributes.payload_format.name}: expected PROTOBUF")
    request = shape()
    try:
        request.ParseFromString(message.payload)
    except DecodeError as error:
        raise invalid_argument(
            f"payload of {len(message.payload)} bytes: expected {shape.__name__} ({error})"
        ) from error
    return request


def _topic(message: pb_uri.UUri, call: UMessage) -> UUri:
    """The topic or topic pattern of a request. An empty authority stands for the caller's."""
    topic = UUri.from_pb(message).with_authority(call.attributes.source.authority_name)
    if not topic.is_topic and topic.resource_id != ANY_RESOURCE:
        raise invalid_argument(f"topic {topic}: expected a resource of 8000 to FFFE, or FFFF for all")
    return topic


def _filter(message: pb_uri.UUri | None, call: UMessage) -> UUri:
    return ANY if message is None else _topic(message, call)


# --- responses -------------------------------------------------------------------------------------------------------


def _page(entries: Sequence[T], offset: int) -> tuple[Sequence[T], Literal[True] | None]:
    """A page of `entries` from `offset` on, and True if more follow (None keeps the field unset)."""
    return entries[offset : offset + PAGE], True if len(entries) > offset + PAGE else None


def _by_topic(target: TargetStatistics) -> tuple[UUri, str, str, bool, str]:
    subscriber = target.subscriber
    return target.topic, target.ingress, target.endpoint, subscriber is not None, str(subscriber)


def _routes_response(
    routes: StreamerRoutes, stopped: Sequence[UUri], topics: UUri, offset: int
) -> pb.FetchRoutesResponse:
    by_topic: dict[tuple[UUri, str], list[TargetStatistics]] = {}
    for each in sorted(routes.targets, key=_by_topic):
        if topics.matches(each.topic):
            by_topic.setdefault((each.topic, each.ingress), []).append(each)
    page, more = _page(list(by_topic.items()), offset)
    return pb.FetchRoutesResponse(
        endpoints=[
            pb.Endpoint(name=e.name, transport=e.transport, authorities=e.authorities, up=e.up)
            for e in routes.endpoints
        ],
        routes=[
            pb.Route(
                topic=topic.to_pb(), ingress=ingress, targets=[_target_message(each) for each in targets]
            )
            for (topic, ingress), targets in page
        ],
        has_more_records=more,
        stopped=[topic.to_pb() for topic in stopped],
    )


def _target_message(target: TargetStatistics) -> pb.Target:
    return pb.Target(
        endpoint=target.endpoint,
        subscriber=None if target.subscriber is None else target.subscriber.to_pb(),
        period_ns=target.period_ns or None,
    )


def _subscriber_queue_message(queue: SubscriberQueueStatistics) -> pb.SubscriberQueue:
    return pb.SubscriberQueue(
        subscriber=queue.subscriber.to_pb(),
        queue_messages=queue.queued,
        queue_bytes=queue.queued_bytes,
        blocked_messages=queue.blocked,
        failures=queue.failures,
    )


def _statistics_response(
    statistics: StreamerStatistics, up: Mapping[str, bool], topics: UUri, offset: int
) -> pb.FetchStatisticsResponse:
    wanted = sorted((each for each in statistics.targets if topics.matches(each.topic)), key=_by_topic)
    page, more = _page(wanted, offset)
    response = pb.FetchStatisticsResponse(
        total=pb.Ledger(**msgspec.structs.asdict(statistics.ledger), unaccounted=statistics.unaccounted),
        endpoints=[
            pb.EndpointStatistics(
                endpoint=queue.endpoint,
                up=up.get(queue.endpoint, True),
                queue_messages=queue.queued,
                queue_bytes=queue.queued_bytes,
                delivered=queue.delivered,
                dead_lettered=queue.dead_lettered,
                expired=queue.expired,
                retries=queue.retries,
                counters=statistics.endpoints.get(queue.endpoint, {}),
                blocked_messages=queue.blocked,
                closed_routes=queue.closed_routes,
                persisted_messages=queue.persisted,
                subscriber_queues=queue.subscribers,
                fullest=map(_subscriber_queue_message, queue.fullest),
                evicted_subscriber_limit=queue.evicted_subscriber_limit,
            )
            for queue in statistics.egress_queues
        ],
        targets=[
            pb.TargetStatistics(
                topic=each.topic.to_pb(),
                target=_target_message(each),
                received=each.received,
                delivered=each.delivered,
                throttled=each.throttled,
            )
            for each in page
        ],
        has_more_records=more,
    )
    response.since.FromMilliseconds(statistics.since_ms)
    return response
