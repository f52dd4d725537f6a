# SPDX-License-Identifier: Apache-2.0
"""The notifications of a streamer to its plugins."""

from typing import ClassVar

import pytest

from tests.host.streamer_bench import (
    OWN,
    TOPIC,
    WITH_USUBSCRIPTION,
    Bench,
    NoConfig,
    NotingPlugin,
    fake,
    link,
)
from tests.host.waiting import eventually
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import LedgerSnapshot, Verdict
from ustreamer.core.delivery.ports import Tap
from ustreamer.core.routing.subscriptions import Change, Subscription, SubscriptionWatch
from ustreamer.hooks import PluginContext, StreamerSettings, hookimpl
from ustreamer.testing.messages import new_id
from ustreamer.uprotocol.umessage import (
    UMessage,
    notification,
    request,
)
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuri import UUri


class Watching:
    """A tap on every endpoint."""

    Config = NoConfig
    seen: ClassVar[list[tuple[str, Verdict, str | None]]] = []

    def __init__(self, config: NoConfig, context: PluginContext) -> None:
        assert (context.authority, context.state_dir.name) == (OWN, "state0")
        self.seen.clear()

    @hookimpl
    def ustreamer_taps(self, endpoint: str) -> Tap:
        def tap(
            message: UMessage,
            delivery: Delivery | None,
            verdict: Verdict,
            reason: UStatus | None,
            attempts: int,
            arrived_ns: int,
            received_ns: int,
            first_attempt_ns: int,
            settled_ns: int,
        ) -> None:
            self.seen.append((endpoint, verdict, delivery.endpoint if delivery else None))

        return tap


def test_a_tap_receives_every_verdict_with_ingress_and_target(bench: Bench) -> None:
    streamer = bench.started(
        bench.local("inside", OWN), fake("chassis", "chassis"), extra={"watching": Watching}
    )
    app = bench.app("inside")
    app.publish()
    app.transport.send(notification(new_id(), TOPIC, UUri("chassis", 1, 1, 0)))
    eventually(lambda: len(Watching.seen) == 2, "the verdicts")
    link(streamer, "chassis").fault = UCode.INTERNAL
    app.transport.send(request(new_id(), app.address, UUri("chassis", 1, 1, 2), ttl=60_000))
    eventually(lambda: len(Watching.seen) == 5, "the verdicts on the call, its answer and its dead letter")
    assert sorted(Watching.seen, key=str) == sorted(
        [
            ("inside", Verdict.NO_SUBSCRIBER, None),
            ("inside", Verdict.DELIVERED, "chassis"),
            ("inside", Verdict.DEAD_LETTERED, "chassis"),
            ("self", Verdict.DELIVERED, "inside"),  # the error response
            ("self", Verdict.NO_SUBSCRIBER, None),  # the dead letter
        ],
        key=str,
    )


class LedgerPlugin:
    """A plugin that notes the ledger, the settings and the subscriptions it receives."""

    Config = NoConfig
    made: ClassVar[list["LedgerPlugin"]] = []

    def __init__(self, config: NoConfig, context: PluginContext) -> None:
        self.ledger = context.ledger
        self.settings: list[StreamerSettings] = []
        self.subscriptions: list[tuple[Change, UUri, UUri, int]] = []
        self.final: LedgerSnapshot | None = None
        self.made.append(self)

    @hookimpl
    def ustreamer_configured(self, settings: StreamerSettings) -> None:
        self.settings.append(settings)

    @hookimpl
    def ustreamer_subscription_watch(self) -> SubscriptionWatch:
        def watch(subscription: Subscription, change: Change, /) -> None:
            self.subscriptions.append(
                (change, subscription.topic, subscription.subscriber, subscription.period_ns)
            )

        return watch

    @hookimpl
    def ustreamer_stopped(self) -> None:
        self.final = self.ledger()


def test_a_plugin_receives_all_limits_and_plugin_sections(bench: Bench) -> None:
    limits = "[egress.chassis]\nqueue_messages = 7"
    bench.started(
        bench.local("inside", OWN),
        fake("chassis", "chassis"),
        limits,
        WITH_USUBSCRIPTION,
        extra={"ledger_reader": LedgerPlugin},
    )
    [settings] = LedgerPlugin.made[-1].settings
    assert {name: each.queue_messages for name, each in settings.egress.items()} == {
        "inside": 10_000,
        "chassis": 7,
        "self": 10_000,
    }
    assert settings.plugins.keys() == {"usubscription", "ledger_reader"}
    assert settings.plugins["ledger_reader"] == NoConfig()


def test_a_plugin_sees_the_final_ledger_after_the_close(bench: Bench) -> None:
    streamer = bench.started(
        bench.local("inside", OWN), fake("chassis", "chassis"), extra={"ledger_reader": LedgerPlugin}
    )
    bench.app("inside").transport.send(notification(new_id(), TOPIC, UUri("chassis", 1, 1, 0)))
    eventually(lambda: streamer.ledger().delivered == 1, "the delivery")
    assert LedgerPlugin.made[-1].ledger() == streamer.ledger()
    assert LedgerPlugin.made[-1].final is None
    streamer.stop()
    assert LedgerPlugin.made[-1].final == streamer.ledger()


def test_a_watching_plugin_is_notified_of_subscriptions_in_all_directories(bench: Bench) -> None:
    receiver = UUri("chassis", 1, 1, 0)
    bench.started(
        bench.local("inside", OWN),
        fake("chassis", "chassis", receivers=[str(receiver)]),
        WITH_USUBSCRIPTION,
        extra={"ledger_reader": LedgerPlugin},
    )
    app = bench.app("inside")
    app.subscribe(TOPIC)
    notified = LedgerPlugin.made[-1].subscriptions
    eventually(lambda: len(notified) == 2, "the subscription")
    assert notified == [
        (Change.PRESENT, TOPIC, receiver, 0),
        (Change.SUBSCRIBED, TOPIC, app.address, 0),
    ]


class FailsToWatch(LedgerPlugin):
    @hookimpl
    def ustreamer_subscription_watch(self) -> SubscriptionWatch:
        def notified(subscription: Subscription, change: Change, /) -> None:
            self.subscriptions.append((change, subscription.topic, subscription.subscriber, 0))
            raise ZeroDivisionError("watch")

        return notified


def test_a_subscription_watch_that_raises_is_isolated_and_logged_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.started(bench.local("inside", OWN), WITH_USUBSCRIPTION, extra={"ledger_reader": FailsToWatch})
    app = bench.app("inside")
    app.subscribe(TOPIC)
    app.subscribe(TOPIC.with_resource(0x8009))
    eventually(lambda: len(LedgerPlugin.made[-1].subscriptions) == 2, "the subscriptions")
    assert [r.message for r in caplog.records if r.message == "plugins.failed"] == ["plugins.failed"]


def test_the_plugins_of_a_streamer_can_be_listed(bench: Bench) -> None:
    streamer = bench.streamer(fake("a", OWN), WITH_USUBSCRIPTION, extra={"noting": NotingPlugin})
    assert [name for name, _ in streamer.plugins.list_name_plugin()] == ["usubscription", "noting"]
