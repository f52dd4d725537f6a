# SPDX-License-Identifier: Apache-2.0
"""A Zenoh application that subscribes the topics of a model at the streamer; some subscriptions come and go."""

import threading
import time
from typing import Final

import zenoh
from zenoh.handlers import FifoChannel

from benchmarks.harness.shared_counters import SWITCH_ENABLED, SharedCounters
from benchmarks.traffic import sockets, wire
from benchmarks.traffic.models import TrafficModel

_CHANNEL: Final = 65_536
_TTL_MS: Final = 60_000
_IN_FLIGHT: Final = 64
_RETRY_S: Final = 1.0
_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.0005
SWITCH_PAUSE_S: Final = 0.1
"""Time between two changes of subscriptions."""


class ModelSubscriber:
    """Subscribes the topics of `authority`, the throttled ones with their limits.

    The session also receives the notifications of uSubscription and drops them: unread ones would wait in the streamer.
    """

    def __init__(
        self, session: zenoh.Session, model: TrafficModel, authority: str, subscriber: wire.Address
    ) -> None:
        self._model, self._authority = model, authority
        self._changes = session.declare_subscriber(wire.unicast_key(wire.CHANGES, subscriber), lambda _: None)
        self._requests = {
            method: (
                sockets.blocking_publisher(session, wire.unicast_key(subscriber, method)),
                session.declare_subscriber(wire.unicast_key(method, subscriber), FifoChannel(_CHANNEL)),
                wire.request_tail(subscriber, method, _TTL_MS),
            )
            for method in (wire.SUBSCRIBE, wire.UNSUBSCRIBE)
        }
        self._request_number = 0
        self.switch_count = 0
        """Subscriptions that ended and began again."""

    def _send_request(self, method: wire.Address, topic: int) -> bytes:
        """Send a request. Returns the second half of its id."""
        publisher, _, tail = self._requests[method]
        limit_hz = self._model.limit_hz(topic) if method == wire.SUBSCRIBE else None
        self._request_number += 1
        head = wire.attachment_head(time.time_ns() // 1_000_000, self._request_number)
        body = wire.subscription_request(self._model.address(topic, self._authority), limit_hz)
        publisher.put(body, attachment=head + tail)
        return head[-8:]

    def subscribe_all(self) -> None:
        """Raises TimeoutError if a subscription is not granted."""
        answers = self._requests[wire.SUBSCRIBE][1]
        waiting, in_flight = set(range(self._model.topics)), dict[bytes, int]()
        deadline = time.monotonic() + _TIMEOUT_S
        retry_s = time.monotonic()
        while waiting or in_flight:
            now_s = time.monotonic()
            if now_s > deadline:
                missing = len(waiting) + len(in_flight)
                raise TimeoutError(f"Subscribe: {missing} of {self._model.topics} topics not granted")
            if now_s - retry_s > _RETRY_S:  # the session may not have known its peers yet
                waiting.update(in_flight.values())
                in_flight.clear()
                retry_s = now_s
            while waiting and len(in_flight) < _IN_FLIGHT:
                topic = waiting.pop()
                in_flight[self._send_request(wire.SUBSCRIBE, topic)] = topic
            answer = answers.try_recv()
            if answer is None:
                time.sleep(_POLL_S)
                continue
            retry_s = now_s
            if answer.attachment is not None and wire.is_subscribed(answer.payload.to_bytes()):
                in_flight.pop(wire.reqid_lsb(answer.attachment.to_bytes()), None)

    def switch_in_background(self, counters: SharedCounters) -> None:
        """While SWITCH_ENABLED is set, the switched topics are unsubscribed and subscribed again, one at a time."""
        switched = [topic for topic in range(self._model.topics) if self._model.is_switched(topic)]
        if switched:
            threading.Thread(target=self._switch, args=(counters, switched), daemon=True).start()

    def _switch(self, counters: SharedCounters, topics: list[int]) -> None:
        while True:
            for topic in topics:
                while not counters[SWITCH_ENABLED]:
                    time.sleep(SWITCH_PAUSE_S)
                for method in (wire.UNSUBSCRIBE, wire.SUBSCRIBE):
                    self._send_request(method, topic)
                    self._requests[method][1].recv()
                    time.sleep(SWITCH_PAUSE_S)
                self.switch_count += 1
