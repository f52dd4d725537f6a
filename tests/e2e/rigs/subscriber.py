# SPDX-License-Identifier: Apache-2.0
"""An application that subscribes at its own uSubscription and receives the Updates, at byte level."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, Self

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import DEADLINE_S, SUBSCRIPTION_CHANGE, ZenohEntity, ZenohSample
from tests.e2e.rigs.wire import Id, Uri
from tests.waiting import wait_until

UNSUBSCRIBED: Final = 0
SUBSCRIBE_PENDING: Final = 1
SUBSCRIBED: Final = 2
UNSUBSCRIBE_PENDING: Final = 3
"""SubscriptionStatus.State of version 3; version 4 counts from 1."""

_PATIENCE_S: Final = 0.25  # with one request of those that may be lost while sessions find each other


def subscription_request(
    topic: Uri,
    *,
    period_ms: int | None = None,
    max_frequency: float | None = None,
    expire_s: int | None = None,
) -> bytes:
    """SubscriptionRequest of version 3, `expire_s` as a time since 1970."""
    expire = None if expire_s is None else wire.field(1, expire_s)
    attributes = wire.field(1, expire) + wire.field(3, period_ms) + wire.field(3, max_frequency)
    return wire.field(1, topic.encode()) + wire.field(3, attributes or None)


def subscribe_request_v4(topic: Uri, *, expire_s: int | None = None, period_ms: int | None = None) -> bytes:
    """SubscribeRequest of version 4."""
    expire = None if expire_s is None else wire.field(1, expire_s)
    return wire.field(1, topic.encode()) + wire.field(2, expire) + wire.field(3, period_ms)


class Update(NamedTuple):
    """`StatusUpdate` of version 3, or `Subscription` of version 4 with the same names; without the attributes."""

    topic: Uri
    subscriber: Uri
    state: int
    message: str = ""

    @classmethod
    def decode(cls, data: bytes) -> Self:
        found = wire.fields(data)
        subscriber = wire.fields(wire.message_in(found, 2) or b"")
        status = wire.fields(wire.message_in(found, 3) or b"")
        return cls(
            Uri.decode(wire.message_in(found, 1) or b""),
            Uri.decode(wire.message_in(subscriber, 1) or b""),
            wire.number_in(status, 1) or 0,
            (wire.message_in(status, 3) or b"").decode(),
        )

    @classmethod
    def decode_v4(cls, data: bytes) -> Self:
        found = wire.fields(data)
        return cls(
            Uri.decode(wire.message_in(found, 1) or b""),
            Uri.decode(wire.message_in(found, 2) or b""),
            (wire.number_in(found, 3) or 0) - 1,
        )


class Subscriber(ZenohEntity):
    """A uEntity with a session of its own.

    It calls the uSubscription at its own authority, as the standard requires.
    """

    def __init__(
        self, port: int, authority: str, ue_id: int | None = None, *, host: str = "127.0.0.1"
    ) -> None:
        super().__init__(port, authority, ue_id, host=host)
        self.usubscription = Uri(authority, 0, 3)

    def close(self) -> None:
        self.session.close()  # type: ignore[no-untyped-call]

    # --- requests -------------------------------------------------------------------------------------------

    def call_successfully(self, method: Uri, payload: bytes) -> ZenohSample:
        """Call, and insist that it worked."""
        answer = self.call(method, payload)
        assert answer.head.commstatus in {None, wire.OK}, f"{method}: {answer.status}"
        return answer

    def wait_responding(self, method: Uri, condition: Callable[[], bool] = lambda: True) -> None:
        """Repeat a request until a response arrives and `condition` is true, within the deadline; for sessions that
        discover each other.
        """
        unknown_topic = wire.topic_request(Uri(self.address.authority, 0x7FFF, 1, SUBSCRIPTION_CHANGE))
        requests: set[Id] = set()
        for _ in range(round(DEADLINE_S / _PATIENCE_S)):
            requests.add(self.send_request(method, unknown_topic))
            with suppress(AssertionError):
                # On a busy machine the first response may arrive after the timeout of its request. So any response
                # counts.
                self.inbox.wait_one(
                    lambda s: s.attributes is not None and s.attributes.reqid in requests, _PATIENCE_S
                )
                wait_until(condition, "the condition", _PATIENCE_S)  # it may become true after the response
                return
        raise AssertionError(f"{method} received no response within {DEADLINE_S} s")

    def request_subscription(self, topic: Uri, payload: bytes | None = None) -> int:
        """Subscribe; returns the state in the response."""
        method = self.usubscription.at(wire.SUBSCRIBE)
        answer = self.call_successfully(method, subscription_request(topic) if payload is None else payload)
        state, about = wire.SubscriptionResponse.decode(answer.payload)
        assert about == topic
        return state

    def subscribe_and_wait(self, topic: Uri, payload: bytes | None = None) -> None:
        """Subscribe, and wait until that is so."""
        self.request_subscription(topic, payload)
        self.wait_notified(topic, SUBSCRIBED)

    def unsubscribe(self, topic: Uri) -> None:
        """Unsubscribe: the response is OK and an empty message, which means UNSUBSCRIBED."""
        assert (
            self.call_successfully(self.usubscription.at(wire.UNSUBSCRIBE), wire.topic_request(topic)).payload
            == b""
        )

    # --- notifications --------------------------------------------------------------------------------------

    def _is_update_on(self, topic: Uri) -> Callable[[ZenohSample], bool]:
        source = self.usubscription.at(SUBSCRIPTION_CHANGE)

        def about(sample: ZenohSample) -> bool:
            head = sample.attributes
            return (
                head is not None
                and (head.type, head.source, head.sink) == (wire.NOTIFICATION, source, self.address)
                and Update.decode(sample.payload)[:2] == (topic, self.address)
            )

        return about

    def notified_states(self, topic: Uri) -> list[int]:
        """The states of this application's subscription that it was notified of, in order."""
        return [Update.decode(each.payload).state for each in self.inbox.items(self._is_update_on(topic))]

    def wait_notified(self, topic: Uri, state: int, times: int = 1) -> Update:
        """Wait until it received that state that many times; returns the last Update with that state."""
        about = self._is_update_on(topic)
        updates = self.inbox.wait_count(
            lambda each: about(each) and Update.decode(each.payload).state == state, times
        )
        return Update.decode(updates[-1].payload)
