# SPDX-License-Identifier: Apache-2.0
# Made by proto/generate.py, do not edit. What the fields mean is said in
# uprotocol/core/usubscription/v4/usubscription.proto
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Final as _Final, Literal as _Literal, Never as _Never
from typing import final as _final

from google.protobuf import descriptor as _descriptor, message as _message
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import well_known_types as _well_known_types

from ustreamer.uprotocol.pb import google_timestamp as _google_timestamp
from ustreamer.uprotocol.pb import uri as _uri

DESCRIPTOR: _descriptor.FileDescriptor

class _SubscriptionStatus:
    DESCRIPTOR: _descriptor.EnumDescriptor
    STATUS_UNSPECIFIED: _Final = 0
    STATUS_UNSUBSCRIBED: _Final = 1
    STATUS_SUBSCRIBE_PENDING: _Final = 2
    STATUS_SUBSCRIBED: _Final = 3
    STATUS_UNSUBSCRIBE_PENDING: _Final = 4
    def Name(self, number: int) -> str: ...
    def Value(self, name: str) -> int: ...
    def keys(self) -> list[str]: ...
    def values(self) -> list[int]: ...
    def items(self) -> list[tuple[str, int]]: ...
SubscriptionStatus: _Final[_SubscriptionStatus]
STATUS_UNSPECIFIED: _Final = 0
STATUS_UNSUBSCRIBED: _Final = 1
STATUS_SUBSCRIBE_PENDING: _Final = 2
STATUS_SUBSCRIBED: _Final = 3
STATUS_UNSUBSCRIBE_PENDING: _Final = 4

@_final
class Subscription(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    TOPIC_FIELD_NUMBER: _Final = 1
    SUBSCRIBER_FIELD_NUMBER: _Final = 2
    STATUS_FIELD_NUMBER: _Final = 3
    EXPIRATION_FIELD_NUMBER: _Final = 4
    SAMPLE_PERIOD_FIELD_NUMBER: _Final = 5
    @property
    def topic(self) -> _uri.UUri: ...
    @property
    def subscriber(self) -> _uri.UUri: ...
    status: int
    @property
    def expiration(self) -> _google_timestamp.Timestamp: ...
    sample_period: int
    def __init__(self, *, topic: _uri.UUri | None = ..., subscriber: _uri.UUri | None = ..., status: int | None = ..., expiration: _google_timestamp.Timestamp | None = ..., sample_period: int | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["topic", "subscriber", "expiration", "sample_period"]) -> bool: ...

@_final
class SubscribeRequest(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    TOPIC_FIELD_NUMBER: _Final = 1
    EXPIRATION_FIELD_NUMBER: _Final = 2
    SAMPLE_PERIOD_FIELD_NUMBER: _Final = 3
    @property
    def topic(self) -> _uri.UUri: ...
    @property
    def expiration(self) -> _google_timestamp.Timestamp: ...
    sample_period: int
    def __init__(self, *, topic: _uri.UUri | None = ..., expiration: _google_timestamp.Timestamp | None = ..., sample_period: int | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["topic", "expiration", "sample_period"]) -> bool: ...

@_final
class SubscribeResponse(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    TOPIC_FIELD_NUMBER: _Final = 1
    STATUS_FIELD_NUMBER: _Final = 2
    @property
    def topic(self) -> _uri.UUri: ...
    status: int
    def __init__(self, *, topic: _uri.UUri | None = ..., status: int | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["topic"]) -> bool: ...

@_final
class UnsubscribeRequest(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    TOPIC_FIELD_NUMBER: _Final = 1
    @property
    def topic(self) -> _uri.UUri: ...
    def __init__(self, *, topic: _uri.UUri | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["topic"]) -> bool: ...

@_final
class UnsubscribeResponse(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    def __init__(self) -> None: ...
    def HasField(self, field_name: _Never) -> bool: ...

@_final
class FetchSubscriptionsRequest(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    TOPIC_FILTER_FIELD_NUMBER: _Final = 1
    SUBSCRIBER_FILTER_FIELD_NUMBER: _Final = 2
    @property
    def topic_filter(self) -> _uri.UUri: ...
    @property
    def subscriber_filter(self) -> _uri.UUri: ...
    def __init__(self, *, topic_filter: _uri.UUri | None = ..., subscriber_filter: _uri.UUri | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["topic_filter", "subscriber_filter"]) -> bool: ...

@_final
class FetchSubscriptionsResponse(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    SUBSCRIPTIONS_FIELD_NUMBER: _Final = 1
    @property
    def subscriptions(self) -> _containers.RepeatedCompositeFieldContainer[Subscription]: ...
    def __init__(self, *, subscriptions: _Iterable[Subscription] | None = ...) -> None: ...
    def HasField(self, field_name: _Never) -> bool: ...

@_final
class NotificationsRequest(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    def __init__(self) -> None: ...
    def HasField(self, field_name: _Never) -> bool: ...

@_final
class NotificationsResponse(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    def __init__(self) -> None: ...
    def HasField(self, field_name: _Never) -> bool: ...

@_final
class ResetRequest(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    def __init__(self) -> None: ...
    def HasField(self, field_name: _Never) -> bool: ...

@_final
class ResetResponse(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    def __init__(self) -> None: ...
    def HasField(self, field_name: _Never) -> bool: ...
