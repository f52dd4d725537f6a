# SPDX-License-Identifier: Apache-2.0
"""The rules of the demo's report. The vehicle itself runs in tests/e2e."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ustreamer.core.delivery.ledger import LedgerSnapshot
from ustreamer.host.demo import chassis
from ustreamer.host.demo.vehicle import (
    _CONFIG,
    AUTHORITY,
    SUBSCRIPTIONS,
    DemoOutcome,
    RpcRow,
    TargetRow,
    _free_ports,
    _topic,
)
from ustreamer.host.runtime import process
from ustreamer.uprotocol.uuri import UUri

# ----------------------------------------------------------------------------------------------------------------- rows


@pytest.mark.parametrize(
    ("published", "requested", "delivered", "expected", "right"),
    [
        pytest.param(100.0, None, 100.0, 100.0, True, id="all there is"),
        pytest.param(100.0, None, 98.0, 100.0, True, id="2 % less is right"),
        pytest.param(100.0, None, 97.9, 100.0, False, id="more than 2 % less is not"),
        pytest.param(100.0, 10.0, 10.2, 10.0, True, id="2 % more is right"),
        pytest.param(100.0, 10.0, 10.3, 10.0, False, id="more than 2 % more is not"),
        pytest.param(100.0, 40.0, 100.0, 40.0, False, id="a limit that does not limit"),
        pytest.param(4.0, 100.0, 4.0, 4.0, True, id="a limit above what there is"),
        pytest.param(100.0, 40.0, 0.0, 40.0, False, id="nothing came"),
        pytest.param(0.0, None, 0.0, 0.0, False, id="nothing was published"),
        pytest.param(0.0, 10.0, 5.0, 0.0, False, id="something came from nowhere"),
    ],
)
def test_a_rate_within_2_percent_of_the_expected_rate_is_correct(
    published: float, requested: float | None, delivered: float, expected: float, right: bool
) -> None:
    row = TargetRow("topic", "subscriber", published, requested, delivered)
    assert row.expected_hz == expected
    assert row.is_right is right


BOOKS = LedgerSnapshot(
    received=100,
    delivered=60,
    throttled=40,
    expired=0,
    dead_lettered=0,
    denied=0,
    no_subscriber=0,
    queued=0,
)
RIGHT = TargetRow("up://chassis/1234/1/8001", "up://cloud/20B1/1/0", 100.0, 10.0, 10.0)
WRONG = msgspec.structs.replace(RIGHT, delivered_hz=12.345)
GOOD = DemoOutcome(BOOKS, 0, (RIGHT, RIGHT), RpcRow(5, 5), {})

Change = Callable[[DemoOutcome], DemoOutcome]


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        pytest.param({}, [], id="all well"),
        pytest.param(
            {"targets": (RIGHT, WRONG)},
            [
                "up://chassis/1234/1/8001 for up://cloud/20B1/1/0: 12.35 Hz delivered, 10.00 expected",
            ],
            id="a rate",
        ),
        pytest.param({"unaccounted": 3}, ["3 deliveries are unaccounted for"], id="the books"),
        pytest.param(
            {"unaccounted": -3}, ["-3 deliveries are unaccounted for"], id="the books, the other way"
        ),
        pytest.param({"rpc": RpcRow(5, 4)}, ["5 calls sent, 4 answered"], id="a missing answer"),
        pytest.param({"rpc": RpcRow(4, 5)}, ["4 calls sent, 5 answered"], id="an answer too many"),
        pytest.param({"rpc": RpcRow(0, 0)}, ["0 calls sent, 0 answered"], id="no call at all"),
        pytest.param(
            {"rpc": RpcRow(1, 0), "unaccounted": 1, "targets": (WRONG, WRONG)},
            ["1 deliveries", "12.35 Hz", "12.35 Hz", "1 calls"],
            id="everything",
        ),
    ],
)
def test_a_report_lists_violated_expectations(changes: dict[str, object], problems: list[str]) -> None:
    outcome = msgspec.structs.replace(GOOD, **changes)
    found = [*outcome.defects, *outcome.deviations]
    assert len(outcome.defects) == bool(outcome.unaccounted)
    for problem, expected in zip(found, problems, strict=True):
        assert expected in problem


def test_an_outcome_reads_as_json() -> None:
    read = json.loads(json.dumps(msgspec.to_builtins(GOOD)))
    assert read["ledger"]["delivered"] == 60
    assert read["unaccounted"] == 0
    assert read["rpc"] == {"sent": 5, "answered": 5}
    assert read["targets"][0] == {
        "topic": "up://chassis/1234/1/8001",
        "subscriber": "up://cloud/20B1/1/0",
        "published_hz": 100.0,
        "requested_hz": 10.0,
        "delivered_hz": 10.0,
    }


# -------------------------------------------------------------------------------------------------------- the set-up


def test_the_demo_subscriptions_cover_unlimited_uneven_and_duplicate_rates() -> None:
    published = {chassis.WHEELS: chassis.WHEEL_HZ, chassis.DOORS: chassis.DOOR_HZ}
    limits = [subscription.max_frequency for subscription in SUBSCRIPTIONS]
    assert None in limits
    assert any(
        limit and published[subscription.service] % limit
        for subscription, limit in zip(SUBSCRIPTIONS, limits, strict=True)
    )
    assert len({_topic(subscription) for subscription in SUBSCRIPTIONS}) < len(SUBSCRIPTIONS)
    for subscription in SUBSCRIPTIONS:
        known = {
            chassis.WHEELS: set(chassis.WHEEL_EVENTS.values()),
            chassis.DOORS: {chassis.DOOR_EVENT},
        }
        assert subscription.event in known[subscription.service]
        assert _topic(subscription) == UUri(
            "chassis", subscription.service, chassis.MAJOR, subscription.event
        )


def test_the_ports_of_the_vehicle_are_six_different_ones() -> None:
    ports = _free_ports()
    assert ports.keys() == {"backbone", "cloud", "someip", "ecu", "web", "metrics"}
    assert len(set(ports.values())) == 6
    assert all(1024 <= port < 65536 for port in ports.values())


def test_the_demo_configuration_is_valid_and_offers_all_subscribed_topics(tmp_path: Path) -> None:
    path = tmp_path / "vehicle.toml"
    text = _CONFIG.format(backbone=7001, cloud=7002, someip=7003, ecu=7004, recordings='"recordings"')
    path.write_text(text, encoding="utf-8")
    config = process.load(path).config
    assert config.authority == AUTHORITY
    assert list(config.endpoints) == ["backbone", "cloud", "chassis"]
    assert list(config.plugins) == ["usubscription", "throttle", "recorder", "payloads"]
    offered = {
        (service["service"], event["id"])
        for service in tomllib.loads(text)["endpoints"]["chassis"]["services"]
        for event in service.get("events", ())
    }
    assert {(subscription.service, subscription.event) for subscription in SUBSCRIPTIONS} <= offered
