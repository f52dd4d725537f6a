# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.growth`: what a message costs with 10 subscriptions, and with a million, exact and with wildcards.

The path from an ingress to a lane, in this process: the real uSubscription directory behind it, no network. What is measured
takes turns round by round, and the fastest round of each counts. A wildcard is one of the instance, the only one that a
subscription may have.
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
from ustreamer_usubscription.directory import Directory
from ustreamer_usubscription.store.store import Store, put

from benchmarks.subscriptions import entry
from ustreamer.core.base.clock import Clock
from ustreamer.core.delivery.delivery import BulkTransmit, Delivery, Transmit
from ustreamer.core.delivery.ledger import Ledger, Verdict
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.dispatch.ingress import Ingress
from ustreamer.core.routing.router import Places, Router
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY_INSTANCE, UUri

SIZES: Final = (10, 1_000, 100_000, 1_000_000)
LIMIT: Final = 1.2
"""Times the cost with 10."""

_HELPING: Final = 64
_HELPINGS: Final = 50
_MAP: Final = 2 << 30
_CLOCK: Final = Clock(time.monotonic_ns, lambda: time.time_ns() // 1_000_000)


class Nowhere:
    """A lane that delivers at once, to nobody."""

    name = "backbone"
    unicast = False

    def __init__(self) -> None:
        self.ledger = Ledger()

    def offer(self, delivery: Delivery, message: UMessage, now_ns: int) -> None:
        delivery.settle(self.ledger, message, Verdict.DELIVERED, now_ns, now_ns)

    def offer_all(
        self, delivery: Delivery, messages: Sequence[UMessage], times_ns: Sequence[int], *, ageing: bool
    ) -> None:
        delivery.settle_delivered(self.ledger, messages, times_ns)

    def transmitter(self, subscriber: UUri | None) -> Transmit:
        return lambda message: None

    def bulk_transmitter(self, subscriber: UUri | None) -> BulkTransmit:
        return lambda messages: len(list(messages))


class Routed:
    """An ingress with `count` subscriptions behind it."""

    def __init__(self, directory: Path, count: int, *, wildcard: bool) -> None:
        self.count, self.wildcard = count, wildcard
        store = Store(directory, _MAP)
        store.open()
        changes = sorted(put(_entry(number, wildcard=wildcard)) for number in range(count))
        for start in range(0, count, 100_000):
            store.commit(changes[start : start + 100_000])
        store.close()
        store, subscriptions = Store(directory, _MAP), Directory()
        store.open()
        subscriptions.load(store.take())
        store.close()
        self.lane = Nowhere()
        router = Router(
            Places({"hpc.vin1": "backbone", "chassis": "chassis"}), subscriptions, {"backbone": False}
        )
        dispatcher = Dispatcher(
            "hpc.vin1", _CLOCK, router, {"backbone": self.lane}, schedule=lambda when, action: None
        )
        self._ingress: Ingress = dispatcher.ingress("chassis")
        self._ids = UuidSource(_CLOCK.wall_ms)
        topic = entry(0).topic
        self._messages = self._of([topic] * _HELPING)
        step = max(count // 1_000 // 10, 1) * 10
        self._scattered = self._of([entry(number).topic for number in range(0, count, step)])

    def _of(self, topics: Sequence[UUri]) -> list[UMessage]:
        made = {topic: publish(self._ids.next(), topic, bytes(64)).attributes for topic in topics}
        return [UMessage(self._ids.next(), made[topic], bytes(64)) for topic in topics]

    def message_us(self) -> float:
        """Of one topic, planned before."""
        take_all, messages = self._ingress.take_all, self._messages
        began_ns = time.perf_counter_ns()
        for _ in range(_HELPINGS):
            take_all(messages)
        return (time.perf_counter_ns() - began_ns) / 1_000 / _HELPINGS / _HELPING

    def scattered_us(self) -> float:
        """Of up to 1 000 topics in turn, planned before."""
        take_all, messages = self._ingress.take_all, self._scattered
        helpings = [messages[start : start + _HELPING] for start in range(0, len(messages), _HELPING)]
        for helping in helpings:
            take_all(helping)  # plans, where the last change of a subscription has taken them away
        began_ns = time.perf_counter_ns()
        for helping in helpings:
            take_all(helping)
        return (time.perf_counter_ns() - began_ns) / 1_000 / len(messages)

    def planning_us(self) -> float:
        """The first message of a topic after a subscription has changed."""
        self._ingress.replan()
        began_ns = time.perf_counter_ns()
        self._ingress.dispatch(self._messages[0])
        return (time.perf_counter_ns() - began_ns) / 1_000

    @property
    def delivered(self) -> int:
        return self.lane.ledger.settled[Verdict.DELIVERED]


def _entry(number: int, *, wildcard: bool) -> Any:
    made = entry(number)
    if not wildcard:
        return made
    topic = msgspec.structs.replace(made.topic, ue_id=ANY_INSTANCE << 16 | made.topic.ue_type)
    return msgspec.structs.replace(made, topic=topic)


def measured(directory: Path, sizes: Sequence[int] = SIZES, rounds: int = 60) -> list[dict[str, Any]]:
    paths = [
        Routed(directory / f"{count}-{wildcard}", count, wildcard=wildcard)
        for wildcard in (False, True)
        for count in sizes
    ]
    best: list[dict[str, float]] = [{} for _ in paths]
    for _ in range(rounds):
        for path, figures in zip(paths, best, strict=True):
            for name in ("planning_us", "message_us", "scattered_us"):
                figures[name] = min(figures.get(name, float("inf")), getattr(path, name)())
    rows = []
    for path, figures in zip(paths, best, strict=True):
        assert path.delivered, "nobody was subscribed to what was measured"
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
            f"{row['ratio']:>8.2f}{row['scattered_us']:>14.3f}{row['planning_us']:>10.1f}"
            for row in rows
        ),
        f"limit: {LIMIT} times the cost with {rows[0]['count']}",
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
    return int(any(row["ratio"] > LIMIT for row in rows))


if __name__ == "__main__":
    sys.exit(main())
