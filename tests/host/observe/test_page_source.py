# SPDX-License-Identifier: Apache-2.0
"""What the operator's page shows of a running streamer."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.host.running_streamer import INSIDE, OUTSIDE, RunningStreamer
from tests.host.waiting import eventually
from ustreamer.host.runtime.page_source import StreamerPageSource
from ustreamer.testing.messages import new_id
from ustreamer.uprotocol.umessage import notification, publish
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import UUri

TOPIC, NOWHERE = UUri("car", 0x1234, 1, 0x8001), UUri("gone", 1, 1, 0)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningStreamer]:
    with RunningStreamer(tmp_path) as running:
        yield running


@pytest.fixture
def source(running: RunningStreamer) -> Iterator[StreamerPageSource]:
    source = StreamerPageSource(running.streamer, running.control)
    source.open()
    yield source
    source.close()
    source.close()


def test_a_frame_has_the_ledger_and_the_networks(
    running: RunningStreamer, source: StreamerPageSource
) -> None:
    running.app(INSIDE, "car").send(publish(new_id(), TOPIC))
    eventually(lambda: source.frame().ledger["no_subscriber"] == 1, "the message")
    frame = source.frame()
    assert (frame.authority, frame.networks) == ("hpc", {INSIDE: ("hpc", "car"), OUTSIDE: ("cloud",)})
    ledger = dict(frame.ledger)
    assert ledger.pop("unaccounted") == 0
    assert ledger.pop("received") == sum(ledger.values()) > 0
    assert msgspec.json.encode(frame)


def test_a_dead_letter_is_listed_and_redriven(running: RunningStreamer, source: StreamerPageSource) -> None:
    running.streamer.dispatcher.ingress(INSIDE).dispatch(notification(new_id(), TOPIC, NOWHERE))
    eventually(lambda: source.frame().stored_letters == 1, "the letter")
    [letter] = source.dead_letters()
    assert (letter["source"], letter["sink"], letter["code"]) == (str(TOPIC), str(NOWHERE), "unavailable")
    assert source.redrive((letter["number"],))["redriven"] == 1
    assert source.redrive((10_000,))["left"] == 1
    eventually(
        lambda: [each["number"] > letter["number"] for each in source.dead_letters()] == [True],
        "the new letter",
    )


def test_why_and_explain_are_those_of_the_commands(
    running: RunningStreamer, source: StreamerPageSource
) -> None:
    assert source.why("//car/1234/1/8001")["findings"][0]["cause"] == "no_subscriber"
    assert source.explain("//car/1234/1/8001", "")["verdict"] == "no_subscriber"
    explained = source.explain("//cloud/7/1/0", "//car/1234/1/1")
    assert (explained["verdict"], explained["targets"][0]["endpoint"]) == ("delivered", INSIDE)
    assert source.explain("//car/1234/1/1", "//cloud/7/1/0")["verdict"] == "delivered"
    assert source.explain("//car/1234/1/8001", "//cloud/7/1/0")["verdict"] == "delivered"
    with pytest.raises(UStatusError, match="subject: "):
        source.why("")
    with pytest.raises(UStatusError, match="sink: "):
        source.explain("//car/1/1/8001", "no address")


def test_a_page_takes_one_tap_and_gives_it_back(running: RunningStreamer) -> None:
    for _ in range(10):
        source = StreamerPageSource(running.streamer, running.control)
        source.open()
        assert source.frame().top is not None
        source.close()
