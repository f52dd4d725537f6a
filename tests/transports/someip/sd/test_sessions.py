# SPDX-License-Identifier: Apache-2.0
"""Reboots: each is detected once, and the documented limits hold."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ustreamer.transports.someip.sd.sessions import (
    REORDER_NS,
    WINDOW,
    PeerSessions,
    SessionVerdict,
    session_and_reboot_flag,
)

MS = 1_000_000
NEW, REBOOT, LATE, DUPLICATE = (
    SessionVerdict.NEW,
    SessionVerdict.REBOOT,
    SessionVerdict.LATE,
    SessionVerdict.DUPLICATE,
)


def verdicts(
    *messages: tuple[int, int], step_ns: int = 1_000 * MS, multicast: bool = True
) -> list[SessionVerdict]:
    """The verdicts on messages (session, flag) with distinct bytes, `step_ns` apart."""
    sessions = PeerSessions()
    return [
        sessions.observe(session, bool(flag), multicast, digest, digest * step_ns)
        for digest, (session, flag) in enumerate(messages)
    ]


# [utest->SD-41]
@pytest.mark.parametrize(
    ("count", "session", "flag"),
    [(1, 1, True), (2, 2, True), (0xFFFF, 0xFFFF, True), (0x10000, 1, False), (0x1FFFE, 0xFFFF, False)],
)
def test_session_numbers_wrap_to_1_and_the_first_wrap_clears_the_flag(
    count: int, session: int, flag: bool
) -> None:
    assert session_and_reboot_flag(count) == (session, flag)


STANDARD = {
    "counts up": ([(1, 1), (2, 1), (3, 1)], [NEW, NEW, NEW]),
    "starts anywhere": ([(77, 1), (78, 1)], [NEW, NEW]),
    "loses some": ([(1, 1), (900, 1), (901, 1)], [NEW, NEW, NEW]),
    "wraps": ([(0xFFFE, 1), (0xFFFF, 1), (1, 0), (2, 0)], [NEW] * 4),
    "wraps, and the last before and the first after are lost": ([(0xFFFE, 1), (2, 0), (3, 0)], [NEW] * 3),
    "wraps again": ([(0xFFFF, 0), (1, 0)], [NEW, NEW]),
    "restarts before a wrap": ([(5, 1), (1, 1), (2, 1)], [NEW, REBOOT, NEW]),
    "restarts at the same number": ([(1, 1), (1, 1), (2, 1)], [NEW, REBOOT, NEW]),
    "restarts after a wrap": ([(5, 0), (1, 1), (2, 1)], [NEW, REBOOT, NEW]),
    "restarts after a wrap at a higher number": ([(5, 0), (9, 1), (10, 1)], [NEW, REBOOT, NEW]),
    "restarts twice": ([(5, 1), (1, 1), (1, 1), (2, 1)], [NEW, REBOOT, REBOOT, NEW]),
    "restarts and its first message is lost": ([(5, 1), (2, 1), (3, 1)], [NEW, REBOOT, NEW]),
    "restarts undetectably": ([(5, 1), (6, 1)], [NEW, NEW]),  # undetectable
    "does not count": ([(0, 1), (0, 1), (0, 0)], [NEW, NEW, NEW]),
    "never counts on and has no flag": ([(1, 0), (1, 0), (1, 0)], [NEW, NEW, NEW]),
}


# [utest->SD-863, SD-813]
@pytest.mark.parametrize(("messages", "expected"), STANDARD.values(), ids=STANDARD)
@pytest.mark.parametrize("multicast", [True, False])
def test_reboots_are_detected_as_in_the_standard(
    messages: list[tuple[int, int]], expected: list[SessionVerdict], multicast: bool
) -> None:
    assert verdicts(*messages, multicast=multicast) == expected


OVERTAKEN = {
    "by one": ([(1, 1), (3, 1), (2, 1), (4, 1)], [NEW, NEW, LATE, NEW]),
    "late twice": ([(1, 1), (3, 1), (2, 1), (2, 1)], [NEW, NEW, LATE, REBOOT]),
    "by as many as are kept": ([(1, 1), (2 + WINDOW, 1), (3, 1)], [NEW, NEW, LATE]),
    "by more": ([(1, 1), (3 + WINDOW, 1), (3, 1)], [NEW, NEW, REBOOT]),
    "at the wrap": ([(0xFFFE, 1), (1, 0), (0xFFFF, 1), (2, 0)], [NEW, NEW, LATE, NEW]),
    "after the wrap": ([(1, 0), (3, 0), (2, 0), (4, 0)], [NEW, NEW, LATE, NEW]),
    "at a second wrap": ([(0xFFFE, 0), (1, 0), (0xFFFF, 0), (2, 0)], [NEW, NEW, LATE, NEW]),
    "by a reboot": ([(100, 1), (1, 1), (101, 1), (2, 1)], [NEW, REBOOT, LATE, NEW]),
    "by a reboot after a wrap": ([(100, 0), (1, 1), (101, 0), (2, 1)], [NEW, REBOOT, LATE, NEW]),
}


@pytest.mark.parametrize(("messages", "expected"), OVERTAKEN.values(), ids=OVERTAKEN)
def test_a_reordered_message_within_the_window_is_not_a_reboot(
    messages: list[tuple[int, int]], expected: list[SessionVerdict]
) -> None:
    assert verdicts(*messages, step_ns=MS) == expected


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([(1, 1), (3, 1), (2, 1)], [NEW, NEW, REBOOT]),
        ([(0xFFFE, 1), (1, 0), (0xFFFF, 1)], [NEW, NEW, REBOOT]),
        ([(1, 0), (3, 0), (2, 0)], [NEW, NEW, NEW]),
        ([(100, 1), (1, 1), (101, 1)], [NEW, REBOOT, NEW]),
    ],
)
def test_a_message_after_the_reorder_time_is_not_late(
    messages: list[tuple[int, int]], expected: list[SessionVerdict]
) -> None:
    assert verdicts(*messages, step_ns=REORDER_NS + 1) == expected


@pytest.mark.parametrize(
    ("after_ns", "digest", "flag", "expected"),
    [
        (0, 7, True, DUPLICATE),
        (REORDER_NS, 7, True, DUPLICATE),
        (REORDER_NS + 1, 7, True, REBOOT),
        (0, 8, True, REBOOT),
        (0, 7, False, DUPLICATE),
        (0, 8, False, NEW),  # the sender does not count; without the flag a restart is undetectable
    ],
)
def test_a_duplicate_has_the_same_number_and_bytes_within_the_reorder_time(
    after_ns: int, digest: int, flag: bool, expected: SessionVerdict
) -> None:
    sessions = PeerSessions()
    assert sessions.observe(1, flag, False, 7, 0) is NEW
    assert sessions.observe(1, flag, False, digest, after_ns) is expected


def test_an_old_duplicate_is_detected_after_newer_messages() -> None:
    sessions = PeerSessions()
    for number in range(1, 30):
        assert sessions.observe(number, True, True, number, number) is NEW
    assert sessions.observe(3, True, True, 3, 40) is DUPLICATE
    assert sessions.observe(30, True, True, 30, 50) is NEW


# [utest->SD-765]
def test_the_channels_count_separately() -> None:
    sessions = PeerSessions()
    observed = [
        sessions.observe(session, True, multicast, session, at * 1_000 * MS)
        for at, (session, multicast) in enumerate([(50, True), (1, False), (51, True), (2, False)])
    ]
    assert observed == [NEW] * 4


@pytest.mark.parametrize("first", [True, False])
def test_a_reboot_detected_by_both_channels_is_reported_once(first: bool) -> None:
    sessions = PeerSessions()
    at = iter(range(0, 100_000 * MS, 1_000 * MS))

    def observed(session: int, multicast: bool) -> SessionVerdict:
        now = next(at)
        return sessions.observe(session, True, multicast, now, now)

    assert [observed(8, True), observed(9, False)] == [NEW, NEW]
    for _ in range(3):
        assert [observed(1, first), observed(1, not first), observed(2, first), observed(2, not first)] == [
            REBOOT,
            NEW,
            NEW,
            NEW,
        ]


@pytest.mark.parametrize("multicast_first", [True, False])
@pytest.mark.parametrize("delay_ms", [1, 120])
@pytest.mark.parametrize("lives", [2, 8])
def test_a_backlog_read_channel_by_channel_reports_each_reboot_once(
    lives: int, delay_ms: int, multicast_first: bool
) -> None:
    """A busy receiver: the first unicast of each life follows `delay_ms` after its first Offer."""
    sessions = PeerSessions()

    def read(life: int, multicast: bool) -> list[SessionVerdict]:
        at = life * 400 * MS + delay_ms * MS * (not multicast)
        return [sessions.observe(each, True, multicast, life, at + each * 150 * MS) for each in (1, 2)]

    channels = (multicast_first, not multicast_first)
    seen = [verdict for multicast in channels for verdict in read(0, multicast)]
    for multicast in channels:
        for life in range(1, lives + 1):
            seen += read(life, multicast)
    assert seen.count(REBOOT) == lives
    assert seen.count(NEW) == len(seen) - lives


def test_a_reboot_that_one_channel_missed_does_not_hide_the_next_one() -> None:
    sessions = PeerSessions()
    for session, multicast, at_s in ((5, True, 0), (5, False, 0), (1, True, 1), (6, False, 2)):
        sessions.observe(session, True, multicast, at_s, at_s * 1_000 * MS)
    assert sessions.observe(1, True, False, 3, 3_000 * MS) is REBOOT


class SendingEcu:
    """A sender as in the standard. `lives` defines the number of messages per run, and their channel."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._now = 0

    def lives(self, number: int, start: int) -> Iterator[tuple[int, bool, bool, int, int, int]]:
        """Messages (session, flag, multicast, digest, time, life): reordered, duplicated and lost."""
        for life in range(number):
            sent = {True: start, False: start} if life == 0 else {True: 0, False: 0}
            messages = []
            for index in range(self._rng.randint(3, 40)):
                multicast = index == 0 or self._rng.random() < 0.6
                sent[multicast] += 1
                self._now += self._rng.randint(60, 400) * MS // 10
                session, flag = session_and_reboot_flag(sent[multicast])
                message = (session, flag, multicast, self._rng.getrandbits(32), life)
                first = sent[multicast] <= 1
                messages += self._in_flight(message, safe=first or index < 2)
            yield from sorted(messages, key=lambda each: each[4])
            self._now += self._rng.randint(150, 3_000) * MS

    def _in_flight(
        self, message: tuple[int, bool, bool, int, int], safe: bool
    ) -> list[tuple[int, bool, bool, int, int, int]]:
        fate = self._rng.random()
        session, flag, multicast, digest, life = message
        if fate < 0.1 and not safe:
            return []
        delays = [0]
        if fate > 0.8:
            delays = [self._rng.randint(0, 40) * MS]
        if fate > 0.9:
            delays.append(delays[0] + self._rng.randint(0, 9) * MS)
        return [(session, flag, multicast, digest, self._now + delay, life) for delay in delays]


# [utest->SD-863]
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("start", [0, 0xFFF0], ids=["from 1", "about to wrap"])
def test_500_reboots_are_detected_exactly_once(seed: int, start: int) -> None:
    sessions = PeerSessions()
    reboots: list[int] = []
    for session, flag, multicast, digest, at, life in SendingEcu(random.Random(seed)).lives(501, start):
        if sessions.observe(session, flag, multicast, digest, at) is REBOOT:
            reboots.append(life)
    assert reboots == list(range(1, 501))


@given(
    st.lists(
        st.tuples(
            st.integers(0, 0xFFFF), st.booleans(), st.booleans(), st.integers(0, 3), st.integers(0, 60)
        ),
        max_size=300,
    )
)
def test_the_state_of_a_peer_is_bounded(messages: list[tuple[int, bool, bool, int, int]]) -> None:
    sessions = PeerSessions()
    now = 0
    for session, reboot, multicast, digest, pause in messages:
        now += pause * MS
        sessions.observe(session, reboot, multicast, digest, now)
    assert len(sessions._unicast._seen) <= 2 * WINDOW
    assert len(sessions._multicast._seen) <= 2 * WINDOW


@given(st.integers(1, 3 * 0xFFFF), st.integers(1, 500))
def test_a_sender_that_only_counts_never_reboots(start: int, number: int) -> None:
    sessions = PeerSessions()
    counts = range(start, start + number)
    assert {
        sessions.observe(*session_and_reboot_flag(count), True, count, count * MS) for count in counts
    } == {NEW}
