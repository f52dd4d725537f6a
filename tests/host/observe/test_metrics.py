# SPDX-License-Identifier: Apache-2.0
"""The metrics of a streamer in this process: their figures, their bounds and their cost."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from tests.host.streamer_bench import (
    TOPIC,
    WITH_USUBSCRIPTION,
    Bench,
    bench,
    fake,
    link,
    no_notes,
    wait_persisted_letters,
)
from tests.host.waiting import DEADLINE_S, eventually
from ustreamer.core.dispatch.delivery_registry import TargetStatistics
from ustreamer.host.config.observe import ObserveConfig
from ustreamer.host.observe.exposition import openmetrics_text
from ustreamer.host.observe.metrics import is_present_value, metric_families
from ustreamer.host.observe.service import ObserveService
from ustreamer.host.observe.snapshot import MetricsSnapshot
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.host.runtime.streamer import Streamer
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuri import UUri

__all__ = ["bench", "no_notes"]

Series = Mapping[str, float]
"""By the text of the sample: its name and labels."""
RECEIVER = "up://cloud/20/1/0"


def observe(streamer: Streamer, top: int = 20) -> ObserveService:
    return ObserveService(ObserveConfig("127.0.0.1:0", top=top), streamer.metrics_snapshot, SYSTEM_CLOCK)


def scrape(service: ObserveService) -> Series:
    """A scrape, as Prometheus's own parser reads it."""
    response = service.respond("/metrics")
    assert response is not None
    return {
        name_of(sample.name, sample.labels): sample.value
        for family in text_string_to_metric_families(response.body.decode())
        for sample in family.samples
    }


def name_of(name: str, labels: Mapping[str, str]) -> str:
    inside = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return f"{name}{{{inside}}}" if inside else name


def streamer_with_traffic(bench: Bench) -> Streamer:
    """A streamer with delivered, refused and dead-lettered messages."""
    streamer = bench.started(
        bench.local("inside", "hpc"),
        fake("outside", "cloud", transport="sessions", receivers=[RECEIVER]),
        fake("other", "fleet", receivers=["//fleet/20/1/0"]),
    )
    app = bench.app("inside")
    for _ in range(3):
        app.publish(b"payload")
    links = [link(streamer, name) for name in ("outside", "other")]
    eventually(lambda: [len(each.sent) for each in links] == [3, 3], "the messages before the fault")
    link(streamer, "outside").fault = UCode.PERMISSION_DENIED
    app.publish(b"payload")
    wait_persisted_letters(streamer, 1)
    eventually(lambda: streamer.ledger().received == 9, "the publication of the dead letter")
    eventually(lambda: streamer.ledger().queued == 0, "an empty queue")
    return streamer


def test_the_figures_are_those_of_the_statistics(bench: Bench) -> None:
    streamer = streamer_with_traffic(bench)
    statistics, found = streamer.statistics(), scrape(observe(streamer))

    def total(name: str, **labels: str) -> float:
        wanted = {f"{key}={value}" for key, value in labels.items()}
        return sum(
            value
            for sample, value in found.items()
            if sample.partition("{")[0] == name
            and wanted <= set(sample.rstrip("}").partition("{")[2].split(","))
        )

    ledger = statistics.ledger
    assert ledger.delivered >= 7
    assert total("ustreamer_received_total") == ledger.received
    for verdict in ("delivered", "throttled", "expired", "dead_lettered", "denied", "no_subscriber"):
        assert total("ustreamer_deliveries_total", verdict=verdict) == getattr(ledger, verdict), verdict
    assert found["ustreamer_unaccounted"] == statistics.unaccounted == 0
    assert found["ustreamer_dead_letters_total{endpoint=outside,reason=permission_denied}"] == 1
    assert found["ustreamer_dead_letters_stored"] == statistics.dead_letters["stored"] == 1
    for queue in statistics.egress_queues:
        assert found[f"ustreamer_queue_messages{{endpoint={queue.endpoint}}}"] == queue.queued
        assert found[f"ustreamer_queue_retries_total{{endpoint={queue.endpoint}}}"] == queue.retries
        delivered = found[f"ustreamer_deliveries_total{{endpoint={queue.endpoint},verdict=delivered}}"]
        assert delivered == queue.delivered
    for endpoint, counters in statistics.endpoints.items():
        for name, count in counters.items():
            if name.startswith("refused_"):
                reason = name.removeprefix("refused_")
                assert found[f"ustreamer_refused_total{{endpoint={endpoint},reason={reason}}}"] == count
    names = f"endpoint=outside,ingress=inside,subscriber={RECEIVER},topic={TOPIC}"
    assert found[f"ustreamer_target_received_total{{{names}}}"] == 4
    assert found[f"ustreamer_target_delivered_total{{{names}}}"] == 3
    assert found["ustreamer_endpoint_up{endpoint=other,transport=fake}"] == 1
    assert found["ustreamer_store_degraded{store=dead-letters}"] == 0
    assert found["ustreamer_store_file_bytes{store=dead-letters}"] > 0


def test_every_number_of_the_statistics_has_a_metric(bench: Bench) -> None:
    streamer = streamer_with_traffic(bench)
    labels = {sample.partition("{")[2] for sample in scrape(observe(streamer))}
    renamed = ("refused_", "filter_errors", "directory_errors", "tap_errors", "backpressure_")
    for endpoint, counters in streamer.endpoints().items():
        for name in counters:
            kind = "state" if is_present_value(name) else "event"
            assert name.startswith(renamed) or f"endpoint={endpoint},{kind}={name}}}" in labels


def test_waiting_messages_have_an_age_and_their_subscriber(bench: Bench) -> None:
    streamer = bench.started(
        bench.local("inside", "hpc"), fake("outside", "cloud", transport="sessions", receivers=[RECEIVER])
    )
    link(streamer, "outside").fault = UCode.UNAVAILABLE
    bench.app("inside").publish(b"12345")
    service = observe(streamer)
    queued = f"ustreamer_subscriber_queue_messages{{endpoint=outside,subscriber={RECEIVER}}}"
    eventually(lambda: scrape(service).get(queued) == 1, "a queued message")
    eventually(
        lambda: scrape(service)["ustreamer_queue_oldest_age_seconds{endpoint=outside}"] > 0.01, "its age"
    )
    assert queued not in scrape(observe(streamer, top=0))
    link(streamer, "outside").fault = None
    link(streamer, "outside").set_link(up=True)
    eventually(
        lambda: scrape(service)["ustreamer_queue_oldest_age_seconds{endpoint=outside}"] == 0, "its end"
    )


def test_a_scrape_takes_no_lock_of_the_path(bench: Bench) -> None:
    streamer = streamer_with_traffic(bench)
    service = observe(streamer)
    found: list[Series] = []
    with ExitStack() as held:
        for ingress in streamer.dispatcher.ingresses():
            held.enter_context(ingress.locked())
        for queue in streamer._egress_queues.values():
            held.enter_context(queue._lock)
        for transport in streamer.transports.values():
            held.enter_context(getattr(transport, "_lock", threading.Lock()))
        scraper = threading.Thread(target=lambda: found.append(scrape(service)))
        scraper.start()
        scraper.join(DEADLINE_S)
    scraper.join(DEADLINE_S)
    assert found, "the scrape waited for a lock"


def test_counters_never_decrease_and_nothing_is_unaccounted_under_load(bench: Bench) -> None:
    streamer = bench.started(
        bench.local("inside", "hpc"), fake("outside", "cloud", receivers=["//cloud/20/1/0"])
    )
    app, service = bench.app("inside"), observe(streamer)
    ending = threading.Event()

    def send() -> None:
        while not ending.is_set():
            app.publish(b"payload")

    sender = threading.Thread(target=send)
    sender.start()
    before: Series = {}
    try:
        for _ in range(30):
            found = scrape(service)
            for name, value in before.items():
                if "_total" in name:
                    assert found[name] >= value, name
            before = found
        eventually(lambda: scrape(service)["ustreamer_unaccounted"] == 0, "a balanced ledger")
    finally:
        ending.set()
        sender.join(DEADLINE_S)
    assert before["ustreamer_received_total{endpoint=inside}"] > 0


def test_only_the_busiest_topics_are_labels(bench: Bench) -> None:
    streamer = bench.started(
        bench.local("inside", "hpc"), bench.local("outside", "cloud"), WITH_USUBSCRIPTION
    )
    app, fleet = bench.app("inside"), bench.app("outside", "cloud")
    topics = [UUri("hpc", 0x1234, 1, 0x8001 + number) for number in range(8)]
    for topic in topics:
        fleet.subscribe(topic)
    for number, topic in enumerate(topics):
        for _ in range(number + 1):
            app.publish(topic=topic)
    fleet.wait_received(36)

    def labels(top: int) -> list[str]:
        found = scrape(observe(streamer, top))
        name = "ustreamer_target_received_total"
        return [each.partition("topic=")[2].rstrip("}") for each in found if each.startswith(name)]

    assert labels(3) == [str(topic) for topic in reversed(topics[5:])]
    assert labels(0) == []
    assert len(labels(5_000)) >= 8


def test_a_lost_message_is_unaccounted(bench: Bench) -> None:
    streamer = streamer_with_traffic(bench)
    ingress = streamer.dispatcher.ingress("inside")
    ingress.ledger.received += 1
    assert scrape(observe(streamer))["ustreamer_unaccounted"] == 1
    ingress.held += 1
    found = scrape(observe(streamer))
    assert found["ustreamer_unaccounted"] == 0
    assert found["ustreamer_held_messages{endpoint=inside}"] == 1
    ingress.held -= 1
    ingress.ledger.received -= 1
    assert scrape(observe(streamer))["ustreamer_unaccounted"] == 0


# --- the text --------------------------------------------------------------------------------------------------------


class _Fixed(Collector):
    """A collector of given families, for the library's own exposition."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def library_text(families: list[Metric]) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fixed(families))
    text: bytes = generate_latest(registry)
    return text


def with_targets(snapshot: MetricsSnapshot, number: int) -> MetricsSnapshot:
    targets = [
        TargetStatistics(
            UUri("hpc", 0x1234, 1, 0x8000 + each),
            "inside",
            "outside",
            UUri("cloud", each, 1, 0),
            0,
            each,
            each,
            0,
        )
        for each in range(number)
    ]
    return snapshot._replace(targets=targets)


Content = list[tuple[str, str, str, list[tuple[str, Mapping[str, str], float]]]]


def content_of(text: bytes) -> Content:
    """Name, type, help and samples of each family, by the library's parser."""
    return [
        (each.name, each.type, each.documentation, [tuple(sample[:3]) for sample in each.samples])
        for each in text_string_to_metric_families(text.decode())
    ]


def test_the_text_means_what_that_of_the_library_means(bench: Bench) -> None:
    families = list(observe(streamer_with_traffic(bench)).families())
    assert content_of(openmetrics_text(families)) == content_of(library_text(families))
    odd = Metric("odd", 'with "quotes", a \\ and\na line', "gauge")
    for value in (0, 1, -1, 1.5, 1e21, 1e-9, float("inf"), float("-inf"), 123_456_789_012_345):
        odd.add_sample("odd", {"label": 'a "b" \\ \n c', "other": str(value)}, value)
    odd.add_sample("odd", {}, True)
    assert content_of(openmetrics_text([odd])) == content_of(library_text([odd]))
    assert content_of(openmetrics_text([odd]))[0][3][-1] == ("odd", {}, 1)


def test_the_labels_of_a_target_are_made_once(bench: Bench) -> None:
    snapshot = with_targets(streamer_with_traffic(bench).metrics_snapshot(20), 3)

    def labels() -> list[object]:
        return [
            sample.labels
            for family in metric_families(snapshot)
            if family.name.startswith("ustreamer_target_")
            for sample in family.samples
        ]

    first = labels()
    assert len({id(each) for each in first}) == 3
    assert all(one is other for one, other in zip(first, labels(), strict=True))


def test_ten_thousand_series_cost_a_fraction_of_the_library(bench: Bench) -> None:
    snapshot = with_targets(streamer_with_traffic(bench).metrics_snapshot(20), 2_500)
    families = list(metric_families(snapshot))
    assert sum(len(each.samples) for each in families) > 10_000
    ours, library = [], []
    for _ in range(5):  # alternating, by CPU time: the machine is shared
        began = time.thread_time()
        openmetrics_text(metric_families(snapshot))
        ours.append(time.thread_time() - began)
        began = time.thread_time()
        library_text(families)
        library.append(time.thread_time() - began)
    assert min(ours) < 0.5 * min(library), (min(ours), min(library))
