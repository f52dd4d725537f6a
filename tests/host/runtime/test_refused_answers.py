# SPDX-License-Identifier: Apache-2.0
"""A filter that refuses the answers of uSubscription breaks subscribing. The log names it."""

import logging

import msgspec
import pytest

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.delivery.plugin_errors import is_subscription_answer
from ustreamer.core.delivery.ports import Filter
from ustreamer.hooks import PluginContext, hookimpl
from ustreamer.testing.bench import StreamerBench
from ustreamer.testing.messages import new_id
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.umessage import UMessage, notification, publish, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

TOPIC = UUri("hpc", 0x1234, 1, 0x8001)
USUBSCRIPTION = UUri("hpc", 0, 3, 1)
APP = UUri("hpc", 0x10A1, 1, 0)


class SmallOnly(Filter):
    """Refuses messages with a payload, of every kind."""

    def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
        return Verdict.DENIED if message.payload else None


class SmallPlugin:
    class Config(msgspec.Struct, frozen=True):
        publications_only: bool = False

    def __init__(self, config: Config, context: PluginContext) -> None:
        self._config = config

    @hookimpl
    def ustreamer_filters(self, delivery: Delivery) -> Filter | None:
        if delivery.endpoint == "self" or (self._config.publications_only and delivery.topic is None):
            return None
        return SmallOnly()


def configuration(bench: StreamerBench, *, publications_only: bool) -> str:
    return f"""
authority = "hpc"
state_dir = "state"
[endpoints.backbone]
transport = "local"
network = "{bench.network("backbone").name}"
authorities = ["hpc"]
[endpoints.car]
transport = "local"
network = "{bench.network("car").name}"
authorities = ["car"]
[plugins.usubscription]
map_size_mb = 1
[plugins.small]
publications_only = {str(publications_only).lower()}
"""


def test_a_filter_that_refuses_a_response_of_usubscription_is_named_in_the_log(
    streamer_bench: StreamerBench, caplog: pytest.LogCaptureFixture
) -> None:
    streamer_bench.start_streamer(
        configuration(streamer_bench, publications_only=False), {"small": SmallPlugin}
    )
    app = streamer_bench.entity("backbone", "hpc")
    where = app.usubscription.with_resource(1)
    subscribe = pb.SubscriptionRequest(topic=TOPIC.to_pb()).SerializeToString()
    with caplog.at_level(logging.WARNING, "ustreamer.plugins"), pytest.raises(UStatusError) as no_answer:
        app.call(where, subscribe, ttl=300)
    assert no_answer.value.code is UCode.DEADLINE_EXCEEDED
    [first, *_] = caplog.records
    assert first.getMessage() == "plugins.subscription_answer_refused"
    assert (vars(first)["plugin"], vars(first)["endpoint"]) == ("SmallOnly", "backbone")
    assert (vars(first)["source"], vars(first)["sink"]) == (str(where), str(app.address))


def test_a_filter_of_publications_leaves_subscribing_alone(
    streamer_bench: StreamerBench, caplog: pytest.LogCaptureFixture
) -> None:
    streamer_bench.start_streamer(
        configuration(streamer_bench, publications_only=True), {"small": SmallPlugin}
    )
    car = streamer_bench.entity("car", "car", usubscription="hpc")
    with caplog.at_level(logging.WARNING, "ustreamer.plugins"):
        car.subscribe(TOPIC)
        app = streamer_bench.entity("backbone", "hpc")
        app.publish(TOPIC, b"large")
        app.publish(TOPIC)
        assert car.wait_received(1) == [b""]
    assert caplog.records == []


@pytest.mark.parametrize(
    ("message", "is_answer"),
    [
        (response(new_id(), request(new_id(), APP, USUBSCRIPTION, ttl=1_000)), True),
        (notification(new_id(), USUBSCRIPTION.with_resource(0x8000), APP), True),
        (response(new_id(), request(new_id(), APP, UUri("hpc", 7, 1, 1), ttl=1_000)), False),
        (request(new_id(), APP, USUBSCRIPTION, ttl=1_000), False),
        (publish(new_id(), USUBSCRIPTION.with_resource(0x8000)), False),
    ],
)
def test_an_answer_is_a_response_or_a_notification_of_a_usubscription(
    message: UMessage, is_answer: bool
) -> None:
    assert is_subscription_answer(message) is is_answer
