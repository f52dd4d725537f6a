# SPDX-License-Identifier: Apache-2.0
"""A uSubscription of version 3 or 4 as a process of its own, with a codec of its own, which keeps nothing on disk.

    python -m tests.e2e.subscriptions.usubscription_process PORT VERSION [silent] [slow] [COUNT] [TOPIC,SUBSCRIBER]...

It starts with the given subscriptions, as `authority/entity/version/resource` in hex, and with `COUNT` others. It
publishes updates on its change topic, unless it is `silent`. If it is `slow`, each list takes `SLOW_LIST_S`. The first
line is READY.
"""

import os
import signal
import sys
from contextlib import suppress
from threading import Event
from typing import Final

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ZenohEntity, ZenohSample
from tests.e2e.rigs.wire import Attributes, Uri

AUTHORITY: Final = "hpc.vin1"
SLOW_LIST_S: Final = 0.7
"""More than the 0.5 s between two requests of a streamer."""


class OutsideUsubscription:
    def __init__(
        self,
        port: int,
        version: int,
        subscriptions: list[tuple[Uri, Uri]],
        *,
        silent: bool,
        slow: bool,
    ) -> None:
        self._version = version
        self._silent = silent
        self._list_s = SLOW_LIST_S if slow else 0.0
        self._subscribed = dict.fromkeys(subscriptions, b"")
        self._address = Uri(AUTHORITY, 0, version)
        self._entity = ZenohEntity(port, AUTHORITY, 0, listen_to=f"up/*/*/*/*/*/{AUTHORITY}/0/0/{version}/*")

    def run(self) -> None:
        """Answer requests in order until SIGTERM, also those that have expired."""
        answered = 0
        # Not sigtimedwait: after SIGSTOP and SIGCONT it returns as if the signal had come.
        while signal.SIGTERM not in signal.sigpending():
            with suppress(AssertionError):
                self._entity.inbox.wait_count(count=answered + 1, within=0.1)
            samples = self._entity.inbox.items()
            for sample in samples[answered:]:
                self._answer(sample)
            answered = len(samples)

    def _answer(self, sample: ZenohSample) -> None:
        head = sample.head
        assert head.sink is not None
        if head.sink.resource == wire.FETCH_SUBSCRIPTIONS:
            Event().wait(self._list_s)
            entries = [self._entry(*pair, attributes) for pair, attributes in self._subscribed.items()]
            self._entity.respond(sample, b"".join(wire.field(1, each) for each in entries))
            return
        if head.sink.resource not in {wire.SUBSCRIBE, wire.UNSUBSCRIBE}:
            self._entity.respond(sample)  # a registration
            return
        found = wire.fields(sample.payload)
        topic = Uri.decode(wire.message_in(found, 1) or b"")
        pair = topic, head.source
        if head.sink.resource == wire.SUBSCRIBE:
            self._subscribed[pair] = wire.message_in(found, 3) or b""
            state = wire.field(1, wire.field(1, wire.SUBSCRIBED)) + wire.field(3, topic.encode())
            self._entity.respond(sample, state)
            self._publish(self._entry(*pair, self._subscribed[pair]))
        else:
            self._subscribed.pop(pair, None)
            self._entity.respond(sample)
            self._publish(self._entry(*pair, b"", wire.UNSUBSCRIBED))

    def _entry(self, topic: Uri, subscriber: Uri, attributes: bytes, state: int = wire.SUBSCRIBED) -> bytes:
        """A Subscription, which is an Update, too."""
        if self._version == 4:
            return (
                wire.field(1, topic.encode()) + wire.field(2, subscriber.encode()) + wire.field(3, state + 1)
            )
        return (
            wire.field(1, topic.encode())
            + wire.field(2, wire.subscriber_info(subscriber))
            + wire.field(3, wire.field(1, state))
            + wire.field(4, attributes)
        )

    def _publish(self, update: bytes) -> None:
        if not self._silent:
            topic = self._address.at(0x8000)
            self._entity.send_message(
                Attributes(
                    wire.new_id(), wire.PUBLISH, topic, priority=wire.CS2, payload_format=wire.PROTOBUF
                ),
                update,
            )


def many_subscriptions(count: int) -> list[tuple[Uri, Uri]]:
    return [
        (Uri(AUTHORITY, 0x6000 + number // 0x1000, 1, 0x8000 + number % 0x1000), Uri("cloud", 0x10A2, 1))
        for number in range(count)
    ]


def uri_in(text: str) -> Uri:
    authority, *numbers = text.split("/")
    return Uri(authority, *(int(each, 16) for each in numbers))


def main() -> None:
    port, version, *rest = sys.argv[1:]
    pairs = [each.split(",") for each in rest if "," in each]
    count = sum(int(each) for each in rest if each.isdecimal())
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    service = OutsideUsubscription(
        int(port),
        int(version),
        [(uri_in(topic), uri_in(who)) for topic, who in pairs] + many_subscriptions(count),
        silent="silent" in rest,
        slow="slow" in rest,
    )
    os.write(1, b"READY\n")
    service.run()


if __name__ == "__main__":
    main()
