# SPDX-License-Identifier: Apache-2.0
"""The messages of uSubscription in its versions 3 and 4, from the text of up-spec alone."""

from enum import Enum
from typing import Final, NamedTuple, Protocol

from uprotocol_tck.protobuf import Fields, MalformedProtobuf, field
from uprotocol_tck.uprotocol import Uri

CHANGES: Final = 0x8000
"""The resource of the topic of changes, in both versions."""
REMOTE_TIMEOUT_MS: Final = 5 * 60 * 1000
"""How long a call of another uSubscription may take."""


class State(Enum):
    """The status of a subscription."""

    UNSUBSCRIBED = "UNSUBSCRIBED"
    SUBSCRIBE_PENDING = "SUBSCRIBE_PENDING"
    SUBSCRIBED = "SUBSCRIBED"
    UNSUBSCRIBE_PENDING = "UNSUBSCRIBE_PENDING"


_STATES: Final = tuple(State)


class Subscription(NamedTuple):
    """One subscription, as a list or a change has it. `expire_ms` is a Unix time."""

    topic: Uri
    subscriber: Uri
    state: State
    expire_ms: int | None = None
    period_ms: int | None = None


class Methods(NamedTuple):
    """The numbers of the methods; None: this version does not have it."""

    subscribe: int
    unsubscribe: int
    fetch_subscriptions: int
    register: int
    unregister: int
    reset: int
    create_topic: int | None = None
    deprecate_topic: int | None = None
    fetch_subscribers: int | None = None


class Dialect(Protocol):
    """One version of the interface. Readers raise MalformedProtobuf."""

    version: int
    methods: Methods

    def subscribe(self, topic: Uri | bytes | None, expire_ms: int | None, period_ms: int | None) -> bytes: ...

    def topic_request(self, topic: Uri | bytes | None) -> bytes: ...

    def fetch(self, topic: Uri | bytes | None, subscriber: Uri | bytes | None) -> bytes: ...

    def register(self, topic: Uri | bytes | None) -> bytes: ...

    def read_subscribed(self, payload: bytes) -> tuple[State, Uri | None]: ...

    def read_list(self, payload: bytes) -> list[Subscription]: ...

    def read_change(self, payload: bytes) -> Subscription: ...

    def encode_subscribed(self, topic: Uri, state: State) -> bytes: ...

    def read_request(self, payload: bytes) -> Subscription: ...


def _encoded(uri: Uri | bytes | None) -> bytes | None:
    return uri.encode() if isinstance(uri, Uri) else uri


def _timestamp(unix_ms: int | None) -> bytes | None:
    """google.protobuf.Timestamp."""
    if unix_ms is None:
        return None
    return field(1, unix_ms // 1000) + field(2, unix_ms % 1000 * 1_000_000 or None)


def _read_timestamp(found: Fields, number: int) -> int | None:
    if number not in found:
        return None
    stamp = found.message(number)
    return (stamp.number(1) or 0) * 1000 + (stamp.number(2) or 0) // 1_000_000


def _state(number: int | None, first: int) -> State:
    index = (number or 0) - first
    if not 0 <= index < len(_STATES):
        raise MalformedProtobuf(f"status {number}, expected {first} to {first + len(_STATES) - 1}")
    return _STATES[index]


class Version3:
    """uprotocol.core.usubscription.v3."""

    version = 3
    methods = Methods(1, 2, 3, 6, 7, 9, create_topic=4, deprecate_topic=5, fetch_subscribers=8)

    def subscribe(self, topic: Uri | bytes | None, expire_ms: int | None, period_ms: int | None) -> bytes:
        """SubscriptionRequest."""
        attributes = field(1, _timestamp(expire_ms)) + field(3, period_ms)
        return field(1, _encoded(topic)) + field(3, attributes or None)

    def topic_request(self, topic: Uri | bytes | None) -> bytes:
        """UnsubscribeRequest, FetchSubscribersRequest, CreateTopicRequest and DeprecateTopicRequest."""
        return field(1, _encoded(topic))

    def fetch(self, topic: Uri | bytes | None, subscriber: Uri | bytes | None) -> bytes:
        """FetchSubscriptionsRequest."""
        info = None if subscriber is None else field(1, _encoded(subscriber))
        return field(1, _encoded(topic)) + field(2, info)

    def register(self, topic: Uri | bytes | None) -> bytes:
        """NotificationsRequest."""
        return field(1, _encoded(topic))

    def read_subscribed(self, payload: bytes) -> tuple[State, Uri | None]:
        """SubscriptionResponse. Its topic is younger than the message, so it may be absent."""
        found = Fields(payload)
        topic = found.data(3)
        if 1 not in found:
            raise MalformedProtobuf("the SubscriptionResponse has no status")
        return _state(found.message(1).number(1), 0), None if topic is None else Uri.decode(topic)

    def read_list(self, payload: bytes) -> list[Subscription]:
        """FetchSubscriptionsResponse."""
        return [self.read_change(each) for each in Fields(payload).repeated(1)]

    def read_change(self, payload: bytes) -> Subscription:
        """Update, and a Subscription of a list: their first four fields are the same."""
        found = Fields(payload)
        attributes = found.message(4)
        return Subscription(
            Uri.decode(found.data(1) or b""),
            Uri.decode(found.message(2).data(1) or b""),
            _state(found.message(3).number(1), 0),
            _read_timestamp(attributes, 1),
            attributes.number(3),
        )

    def read_subscribers(self, payload: bytes) -> list[Uri]:
        """FetchSubscribersResponse."""
        return [Uri.decode(Fields(each).data(1) or b"") for each in Fields(payload).repeated(1)]

    def encode_subscribed(self, topic: Uri, state: State) -> bytes:
        return field(1, field(1, _STATES.index(state) or None)) + field(3, topic.encode())

    def read_request(self, payload: bytes) -> Subscription:
        """SubscriptionRequest, as a subscription of nothing yet."""
        found = Fields(payload)
        attributes = found.message(3)
        subscriber = found.message(2).data(1)
        return Subscription(
            Uri.decode(found.data(1) or b""),
            Uri.decode(subscriber or b""),
            State.UNSUBSCRIBED,
            _read_timestamp(attributes, 1),
            attributes.number(3),
        )

    def paged(self, request: bytes, number: int, offset: int) -> bytes:
        """A list's request with `offset`, which has this number in it."""
        return request + field(number, offset)

    def has_more(self, payload: bytes) -> bool:
        """`has_more_records` of both lists."""
        return bool(Fields(payload).number(2))


class Version4:
    """uprotocol.core.usubscription.v4."""

    version = 4
    methods = Methods(1, 2, 3, 4, 5, 6)

    def subscribe(self, topic: Uri | bytes | None, expire_ms: int | None, period_ms: int | None) -> bytes:
        """SubscribeRequest."""
        return field(1, _encoded(topic)) + field(2, _timestamp(expire_ms)) + field(3, period_ms)

    def topic_request(self, topic: Uri | bytes | None) -> bytes:
        """UnsubscribeRequest."""
        return field(1, _encoded(topic))

    def fetch(self, topic: Uri | bytes | None, subscriber: Uri | bytes | None) -> bytes:
        """FetchSubscriptionsRequest."""
        return field(1, _encoded(topic)) + field(2, _encoded(subscriber))

    def register(self, topic: Uri | bytes | None) -> bytes:
        """NotificationsRequest: it has no parameters."""
        return b""

    def read_subscribed(self, payload: bytes) -> tuple[State, Uri | None]:
        """SubscribeResponse."""
        found = Fields(payload)
        topic = found.data(1)
        return _state(found.number(2), 1), None if topic is None else Uri.decode(topic)

    def read_list(self, payload: bytes) -> list[Subscription]:
        """FetchSubscriptionsResponse."""
        return [self.read_change(each) for each in Fields(payload).repeated(1)]

    def read_change(self, payload: bytes) -> Subscription:
        """Subscription."""
        found = Fields(payload)
        return Subscription(
            Uri.decode(found.data(1) or b""),
            Uri.decode(found.data(2) or b""),
            _state(found.number(3), 1),
            _read_timestamp(found, 4),
            found.number(5),
        )

    def encode_subscribed(self, topic: Uri, state: State) -> bytes:
        return field(1, topic.encode()) + field(2, _STATES.index(state) + 1)

    def read_request(self, payload: bytes) -> Subscription:
        """SubscribeRequest, as a subscription of nothing yet."""
        found = Fields(payload)
        return Subscription(
            Uri.decode(found.data(1) or b""),
            Uri("", 0, 0),
            State.UNSUBSCRIBED,
            _read_timestamp(found, 2),
            found.number(3),
        )


VERSION_3: Final = Version3()
VERSION_4: Final = Version4()
DIALECTS: Final[dict[int, Dialect]] = {3: VERSION_3, 4: VERSION_4}
