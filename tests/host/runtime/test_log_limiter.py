# SPDX-License-Identifier: Apache-2.0
"""The limit of the log: what one remote host repeats fills no disk, hides no other line and is counted."""

import io
import json
import logging
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ustreamer.core.base.log_limit import LIMITED, limited
from ustreamer.host.runtime import logs
from ustreamer.host.runtime.log_limiter import EVENT_BURST, EVENT_NS, MAX_TRACKED, PAUSE_NS, LogLimiter

START_NS = 1_000_000_000_000
REBOOTED = "someip.rebooted"


class LimitedLog:
    """A limiter with a clock of its own, and what it wrote: (event, peer, number, suppressed)."""

    def __init__(self) -> None:
        self.now_ns = START_NS
        self.limiter = LogLimiter(lambda: self.now_ns)
        self.written: list[tuple[str, object, int, int]] = []
        self._number = 0

    def log(self, peer: object = "a", event: str = REBOOTED) -> None:
        extra = {"peer": peer, "number": self._number, **limited(peer)}
        record = logging.getLogger("test").makeRecord(
            "test", logging.INFO, "x.py", 1, event, (), None, extra=extra
        )
        record.created = float(self._number)
        self._number += 1
        if self.limiter.filter(record):
            self._write(record)

    def tick(self, ns: int = 0, *, at_end: bool = False) -> None:
        """Let time pass, and write what is due."""
        self.now_ns += ns
        for record in self.limiter.pop_due(at_end=at_end):
            self._write(record)

    def _write(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = vars(record)
        assert LIMITED not in fields
        self.written.append((record.msg, fields["peer"], fields["number"], fields.get("suppressed", 0)))

    @property
    def numbers(self) -> list[int]:
        return [number for _, _, number, _ in self.written]


def test_a_record_without_the_mark_is_always_written() -> None:
    limiter = LogLimiter(lambda: START_NS)
    records = [logging.makeLogRecord({"msg": "streamer.reloaded"}) for _ in range(2 * EVENT_BURST)]
    assert all(map(limiter.filter, records))
    assert limiter.suppressed() == {}


def test_of_repeated_lines_the_first_is_written_at_once_and_the_last_after_the_pause() -> None:
    log = LimitedLog()
    for _ in range(2_247):
        log.log()
    assert log.numbers == [0]
    log.tick(PAUSE_NS - 1)
    assert log.numbers == [0]
    log.tick(1)
    assert log.written == [(REBOOTED, "a", 0, 0), (REBOOTED, "a", 2_246, 2_245)]
    assert log.limiter.suppressed() == {REBOOTED: 2_245}


def test_a_line_after_the_pause_is_written_at_once() -> None:
    log = LimitedLog()
    log.log()
    log.now_ns += PAUSE_NS
    log.log()
    assert log.numbers == [0, 1]
    assert log.limiter.suppressed() == {}


def test_a_newer_line_replaces_a_due_one_that_was_not_written() -> None:
    log = LimitedLog()
    log.log()
    log.log()
    log.now_ns += PAUSE_NS
    log.log()
    assert log.written[-1] == (REBOOTED, "a", 2, 1)


def test_each_peer_and_each_event_has_its_own_first_line() -> None:
    log = LimitedLog()
    for _ in range(3):
        log.log("a")
    log.log("b")
    log.log("a", "someip.lost")
    assert log.numbers == [0, 3, 4]


def test_one_peer_cannot_take_the_lines_of_others() -> None:
    log = LimitedLog()
    for _ in range(10 * EVENT_BURST):
        log.log("hostile")
    log.log("other")
    assert [peer for _, peer, _, _ in log.written] == ["hostile", "other"]


def test_any_number_of_peers_gets_the_allowance_of_the_event_only() -> None:
    log = LimitedLog()
    for peer in range(10 * MAX_TRACKED):
        log.log(peer)
    assert log.numbers == list(range(EVENT_BURST))
    for _ in range(5):
        log.tick(EVENT_NS)
    assert len(log.numbers) == EVENT_BURST + 5
    log.log("b", "someip.lost")
    assert log.written[-1][:2] == ("someip.lost", "b")


def test_memory_is_bounded_for_any_number_of_peers() -> None:
    log = LimitedLog()
    for peer in range(10 * MAX_TRACKED):
        log.log(peer)
    assert len(log.limiter._tracked) == MAX_TRACKED
    waiting = sum(each.waiting is not None for each in log.limiter._tracked.values())
    assert log.limiter.suppressed()[REBOOTED] == 10 * MAX_TRACKED - EVENT_BURST - waiting


def test_waiting_lines_are_written_in_the_order_of_their_creation() -> None:
    log = LimitedLog()
    for _ in range(2):
        for event in ("zenoh.link_up", "zenoh.link_down"):
            log.log(event=event)
    log.log(event="zenoh.link_up")
    log.tick(PAUSE_NS)
    assert [each[0] for each in log.written] == [
        "zenoh.link_up",
        "zenoh.link_down",
        "zenoh.link_down",
        "zenoh.link_up",
    ]


def test_at_the_end_a_waiting_line_is_written_without_its_pause() -> None:
    log = LimitedLog()
    for _ in range(3):
        log.log()
    log.tick(at_end=True)
    assert log.written[-1] == (REBOOTED, "a", 2, 1)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["x.one", "x.two"]),
        st.sampled_from([0, 1, 700, 2_500]),
    ),
    max_size=60,
)


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_every_line_is_written_or_counted_once_and_the_last_one_is_written(
    steps: list[tuple[str, str, int]],
) -> None:
    log = LimitedLog()
    for peer, event, pause_ms in steps:
        log.log(peer, event)
        log.tick(pause_ms * 1_000_000)
    log.tick(at_end=True)
    made = Counter(event for _, event, _ in steps)
    written = Counter(event for event, *_ in log.written)
    assert made == written + Counter(log.limiter.suppressed())
    assert len(set(log.numbers)) == len(log.numbers)
    reported = Counter[str]()
    for event, _, _, suppressed in log.written:
        reported[event] += suppressed
    assert reported == Counter(log.limiter.suppressed())
    for peer, event in {(peer, event) for peer, event, _ in steps}:
        last = max(number for number, each in enumerate(steps) if each[:2] == (peer, event))
        assert last in log.numbers


@pytest.mark.parametrize("form", ["console", "journal", "json"])
def test_the_configured_log_limits_marked_lines_and_never_shows_the_mark(form: logs.LogForm) -> None:
    stream = io.StringIO()
    root = logging.getLogger("ustreamer")
    before = root.handlers[:], root.level, root.propagate
    try:
        logs.configure_logging(form, stream=stream)
        for _ in range(100):
            logging.getLogger("ustreamer.someip").info(REBOOTED, extra={"peer": "a", **limited("a")})
        assert logs.suppressed_lines() == {REBOOTED: 98}
        logs.write_due()
        first, *more = stream.getvalue().splitlines()
        assert more == []
        logs.write_due(at_end=True)
    finally:
        root.handlers[:], root.level, root.propagate = before
    last = stream.getvalue().splitlines()[-1]
    assert LIMITED not in first + last
    if form == "json":
        assert json.loads(last)["suppressed"] == 98
    else:
        assert last.endswith("someip.rebooted peer=a suppressed=98")
