# SPDX-License-Identifier: Apache-2.0
"""The methods of core.ustreamer on a separate bus; tests/host/runtime/test_streamer.py has it in a streamer."""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from ustreamer.core.base.clock import ManualClock
from ustreamer.core.delivery.ledger import LedgerSnapshot
from ustreamer.core.dispatch.delivery_registry import TargetStatistics
from ustreamer.core.routing.paused_subscriptions import PausedDirectory
from ustreamer.core.routing.subscriptions import StaticDirectory, Subscription
from ustreamer.host.admin import ustreamer_service
from ustreamer.host.admin.status import EndpointStatus, StreamerRoutes, StreamerStatistics
from ustreamer.host.admin.ustreamer_service import UStreamerService
from ustreamer.host.egress.endpoint_queue import EndpointQueueStatistics, SubscriberQueueStatistics
from ustreamer.transports.local.transport import LocalNetwork, LocalTransport
from ustreamer.uprotocol import UCode, UMessage, UStatusError, UuidSource, UUri
from ustreamer.uprotocol.pb import ustreamer_v1 as pb
from ustreamer.uprotocol.rpc import RpcClient
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import notification

APP: Final = UUri("app", 0x10, 1, 0)
OWN: Final = UUri("hpc", 4, 1, 0)
SPEED, DOORS = UUri("chassis", 0x1234, 1, 0x8001), UUri("chassis", 0x1234, 1, 0x8002)
START, STOP, ROUTES, STATISTICS = 1, 2, 3, 4


class FakeStatusProvider:
    """A fixed status."""

    def routes(self) -> StreamerRoutes:
        targets = (
            TargetStatistics(SPEED, "chassis", "dash", UUri("dash", 2, 1, 0), 5, 9, 7, 2),
            TargetStatistics(SPEED, "chassis", "backbone", None, 0, 9, 9, 0),
            TargetStatistics(DOORS, "chassis", "backbone", None, 0, 1, 1, 0),
        )
        endpoints = (
            EndpointStatus("chassis", "someip", ("chassis",), True),
            EndpointStatus("backbone", "zenoh", ("hpc", "cloud"), False),
        )
        return StreamerRoutes(endpoints, targets, ())

    def statistics(self) -> StreamerStatistics:
        fullest = (SubscriberQueueStatistics(UUri("dash", 2, 1, 0), 2, 500, 1, 6),)
        endpoint_queue = EndpointQueueStatistics("backbone", 3, 700, 10, 1, 2, 4, 2, 1, 3, 8, 2, fullest)
        ledger = LedgerSnapshot(22, 17, 2, 2, 1, 0, 0, 0)
        counters = {"backbone": {"received": 5, "refused_key": 1}}
        return StreamerStatistics(
            1_700_000_000_123, ledger, 0, counters, (endpoint_queue,), self.routes().targets, {}
        )


class Bench:
    """An application, and the entity it calls."""

    def __init__(self) -> None:
        network = LocalNetwork()
        self.bus, self.app = LocalTransport(network, "hpc"), LocalTransport(network, "app")
        for each in (self.bus, self.app):
            each.open()
        self.paused = PausedDirectory(StaticDirectory([Subscription(SPEED, APP)]))
        self.changed: list[UUri] = []
        self.readings: Any = FakeStatusProvider()
        clock = ManualClock().clock()
        self.entity = UStreamerService("hpc", clock, self.readings, self.paused, self.changed.append)
        self.entity.start(self.bus)
        self.rpc = RpcClient(self.app, APP, UuidSource(clock.wall_ms))

    def call(self, method: int, request: Any = b"", kind: UPayloadFormat = UPayloadFormat.PROTOBUF) -> bytes:
        payload = request if isinstance(request, bytes) else request.SerializeToString()
        return self.rpc.call(OWN.with_resource(method), payload, kind, ttl=100).payload

    def close(self) -> None:
        self.entity.stop()
        for each in (self.app, self.bus):
            each.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


# --------------------------------------------------------------------------------------------------- start and stop


def test_a_caller_starts_and_stops_its_own_subscription(bench: Bench) -> None:
    assert bench.call(STOP, pb.StopDispatchingRequest(topic=SPEED.to_pb())) == b""
    assert (bench.paused.paused_by(APP), bench.changed) == ([SPEED], [SPEED])
    assert bench.call(START, pb.StartDispatchingRequest(topic=SPEED.to_pb())) == b""
    assert (bench.paused.paused_by(APP), bench.changed) == ([], [SPEED, SPEED])


def test_a_call_without_effect_rebuilds_no_routes(bench: Bench) -> None:
    bench.call(START, pb.StartDispatchingRequest(topic=SPEED.to_pb()))
    bench.call(STOP, pb.StopDispatchingRequest(topic=SPEED.to_pb()))
    bench.call(STOP, pb.StopDispatchingRequest(topic=SPEED.to_pb()))
    assert bench.changed == [SPEED]


def test_an_empty_authority_is_the_callers(bench: Bench) -> None:
    bench.call(STOP, pb.StopDispatchingRequest(topic=UUri("", 1, 1, 0x8001).to_pb()))
    assert bench.paused.paused_by(APP) == [UUri("app", 1, 1, 0x8001)]


# ----------------------------------------------------------------------------------------------------------- reading


def test_routes_prints_endpoints_and_targets_of_topics(bench: Bench) -> None:
    bench.call(STOP, pb.StopDispatchingRequest(topic=SPEED.to_pb()))
    found = pb.FetchRoutesResponse.FromString(bench.call(ROUTES))
    assert [(e.name, e.transport, list(e.authorities), e.up) for e in found.endpoints] == [
        ("chassis", "someip", ["chassis"], True),
        ("backbone", "zenoh", ["hpc", "cloud"], False),
    ]
    assert [(UUri.from_pb(r.topic), r.ingress) for r in found.routes] == [
        (SPEED, "chassis"),
        (DOORS, "chassis"),
    ]
    backbone, dash = found.routes[0].targets
    assert (backbone.endpoint, backbone.HasField("subscriber"), backbone.HasField("period_ns")) == (
        "backbone",
        False,
        False,
    )
    assert (dash.endpoint, UUri.from_pb(dash.subscriber), dash.period_ns) == (
        "dash",
        UUri("dash", 2, 1, 0),
        5,
    )
    assert [UUri.from_pb(topic) for topic in found.stopped] == [SPEED]
    assert not found.has_more_records


def test_a_statistics_response_has_the_ledger_endpoints_and_targets(bench: Bench) -> None:
    found = pb.FetchStatisticsResponse.FromString(bench.call(STATISTICS))
    assert found.since.ToMilliseconds() == 1_700_000_000_123
    assert (found.total.received, found.total.delivered, found.total.unaccounted) == (22, 17, 0)
    [endpoint_queue] = found.endpoints
    assert (
        endpoint_queue.endpoint,
        endpoint_queue.up,
        endpoint_queue.queue_messages,
        endpoint_queue.queue_bytes,
    ) == ("backbone", False, 3, 700)
    assert (
        endpoint_queue.delivered,
        endpoint_queue.dead_lettered,
        endpoint_queue.expired,
        endpoint_queue.retries,
    ) == (10, 1, 2, 4)
    assert (
        endpoint_queue.blocked_messages,
        endpoint_queue.closed_routes,
        endpoint_queue.persisted_messages,
    ) == (
        2,
        1,
        3,
    )
    assert (endpoint_queue.subscriber_queues, endpoint_queue.evicted_subscriber_limit) == (2, 8)
    assert [UUri.from_pb(each.subscriber) for each in endpoint_queue.fullest] == [UUri("dash", 2, 1, 0)]
    [fullest] = endpoint_queue.fullest
    assert (fullest.queue_messages, fullest.queue_bytes, fullest.blocked_messages, fullest.failures) == (
        2,
        500,
        1,
        6,
    )
    assert dict(endpoint_queue.counters) == {"received": 5, "refused_key": 1}
    assert [(UUri.from_pb(t.topic), t.received, t.delivered, t.throttled) for t in found.targets] == [
        (SPEED, 9, 9, 0),
        (SPEED, 9, 7, 2),
        (DOORS, 1, 1, 0),
    ]


def test_responses_are_filtered_and_paged(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    doors = pb.FetchRoutesRequest(topic_filter=DOORS.to_pb())
    found = pb.FetchRoutesResponse.FromString(bench.call(ROUTES, doors))
    assert [UUri.from_pb(route.topic) for route in found.routes] == [DOORS]
    monkeypatch.setattr(ustreamer_service, "PAGE", 2)
    first = pb.FetchStatisticsResponse.FromString(bench.call(STATISTICS))
    rest = pb.FetchStatisticsResponse.FromString(bench.call(STATISTICS, pb.FetchStatisticsRequest(offset=2)))
    assert (len(first.targets), first.has_more_records) == (2, True)
    assert (len(rest.targets), rest.has_more_records) == (1, False)
    last = pb.FetchStatisticsResponse.FromString(bench.call(STATISTICS, pb.FetchStatisticsRequest(offset=1)))
    assert (len(last.targets), last.has_more_records) == (2, False), "a full page may be the last one"


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", [UUri("hpc", 4, 1, 5), UUri("hpc", 4, 1, 0x7FFF), UUri("hpc", 4, 2, 1)], ids=str
)
def test_a_method_or_version_that_there_is_not_is_unimplemented(bench: Bench, method: UUri) -> None:
    with pytest.raises(UStatusError, match="expected one of") as answer:
        bench.rpc.call(method, ttl=100)
    assert answer.value.code is UCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("payload", "kind", "text"),
    [
        (b"\xff", UPayloadFormat.PROTOBUF, "expected StopDispatchingRequest"),
        (b"", UPayloadFormat.PROTOBUF, "expected a resource of 8000"),
        (b"", UPayloadFormat.JSON, "expected PROTOBUF"),
    ],
)
def test_a_request_that_makes_no_sense_is_an_invalid_argument(
    bench: Bench, payload: bytes, kind: UPayloadFormat, text: str
) -> None:
    with pytest.raises(UStatusError, match=text) as answer:
        bench.call(STOP, payload, kind)
    assert answer.value.code is UCode.INVALID_ARGUMENT
    assert bench.changed == []


def test_a_caller_gets_an_error_if_a_method_fails(bench: Bench) -> None:
    bench.readings.routes = lambda: 1 // 0
    with pytest.raises(UStatusError, match="ZeroDivisionError") as answer:
        bench.call(ROUTES)
    assert answer.value.code is UCode.INTERNAL


def test_a_message_other_than_a_request_gets_no_response(bench: Bench) -> None:
    received: list[UMessage] = []
    bench.app.register_listener(UUri("*", 0xFFFFFFFF, 0xFF, 0xFFFF), APP, received.append)
    source = APP.with_resource(0x8000)
    bench.app.send(notification(UuidSource(ManualClock().clock().wall_ms).next(), source, OWN))
    assert received == []
