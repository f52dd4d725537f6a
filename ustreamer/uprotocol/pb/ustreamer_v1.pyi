# SPDX-License-Identifier: Apache-2.0
# Made by proto/generate.py, do not edit. What the fields mean is said in
# uprotocol/core/ustreamer/v1/ustreamer.proto
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Final as _Final, Literal as _Literal, Never as _Never
from typing import final as _final

from google.protobuf import descriptor as _descriptor, message as _message
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import well_known_types as _well_known_types

from ustreamer.uprotocol.pb import google_timestamp as _google_timestamp
from ustreamer.uprotocol.pb import uattributes as _uattributes
from ustreamer.uprotocol.pb import uri as _uri
from ustreamer.uprotocol.pb import ustatus as _ustatus

DESCRIPTOR: _descriptor.FileDescriptor

@_final
class DeadLetter(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    ATTRIBUTES_FIELD_NUMBER: _Final = 1
    PAYLOAD_FIELD_NUMBER: _Final = 2
    STATUS_FIELD_NUMBER: _Final = 3
    ENDPOINT_FIELD_NUMBER: _Final = 4
    ATTEMPTS_FIELD_NUMBER: _Final = 5
    FIRST_ATTEMPT_FIELD_NUMBER: _Final = 6
    LAST_ATTEMPT_FIELD_NUMBER: _Final = 7
    @property
    def attributes(self) -> _uattributes.UAttributes: ...
    payload: bytes
    @property
    def status(self) -> _ustatus.UStatus: ...
    endpoint: str
    attempts: int
    @property
    def first_attempt(self) -> _google_timestamp.Timestamp: ...
    @property
    def last_attempt(self) -> _google_timestamp.Timestamp: ...
    def __init__(self, *, attributes: _uattributes.UAttributes | None = ..., payload: bytes | None = ..., status: _ustatus.UStatus | None = ..., endpoint: str | None = ..., attempts: int | None = ..., first_attempt: _google_timestamp.Timestamp | None = ..., last_attempt: _google_timestamp.Timestamp | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["attributes", "payload", "status", "first_attempt", "last_attempt"]) -> bool: ...

@_final
class StartDispatchingRequest(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    TOPIC_FIELD_NUMBER: _Final = 1
    @property
    def topic(self) -> _uri.UUri: ...
    def __init__(self, *, topic: _uri.UUri | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["topic"]) -> bool: ...

@_final
class StartDispatchingResponse(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    def __init__(self) -> None: ...
    def HasField(self, field_name: _Never) -> bool: ...

@_final
class StopDispatchingRequest(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    TOPIC_FIELD_NUMBER: _Final = 1
    @property
    def topic(self) -> _uri.UUri: ...
    def __init__(self, *, topic: _uri.UUri | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["topic"]) -> bool: ...

@_final
class StopDispatchingResponse(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    def __init__(self) -> None: ...
    def HasField(self, field_name: _Never) -> bool: ...

@_final
class Endpoint(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    NAME_FIELD_NUMBER: _Final = 1
    TRANSPORT_FIELD_NUMBER: _Final = 2
    AUTHORITIES_FIELD_NUMBER: _Final = 3
    UP_FIELD_NUMBER: _Final = 4
    name: str
    transport: str
    @property
    def authorities(self) -> _containers.RepeatedScalarFieldContainer[str]: ...
    up: bool
    def __init__(self, *, name: str | None = ..., transport: str | None = ..., authorities: _Iterable[str] | None = ..., up: bool | None = ...) -> None: ...
    def HasField(self, field_name: _Never) -> bool: ...

@_final
class Target(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    ENDPOINT_FIELD_NUMBER: _Final = 1
    SUBSCRIBER_FIELD_NUMBER: _Final = 2
    PERIOD_NS_FIELD_NUMBER: _Final = 3
    endpoint: str
    @property
    def subscriber(self) -> _uri.UUri: ...
    period_ns: int
    def __init__(self, *, endpoint: str | None = ..., subscriber: _uri.UUri | None = ..., period_ns: int | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["subscriber", "period_ns"]) -> bool: ...

@_final
class Route(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    TOPIC_FIELD_NUMBER: _Final = 1
    INGRESS_FIELD_NUMBER: _Final = 2
    TARGETS_FIELD_NUMBER: _Final = 3
    @property
    def topic(self) -> _uri.UUri: ...
    ingress: str
    @property
    def targets(self) -> _containers.RepeatedCompositeFieldContainer[Target]: ...
    def __init__(self, *, topic: _uri.UUri | None = ..., ingress: str | None = ..., targets: _Iterable[Target] | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["topic"]) -> bool: ...

@_final
class FetchRoutesRequest(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    TOPIC_FILTER_FIELD_NUMBER: _Final = 1
    OFFSET_FIELD_NUMBER: _Final = 2
    @property
    def topic_filter(self) -> _uri.UUri: ...
    offset: int
    def __init__(self, *, topic_filter: _uri.UUri | None = ..., offset: int | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["topic_filter"]) -> bool: ...

@_final
class FetchRoutesResponse(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    ENDPOINTS_FIELD_NUMBER: _Final = 1
    ROUTES_FIELD_NUMBER: _Final = 2
    HAS_MORE_RECORDS_FIELD_NUMBER: _Final = 3
    STOPPED_FIELD_NUMBER: _Final = 4
    @property
    def endpoints(self) -> _containers.RepeatedCompositeFieldContainer[Endpoint]: ...
    @property
    def routes(self) -> _containers.RepeatedCompositeFieldContainer[Route]: ...
    has_more_records: bool
    @property
    def stopped(self) -> _containers.RepeatedCompositeFieldContainer[_uri.UUri]: ...
    def __init__(self, *, endpoints: _Iterable[Endpoint] | None = ..., routes: _Iterable[Route] | None = ..., has_more_records: bool | None = ..., stopped: _Iterable[_uri.UUri] | None = ...) -> None: ...
    def HasField(self, field_name: _Never) -> bool: ...

@_final
class Ledger(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    RECEIVED_FIELD_NUMBER: _Final = 1
    DELIVERED_FIELD_NUMBER: _Final = 2
    THROTTLED_FIELD_NUMBER: _Final = 3
    EXPIRED_FIELD_NUMBER: _Final = 4
    DEAD_LETTERED_FIELD_NUMBER: _Final = 5
    DENIED_FIELD_NUMBER: _Final = 6
    NO_SUBSCRIBER_FIELD_NUMBER: _Final = 7
    QUEUED_FIELD_NUMBER: _Final = 8
    UNACCOUNTED_FIELD_NUMBER: _Final = 9
    received: int
    delivered: int
    throttled: int
    expired: int
    dead_lettered: int
    denied: int
    no_subscriber: int
    queued: int
    unaccounted: int
    def __init__(self, *, received: int | None = ..., delivered: int | None = ..., throttled: int | None = ..., expired: int | None = ..., dead_lettered: int | None = ..., denied: int | None = ..., no_subscriber: int | None = ..., queued: int | None = ..., unaccounted: int | None = ...) -> None: ...
    def HasField(self, field_name: _Never) -> bool: ...

@_final
class EndpointStatistics(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    ENDPOINT_FIELD_NUMBER: _Final = 1
    UP_FIELD_NUMBER: _Final = 2
    QUEUE_MESSAGES_FIELD_NUMBER: _Final = 3
    QUEUE_BYTES_FIELD_NUMBER: _Final = 4
    DELIVERED_FIELD_NUMBER: _Final = 5
    DEAD_LETTERED_FIELD_NUMBER: _Final = 6
    EXPIRED_FIELD_NUMBER: _Final = 7
    RETRIES_FIELD_NUMBER: _Final = 8
    COUNTERS_FIELD_NUMBER: _Final = 9
    BLOCKED_MESSAGES_FIELD_NUMBER: _Final = 10
    CLOSED_ROUTES_FIELD_NUMBER: _Final = 11
    PERSISTED_MESSAGES_FIELD_NUMBER: _Final = 12
    SUBSCRIBER_QUEUES_FIELD_NUMBER: _Final = 13
    FULLEST_FIELD_NUMBER: _Final = 14
    EVICTED_SUBSCRIBER_LIMIT_FIELD_NUMBER: _Final = 15
    endpoint: str
    up: bool
    queue_messages: int
    queue_bytes: int
    delivered: int
    dead_lettered: int
    expired: int
    retries: int
    @property
    def counters(self) -> _containers.ScalarMap[str, int]: ...
    blocked_messages: int
    closed_routes: int
    persisted_messages: int
    subscriber_queues: int
    @property
    def fullest(self) -> _containers.RepeatedCompositeFieldContainer[SubscriberQueue]: ...
    evicted_subscriber_limit: int
    def __init__(self, *, endpoint: str | None = ..., up: bool | None = ..., queue_messages: int | None = ..., queue_bytes: int | None = ..., delivered: int | None = ..., dead_lettered: int | None = ..., expired: int | None = ..., retries: int | None = ..., counters: _Mapping[str, int] | None = ..., blocked_messages: int | None = ..., closed_routes: int | None = ..., persisted_messages: int | None = ..., subscriber_queues: int | None = ..., fullest: _Iterable[SubscriberQueue] | None = ..., evicted_subscriber_limit: int | None = ...) -> None: ...
    def HasField(self, field_name: _Never) -> bool: ...

@_final
class SubscriberQueue(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    SUBSCRIBER_FIELD_NUMBER: _Final = 1
    QUEUE_MESSAGES_FIELD_NUMBER: _Final = 2
    QUEUE_BYTES_FIELD_NUMBER: _Final = 3
    BLOCKED_MESSAGES_FIELD_NUMBER: _Final = 4
    FAILURES_FIELD_NUMBER: _Final = 5
    @property
    def subscriber(self) -> _uri.UUri: ...
    queue_messages: int
    queue_bytes: int
    blocked_messages: int
    failures: int
    def __init__(self, *, subscriber: _uri.UUri | None = ..., queue_messages: int | None = ..., queue_bytes: int | None = ..., blocked_messages: int | None = ..., failures: int | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["subscriber"]) -> bool: ...

@_final
class TargetStatistics(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    TOPIC_FIELD_NUMBER: _Final = 1
    TARGET_FIELD_NUMBER: _Final = 2
    RECEIVED_FIELD_NUMBER: _Final = 3
    DELIVERED_FIELD_NUMBER: _Final = 4
    THROTTLED_FIELD_NUMBER: _Final = 5
    @property
    def topic(self) -> _uri.UUri: ...
    @property
    def target(self) -> Target: ...
    received: int
    delivered: int
    throttled: int
    def __init__(self, *, topic: _uri.UUri | None = ..., target: Target | None = ..., received: int | None = ..., delivered: int | None = ..., throttled: int | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["topic", "target"]) -> bool: ...

@_final
class FetchStatisticsRequest(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    TOPIC_FILTER_FIELD_NUMBER: _Final = 1
    OFFSET_FIELD_NUMBER: _Final = 2
    @property
    def topic_filter(self) -> _uri.UUri: ...
    offset: int
    def __init__(self, *, topic_filter: _uri.UUri | None = ..., offset: int | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["topic_filter"]) -> bool: ...

@_final
class FetchStatisticsResponse(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    SINCE_FIELD_NUMBER: _Final = 1
    TOTAL_FIELD_NUMBER: _Final = 2
    ENDPOINTS_FIELD_NUMBER: _Final = 3
    TARGETS_FIELD_NUMBER: _Final = 4
    HAS_MORE_RECORDS_FIELD_NUMBER: _Final = 5
    @property
    def since(self) -> _google_timestamp.Timestamp: ...
    @property
    def total(self) -> Ledger: ...
    @property
    def endpoints(self) -> _containers.RepeatedCompositeFieldContainer[EndpointStatistics]: ...
    @property
    def targets(self) -> _containers.RepeatedCompositeFieldContainer[TargetStatistics]: ...
    has_more_records: bool
    def __init__(self, *, since: _google_timestamp.Timestamp | None = ..., total: Ledger | None = ..., endpoints: _Iterable[EndpointStatistics] | None = ..., targets: _Iterable[TargetStatistics] | None = ..., has_more_records: bool | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["since", "total"]) -> bool: ...

@_final
class SomeipReturnCode(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    RETURN_CODE_FIELD_NUMBER: _Final = 1
    PAYLOAD_FIELD_NUMBER: _Final = 2
    return_code: int
    payload: bytes
    def __init__(self, *, return_code: int | None = ..., payload: bytes | None = ...) -> None: ...
    def HasField(self, field_name: _Never) -> bool: ...
