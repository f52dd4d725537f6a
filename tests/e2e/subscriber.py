# SPDX-License-Identifier: Apache-2.0
"""An application that subscribes at its own uSubscription and hears what becomes of it, byte by byte."""

from collections.abc import Callable
from typing import Final, NamedTuple, Self

from tests.e2e import wire
from tests.e2e.peers import CHANGE, DEADLINE_S, Sample, ZenohPeer
from tests.e2e.wire import Id, Uri

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
    wish = wire.field(1, expire) + wire.field(3, period_ms) + wire.field(3, max_frequency)
    return wire.field(1, topic.encode()) + wire.field(3, wish or None)


def subscribe_request_v4(topic: Uri, *, expire_s: int | None = None, period_ms: int | None = None) -> bytes:
    """SubscribeRequest of version 4."""
    expire = None if expire_s is None else wire.field(1, expire_s)
    return wire.field(1, topic.encode()) + wire.field(2, expire) + wire.field(3, period_ms)


class Update(NamedTuple):
    """`Update` of version 3, or `Subscription` of version 4 in the same words; without the attributes."""

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


class Subscriber(ZenohPeer):
    """A uEntity with a session of its own. It asks the uSubscription at its own authority, as the standard has it."""

    def __init__(self, port: int, authority: str, ue_id: int | None = None) -> None:
        super().__init__(port, authority, ue_id)
        self.usubscription = Uri(authority, 0, 3)

    def close(self) -> None:
        self.session.close()  # type: ignore[no-untyped-call]

    # --- asking -----------------------------------------------------------------------------------------------------------

    def ask(self, method: Uri, payload: bytes) -> Sample:
        """Call, and insist that it worked."""
        answer = self.call(method, payload)
        assert answer.head.commstatus in {None, wire.OK}, f"{method}: {answer.status}"
        return answer

    def wait_answering(self, method: Uri, seen: Callable[[], bool] = lambda: True) -> None:
        """Ask until somebody answers and `seen()`, for as long as anything may take; for sessions that find each other."""
        nowhere = wire.on_topic(Uri(self.address.authority, 0x7FFF, 1, CHANGE))
        asked: set[Id] = set()
        for _ in range(round(DEADLINE_S / _PATIENCE_S)):
            asked.add(self.request(method, nowhere))
            try:
                # Of any of them: on a busy machine the first answer may take longer than our patience.
                self.inbox.one(
                    lambda s: s.attributes is not None and s.attributes.reqid in asked, _PATIENCE_S
                )
            except AssertionError:
                continue
            if seen():
                return
        raise AssertionError(f"{method} answers nobody within {DEADLINE_S} s")

    def request_subscription(self, topic: Uri, payload: bytes | None = None) -> int:
        """Subscribe; the state that is answered."""
        method = self.usubscription.at(wire.SUBSCRIBE)
        answer = self.ask(method, subscription_request(topic) if payload is None else payload)
        state, about = wire.Subscribed.decode(answer.payload)
        assert about == topic
        return state

    def subscribe_and_wait(self, topic: Uri, payload: bytes | None = None) -> None:
        """Subscribe, and wait until that is so."""
        self.request_subscription(topic, payload)
        self.wait_told(topic, SUBSCRIBED)

    def unsubscribe(self, topic: Uri) -> None:
        """Unsubscribe: OK and an empty answer, which says UNSUBSCRIBED."""
        assert self.ask(self.usubscription.at(wire.UNSUBSCRIBE), wire.on_topic(topic)).payload == b""

    # --- being told -------------------------------------------------------------------------------------------------------

    def _is_told(self, topic: Uri) -> Callable[[Sample], bool]:
        source = self.usubscription.at(CHANGE)

        def about(sample: Sample) -> bool:
            head = sample.attributes
            return (
                head is not None
                and (head.type, head.source, head.sink) == (wire.NOTIFICATION, source, self.address)
                and Update.decode(sample.payload)[:2] == (topic, self.address)
            )

        return about

    def told(self, topic: Uri) -> list[int]:
        """The states of this application's subscription that it has been told, in order."""
        return [Update.decode(each.payload).state for each in self.inbox.all(self._is_told(topic))]

    def wait_told(self, topic: Uri, state: int, times: int = 1) -> Update:
        """Wait until it has been told that state so many times; the last Update that says so."""
        about = self._is_told(topic)
        found = self.inbox.wait(
            lambda each: about(each) and Update.decode(each.payload).state == state, times
        )
        return Update.decode(found[-1].payload)
