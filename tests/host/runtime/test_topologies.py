# SPDX-License-Identifier: Apache-2.0
"""No loops, no multiplication: several whole streamers between the same networks, in one process.

Each subscriber gets each message once (per_subscriber 1.000). A streamer forwards it once for each network that needs
it (amplification 1.00), however often others forward it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.host.streamer_bench import Bench, BenchApp, NoConfig, section
from tests.host.waiting import eventually
from ustreamer.core.routing.subscriptions import StaticDirectory, Subscription, SubscriptionDirectory
from ustreamer.hooks import PluginContext, hookimpl
from ustreamer.host.config import config as configuration
from ustreamer.host.runtime import plugins
from ustreamer.host.runtime.streamer import Streamer
from ustreamer.testing.messages import new_id
from ustreamer.uprotocol.umessage import notification, publish
from ustreamer.uprotocol.uuri import ANY, UUri

MESSAGES: Final = 300


def subscribing(*subscriptions: tuple[UUri, UUri]) -> type[Any]:
    """A uSubscription plugin with fixed content."""

    class Fixed:
        Config = NoConfig

        def __init__(self, config: NoConfig, context: PluginContext) -> None: ...

        @hookimpl
        def ustreamer_subscription_directory(self) -> SubscriptionDirectory:
            return StaticDirectory([Subscription(*subscription) for subscription in subscriptions])

    return Fixed


class TopologyRig:
    """Networks, the streamers between them, and applications."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._bench = Bench(directory)
        self._streamers: list[Streamer] = []

    def endpoint(self, name: str, network: str, *authorities: str, **keys: object) -> str:
        where = self._bench.network(network).name
        return section(name, transport="local", network=where, authorities=authorities, **keys)

    def streamer(
        self, authority: str, *endpoints: str, subscriptions: Sequence[tuple[UUri, UUri]] = ()
    ) -> Streamer:
        """A started streamer with these subscriptions in its directory."""
        classes = {name: plugins.plugin_class(entry) for name, entry in plugins.installed_plugins().items()}
        classes["fixed"] = subscribing(*subscriptions)
        kinds = plugins.transport_kinds(plugins.class_plugin_manager(classes))
        path = self._directory / f"{authority}-{len(self._streamers)}.toml"
        path.write_text("\n".join([f'authority = "{authority}"', *endpoints, "[plugins.fixed]"]))
        config = configuration.load(path, kinds, {name: cls.Config for name, cls in classes.items()})
        made = Streamer(config, kinds, {name: classes[name] for name in config.plugins})
        self._streamers.append(made)
        made.start()
        return made

    def app(self, network: str, authority: str) -> BenchApp:
        return self._bench.app(network, authority)

    def wait_idle(self) -> None:
        """Wait until every streamer is idle, twice in a row."""
        before = None
        for _ in range(1_000):
            eventually(lambda: all(each.ledger().queued == 0 for each in self._streamers), "quiet")
            now = [each.ledger() for each in self._streamers]
            if now == before:
                return
            before = now
        raise AssertionError("they never come to rest")

    def finish(self) -> None:
        for each in self._streamers:
            each.stop(0)
            assert each.ledger().unaccounted == 0


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TopologyRig]:
    rig = TopologyRig(tmp_path)
    yield rig
    rig.finish()


def exchange(app: BenchApp, topic: UUri, messages: int = MESSAGES) -> list[bytes]:
    sent = [b"%d" % number for number in range(messages)]
    for payload in sent:
        app.transport.send(publish(new_id(), topic, payload))
    return sent


def per_subscriber(app: BenchApp, sent: list[bytes]) -> float:
    got = Counter(message.payload for message in app.received)
    assert set(got) == set(sent), "something is missing or was invented"
    return sum(got.values()) / len(sent)


def forwarded(*streamers: Streamer) -> int:
    return sum(each.ledger().delivered for each in streamers)


# --- two in parallel -------------------------------------------------------------------------------------------------


def side_by_side(rig: TopologyRig, subscriptions_of: Sequence[Sequence[tuple[UUri, UUri]]]) -> list[Streamer]:
    return [
        rig.streamer(
            name,
            rig.endpoint("one", "one", "a", "g1", "g2"),
            rig.endpoint("two", "two", "b"),
            subscriptions=desired,
        )
        for name, desired in zip(("g1", "g2"), subscriptions_of, strict=True)
    ]


def test_of_two_parallel_streamers_the_one_with_the_subscription_forwards(
    rig: TopologyRig,
) -> None:
    speaker, listener = rig.app("one", "a"), rig.app("two", "b")
    topic = speaker.address.with_resource(0x8000)
    listener.listen(topic)
    streamers = side_by_side(rig, [[(topic, listener.address)], []])
    sent = exchange(speaker, topic)
    rig.wait_idle()
    assert per_subscriber(listener, sent) == 1.0
    assert forwarded(*streamers) == len(sent)


def test_each_of_two_streamers_serves_its_own_subscribers_and_neither_forwards_messages_of_the_other(
    rig: TopologyRig,
) -> None:
    """Topics in both directions, subscribers of both streamers on both sides: returning messages are denied."""
    left, right = rig.app("one", "a"), rig.app("two", "b")
    leftwards, rightwards = right.address.with_resource(0x8000), left.address.with_resource(0x8000)
    left.listen(leftwards)
    right.listen(rightwards)
    streamers = side_by_side(rig, [[(rightwards, right.address)], [(leftwards, left.address)]])
    sent = exchange(left, rightwards)
    assert exchange(right, leftwards) == sent
    rig.wait_idle()
    assert (per_subscriber(left, sent), per_subscriber(right, sent)) == (1.0, 1.0)
    assert forwarded(*streamers) == 2 * len(sent)
    assert [each.ledger().denied for each in streamers] == [
        len(sent)
    ] * 2  # the messages that the other one forwarded


def test_a_subscriber_of_both_streamers_is_served_by_both_without_a_loop(rig: TopologyRig) -> None:
    """Two subscriptions, two copies with one id; a streamer with a dedup window behind them accepts one."""
    speaker, listener, far = rig.app("one", "a"), rig.app("two", "b"), rig.app("three", "c")
    topic = speaker.address.with_resource(0x8000)
    listener.listen(topic)
    far.listen(topic)
    streamers = side_by_side(rig, [[(topic, listener.address)]] * 2)
    behind = rig.streamer(
        "g3",
        rig.endpoint("two", "two", "a", "b", duplicate_window=10_000),
        rig.endpoint("three", "three", "c"),
        subscriptions=[(topic, far.address)],
    )
    sent = exchange(speaker, topic)
    rig.wait_idle()
    assert per_subscriber(listener, sent) == 2.0
    assert forwarded(*streamers) == 2 * len(sent)
    assert per_subscriber(far, sent) == 1.0
    assert behind.endpoints()["two"]["refused_duplicate"] == len(sent)


def test_a_request_passes_both_parallel_streamers_and_a_dedup_window_accepts_one(
    rig: TopologyRig,
) -> None:
    """A notification has no subscription that selects one of the two.

    On a Zenoh network they would detect each other.
    """
    speaker, listener, far = rig.app("one", "a"), rig.app("two", "b"), rig.app("three", "c")
    listener.listen(ANY, listener.address)
    far.listen(ANY, far.address)
    for name in ("g1", "g2"):
        rig.streamer(name, rig.endpoint("one", "one", "a"), rig.endpoint("two", "two", "b", "c"))
    rig.streamer(
        "g3",
        rig.endpoint("two", "two", "a", "b", duplicate_window=1_000),
        rig.endpoint("three", "three", "c"),
    )
    for each in (listener, far):
        speaker.transport.send(notification(new_id(), speaker.address.with_resource(0x8000), each.address))
    rig.wait_idle()
    assert (len(listener.received), len(far.received)) == (2, 1)
    assert len({message.id for message in listener.received}) == 1


# ---------------------------------------------------------------------------------------------------------- rings

RING: Final = ("a", "b", "c")


@pytest.mark.parametrize(
    "homes",
    [
        pytest.param(
            {
                "ab": {"a": ("a",), "b": ("b", "c")},
                "bc": {"b": ("b", "a"), "c": ("c",)},
                "ca": {"c": ("c",), "a": ("a", "b")},
            },
            id="all streamers have both routes",
        ),
        pytest.param(
            {
                "ab": {"a": ("a",), "b": ("b",)},
                "bc": {"b": ("b",), "c": ("c",)},
                "ca": {"c": ("c",), "a": ("a",)},
            },
            id="adjacent streamers only",
        ),
    ],
)
def test_a_ring_of_three_causes_no_loop(
    rig: TopologyRig, homes: dict[str, dict[str, tuple[str, ...]]]
) -> None:
    apps = {name: rig.app(name, name) for name in RING}
    topic = apps["a"].address.with_resource(0x8000)
    listeners = [apps["b"], apps["c"]]
    for each in listeners:
        each.listen(topic)
    # Each subscriber uses the streamer of its own network.
    sent_request = {"ab": [(topic, apps["b"].address)], "bc": [], "ca": [(topic, apps["c"].address)]}
    streamers = [
        rig.streamer(
            name,
            *(rig.endpoint(each, each, *who) for each, who in places.items()),
            subscriptions=sent_request[name],
        )
        for name, places in homes.items()
    ]
    sent = exchange(apps["a"], topic)
    rig.wait_idle()
    assert [per_subscriber(each, sent) for each in listeners] == [1.0, 1.0]
    assert forwarded(*streamers) == 2 * len(sent)


# --- returning messages ----------------------------------------------------------------------------------------------


def duplicate_network(rig: TopologyRig, window: int) -> tuple[Streamer, BenchApp, UUri]:
    speaker, listener = rig.app("one", "a"), UUri("b", 0x99, 1, 0)
    topic = speaker.address.with_resource(0x8000)
    streamer = rig.streamer(
        "g1",
        rig.endpoint("first", "one", "a", duplicate_window=window),
        rig.endpoint("second", "one", "b"),
        subscriptions=[(topic, listener)],
    )
    return streamer, speaker, topic


def test_a_message_returning_through_another_endpoint_is_forwarded_once(rig: TopologyRig) -> None:
    streamer, speaker, topic = duplicate_network(rig, window=1_000)
    sent = exchange(speaker, topic)
    rig.wait_idle()
    assert forwarded(streamer) == len(sent)
    assert streamer.endpoints()["first"]["refused_duplicate"] == len(sent)


def test_without_a_dedup_window_a_ring_would_loop(rig: TopologyRig) -> None:
    """The purpose of the window. A Zenoh endpoint detects it without one, see
    tests/e2e/multi_streamer/test_peer_streamers.py.
    """
    streamer, speaker, topic = duplicate_network(rig, window=0)
    exchange(speaker, topic, messages=1)
    eventually(lambda: forwarded(streamer) > 100, "a storm")


# ------------------------------------------------------------------------------------------------- restarts


def test_twenty_restarts_of_one_streamer_multiply_nothing(rig: TopologyRig) -> None:
    speaker, listener = rig.app("one", "a"), rig.app("two", "b")
    topic = speaker.address.with_resource(0x8000)
    listener.listen(topic)
    desired = [(topic, listener.address)]
    endpoints = (rig.endpoint("one", "one", "a", "g1", "g2"), rig.endpoint("two", "two", "b"))
    rig.streamer("g2", *endpoints)  # in parallel, without a subscription
    for _ in range(20):
        streamer = rig.streamer("g1", *endpoints, subscriptions=desired)
        listener.received.clear()
        sent = exchange(speaker, topic, messages=20)
        rig.wait_idle()
        assert per_subscriber(listener, sent) == 1.0
        assert forwarded(streamer) == len(sent)
        assert streamer.stop() == 0


def test_the_test_network_detects_missing_and_duplicate_messages(rig: TopologyRig) -> None:
    app = rig.app("one", "a")
    check: Callable[[], float] = lambda: per_subscriber(app, [b"1", b"2"])  # noqa: E731
    with pytest.raises(AssertionError, match="missing"):
        check()
    app.received += [
        publish(new_id(), app.address.with_resource(0x8000), payload) for payload in (b"1", b"2", b"2")
    ]
    assert check() == 1.5
