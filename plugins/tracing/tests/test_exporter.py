# SPDX-License-Identifier: Apache-2.0
"""The exporter at a collector that answers, refuses, is away and comes back. The network is real."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from ustreamer_tracing.config import TracingConfig
from ustreamer_tracing.exporter import SPANS_PER_REQUEST, SpanExporter
from ustreamer_tracing.span_queue import SpanQueue

from tests.otlp_collector import OtlpCollector, accepted, spans_of
from tests.waiting import wait_until
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Rig:
    """An exporter and its queue."""

    def __init__(self, url: str, **settings: Any) -> None:
        config = TracingConfig(collector=url, **{"flush_ms": 50, "timeout_ms": 2_000, **settings})
        self.queue = SpanQueue(config.queue_spans, SYSTEM_CLOCK.monotonic_ns)
        self.exporter = SpanExporter(config, "hpc", SYSTEM_CLOCK, self.queue)
        self._tap = self.queue.tap("chassis")
        self._new_id = UuidSource(SYSTEM_CLOCK.wall_ms)

    def settle(self, count: int = 1, traceparent: str = SAMPLED) -> UMessage:
        """Deliveries end; returns the last message."""
        made = publish(self._new_id.next(), UUri("chassis", 0x1234, 1, 0x8001))
        attributes = msgspec.structs.replace(made.attributes, traceparent=traceparent)
        message = UMessage(made.id, attributes)
        for _ in range(count):
            now_ns = SYSTEM_CLOCK.monotonic_ns()
            self._tap(message, None, Verdict.NO_SUBSCRIBER, None, 0, now_ns, now_ns, 0, now_ns)
        return message

    @contextmanager
    def running(self) -> Iterator["Rig"]:
        self.exporter.start()
        try:
            yield self
        finally:
            self.exporter.close(10.0)


@pytest.fixture
def collector() -> Iterator[OtlpCollector]:
    with OtlpCollector().running() as running:
        yield running


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "ustreamer.tracing"]


def fields(caplog: pytest.LogCaptureFixture, event: str) -> dict[str, Any]:
    return next(vars(each) for each in caplog.records if each.getMessage() == event)


def test_spans_reach_the_collector_with_wall_times(collector: OtlpCollector) -> None:
    before_ns = SYSTEM_CLOCK.wall_ms() * 1_000_000
    with Rig(collector.url).running() as rig:
        rig.settle(3)
        spans = collector.spans.wait_count(count=3)
    after_ns = SYSTEM_CLOCK.wall_ms() * 1_000_000
    assert len({each.span_id for each in spans}) == 3
    for each in spans:
        # The wall clock of the streamer has ms.
        assert before_ns - 1_000_000 <= each.start_time_unix_nano <= after_ns + 1_000_000
    assert (rig.exporter.exported, rig.exporter.dropped) == (3, 0)


def test_a_stop_exports_what_waits(collector: OtlpCollector, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with Rig(collector.url, flush_ms=60_000).running() as rig:
        rig.settle(5)
        rig.settle(2, "x" * 54 + "1")
    assert len(collector.spans.items()) == 5
    stopped = fields(caplog, "tracing.stopped")
    assert [stopped[name] for name in ("exported", "invalid", "dropped", "refused")] == [5, 2, 0, 0]


def test_a_request_has_a_bounded_number_of_spans(collector: OtlpCollector) -> None:
    rig = Rig(collector.url)
    rig.settle(SPANS_PER_REQUEST + 1)
    with rig.running():
        collector.spans.wait_count(count=SPANS_PER_REQUEST + 1)
    assert [len(spans_of(each)) for each in collector.requests.items()] == [SPANS_PER_REQUEST, 1]


def test_spans_wait_for_a_collector_that_is_away_and_those_above_the_limit_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    away = OtlpCollector()
    with Rig(away.url, queue_spans=16).running() as rig:
        first = rig.settle()
        wait_until(lambda: "tracing.collector_away" in events(caplog), "the first failed export")
        rig.settle(20)
        with away.running():
            spans = away.spans.wait_count(count=17)
            wait_until(lambda: rig.exporter.dropped == 4, "the count of dropped spans")
    assert str(first.id) in {attribute.value.string_value for attribute in spans[0].attributes}
    assert rig.exporter.exported == 17
    assert events(caplog) == [
        "tracing.collector_away",
        "tracing.resumed",
        "tracing.spans_lost",
        "tracing.stopped",
    ]
    assert fields(caplog, "tracing.spans_lost")["dropped"] == 4


def test_a_stop_while_the_collector_is_away_counts_every_span(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with Rig(OtlpCollector().url).running() as rig:
        rig.settle(600)
        wait_until(lambda: "tracing.collector_away" in events(caplog), "the first failed export")
    assert fields(caplog, "tracing.stopped")["dropped"] == 600


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_busy_collector_gets_the_same_request_again(collector: OtlpCollector, status: int) -> None:
    collector.answers.append((status, {}, b""))
    with Rig(collector.url).running() as rig:
        rig.settle()
        collector.spans.wait_count(count=1)
    first, second = collector.requests.items()
    assert first == second
    assert (rig.exporter.exported, rig.exporter.refused) == (1, 0)


def test_the_wait_before_a_repetition_is_at_least_what_the_collector_asks_for(
    collector: OtlpCollector,
) -> None:
    collector.answers.append((503, {"Retry-After": "2"}, b""))
    with Rig(collector.url).running() as rig:
        rig.settle()
        collector.requests.wait_count(count=1)
        began_ns = SYSTEM_CLOCK.monotonic_ns()
        collector.requests.wait_count(count=2)
    assert SYSTEM_CLOCK.monotonic_ns() - began_ns > 1_900_000_000


@pytest.mark.parametrize(
    ("answer", "refused", "reason"),
    [
        ((400, {}, b""), 3, "400 Bad Request"),
        ((307, {"Location": "http://127.0.0.1:1/"}, b""), 3, "307 Temporary Redirect"),
        ((200, {}, accepted(2, "no\nroom")), 2, "no room"),
        ((200, {}, b"\xff\xff"), 0, ""),
    ],
)
def test_what_the_collector_refuses_is_counted_and_not_repeated(
    collector: OtlpCollector,
    caplog: pytest.LogCaptureFixture,
    answer: tuple[int, dict[str, str], bytes],
    refused: int,
    reason: str,
) -> None:
    collector.answers.append(answer)
    with Rig(collector.url, flush_ms=60_000).running() as rig:
        rig.settle(3)
    assert len(collector.requests.items()) == 1
    assert (rig.exporter.exported, rig.exporter.refused) == (3 - refused, refused)
    if refused:
        assert fields(caplog, "tracing.spans_lost")["reason"] == reason
