# SPDX-License-Identifier: Apache-2.0
"""Parts that the other tests see only as a whole: numbers of sessions, bounds of lists, what `check` can tell."""

import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from ustreamer_wamp import meta_api
from ustreamer_wamp.config import WampConfig
from ustreamer_wamp.connections.server import Server
from ustreamer_wamp.options import announces, hears_of_revocation
from ustreamer_wamp.vehicle.bridge import Vehicle
from ustreamer_wamp.vehicle.pattern_subscriptions import Reach
from ustreamer_wamp.vehicle.patterns import Patterns
from ustreamer_wamp.vehicle.usubscription_client import Wishes

from ustreamer.core.base.clock import ManualClock
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    import pytest
    from tests.conftest import Hall

TOPIC = "up.car.2001.0.1.8001"


class Nobody:
    """A session as the vehicle needs it: something to tell apart."""


def vehicle(calls: list[UMessage]) -> Vehicle:
    monotonic_ns, wall_ms = ManualClock().clock()
    ids = UuidSource(wall_ms, random.Random(1).getrandbits)
    counts: Counter[str] = Counter()
    wishes = Wishes("hpc", ids, calls.append, monotonic_ns, counts)
    reach, patterns = Reach(wishes, 256, ("hpc",)), Patterns(lambda: None)
    return Vehicle("wamp.hpc", ids, wishes, reach, patterns, calls.append, lambda _: None, counts)


def test_the_number_of_a_session_is_not_used_again_while_anything_is_to_be_said_for_it() -> None:
    made = vehicle([])
    first = Nobody()
    made.open(first, TOPIC, "exact", 0, lambda _: None)  # type: ignore[arg-type]  # nothing else of it is asked
    (entity,) = made.members
    made.left(first)  # type: ignore[arg-type]  # its Unsubscribe is still to be said
    assert made.wishes.is_known(entity)
    made._last_instance = 0  # as if 65534 sessions had come since
    second = Nobody()
    made.open(second, TOPIC, "exact", 0, lambda _: None)  # type: ignore[arg-type]
    assert list(made.members) == [UUri("wamp.hpc", 0x2_8001, 1, 0)]
    made._last_instance = 0xFFFE
    third = Nobody()
    made.open(third, "up.", "prefix", 0, lambda _: None)  # type: ignore[arg-type]
    assert [each.ue_instance for each in made.members] == [2, 3], "1 is still to be unsubscribed, 2 is there"


def test_lists_of_subscriptions_are_bounded(hall: "Hall", monkeypatch: "pytest.MonkeyPatch") -> None:
    monkeypatch.setattr(meta_api, "LISTED", 3)
    client = hall.member()
    ids = [client.subscribed(f"com.{number}") for number in range(5)]
    listed = client.answer(48, 1, {}, "wamp.subscription.list")[3][0]
    assert listed == {"exact": ids[:3], "prefix": [], "wildcard": []}


def test_what_is_missing_is_told_before_anything_is_opened(tmp_path: Path) -> None:
    tls = {"certificate": str(tmp_path / "a.crt"), "key": str(tmp_path / "a.key")}
    listen = ["wss://127.0.0.1:0/ws", f"rs+unix://{tmp_path}/none/wamp.sock"]
    config = msgspec.convert(
        {"listen": listen, "tls": tls}, WampConfig, dec_hook=lambda kind, value: kind(value)
    )
    server = Server(config, {}, lambda: 0, Counter())
    assert server.problems() == [
        f"tls: {tmp_path}/a.crt is no file",
        f"tls: {tmp_path}/a.key is no file",
        f"listen: {tmp_path}/none is no directory",
    ]
    server.close()


def test_an_event_that_nobody_wants_any_more_is_not_kept_as_the_last_value(hall: "Hall") -> None:
    made, client = vehicle([]), hall.member()
    made.open(client.session, TOPIC, "exact", 0, lambda _: None)
    (entity,) = made.members
    topic = UUri("car", 0x2001, 1, 0x8001)

    def deliver() -> None:
        message = publish(UUID(1_700_000_000_000 << 16 | 0x7000, 0b10 << 62), topic, b"x")
        made.deliver(hall.realm, [(entity, message)])

    deliver()  # it has unsubscribed while this was on its way
    assert len(hall.realm.retained) == 0
    assert made._counts["events_for_nobody"] == 1
    client.subscribed(TOPIC)
    deliver()
    assert len(hall.realm.retained) == 1
    assert [each[0] for each in client.heard()] == [36]


def test_a_feature_counts_if_it_is_said_plainly() -> None:
    said = {"subscriber": {"features": {"subscription_revocation": True}}}
    assert announces(said, "subscriber", "subscription_revocation")
    vague: list[object] = [
        None,
        [],
        {},
        {"subscriber": None},
        {"subscriber": {"features": []}},
        {"subscriber": {"features": {"subscription_revocation": 1}}},
        {"publisher": said["subscriber"]},
    ]
    for roles in vague:
        assert not announces(roles, "subscriber", "subscription_revocation")


def test_one_client_says_that_it_hears_of_revocation_and_does_not() -> None:
    features = {"subscription_revocation": True, "pattern_based_subscription": True}
    assert hears_of_revocation({"subscriber": {"features": features}})
    assert not hears_of_revocation(
        {"subscriber": {"features": {**features, "payload_encryption_cryptobox": True}}}
    )
