# SPDX-License-Identifier: Apache-2.0
"""The latest events of a streamer: counted, bounded, and with their time."""

import logging
from typing import Final

from ustreamer.core.egress.dead_letter import DeadLetter
from ustreamer.host.runtime.recent_events import MAX_KINDS, MAX_LINES, RecentEvents, RecentLog, recent_log
from ustreamer.testing.messages import new_id
from ustreamer.uprotocol.umessage import publish
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuri import UUri

TOPIC: Final = UUri("car", 0x1234, 1, 0x8001)


def letter(topic: UUri, at_ms: int, reason: str = "full") -> DeadLetter:
    status = UStatus(UCode.RESOURCE_EXHAUSTED, reason)
    return DeadLetter(publish(new_id(), topic), status, "outside", 2, at_ms, at_ms, "inside")


def test_dead_letters_of_one_kind_are_counted_with_first_and_last_time() -> None:
    events = RecentEvents()
    for at_ms in (10, 20, 30):
        events.on_letter(letter(TOPIC, at_ms, f"full at {at_ms}"))
    [found] = events.letters()
    assert (found.count, found.first_ms, found.last_ms) == (3, 10, 30)
    assert (found.reason, found.endpoint, found.ingress, found.attempts) == (
        "full at 30",
        "outside",
        "inside",
        2,
    )


def test_a_minute_without_a_dead_letter_begins_a_new_series() -> None:
    events = RecentEvents()
    for at_ms in (10, 20, 3_600_000):
        events.on_letter(letter(TOPIC, at_ms))
    [found] = events.letters()
    assert (found.count, found.total) == (1, 3)
    assert (found.first_ms, found.last_ms) == (3_600_000, 3_600_000)


def test_the_kinds_of_dead_letters_are_bounded_and_the_latest_stay() -> None:
    events = RecentEvents()
    topics = [UUri("car", number, 1, 0x8001) for number in range(1, MAX_KINDS + 11)]
    for topic in [topics[0], *topics[1:5], topics[0], *topics[5:]]:
        events.on_letter(letter(topic, 1))
    assert [each.source for each in events.letters()] == topics[-MAX_KINDS:]


def test_a_stopped_pattern_has_a_time_for_each_of_its_topics() -> None:
    events = RecentEvents()
    events.on_stopped(TOPIC.with_resource(0xFFFF), 5)
    events.on_stopped(TOPIC, 7)
    assert events.stop_time(TOPIC) == 7
    assert events.stop_time(TOPIC.with_resource(0x8002)) == 5
    assert events.stop_time(UUri("hpc", 1, 1, 0x8001)) is None


def test_links_and_peers_have_the_time_of_their_last_change() -> None:
    events = RecentEvents()
    events.on_link_change("a", 1)
    events.on_link_change("a", 2)
    events.on_peers_changed("b", 3)
    assert (events.link_times(), events.peer_times()) == ({"a": 2}, {"b": 3})


class Unprintable:
    def __str__(self) -> str:
        raise ValueError("no text")


def test_warnings_are_remembered_with_their_fields_and_other_lines_are_not() -> None:
    log, recent = logging.getLogger("log_of_this_test"), RecentLog()
    log.setLevel(logging.DEBUG)
    log.addHandler(recent)
    log.info("someip.found")
    log.warning("someip.refused", extra={"endpoint": "chassis", "limited": (1,), "value": Unprintable()})
    log.error("plugins.failed", exc_info=ZeroDivisionError("a defect"))
    first, second = recent.lines()
    assert (first.level, first.event, first.fields["endpoint"]) == ("warning", "someip.refused", "chassis")
    assert set(first.fields) == {"endpoint", "value"}
    assert second.fields == {"error": "ZeroDivisionError('a defect')"}
    for number in range(MAX_LINES + 1):
        log.warning("someip.refused", extra={"endpoint": number})
    assert len(recent.lines()) == MAX_LINES


def test_a_process_has_one_recent_log() -> None:
    assert recent_log() is recent_log()
