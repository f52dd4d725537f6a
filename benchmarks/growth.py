# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.growth`: cost of a message with 10 and with a million subscriptions, exact and with
wildcards.

The path from an ingress to a queue, in this process, with the real uSubscription directory and without a network.
Variants alternate round by round; the cheapest round of each counts, in CPU time of the thread. A wildcard is one of the instance, the only one
that a subscription may have.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from ustreamer_usubscription.directory import InMemoryDirectory
from ustreamer_usubscription.store.store import SubscriptionStore, put_subscription

from benchmarks.subscriptions import subscription_entry
from ustreamer.core.base.clock import Clock
from ustreamer.core.delivery.delivery import Delivery, settle_all_delivered
from ustreamer.core.delivery.ledger import Ledger, Verdict
from ustreamer.core.delivery.ports import SendBatch, SendOne
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.dispatch.ingress import Ingress
from ustreamer.core.routing.router import AuthorityTable, Router
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY_INSTANCE, UUri

SIZES: Final = (10, 1_000, 100_000, 1_000_000)
MAX_RATIO: Final = 1.2
"""Factor relative to 10 subscriptions."""

_BATCH_SIZE: Final = 64
_BATCHES: Final = 50
_MAP_BYTES: Final = 2 << 30
_CLOCK: Final = Clock(time.monotonic_ns, lambda: time.time_ns() // 1_000_000)


class DiscardingEgress:
    """A queue that reports each message as delivered at once."""

    name = "backbone"
    unicast = False

    def __init__(self) -> None:
        self.ledger = Ledger()

    def offer(self, delivery: Delivery, message: UMessage, now_ns: int) -> None:
        delivery.settle(self.ledger, message, Verdict.DELIVERED, now_ns, now_ns)

    def offer_batch(
        self,
        deliveries: Sequence[Delivery],
        messages: Sequence[UMessage],
        times_ns: Sequence[int],
        *,
        has_ttl: bool,
    ) -> None:
        settle_all_delivered(deliveries, self.ledger, messages, times_ns)

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        return lambda message: None

    def batch_transmitter(self, subscriber: UUri | None) -> SendBatch:
        return lambda messages: len(list(messages))


class PopulatedIngress:
    """An ingress with `count` subscriptions in its directory."""

    def __init__(self, directory: Path, count: int, *, wildcard: bool) -> None:
        self.count, self.wildcard = count, wildcard
        store = SubscriptionStore(directory, _MAP_BYTES)
        store.open()
        changes = sorted(put_subscription(_entry(number, wildcard=wildcard)) for number in range(count))
        for start in range(0, count, 100_000):
            store.commit(changes[start : start + 100_000])
        store.close()
        store, subscriptions = SubscriptionStore(directory, _MAP_BYTES), InMemoryDirectory()
        store.open()
        subscriptions.load_stored(store.take_subscriptions())
        store.close()
        self.egress = DiscardingEgress()
        router = Router(
            AuthorityTable({"hpc.vin1": "backbone", "chassis": "chassis"}), subscriptions, {"backbone": False}
        )
        dispatcher = Dispatcher(
            "hpc.vin1", _CLOCK, router, {"backbone": self.egress}, schedule=lambda when, action: None
        )
        self._ingress: Ingress = dispatcher.ingress("chassis")
        self._ids = UuidSource(_CLOCK.wall_ms)
        topic = subscription_entry(0).topic
        self._messages = self._messages_on([topic] * _BATCH_SIZE)
        step = max(count // 1_000 // 10, 1) * 10
        self._scattered = self._messages_on(
            [subscription_entry(number).topic for number in range(0, count, step)]
        )

    def _messages_on(self, topics: Sequence[UUri]) -> list[UMessage]:
        made = {topic: publish(self._ids.next(), topic, bytes(64)).attributes for topic in topics}
        return [UMessage(self._ids.next(), made[topic], bytes(64)) for topic in topics]

    def message_us(self) -> float:
        """Cost for one topic with a cached route."""
        dispatch_batch, messages = self._ingress.on_batch, self._messages
        began_ns = time.thread_time_ns()
        for _ in range(_BATCHES):
            dispatch_batch(messages)
        return (time.thread_time_ns() - began_ns) / 1_000 / _BATCHES / _BATCH_SIZE

    def scattered_us(self) -> float:
        """Cost for up to 1 000 topics in turn, with cached routes."""
        dispatch_batch, messages = self._ingress.on_batch, self._scattered
        batches = [messages[start : start + _BATCH_SIZE] for start in range(0, len(messages), _BATCH_SIZE)]
        for batch in batches:
            dispatch_batch(batch)  # rebuild routes after the last change of a subscription
        began_ns = time.thread_time_ns()
        for batch in batches:
            dispatch_batch(batch)
        return (time.thread_time_ns() - began_ns) / 1_000 / len(messages)

    def route_build_us(self) -> float:
        """Cost of the first message of a topic after a change of subscriptions."""
        self._ingress.invalidate_routes()
        began_ns = time.thread_time_ns()
        self._ingress.dispatch(self._messages[0])
        return (time.thread_time_ns() - began_ns) / 1_000

    @property
    def on_delivered_batch(self) -> int:
        return self.egress.ledger.settled[Verdict.DELIVERED]


def _entry(number: int, *, wildcard: bool) -> Any:
    made = subscription_entry(number)
    if not wildcard:
        return made
    topic = msgspec.structs.replace(made.topic, ue_id=ANY_INSTANCE << 16 | made.topic.ue_type)
    return msgspec.structs.replace(made, topic=topic)


def measured(directory: Path, sizes: Sequence[int] = SIZES, rounds: int = 60) -> list[dict[str, Any]]:
    paths = [
        PopulatedIngress(directory / f"{count}-{wildcard}", count, wildcard=wildcard)
        for wildcard in (False, True)
        for count in sizes
    ]
    best: list[dict[str, float]] = [{} for _ in paths]
    for _ in range(rounds):
        for path, figures in zip(paths, best, strict=True):
            for name in ("route_build_us", "message_us", "scattered_us"):
                figures[name] = min(figures.get(name, float("inf")), getattr(path, name)())
    rows = []
    for path, figures in zip(paths, best, strict=True):
        assert path.on_delivered_batch, "no subscriber of the measured topic"
        [least] = [
            other
            for each, other in zip(paths, best, strict=True)
            if each.wildcard is path.wildcard and each.count == sizes[0]
        ]
        ratio = figures["message_us"] / least["message_us"]
        rows.append({"count": path.count, "wildcard": path.wildcard, **figures, "ratio": ratio})
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        f"{'subscriptions':<26}{'us a message':>14}{'by 10':>8}{'1 000 topics':>14}{'a plan':>10}",
        *(
            f"{row['count']:>12,} {'instance *' if row['wildcard'] else 'exact':<13}{row['message_us']:>14.3f}"
            f"{row['ratio']:>8.2f}{row['scattered_us']:>14.3f}{row['route_build_us']:>10.1f}"
            for row in rows
        ),
        f"limit: {MAX_RATIO} times the cost with {rows[0]['count']}",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="ustreamer-benchmark-") as directory:
        rows = measured(Path(directory), arguments.sizes, arguments.rounds)
    print(json.dumps(rows, indent=1) if arguments.json else table(rows))
    return int(any(row["ratio"] > MAX_RATIO for row in rows))


if __name__ == "__main__":
    sys.exit(main())
