# SPDX-License-Identifier: Apache-2.0
"""Payloads are kept from some time before a trigger until some time after it, and no others."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from ustreamer_recorder import trigger_window
from ustreamer_recorder.config import RecorderConfig
from ustreamer_recorder.events import Row, Samples

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.conftest import Bench

TOPIC = UUri("chassis", 0x1234, 1, 0x8001)
CRASH = UUri("chassis", 0x1234, 1, 0x8005)
SECONDS = {"trigger_before_s": 2.0, "trigger_after_s": 3.0}


def begun(build: "Callable[..., Bench]", *trigger: str) -> "Bench":
    bench = build(payloads=(str(TOPIC),), payload_hz=1_000.0, trigger=trigger, **SECONDS)
    bench.drain()
    return bench


def play(bench: "Bench", seconds: int, events: dict[int, Callable[[], Any]]) -> list[int]:
    """One payload a second, the number of the second; returns those kept."""
    for second in range(seconds):
        bench.settle(message=bench.message(TOPIC, b"%d" % second))
        events.get(second, lambda: None)()
        bench.drain()
        bench.time.advance(s=1)
    kept = [each for event in bench.events() if isinstance(event, Samples) for each in event.samples]
    assert sum(isinstance(event, Row) for event in bench.events()) >= seconds
    return [int(each.payload) for each in kept]


@pytest.mark.parametrize(
    ("trigger", "crashes", "kept"),
    [
        ("//chassis/1234/1/8005", [10], [8, 9, 10, 11, 12, 13]),
        (
            "//chassis/1234/1/8005",
            [5, 7],
            [3, 4, 5, 6, 7, 8, 9, 10],
        ),  # the second one makes the window longer
        ("//chassis/1234/1/*", [], list(range(20))),  # the topic itself is a trigger
        ("dead_lettered", [10], []),
    ],
)
def test_payloads_around_a_publication_are_kept(
    build: "Callable[..., Bench]", trigger: str, crashes: list[int], kept: list[int]
) -> None:
    bench = begun(build, trigger)
    assert play(bench, 20, {at: lambda: bench.settle(message=bench.message(CRASH)) for at in crashes}) == kept


@pytest.mark.parametrize(("verdict", "kept"), [("DEAD_LETTERED", [2, 3, 4, 5, 6, 7]), ("EXPIRED", [])])
def test_a_verdict_is_a_trigger(build: "Callable[..., Bench]", verdict: str, kept: list[int]) -> None:
    bench = begun(build, "dead_lettered")
    assert play(bench, 12, {4: lambda: bench.settle(bench.delivery(), Verdict[verdict])}) == kept


def test_waiting_payloads_have_a_bound_and_those_above_it_are_counted(
    build: "Callable[..., Bench]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trigger_window, "MAX_SAMPLES", 1)
    bench = begun(build, "//chassis/1234/1/8005")
    assert play(bench, 9, {4: lambda: bench.settle(message=bench.message(CRASH, b"!"))}) == [4, 5, 6, 7]
    assert sum(event.dropped for event in bench.events() if isinstance(event, Samples)) >= 4


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"trigger": ("exploded",)}, r"trigger\[0\].*, or dead_lettered, denied, expired"),
        (
            {"trigger": ("expired",), "trigger_before_s": 600.0},
            "trigger_before_s: 600.0: expected at most 32000000 bytes in this time, such as 320 s with",
        ),
        ({"trigger": ("expired",), "trigger_before_s": 601.0}, "trigger_before_s"),
    ],
)
def test_a_mistake_is_named(settings: dict[str, Any], told: str) -> None:
    with pytest.raises((ValueError, msgspec.ValidationError), match=told):
        msgspec.convert({"payloads": ["//chassis/1234/1/*"], **settings}, RecorderConfig)


def test_a_trigger_without_topics_of_payloads_is_warned_of() -> None:
    assert [each.key for each in RecorderConfig(trigger=("expired",)).warnings()] == ["trigger"]
    assert not RecorderConfig(payloads=("//a/1/1/8001",), trigger=("expired",)).warnings()
