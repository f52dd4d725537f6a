# SPDX-License-Identifier: Apache-2.0
"""Parts that other tests cover only indirectly: session numbers, limits of lists, findings of `check`."""

import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import msgspec
from ustreamer_wamp import meta_api
from ustreamer_wamp.config import WampConfig
from ustreamer_wamp.connections.server import problems
from ustreamer_wamp.options import has_feature, wants_revocation
from ustreamer_wamp.vehicle.bridge import MAX_RATES, VehicleBridge
from ustreamer_wamp.vehicle.pattern_subscriptions import PatternSubscriptions
from ustreamer_wamp.vehicle.patterns import PatternDirectory
from ustreamer_wamp.vehicle.usubscription_client import UsubscriptionClient

from ustreamer.core.base.clock import ManualClock
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    import pytest
    from tests.conftest import RealmRig

TOPIC = "up.car.2001.0.1.8001"


class FakeSession:
    """A session with the members that the vehicle uses: an identity, and a connection that gets no event."""

    frame_sink = SimpleNamespace(write_event=None)


def vehicle(calls: list[UMessage]) -> VehicleBridge:
    monotonic_ns, wall_ms = ManualClock().clock()
    ids = UuidSource(wall_ms, random.Random(1).getrandbits)
    counts: Counter[str] = Counter()
    desired = UsubscriptionClient("hpc", ids, calls.append, monotonic_ns, counts)
    reach, patterns = PatternSubscriptions(desired, 256, ("hpc",)), PatternDirectory(lambda: None)

    def dispatch(message: UMessage) -> bool:
        calls.append(message)
        return True

    return VehicleBridge("wamp.hpc", ids, desired, reach, patterns, dispatch, lambda _: None, counts)


def test_the_number_of_a_rate_is_not_reused_while_messages_are_pending_for_it() -> None:
    made = vehicle([])
    first = FakeSession()
    made.open_subscription(first, TOPIC, "exact", 0, lambda _: None)  # type: ignore[arg-type]
    (entity,) = made.rates
    made.on_session_closed(first)  # type: ignore[arg-type]  # its Unsubscribe is pending
    assert made.usubscription.has_subscriptions(entity)
    made._last_instance = 0  # as after 65534 further rates
    second = FakeSession()
    made.open_subscription(second, TOPIC, "exact", 1, lambda _: None)  # type: ignore[arg-type]
    assert list(made.rates) == [UUri("wamp.hpc", 0x2_8001, 1, 0)]
    made._last_instance = 0xFFFE
    third = FakeSession()
    made.open_subscription(third, "up.", "prefix", 0, lambda _: None)  # type: ignore[arg-type]
    assert [each.ue_instance for each in made.rates] == [2, 3], "1 is still to be unsubscribed, 2 is there"


def test_the_number_of_rates_is_bounded_and_a_session_never_gets_more_than_it_asked_for() -> None:
    made = vehicle([])
    for period_ns in range(1_000_000, 1_000_000 + 3 * MAX_RATES):
        made.open_subscription(FakeSession(), TOPIC, "exact", period_ns, lambda _: None)  # type: ignore[arg-type]
    periods = [each.period_ns for each in made.rates.values()]
    assert periods == [*range(1_000_000, 1_000_000 + MAX_RATES), 1 << 20]


def test_lists_of_subscriptions_are_bounded(rig: "RealmRig", monkeypatch: "pytest.MonkeyPatch") -> None:
    monkeypatch.setattr(meta_api, "MAX_LISTED", 3)
    client = rig.joined_client()
    ids = [client.subscribe(f"com.{number}") for number in range(5)]
    listed = client.request(48, 1, {}, "wamp.subscription.list")[3][0]
    assert listed == {"exact": ids[:3], "prefix": [], "wildcard": []}


def test_missing_parts_are_reported_before_any_socket_is_opened(tmp_path: Path) -> None:
    tls = {"certificate": str(tmp_path / "a.crt"), "key": str(tmp_path / "a.key")}
    listen = ["wss://127.0.0.1:0/ws", f"rs+unix://{tmp_path}/none/wamp.sock"]
    config = msgspec.convert(
        {"listen": listen, "tls": tls}, WampConfig, dec_hook=lambda kind, value: kind(value)
    )
    assert problems(config) == [
        f"tls: {tmp_path}/a.crt is no file",
        f"tls: {tmp_path}/a.key is no file",
        f"listen: {tmp_path}/none is no directory",
    ]


def test_an_event_without_a_subscriber_is_not_stored_as_the_last_value(rig: "RealmRig") -> None:
    made, client = vehicle([]), rig.joined_client()
    made.open_subscription(client.session, "up.car.", "prefix", 0, lambda _: None)
    (entity,) = made.rates
    topic = UUri("car", 0x2001, 1, 0x8001)

    def deliver() -> None:
        message = publish(UUID(1_700_000_000_000 << 16 | 0x7000, 0b10 << 62), topic, b"x")
        made.deliver_events(rig.realm, [(entity, message, None)])

    deliver()  # the realm has no such subscription
    assert len(rig.realm.retained) == 0
    assert made._counts["events_no_subscriber"] == 1
    client.subscribe("up.car.", {"match": "prefix"})
    deliver()
    assert len(rig.realm.retained) == 1
    assert [each[0] for each in client.received()] == [36]


def test_a_feature_counts_only_if_it_is_true() -> None:
    announced = {"subscriber": {"features": {"subscription_revocation": True}}}
    assert has_feature(announced, "subscriber", "subscription_revocation")
    vague: list[object] = [
        None,
        [],
        {},
        {"subscriber": None},
        {"subscriber": {"features": []}},
        {"subscriber": {"features": {"subscription_revocation": 1}}},
        {"publisher": announced["subscriber"]},
    ]
    for roles in vague:
        assert not has_feature(roles, "subscriber", "subscription_revocation")


def test_autobahn_python_announces_revocation_but_does_not_support_it() -> None:
    features = {"subscription_revocation": True, "pattern_based_subscription": True}
    assert wants_revocation({"subscriber": {"features": features}})
    assert not wants_revocation(
        {"subscriber": {"features": {**features, "payload_encryption_cryptobox": True}}}
    )
