# SPDX-License-Identifier: Apache-2.0
# Made by proto/generate.py, do not edit. What the fields mean is said in
# uprotocol/core/usubscription/v3/usubscription.proto
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Final as _Final, Literal as _Literal, Never as _Never
from typing import final as _final

from google.protobuf import descriptor as _descriptor, message as _message
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import well_known_types as _well_known_types

from ustreamer.uprotocol.pb import google_any as _google_any
from ustreamer.uprotocol.pb import google_timestamp as _google_timestamp
from ustreamer.uprotocol.pb import ucode as _ucode
from ustreamer.uprotocol.pb import uri as _uri
from ustreamer.uprotocol.pb import ustatus as _ustatus

DESCRIPTOR: _descriptor.FileDescriptor

@_final
class SubscribeAttributes(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    EXPIRE_FIELD_NUMBER: _Final = 1
    DETAILS_FIELD_NUMBER: _Final = 2
    SAMPLE_PERIOD_MS_FIELD_NUMBER: _Final = 3
    @property
    def expire(self) -> _google_timestamp.Timestamp: ...
    @property
    def details(self) -> _containers.RepeatedCompositeFieldContainer[_google_any.Any]: ...
    sample_period_ms: int
    def __init__(self, *, expire: _google_timestamp.Timestamp | None = ..., details: _Iterable[_google_any.Any] | None = ..., sample_period_ms: int | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["expire", "sample_period_ms"]) -> bool: ...

@_final
class SubscriberInfo(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    URI_FIELD_NUMBER: _Final = 1
    DETAILS_FIELD_NUMBER: _Final = 2
    @property
    def uri(self) -> _uri.UUri: ...
    @property
    def details(self) -> _containers.RepeatedCompositeFieldContainer[_google_any.Any]: ...
    def __init__(self, *, uri: _uri.UUri | None = ..., details: _Iterable[_google_any.Any] | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["uri"]) -> bool: ...

@_final
class SubscriptionStatus(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    class _State:
        DESCRIPTOR: _descriptor.EnumDescriptor
        UNSUBSCRIBED: _Final = 0
        SUBSCRIBE_PENDING: _Final = 1
        SUBSCRIBED: _Final = 2
        UNSUBSCRIBE_PENDING: _Final = 3
        def Name(self, number: int) -> str: ...
        def Value(self, name: str) -> int: ...
        def keys(self) -> list[str]: ...
        def values(self) -> list[int]: ...
        def items(self) -> list[tuple[str, int]]: ...
    State: _ClassVar[_State]
    UNSUBSCRIBED: _Final = 0
    SUBSCRIBE_PENDING: _Final = 1
    SUBSCRIBED: _Final = 2
    UNSUBSCRIBE_PENDING: _Final = 3
    STATE_FIELD_NUMBER: _Final = 1
    CODE_FIELD_NUMBER: _Final = 2
    MESSAGE_FIELD_NUMBER: _Final = 3
    state: int
    code: int
    message: str
    def __init__(self, *, state: int | None = ..., code: int | None = ..., message: str | None = ...) -> None: ...
    def HasField(self, field_name: _Never) -> bool: ...

@_final
class EventDeliveryConfig(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    ID_FIELD_NUMBER: _Final = 1
    TYPE_FIELD_NUMBER: _Final = 2
    ATTRIBUTES_FIELD_NUMBER: _Final = 3
    id: str
    type: str
    @property
    def attributes(self) -> _containers.MessageMap[str, _google_any.Any]: ...
    def __init__(self, *, id: str | None = ..., type: str | None = ..., attributes: _Mapping[str, _google_any.Any] | None = ...) -> None: ...
    def HasField(self, field_name: _Never) -> bool: ...

@_final
class SubscriptionRequest(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    TOPIC_FIELD_NUMBER: _Final = 1
    SUBSCRIBER_FIELD_NUMBER: _Final = 2
    ATTRIBUTES_FIELD_NUMBER: _Final = 3
    @property
    def topic(self) -> _uri.UUri: ...
    @property
    def subscriber(self) -> SubscriberInfo: ...
    @property
    def attributes(self) -> SubscribeAttributes: ...
    def __init__(self, *, topic: _uri.UUri | None = ..., subscriber: SubscriberInfo | None = ..., attributes: SubscribeAttributes | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["topic", "subscriber", "attributes"]) -> bool: ...

@_final
class SubscriptionResponse(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    STATUS_FIELD_NUMBER: _Final = 1
    CONFIG_FIELD_NUMBER: _Final = 2
    TOPIC_FIELD_NUMBER: _Final = 3
    @property
    def status(self) -> SubscriptionStatus: ...
    @property
    def config(self) -> EventDeliveryConfig: ...
    @property
    def topic(self) -> _uri.UUri: ...
    def __init__(self, *, status: SubscriptionStatus | None = ..., config: EventDeliveryConfig | None = ..., topic: _uri.UUri | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["status", "config", "topic"]) -> bool: ...

@_final
class UnsubscribeRequest(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    TOPIC_FIELD_NUMBER: _Final = 1
    SUBSCRIBER_FIELD_NUMBER: _Final = 2
    @property
    def topic(self) -> _uri.UUri: ...
    @property
    def subscriber(self) -> SubscriberInfo: ...
    def __init__(self, *, topic: _uri.UUri | None = ..., subscriber: SubscriberInfo | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["topic", "subscriber"]) -> bool: ...

@_final
class UnsubscribeResponse(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    def __init__(self) -> None: ...
    def HasField(self, field_name: _Never) -> bool: ...

@_final
class FetchSubscriptionsRequest(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    TOPIC_FIELD_NUMBER: _Final = 1
    SUBSCRIBER_FIELD_NUMBER: _Final = 2
    OFFSET_FIELD_NUMBER: _Final = 3
    @property
    def topic(self) -> _uri.UUri: ...
    @property
    def subscriber(self) -> SubscriberInfo: ...
    offset: int
    def __init__(self, *, topic: _uri.UUri | None = ..., subscriber: SubscriberInfo | None = ..., offset: int | None = ...) -> None: ...
    def WhichOneof(self, oneof_group: _Literal["request"]) -> _Literal["topic", "subscriber"] | None: ...
    def HasField(self, field_name: _Literal["topic", "subscriber", "offset", "request"]) -> bool: ...

@_final
class FetchSubscriptionsResponse(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    SUBSCRIPTIONS_FIELD_NUMBER: _Final = 1
    HAS_MORE_RECORDS_FIELD_NUMBER: _Final = 2
    STATUS_FIELD_NUMBER: _Final = 3
    @property
    def subscriptions(self) -> _containers.RepeatedCompositeFieldContainer[Subscription]: ...
    has_more_records: bool
    @property
    def status(self) -> _ustatus.UStatus: ...
    def __init__(self, *, subscriptions: _Iterable[Subscription] | None = ..., has_more_records: bool | None = ..., status: _ustatus.UStatus | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["has_more_records", "status"]) -> bool: ...

@_final
class Subscription(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    TOPIC_FIELD_NUMBER: _Final = 1
    SUBSCRIBER_FIELD_NUMBER: _Final = 2
    STATUS_FIELD_NUMBER: _Final = 3
    ATTRIBUTES_FIELD_NUMBER: _Final = 4
    CONFIG_FIELD_NUMBER: _Final = 5
    @property
    def topic(self) -> _uri.UUri: ...
    @property
    def subscriber(self) -> SubscriberInfo: ...
    @property
    def status(self) -> SubscriptionStatus: ...
    @property
    def attributes(self) -> SubscribeAttributes: ...
    @property
    def config(self) -> EventDeliveryConfig: ...
    def __init__(self, *, topic: _uri.UUri | None = ..., subscriber: SubscriberInfo | None = ..., status: SubscriptionStatus | None = ..., attributes: SubscribeAttributes | None = ..., config: EventDeliveryConfig | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["topic", "subscriber", "status", "attributes", "config"]) -> bool: ...

@_final
class CreateTopicRequest(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    TOPIC_FIELD_NUMBER: _Final = 1
    @property
    def topic(self) -> _uri.UUri: ...
    def __init__(self, *, topic: _uri.UUri | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["topic"]) -> bool: ...

@_final
class DeprecateTopicRequest(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    TOPIC_FIELD_NUMBER: _Final = 1
    @property
    def topic(self) -> _uri.UUri: ...
    def __init__(self, *, topic: _uri.UUri | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["topic"]) -> bool: ...

@_final
class NotificationsRequest(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    TOPIC_FIELD_NUMBER: _Final = 1
    SUBSCRIBER_FIELD_NUMBER: _Final = 2
    @property
    def topic(self) -> _uri.UUri: ...
    @property
    def subscriber(self) -> SubscriberInfo: ...
    def __init__(self, *, topic: _uri.UUri | None = ..., subscriber: SubscriberInfo | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["topic", "subscriber"]) -> bool: ...

@_final
class NotificationsResponse(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    def __init__(self) -> None: ...
    def HasField(self, field_name: _Never) -> bool: ...

@_final
class FetchSubscribersRequest(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    TOPIC_FIELD_NUMBER: _Final = 1
    OFFSET_FIELD_NUMBER: _Final = 2
    @property
    def topic(self) -> _uri.UUri: ...
    offset: int
    def __init__(self, *, topic: _uri.UUri | None = ..., offset: int | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["topic", "offset"]) -> bool: ...

@_final
class FetchSubscribersResponse(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    SUBSCRIBERS_FIELD_NUMBER: _Final = 1
    HAS_MORE_RECORDS_FIELD_NUMBER: _Final = 2
    STATUS_FIELD_NUMBER: _Final = 3
    @property
    def subscribers(self) -> _containers.RepeatedCompositeFieldContainer[SubscriberInfo]: ...
    has_more_records: bool
    @property
    def status(self) -> _ustatus.UStatus: ...
    def __init__(self, *, subscribers: _Iterable[SubscriberInfo] | None = ..., has_more_records: bool | None = ..., status: _ustatus.UStatus | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["has_more_records", "status"]) -> bool: ...

@_final
class Update(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    class _Resources:
        DESCRIPTOR: _descriptor.EnumDescriptor
        subscriptions: _Final = 0
        def Name(self, number: int) -> str: ...
        def Value(self, name: str) -> int: ...
        def keys(self) -> list[str]: ...
        def values(self) -> list[int]: ...
        def items(self) -> list[tuple[str, int]]: ...
    Resources: _ClassVar[_Resources]
    subscriptions: _Final = 0
    TOPIC_FIELD_NUMBER: _Final = 1
    SUBSCRIBER_FIELD_NUMBER: _Final = 2
    STATUS_FIELD_NUMBER: _Final = 3
    ATTRIBUTES_FIELD_NUMBER: _Final = 4
    @property
    def topic(self) -> _uri.UUri: ...
    @property
    def subscriber(self) -> SubscriberInfo: ...
    @property
    def status(self) -> SubscriptionStatus: ...
    @property
    def attributes(self) -> SubscribeAttributes: ...
    def __init__(self, *, topic: _uri.UUri | None = ..., subscriber: SubscriberInfo | None = ..., status: SubscriptionStatus | None = ..., attributes: SubscribeAttributes | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["topic", "subscriber", "status", "attributes"]) -> bool: ...

@_final
class PassiveMode(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    ENABLE_FIELD_NUMBER: _Final = 1
    enable: bool
    def __init__(self, *, enable: bool | None = ...) -> None: ...
    def HasField(self, field_name: _Never) -> bool: ...

@_final
class ResetRequest(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    @_final
    class Reason(_message.Message):
        DESCRIPTOR: _descriptor.Descriptor
        class _Code:
            DESCRIPTOR: _descriptor.EnumDescriptor
            UNSPECIFIED: _Final = 0
            FACTORY_RESET: _Final = 1
            CORRUPTED_DATA: _Final = 2
            def Name(self, number: int) -> str: ...
            def Value(self, name: str) -> int: ...
            def keys(self) -> list[str]: ...
            def values(self) -> list[int]: ...
            def items(self) -> list[tuple[str, int]]: ...
        Code: _ClassVar[_Code]
        UNSPECIFIED: _Final = 0
        FACTORY_RESET: _Final = 1
        CORRUPTED_DATA: _Final = 2
        CODE_FIELD_NUMBER: _Final = 1
        MESSAGE_FIELD_NUMBER: _Final = 2
        code: int
        message: str
        def __init__(self, *, code: int | None = ..., message: str | None = ...) -> None: ...
        def HasField(self, field_name: _Literal["message"]) -> bool: ...
    REASON_FIELD_NUMBER: _Final = 1
    BEFORE_FIELD_NUMBER: _Final = 2
    @property
    def reason(self) -> ResetRequest.Reason: ...
    @property
    def before(self) -> _google_timestamp.Timestamp: ...
    def __init__(self, *, reason: ResetRequest.Reason | None = ..., before: _google_timestamp.Timestamp | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["reason", "before"]) -> bool: ...

@_final
class ResetResponse(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    def __init__(self) -> None: ...
    def HasField(self, field_name: _Never) -> bool: ...
