# SPDX-License-Identifier: Apache-2.0
"""A streamer process between two Zenoh networks and an ECU, and a collector: the trace of a publisher goes on."""

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.e2e.rigs import vehicle as rig
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import SomeipNode, ZenohEntity, ecu_response
from tests.e2e.rigs.streamer import StreamerProcess
from tests.e2e.rigs.vehicle import CLIMATE
from tests.e2e.rigs.wire import Id, Uri
from tests.otlp_collector import OtlpCollector, attributes_of

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE_ID}-{PARENT_ID}-01"
NOT_SAMPLED = f"00-{TRACE_ID}-{PARENT_ID}-00"


class Traced:
    """The running streamer, a uEntity in each Zenoh network, and the collector."""

    def __init__(self, app: ZenohEntity, fleet: ZenohEntity, collector: OtlpCollector) -> None:
        self.app = app
        self.fleet = fleet
        self._collector = collector

    def publish(self, topic: Uri, traceparent: str | None) -> wire.Attributes:
        sent = wire.Attributes(wire.new_id(), wire.PUBLISH, topic, priority=wire.CS1, traceparent=traceparent)
        self.app.send_message(sent, b"payload")
        return sent

    def wait_spans(self, count: int) -> list[Span]:
        """The spans of deliveries to an endpoint."""
        return self._collector.spans.wait_count(lambda span: "endpoint" in facts(span), count)


def uuid_text(id: Id) -> str:
    return str(UUID(int=id.msb << 64 | id.lsb))


def facts(span: Span) -> dict[str, str | int]:
    """The attributes of a span, without their prefixes."""
    return {key.partition(".")[2]: value for key, value in attributes_of(span.attributes).items()}


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Traced]:
    ports = rig.free_ports()
    collector = OtlpCollector()
    config = rig.write_config(tmp_path, ports)
    section = f'\n[plugins.tracing]\ncollector = "{collector.url}"\nflush_ms = 50\n'
    config.write_text(config.read_text(encoding="utf-8") + section, encoding="utf-8")
    with (
        collector.running(),
        SomeipNode(ports.ecu, responder=ecu_response),
        SomeipNode(ports.receiver),
        StreamerProcess(config),
        ZenohEntity(ports.backbone, "hpc.vin1") as app,
        ZenohEntity(ports.cloud, "cloud") as fleet,
    ):
        yield Traced(app, fleet, collector)


def test_a_sampled_publication_is_forwarded_unchanged_and_has_a_span(traced: Traced) -> None:
    topic = traced.app.address.at(0x8001)
    traced.fleet.subscribe(topic)
    traced.publish(topic, NOT_SAMPLED)
    traced.publish(topic, None)
    sent = traced.publish(topic, SAMPLED)
    received = traced.fleet.wait_events(topic, 3)
    assert [each.head.traceparent for each in received] == [NOT_SAMPLED, None, SAMPLED]
    [span] = traced.wait_spans(1)
    found = facts(span)
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE_ID, PARENT_ID)
    assert (found["ingress"], found["endpoint"], found["verdict"]) == ("backbone", "cloud", "delivered")
    assert (found["id"], found["attempts"]) == (uuid_text(sent.id), 1)
    assert received[2].head == sent
    assert 0 < span.end_time_unix_nano - span.start_time_unix_nano < 30_000_000_000


def test_a_call_of_an_ecu_has_a_span(traced: Traced) -> None:
    method = Uri("chassis", CLIMATE, 1, 0x0001)
    request = wire.Attributes(
        wire.new_id(),
        wire.REQUEST,
        traced.fleet.address,
        method,
        priority=wire.CS4,
        ttl=5_000,
        traceparent=SAMPLED,
    )
    traced.fleet.send_message(request, b"warm")
    traced.fleet.wait_response(request.id)
    [span] = traced.wait_spans(1)
    assert span.name == "forward up://chassis/3001/1/1"
    assert facts(span) | {"id": ""} == {
        "id": "",
        "type": "request",
        "source": f"up:{traced.fleet.address}",
        "sink": "up://chassis/3001/1/1",
        "ingress": "cloud",
        "endpoint": "chassis",
        "verdict": "delivered",
        "attempts": 1,
    }


def test_a_dead_letter_is_an_error_with_its_reason(traced: Traced) -> None:
    request = wire.Attributes(
        wire.new_id(),
        wire.REQUEST,
        traced.fleet.address,
        Uri("chassis", CLIMATE, 1, 0x7001),
        priority=wire.CS4,
        ttl=5_000,
        traceparent=SAMPLED,
    )
    traced.fleet.send_message(request, b"")
    [span] = traced.wait_spans(1)
    assert facts(span)["verdict"] == "dead_lettered"
    assert span.status.message
