# SPDX-License-Identifier: Apache-2.0
"""The histograms of `[observe] latency`, on the clock of the test."""

from threading import Thread

from prometheus_client.core import CollectorRegistry, Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from ustreamer.core.base.clock import ManualClock
from ustreamer.core.base.timers import Timers
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.delivery.ports import SendOne
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.routing.router import SELF, AuthorityTable, Router
from ustreamer.core.routing.subscriptions import StaticDirectory, Subscription
from ustreamer.host.observe.exposition import openmetrics_text
from ustreamer.host.observe.latency import LatencyHistograms
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

MS = 1_000_000
TOPIC, APP = UUri("car", 1, 1, 0x8001), UUri("hpc", 7, 1, 0)


class SlowEgress:
    """Sends a message at once, or `waits_ns` later."""

    unicast = False

    def __init__(self, name: str, time: ManualClock) -> None:
        self.name = name
        self.waits_ns = 0
        self._time = time

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        return lambda message: None

    def offer(self, delivery: Delivery, message: UMessage, now_ns: int) -> None:
        self._time.advance(ms=2)
        settled_ns = now_ns + self.waits_ns
        delivery.settle(delivery._owner.ledger, message, Verdict.DELIVERED, now_ns, settled_ns, attempts=1)


class Rig:
    def __init__(self) -> None:
        time = ManualClock()
        clock = time.clock()
        self.histograms = LatencyHistograms(clock.monotonic_ns)
        self.egress = {name: SlowEgress(name, time) for name in (SELF, "a", "b")}
        directory = StaticDirectory([Subscription(TOPIC, APP)])
        router = Router(
            AuthorityTable({"car": "a", "hpc": "b"}), directory, dict.fromkeys(self.egress, False)
        )
        self.dispatcher = Dispatcher("hpc", clock, router, self.egress, schedule=Timers().schedule)
        self.dispatcher.attach_taps(self.histograms.tap_at)
        self._ids = UuidSource(clock.wall_ms)

    def publish(self) -> None:
        self.dispatcher.ingress("a").dispatch(publish(self._ids.next(), TOPIC))

    def value(self, name: str, le: str = "") -> float:
        """Of the route from a to b; 0 without it."""
        wanted = {"ingress": "a", "endpoint": "b"} | ({"le": le} if le else {})
        samples = [each for family in self.histograms.families() for each in family.samples]
        return sum(each.value for each in samples if (each.name, each.labels) == (name, wanted))


def test_a_message_that_is_sent_at_once_counts_until_the_end_of_its_send() -> None:
    rig = Rig()
    for _ in range(3):
        rig.publish()
    latency = "ustreamer_delivery_latency_seconds"
    assert [rig.value(f"{latency}_bucket", le) for le in ("0.001", "0.0025", "10", "+Inf")] == [0, 3, 3, 3]
    assert (rig.value(f"{latency}_count"), rig.value(f"{latency}_sum")) == (3, 0.006)
    assert rig.value("ustreamer_queue_wait_seconds_count") == 0


def test_a_queued_message_counts_in_both() -> None:
    rig = Rig()
    rig.egress["b"].waits_ns = 30 * MS
    rig.publish()
    for name in ("ustreamer_delivery_latency_seconds", "ustreamer_queue_wait_seconds"):
        assert [rig.value(f"{name}_bucket", le) for le in ("0.025", "0.05")] == [0, 1]


def test_threads_share_no_counter() -> None:
    rig = Rig()

    def publish_many() -> None:
        for _ in range(200):
            rig.publish()

    threads = [Thread(target=publish_many) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert rig.value("ustreamer_delivery_latency_seconds_count") == 800


def test_the_text_is_that_of_the_library() -> None:
    rig = Rig()
    rig.publish()

    class Collector:
        def collect(self) -> list[Metric]:
            return list(rig.histograms.families())

    registry = CollectorRegistry()
    registry.register(Collector())
    own, expected = openmetrics_text(rig.histograms.families()).decode(), generate_latest(registry).decode()
    assert list(text_string_to_metric_families(own)) == list(text_string_to_metric_families(expected))
