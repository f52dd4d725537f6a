# SPDX-License-Identifier: Apache-2.0
"""A whole streamer between in-process networks, with the real plugins. Every test ends with the ledger law."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.host.streamer_bench import (
    CHANGE_PUBLICATIONS,
    DEAD_LETTERS,
    METHOD,
    NOTES,
    OWN,
    QUICK_RETRY,
    SUBSCRIBE,
    TOPIC,
    USUBSCRIPTION,
    WITH_USUBSCRIPTION,
    Bench,
    FakeTransportsPlugin,
    NotingPlugin,
    fake,
    leftovers,
    link,
    wait_persisted_letters,
)
from tests.host.waiting import eventually
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.hooks import hookimpl
from ustreamer.host.config import config as configuration
from ustreamer.host.config.config import served_authorities
from ustreamer.host.runtime import plugins
from ustreamer.host.storage.dead_letter_store import read_letters
from ustreamer.testing.messages import new_id
from ustreamer.uprotocol.pb import uattributes as pb_uattributes
from ustreamer.uprotocol.pb import ustreamer_v1 as pb_ustreamer
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPayloadFormat
from ustreamer.uprotocol.umessage import (
    UMessage,
    error_response,
    notification,
    publish,
    request,
    response,
)
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.utransport import UTransport
from ustreamer.uprotocol.uuri import ANY, UUri
from ustreamer.uprotocol.wire import decode, decode_status

# ---------------------------------------------------------------------------------------------- publish and subscribe


def test_a_publication_reaches_a_subscriber_until_it_unsubscribes(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), bench.local("outside", "cloud"), WITH_USUBSCRIPTION)
    sensor, fleet = bench.app("inside"), bench.app("outside", "cloud")
    sensor.publish(b"before")
    fleet.subscribe()
    sensor.publish(b"during")
    assert fleet.wait_received(1) == [b"during"]
    fleet.unsubscribe()
    sensor.publish(b"after")
    eventually(
        lambda: streamer.ledger().no_subscriber == 2 + 2 * CHANGE_PUBLICATIONS, "both changes to be published"
    )
    # The publication, and two requests with their answers and updates.
    eventually(lambda: streamer.ledger().delivered == 7, "everything to be delivered")
    assert streamer.ledger().unaccounted == 0
    assert [message.payload for message in fleet.received] == [b"during"]


def test_a_publication_arrives_unchanged(bench: Bench) -> None:
    bench.started(bench.local("inside", OWN), bench.local("outside", "cloud"), WITH_USUBSCRIPTION)
    sensor, fleet = bench.app("inside"), bench.app("outside", "cloud")
    fleet.subscribe()
    message = publish(new_id(), TOPIC, b"\x00\xff", UPayloadFormat.SOMEIP, ttl=5_000)
    sensor.transport.send(message)
    fleet.wait_received(1)
    assert fleet.received == [message]


@pytest.mark.parametrize(
    "rule", ["", 'allow = true\ntype = "publish"\nsource = "//hpc/0/FF/8000"', "allow = true"]
)
def test_a_listener_gets_the_changes_of_subscriptions_unless_the_access_rules_of_its_network_deny(
    bench: Bench, rule: str
) -> None:
    rules = f"[[endpoints.outside.access]]\n{rule}" if rule else ""
    streamer = bench.started(
        bench.local("inside", OWN), bench.local("outside", "cloud"), rules, WITH_USUBSCRIPTION
    )
    app, near, far = bench.app("inside"), bench.app("inside"), bench.app("outside", "cloud")
    for each in (near, far):
        each.listen(USUBSCRIPTION.with_resource(0x8000))
    app.subscribe()
    near.wait_received(1)
    app.unsubscribe()
    near.wait_received(2)
    # The rule without a source is about what comes in.
    eventually(lambda: len(far.received) == (0 if rule == "allow = true" else 2), "the changes outside")
    assert len(near.received) == 2
    eventually(lambda: streamer.ledger().queued == 0, "quiet")
    assert streamer.ledger().dead_lettered == streamer.ledger().denied == 0


def test_a_local_subscriber_gets_a_publication_once_and_directly(
    bench: Bench,
) -> None:
    streamer = bench.started(bench.local("inside", OWN), bench.local("outside", "cloud"), WITH_USUBSCRIPTION)
    sensor, dashboard = bench.app("inside"), bench.app("inside")
    dashboard.subscribe()
    sensor.publish(b"x")
    assert [message.payload for message in dashboard.received] == [b"x"]
    eventually(
        lambda: streamer.ledger().no_subscriber == 1 + CHANGE_PUBLICATIONS, "the change to be published"
    )
    assert streamer.targets() == []


def test_each_subscriber_gets_a_message_and_each_network_gets_it_once(bench: Bench) -> None:
    streamer = bench.started(
        bench.local("inside", OWN),
        bench.local("outside", "cloud"),
        bench.local("chassis", "chassis"),
        WITH_USUBSCRIPTION,
    )
    sensor = bench.app("inside")
    apps = [bench.app("outside", "cloud"), bench.app("outside", "cloud"), bench.app("chassis", "chassis")]
    for app in apps:
        app.subscribe()
    for n in range(20):
        sensor.publish(b"%d" % n)
    for app in apps:
        assert app.wait_received(20) == [b"%d" % n for n in range(20)]
    eventually(lambda: streamer.ledger().queued == 0, "quiet")
    assert sorted((row.endpoint, row.topic, row.ingress, row.delivered) for row in streamer.targets()) == [
        ("chassis", TOPIC, "inside", 20),
        ("outside", TOPIC, "inside", 20),
    ]


def test_a_requested_rate_limit_holds_and_throttled_messages_are_counted(bench: Bench) -> None:
    streamer = bench.started(
        bench.local("inside", OWN),
        bench.local("outside", "cloud"),
        bench.local("chassis", "chassis"),
        WITH_USUBSCRIPTION,
        "[plugins.throttle]",
    )
    sensor, slow, fast = bench.app("inside"), bench.app("outside", "cloud"), bench.app("chassis", "chassis")
    slow.subscribe(period_ms=3_600_000)
    fast.subscribe()
    for n in range(10):
        sensor.publish(b"%d" % n)
    assert len(fast.wait_received(10)) == 10
    assert slow.wait_received(1) == [b"0"]
    assert streamer.ledger().throttled == 9
    assert sorted(
        (row.endpoint, row.period_ns, row.received, row.throttled) for row in streamer.targets()
    ) == [
        ("chassis", 0, 10, 0),
        ("outside", 3_600 * 10**9, 10, 9),
    ]


def test_subscriptions_are_there_again_after_a_restart(bench: Bench, tmp_path: Path) -> None:
    sections = [bench.local("inside", OWN), bench.local("outside", "cloud"), WITH_USUBSCRIPTION]
    first = bench.started(*sections)
    sensor, fleet = bench.app("inside"), bench.app("outside", "cloud")
    fleet.subscribe()
    assert first.stop() == 0
    (tmp_path / "state0").rename(tmp_path / "state1")
    bench.started(*sections)
    sensor.publish(b"again")
    assert fleet.wait_received(1) == [b"again"]


def test_without_plugins_messages_with_a_sink_pass(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), bench.local("outside", "cloud"))
    sensor, fleet = bench.app("inside"), bench.app("outside", "cloud")
    fleet.listen()
    fleet.listen(ANY, fleet.address)
    sensor.publish(b"no receiver")
    sensor.transport.send(notification(new_id(), TOPIC, fleet.address, b"to you"))
    assert fleet.wait_received(1) == [b"to you"]
    ledger = streamer.ledger()
    assert (ledger.received, ledger.no_subscriber, ledger.delivered) == (2, 1, 1)


def test_subscribers_that_the_configuration_fixes_are_targets_of_their_own_behind_a_unicast_endpoint(
    bench: Bench,
) -> None:
    receivers = ["//dash/1/1/0", "//dash/2/1/0"]
    streamer = bench.started(
        bench.local("inside", OWN),
        fake("sessions", "dash", transport="sessions", receivers=receivers),
        fake("domain", "ecu", receivers=["//ecu/1/1/0", "//ecu/2/1/0"]),
    )
    bench.app("inside").publish(b"x")
    sessions, domain = link(streamer, "sessions"), link(streamer, "domain")
    eventually(lambda: len(sessions.sent) == 2 and len(domain.sent) == 1, "three sends")
    assert [subscriber for subscriber, _ in sessions.sent] == [UUri.parse(each) for each in receivers]
    assert [subscriber for subscriber, _ in domain.sent] == [None]
    assert streamer.ledger().received == 3


def test_what_a_subscriber_stops_waits_for_its_start(bench: Bench) -> None:
    streamer = bench.started(
        bench.local("inside", OWN),
        bench.local("outside", "cloud"),
        bench.local("chassis", "chassis"),
        WITH_USUBSCRIPTION,
    )
    sensor, fleet, ecu = bench.app("inside"), bench.app("outside", "cloud"), bench.app("chassis", "chassis")
    for app in (fleet, ecu):
        app.subscribe()
    for method, payload in ((None, b"1"), (2, b"2"), (1, b"3")):
        if method is not None:
            sent_request = pb_ustreamer.StopDispatchingRequest(topic=TOPIC.to_pb())
            fleet.rpc.call(UUri(OWN, 4, 1, method), sent_request.SerializeToString(), UPayloadFormat.PROTOBUF)
        sensor.publish(payload)
    assert (ecu.wait_received(3), fleet.wait_received(3)) == ([b"1", b"2", b"3"], [b"1", b"2", b"3"])
    assert streamer.statistics().unaccounted == 0


def test_a_streamer_reports_routes_and_statistics_over_uprotocol(bench: Bench) -> None:
    bench.started(bench.local("inside", OWN), bench.local("outside", "cloud"), WITH_USUBSCRIPTION)
    sensor, fleet = bench.app("inside"), bench.app("outside", "cloud")
    fleet.subscribe()
    sensor.publish(b"1")
    fleet.wait_received(1)
    routes = pb_ustreamer.FetchRoutesResponse.FromString(fleet.rpc.call(UUri(OWN, 4, 1, 3)).payload)
    assert [(e.name, list(e.authorities)) for e in routes.endpoints] == [
        ("inside", [OWN]),
        ("outside", ["cloud"]),
    ]
    [route] = routes.routes
    assert (UUri.from_pb(route.topic), route.ingress) == (TOPIC, "inside")
    assert [target.endpoint for target in route.targets] == ["outside"]
    counted = pb_ustreamer.FetchStatisticsResponse.FromString(sensor.rpc.call(UUri(OWN, 4, 1, 4)).payload)
    assert counted.total.received >= counted.total.delivered > 0
    assert [endpoint.endpoint for endpoint in counted.endpoints] == ["self", "inside", "outside"]
    assert [(target.received, target.delivered) for target in counted.targets] == [(1, 1)]


# --- to a named receiver ---------------------------------------------------------------------------------------------


def test_a_request_and_its_response_cross_networks(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), bench.local("outside", "cloud"))
    climate, fleet = bench.app("inside"), bench.app("outside", "cloud")
    climate.serve(
        METHOD, lambda sent_request: response(new_id(), sent_request, sent_request.payload + b" done")
    )
    assert fleet.rpc.call(METHOD, b"21.5").payload == b"21.5 done"
    ledger = streamer.ledger()
    assert (ledger.received, ledger.delivered) == (2, 2)


def test_an_error_response_of_the_callee_reaches_the_caller_unchanged(bench: Bench) -> None:
    bench.started(bench.local("inside", OWN), bench.local("outside", "cloud"))
    climate, fleet = bench.app("inside"), bench.app("outside", "cloud")
    status = UStatus(UCode.OUT_OF_RANGE, "80 degrees")
    climate.serve(METHOD, lambda sent_request: error_response(new_id(), sent_request, status))
    with pytest.raises(UStatusError) as refused:
        fleet.rpc.call(METHOD)
    assert refused.value.status == status


@pytest.mark.parametrize(("network", "authority"), [("inside", OWN), ("outside", "cloud")])
def test_a_hosted_service_responds_on_every_network_also_to_invalid_requests(
    bench: Bench, network: str, authority: str
) -> None:
    streamer = bench.started(bench.local("inside", OWN), bench.local("outside", "cloud"), WITH_USUBSCRIPTION)
    app = bench.app(network, authority)
    with pytest.raises(UStatusError) as refused:
        app.rpc.call(USUBSCRIPTION.with_resource(0x77))
    assert refused.value.code is UCode.UNIMPLEMENTED
    with pytest.raises(UStatusError) as refused:
        app.rpc.call(UUri(OWN, 0, 9, 1))
    assert refused.value.code is UCode.UNIMPLEMENTED
    ledger = streamer.ledger()
    assert (ledger.received, ledger.delivered) == (4, 4)


def test_a_hosted_service_is_reachable_from_an_endpoint_without_the_own_authority(
    bench: Bench,
) -> None:
    bench.started(bench.local("backbone", "car"), bench.local("outside", "cloud"), WITH_USUBSCRIPTION)
    topic = UUri(OWN, 4, 1, 0x8000)
    bench.app("outside", "cloud").subscribe(topic)
    bench.app("backbone", "car").subscribe(topic)


def test_the_uSubscription_answers_at_the_authorities_that_have_none_of_their_own(bench: Bench) -> None:  # noqa: N802 - the standard's name
    bench.started(bench.local("inside", OWN), fake("chassis", "chassis"), WITH_USUBSCRIPTION)
    answer = bench.app("inside").rpc.call(
        UUri("chassis", 0, 3, SUBSCRIBE),
        pb.SubscriptionRequest(topic=UUri("chassis", 1, 1, 0x8001).to_pb()).SerializeToString(),
        UPayloadFormat.PROTOBUF,
    )
    assert answer.attributes.source.authority_name == "chassis"


def test_unnamed_authorities_are_behind_the_wildcard_endpoint(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("world", "*"))
    call = request(new_id(), UUri(OWN, 1, 1, 0), UUri("mars", 2, 1, 3), ttl=1_000)
    bench.app("inside").transport.send(call)
    eventually(lambda: bool(link(streamer, "world").sent), "the call")
    assert link(streamer, "world").sent == [(None, call)]


# --- undelivered messages --------------------------------------------------------------------------------------------


def test_a_dead_letter_reaches_subscribers_of_the_dead_letter_topic(bench: Bench) -> None:
    streamer = bench.started(
        bench.local("inside", OWN),
        bench.local("outside", "cloud"),
        fake("chassis", "chassis"),
        WITH_USUBSCRIPTION,
    )
    link(streamer, "chassis").fault = UCode.INTERNAL
    workshop = bench.app("outside", "cloud")
    workshop.subscribe(DEAD_LETTERS)
    lost = notification(
        new_id(), TOPIC, UUri("chassis", 1, 1, 0), b"\x01\x02", UPayloadFormat.RAW, ttl=60_000
    )
    bench.app("inside").transport.send(lost)

    workshop.wait_received(1)
    [message] = workshop.received
    assert message.attributes.source == DEAD_LETTERS
    assert message.attributes.payload_format is UPayloadFormat.PROTOBUF
    letter = pb_ustreamer.DeadLetter.FromString(message.payload)
    assert decode(pb_uattributes.UAttributes.SerializeToString(letter.attributes)) == (
        lost.id,
        lost.attributes,
    )
    assert (letter.payload, letter.endpoint, letter.attempts) == (b"\x01\x02", "chassis", 1)
    assert (letter.status.code, letter.status.message) == (UCode.INTERNAL, "no way to chassis")
    assert letter.first_attempt.ToMilliseconds() == pytest.approx(time.time() * 1000, abs=60_000)
    eventually(lambda: streamer.ledger().queued == 0, "quiet")
    assert streamer.ledger().dead_lettered == 1


def test_dead_letters_without_subscribers_are_counted_and_cause_no_others(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"))
    link(streamer, "chassis").fault = UCode.INTERNAL
    sensor = bench.app("inside")
    for _ in range(3):
        sensor.transport.send(notification(new_id(), TOPIC, UUri("chassis", 1, 1, 0)))
    eventually(lambda: streamer.ledger().no_subscriber == 3, "the dead letters")
    assert streamer.ledger().dead_lettered == 3


def test_throttled_and_no_subscriber_messages_are_not_stored_as_dead_letters(
    bench: Bench,
) -> None:
    streamer = bench.started(
        bench.local("inside", OWN),
        bench.local("outside", "cloud"),
        fake("chassis", "chassis", receivers=["//chassis/1/1/0"]),
        WITH_USUBSCRIPTION,
        "[plugins.throttle]",
    )
    link(streamer, "chassis").fault = UCode.INTERNAL
    sensor, workshop = bench.app("inside"), bench.app("outside", "cloud")
    workshop.subscribe(period_ms=3_600_000)
    workshop.subscribe(DEAD_LETTERS)
    for _ in range(5):
        sensor.publish(topic=UUri(OWN, 0x9999, 1, 0x8001))  # without subscriber
        sensor.publish()  # throttled towards the workshop, and undeliverable to the chassis
    assert len(wait_persisted_letters(streamer, 5)) == 5
    eventually(lambda: streamer.ledger().throttled == 4, "throttling")
    reasons = {
        streamer.dead_letter_writer.store.get(number).code for number in wait_persisted_letters(streamer, 5)
    }
    assert reasons == {UCode.INTERNAL}


def test_a_dead_letter_is_stored_even_if_it_is_not_published(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"))
    link(streamer, "chassis").fault = UCode.INTERNAL
    streamer.dispatcher.dead_letters._limit = 3
    streamer.dispatcher.schedule = lambda when_ns, action: None  # no drain time
    for _ in range(10):
        bench.app("inside").transport.send(notification(new_id(), TOPIC, UUri("chassis", 1, 1, 0)))
    assert len(wait_persisted_letters(streamer, 10)) == 10
    assert streamer.statistics().dead_letters["unpublished"] == 7


def test_dead_letters_of_a_stop_are_on_disk(bench: Bench, tmp_path: Path) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"))
    link(streamer, "chassis").fault = UCode.INTERNAL
    for _ in range(50):
        bench.app("inside").transport.send(notification(new_id(), TOPIC, UUri("chassis", 1, 1, 0)))
    streamer.stop()
    assert len(list(read_letters(tmp_path / "state0" / "dead-letters"))) == 50


@pytest.mark.parametrize(
    ("fault", "limits", "ttl", "expected"),
    [
        pytest.param(UCode.UNIMPLEMENTED, "", 5_000, UCode.UNIMPLEMENTED, id="the link cannot carry it"),
        pytest.param(UCode.UNAVAILABLE, "", 500, UCode.DEADLINE_EXCEEDED, id="the link stays down"),
        pytest.param(
            UCode.UNAVAILABLE, "queue_bytes = 1", 5_000, UCode.RESOURCE_EXHAUSTED, id="the queue is full"
        ),
    ],
)
def test_a_caller_gets_the_reason_of_an_undelivered_request(
    bench: Bench, fault: UCode, limits: str, ttl: int, expected: UCode
) -> None:
    streamer = bench.started(
        bench.local("inside", OWN), fake("chassis", "chassis"), QUICK_RETRY, f"[egress.chassis]\n{limits}"
    )
    link(streamer, "chassis").fault = fault
    app = bench.app("inside")
    app.listen(ANY, app.address)
    call = request(new_id(), app.address, UUri("chassis", 1, 1, 2), ttl=ttl)
    app.transport.send(call)
    app.wait_received(1)
    [answer] = app.received
    assert answer.attributes.type is UMessageType.RESPONSE
    assert (answer.attributes.source, answer.attributes.reqid) == (call.attributes.sink, call.id)
    assert answer.attributes.commstatus is expected
    assert decode_status(answer.payload).code is expected
    assert "chassis" in decode_status(answer.payload).message


def test_a_call_to_an_unknown_authority_gets_an_error_response(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"))
    chassis = link(streamer, "chassis")
    call = request(new_id(), UUri("chassis", 1, 1, 0), UUri("mars", 2, 1, 3), ttl=5_000)
    chassis.receive_message(call)
    eventually(lambda: bool(chassis.sent), "the answer")
    [(_, answer)] = chassis.sent
    assert answer.attributes.reqid == call.id
    status = decode_status(answer.payload)
    assert (answer.attributes.commstatus, status.code) == (UCode.UNAVAILABLE, UCode.UNAVAILABLE)
    assert "'mars'" in status.message
    assert streamer.ledger().dead_lettered == 1


def test_a_source_from_another_endpoint_is_denied_and_counted(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), bench.local("outside", "cloud"))
    fleet = bench.app("outside", "cloud")
    fleet.transport.send(publish(new_id(), TOPIC))  # of hpc, which is inside
    assert streamer.ledger().denied == 1
    assert streamer.endpoints()["outside"]["refused_spoofed"] == 1
    assert streamer.endpoints()["inside"]["refused_spoofed"] == 0


def test_an_invalid_message_is_refused_and_not_in_the_ledger(bench: Bench) -> None:
    streamer = bench.started(fake("chassis", "chassis"))
    link(streamer, "chassis").receive_message(
        UMessage(new_id(), UAttributes(type=UMessageType.PUBLISH, source=UUri("chassis", 1, 1, 5)))
    )
    assert streamer.ledger().received == 0
    assert streamer.endpoints()["chassis"]["refused_invalid"] == 1


def test_the_counters_of_an_endpoint_are_those_of_its_transport_and_of_its_ingress(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"))
    ingress = dict.fromkeys(
        [
            "refused_invalid",
            "refused_spoofed",
            "refused_identity",
            "refused_access",
            "refused_authorisation",
            "refused_duplicate",
            "refused_deferred_to_peer",
            "filter_errors",
            "directory_errors",
            "tap_errors",
            "taps_off",
            "advertisements_suppressed",
            "advertisements_over_limit",
            "backpressure_waits",
            "backpressure_ms",
            "backpressure_refused",
        ],
        0,
    )
    assert streamer.endpoints() == {
        "inside": {"received": 0, "sent": 0, "listener_errors": 0, **ingress},
        "chassis": {"sent": 0, "refused_length": 3, **ingress},
    }


def test_every_endpoint_and_the_streamer_itself_has_a_queue(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"))
    assert [endpoint_queue.endpoint for endpoint_queue in streamer.egress_queues()] == [
        "self",
        "inside",
        "chassis",
    ]


# ------------------------------------------------------------------------------------------------------- start and stop


class Damaged(NotingPlugin):
    fault = UStatusError(UCode.DATA_LOSS, "the store is damaged")


class FailsAtTheEnd(NotingPlugin):
    @hookimpl
    def ustreamer_started(self, dispatcher: Dispatcher) -> None:
        raise UStatusError(UCode.UNAVAILABLE, "admin socket in use")


def test_services_start_before_endpoints_and_stop_after_the_last_message(bench: Bench) -> None:
    streamer = bench.streamer(fake("a", OWN), fake("b", "cloud"), extra={"noting": NotingPlugin})
    assert NOTES == []
    streamer.start()
    assert NOTES == ["configured", "service start", "open a", "open b", "started"]
    NOTES.clear()
    assert streamer.stop() == 0
    assert NOTES[:4] == ["stop_receiving a", "stop_receiving b", "stopping", "service stop"]
    assert NOTES[-3:] == ["close a", "close b", "stopped"]


@pytest.mark.parametrize(
    ("second", "plugin", "text"),
    [
        pytest.param(
            {"fails_to_open": True},
            NotingPlugin,
            "endpoint 'b': port 30500 is in use",
            id="an endpoint does not open",
        ),
        pytest.param({}, Damaged, "the store is damaged", id="a service does not start"),
        pytest.param({}, FailsAtTheEnd, "admin socket in use", id="a plugin fails when all is up"),
    ],
)
def test_a_failed_start_gives_the_reason_and_closes_everything(
    bench: Bench, second: dict[str, Any], plugin: type[NotingPlugin], text: str
) -> None:
    streamer = bench.streamer(
        fake("a", OWN), fake("b", "cloud", **second), WITH_USUBSCRIPTION, extra={"noting": plugin}
    )
    with pytest.raises(UStatusError, match=text):
        streamer.start()
    assert leftovers(streamer) == []
    assert "service stop" in NOTES
    assert {"close a", "close b"} <= set(NOTES)
    assert NOTES[-1] == "stopped"


def test_building_a_streamer_touches_nothing(bench: Bench, tmp_path: Path) -> None:
    before = threading.active_count()
    streamer = bench.streamer(bench.local("inside", OWN), WITH_USUBSCRIPTION, "[plugins.throttle]")
    assert threading.active_count() == before
    assert [path.name for path in tmp_path.iterdir()] == ["ustreamer.toml"]
    assert bench.network("inside").attached == ()
    assert streamer.ledger().received == 0


class Shouting(NotingPlugin):
    """A service that sends to an unknown authority."""

    def start(self, bus: UTransport) -> None:
        self._bus = bus

    @hookimpl
    def ustreamer_started(self, dispatcher: Dispatcher) -> None:
        self._bus.send(notification(new_id(), UUri(OWN, 7, 1, 0x8000), UUri("mars", 2, 1, 0)))


def test_a_message_of_a_hosted_service_to_an_unknown_authority_is_a_dead_letter(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), extra={"shouting": Shouting})
    assert streamer.ledger().dead_lettered == 1


def test_a_streamer_can_be_stopped_twice_and_without_having_been_started(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"), WITH_USUBSCRIPTION)
    assert [streamer.stop(), streamer.stop(0)] == [0, 0]
    never = bench.streamer(bench.local("inside", OWN), fake("chassis", "chassis"), WITH_USUBSCRIPTION)
    assert never.stop() == 0
    assert leftovers(never) == []


# -------------------------------------------------------------------------------------------------------------- serves

SERVES: list[tuple[dict[str, tuple[str, list[str]]], tuple[str, ...]]] = [
    ({"a": ("sessions", [OWN])}, (OWN,)),
    ({"a": ("sessions", [OWN, "cloud"]), "b": ("fake", ["zulu", "alfa"])}, (OWN, "alfa", "zulu")),
    ({"a": ("fake", [OWN, "chassis"])}, (OWN, "chassis")),
    ({"a": ("fake", ["*", "chassis"])}, (OWN, "chassis")),
    ({"a": ("fake", ["b"]), "b": ("fake", ["a"]), "c": ("sessions", ["*"])}, (OWN, "a", "b")),
]


@pytest.mark.parametrize(("endpoints", "expected"), SERVES)
def test_a_streamer_serves_its_own_authority_and_those_that_have_no_usubscription(
    bench: Bench, tmp_path: Path, endpoints: dict[str, tuple[str, list[str]]], expected: tuple[str, ...]
) -> None:
    sections = [fake(name, *who, transport=kind) for name, (kind, who) in endpoints.items()]
    bench.streamer(*sections)
    kinds = plugins.transport_kinds(plugins.class_plugin_manager({"fakes": FakeTransportsPlugin}))
    config = configuration.load(tmp_path / "ustreamer.toml", kinds, {})
    assert served_authorities(config, kinds) == expected
