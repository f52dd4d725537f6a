# SPDX-License-Identifier: Apache-2.0
"""No clock step expires a message early, and none keeps a message forever."""

from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ustreamer.core.base.clock import Clock, ManualClock
from ustreamer.core.delivery.expiry import (
    BATCH_SEND_MS,
    CLOCK_STEP_MS,
    MAX_CLOCK_STEPS,
    STEP_GRACE_NS,
    Expiry,
)
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.uprotocol.batch import IdColumns, MessageBatch
from ustreamer.uprotocol.umessage import UMessage, publish, request
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import decode_status

if TYPE_CHECKING:
    from tests.core.conftest import World

TODAY_MS = 1_780_000_000_000  # in 2026
BOOT_MS = 946_684_800_000  # 2000-01-01
YEARS_MS = TODAY_MS - BOOT_MS
IN_2039_MS = 2_180_000_000_000  # past 2038, where 32 bits end
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
NS = 1_000_000

TOPIC = UUri("chassis", 1, 1, 0x8000)


def message(made_ms: int, ttl: int | None) -> UMessage:
    return publish(UUID(made_ms << 16 | 0x7000, 1 << 63), TOPIC, ttl=ttl)


class Watch:
    """A clock, and an Expiry that observes it once a second."""

    def __init__(self, wall_ms: int) -> None:
        self.time = ManualClock(wall_ms)
        self.expiry = Expiry(self.time.clock())

    @property
    def wall_ms(self) -> int:
        return self.time.clock().wall_ms()

    @property
    def now_ns(self) -> int:
        return self.time.now_ns

    def wait(self, ms: int) -> None:
        for _ in range(min(ms // 1000, 700)):
            self.time.advance(s=1)
            self.expiry.observe_clock()
            ms -= 1000
        self.time.advance(ms=ms)

    def step(self, ms: int) -> None:
        """Set the wall clock; the timer observes it within the next second."""
        self.time.step(ms=ms)

    def remaining_ms(self, each: UMessage) -> int:
        """How long it may still wait; negative if it is expired."""
        left_ns = self.expiry.deadline_ns(each, self.now_ns, 0) - self.now_ns
        return -1 if left_ns < 0 else left_ns // NS


# ------------------------------------------------------------------------------------------------- a clock that is set


@pytest.mark.parametrize(
    ("ttl", "age_ms", "left_ms"),
    [
        (50, 0, 50),
        (50, 49, 1),
        (50, 50, 0),
        (50, 51, -1),
        (50, -1, 50),
        (50, -DAY_MS, 50),
        (50, YEARS_MS, -1),
    ],
)
def test_the_remaining_ttl_counts_from_the_id_and_never_exceeds_the_ttl(
    ttl: int, age_ms: int, left_ms: int
) -> None:
    watch = Watch(TODAY_MS)
    assert watch.remaining_ms(message(TODAY_MS - age_ms, ttl)) == left_ms
    assert watch.expiry.is_expired(TODAY_MS - age_ms, ttl) is (left_ms < 0)


@pytest.mark.parametrize("ttl", [None, 0])
def test_a_message_without_ttl_expires_at_the_maximum_age(ttl: int | None) -> None:
    watch = Watch(TODAY_MS)
    assert watch.expiry.deadline_ns(message(BOOT_MS, ttl), 7, 30) == 37


# -------------------------------------------------------------------------------------------------- clock steps


class Scenario(NamedTuple):
    """Our clock shows `ours`, steps by `clock_step` and is read `since` later; a message is `age` old then."""

    name: str
    ours: int
    clock_step: int
    since: int
    made: int  # by the clock of its maker
    ttl: int
    left: int  # -1: expired


AFTER_BOOT = BOOT_MS + 100_000
SCENARIOS = [
    # Created 6 s before the check by our own clock, 1 s before the clock step.
    Scenario("created before the step", AFTER_BOOT, YEARS_MS, 5_000, AFTER_BOOT - 1_000, 10_000, 4_000),
    Scenario("created before the step, and late", AFTER_BOOT, YEARS_MS, 5_000, AFTER_BOOT - 1_000, 5_999, -1),
    Scenario("created after the step", AFTER_BOOT, YEARS_MS, 5_000, AFTER_BOOT + YEARS_MS + 4_000, 1_500, 500),
    Scenario("created after the step, and late", AFTER_BOOT, YEARS_MS, 5_000, AFTER_BOOT + YEARS_MS, 4_999, -1),
    # By a sender whose clock was always correct.
    Scenario("from a right clock, made before", AFTER_BOOT, YEARS_MS, 5_000, AFTER_BOOT + YEARS_MS - 1_000, 9_000, 3_000),
    Scenario("from a right clock, and late", AFTER_BOOT, YEARS_MS, 5_000, AFTER_BOOT + YEARS_MS - 60_000, 9_000, -1),
    # By a sender that booted in 2000 too and has had no clock step yet.
    Scenario("from a clock still in 2000", AFTER_BOOT, YEARS_MS, 5_000, AFTER_BOOT + 4_800, 500, 300),
    Scenario("from a clock still in 2000, late", AFTER_BOOT, YEARS_MS, 5_000, AFTER_BOOT + 4_000, 500, -1),
    Scenario("from one that takes 9 minutes", AFTER_BOOT, YEARS_MS, 540_000, AFTER_BOOT + 539_900, 500, 400),
    Scenario("from a clock without step", AFTER_BOOT, YEARS_MS, 700_000, AFTER_BOOT + 699_900, 500, -1),
    Scenario("a ttl of more than the grace", AFTER_BOOT, YEARS_MS, 690_000, AFTER_BOOT - 1_000, 900_000, 209_000),
    # A step back: earlier messages are from the future.
    Scenario("back an hour, made before", TODAY_MS, -HOUR_MS, 2_000, TODAY_MS - 1_000, 10_000, 10_000),
    Scenario("back an hour, made after", TODAY_MS, -HOUR_MS, 2_000, TODAY_MS - HOUR_MS + 1_000, 10_000, 9_000),
    Scenario("back an hour, late", TODAY_MS, -HOUR_MS, 2_000, TODAY_MS - 2 * HOUR_MS, 10_000, -1),
    Scenario("forward an hour, made before", TODAY_MS, HOUR_MS, 2_000, TODAY_MS - 1_000, 10_000, 7_000),
    Scenario("forward an hour, late", TODAY_MS, HOUR_MS, 2_000, TODAY_MS - 9_000, 10_000, -1),
    Scenario("into 2039", TODAY_MS, IN_2039_MS - TODAY_MS, 2_000, TODAY_MS - 1_000, 10_000, 7_000),
    Scenario("into 2039, made there", TODAY_MS, IN_2039_MS - TODAY_MS, 2_000, IN_2039_MS + 1_000, 10_000, 9_000),
    # A sleep that the monotonic clock does not count: messages in flight have not aged.
    Scenario("slept for an hour", TODAY_MS, HOUR_MS, 10, TODAY_MS - 5_000, 10_000, 4_990),
]  # fmt: skip


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_clock_step_neither_expires_a_message_nor_saves_an_expired_one(scenario: Scenario) -> None:
    watch = Watch(scenario.ours)
    watch.step(scenario.clock_step)
    watch.wait(scenario.since)
    assert watch.remaining_ms(message(scenario.made, scenario.ttl)) == scenario.left
    assert watch.expiry.is_expired(scenario.made, scenario.ttl) is (scenario.left < 0)


@pytest.mark.parametrize(
    "clock_step_ms", [YEARS_MS, -YEARS_MS, HOUR_MS, -HOUR_MS, DAY_MS, -DAY_MS, IN_2039_MS - TODAY_MS]
)
def test_a_queued_message_keeps_its_deadline_across_clock_steps(clock_step_ms: int) -> None:
    watch = Watch(TODAY_MS)
    deadline_ns = watch.expiry.deadline_ns(message(TODAY_MS - 100, 1_000), watch.now_ns, 0)
    watch.step(clock_step_ms)
    watch.wait(900)
    assert watch.now_ns == deadline_ns  # not above it, so not expired
    watch.wait(1)
    assert watch.now_ns > deadline_ns


def test_a_small_clock_correction_is_no_clock_step() -> None:
    watch = Watch(TODAY_MS)
    for step_ms in (CLOCK_STEP_MS, -CLOCK_STEP_MS, CLOCK_STEP_MS, CLOCK_STEP_MS):
        watch.step(step_ms)
        watch.expiry.observe_clock()
    assert watch.expiry.clock_steps == 0
    watch.step(CLOCK_STEP_MS + 1)
    watch.expiry.observe_clock()
    assert watch.expiry.clock_steps == 1


def test_a_clock_that_returns_to_its_offset_is_no_second_clock() -> None:
    watch = Watch(TODAY_MS)
    watch.step(-DAY_MS)
    watch.wait(1_000)
    watch.step(DAY_MS + 30)
    watch.wait(1_000)
    late = message(watch.wall_ms - 70, ttl=60)  # 40 ms old by the clock before the steps
    assert watch.expiry.is_expired(late.id.time_ms, 60)
    assert watch.expiry.deadline_ns(late, watch.now_ns, HOUR_MS * NS) < watch.now_ns


def test_a_thread_suspended_between_two_readings_detects_no_clock_step() -> None:
    time = ManualClock(TODAY_MS)
    stopped = False

    def wall_ms() -> int:
        if stopped:
            time.advance(s=60)
        return time.clock().wall_ms()

    expiry = Expiry(Clock(lambda: time.now_ns, wall_ms))
    stopped = True
    expiry.observe_clock()
    stopped = False
    expiry.observe_clock()
    assert expiry.clock_steps == 0


def test_the_number_of_stored_clock_steps_is_bounded() -> None:
    watch = Watch(TODAY_MS)
    for _ in range(1_000):
        watch.step(HOUR_MS)
        watch.expiry.observe_clock()
    assert (watch.expiry.clock_steps, len(watch.expiry._steps)) == (1_000, MAX_CLOCK_STEPS)


def test_a_clock_step_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch(TODAY_MS)
    watch.step(-HOUR_MS)
    watch.expiry.observe_clock()
    assert [(each.message, each.__dict__["seconds"]) for each in caplog.records] == [
        ("clock.stepped", -3600.0)
    ]


# ------------------------------------------------------------------------------------------- ends by the wall clock


def has_ended(watch: Watch, end_ms: int) -> bool:
    """Whether something that is valid until `end_ms` by the wall clock has ended."""
    return watch.expiry.earliest_wall_ms() > end_ms


def seconds_until_end(watch: Watch, end_ms: int, at_most: int = 2_000) -> int:
    for second in range(at_most):
        if has_ended(watch, end_ms):
            return second
        watch.wait(1_000)
    raise AssertionError(f"no end within {at_most} s")


GRACE_S = STEP_GRACE_NS // 1_000_000_000


@pytest.mark.parametrize("clock_step", [HOUR_MS, DAY_MS, YEARS_MS, IN_2039_MS - TODAY_MS])
def test_a_glitch_shorter_than_the_grace_period_ends_nothing(clock_step: int) -> None:
    watch = Watch(TODAY_MS)
    watch.step(clock_step)
    for _ in range(GRACE_S - 1):
        watch.wait(1_000)
        assert not has_ended(watch, TODAY_MS + HOUR_MS - 1)
    watch.step(-clock_step)
    watch.wait(1_000)
    assert seconds_until_end(watch, watch.wall_ms + 5_000) == 6


@pytest.mark.parametrize("clock_step", [HOUR_MS, DAY_MS, YEARS_MS, IN_2039_MS - TODAY_MS])
def test_a_forward_step_that_stays_counts_after_the_grace_period(clock_step: int) -> None:
    watch = Watch(TODAY_MS)
    watch.step(clock_step)
    # The step is detected at once, and the period is over when it has passed.
    assert seconds_until_end(watch, TODAY_MS + HOUR_MS - 1) == GRACE_S + 1


def test_in_the_grace_period_an_end_by_both_clocks_is_an_end() -> None:
    watch = Watch(TODAY_MS)
    watch.step(HOUR_MS)
    assert seconds_until_end(watch, TODAY_MS + 5_000) == 6


def test_a_clock_that_steps_back_counts_at_once() -> None:
    watch = Watch(TODAY_MS)
    watch.step(-HOUR_MS)
    assert not has_ended(watch, TODAY_MS - HOUR_MS + 5_000)
    assert seconds_until_end(watch, TODAY_MS - HOUR_MS + 5_000) == 6


@pytest.mark.parametrize("back_s", [1, 500, 3_000])
def test_a_clock_that_returns_after_a_step_back_counts_at_once(back_s: int) -> None:
    watch = Watch(TODAY_MS)
    watch.step(-YEARS_MS)
    for _ in range(back_s):
        watch.wait(1_000)
    assert not has_ended(watch, TODAY_MS - 1)
    watch.step(YEARS_MS)
    watch.wait(1_000)
    assert has_ended(watch, TODAY_MS - 1)
    assert not has_ended(watch, watch.wall_ms)


# ------------------------------------------------------------------------------------------- random scenarios

moments = st.integers(0, 20_000)
# All multiples of 2 s: of two times less than CLOCK_STEP_MS apart the later is right; a smaller ttl may be misjudged.
observed_steps = st.sampled_from(
    [YEARS_MS, -YEARS_MS, HOUR_MS, -HOUR_MS, DAY_MS, -DAY_MS, 2_000, -2_000, 10_000]
)
events = st.lists(st.tuples(moments, observed_steps), max_size=MAX_CLOCK_STEPS)


@given(events, st.integers(1, 30_000), st.integers(0, 20_000), st.integers(0, 100_000))
def test_no_message_of_our_own_clock_expires_early(
    scenario: list[tuple[int, int]], ttl: int, until_made: int, wire: int
) -> None:
    """wrongly_expired = 0: a message created on this machine at any time that arrives within its ttl is not expired."""
    watch = Watch(BOOT_MS)
    made_ms, born_ns = watch.wall_ms, watch.now_ns
    for pause, clock_step in scenario:
        if until_made > 0:
            watch.wait(min(pause, until_made))
            made_ms, born_ns = watch.wall_ms, watch.now_ns
            until_made -= pause
        else:
            watch.wait(pause)
        watch.step(clock_step)
        watch.expiry.observe_clock()
    watch.wait(wire % 5_000)
    age_ms = (watch.now_ns - born_ns) // NS
    left_ms = watch.remaining_ms(message(made_ms, ttl))
    if age_ms <= ttl:
        assert left_ms >= ttl - age_ms
    # never_expired = 0: a message expires one ttl after its arrival at the latest.
    assert left_ms <= ttl


@given(
    st.sampled_from([YEARS_MS, DAY_MS, HOUR_MS]),
    st.integers(0, 60_000),
    st.integers(0, 60_000),
    st.integers(1, 60_000),
    st.booleans(),
)
def test_a_late_message_is_expired_on_both_sides_of_a_forward_step(
    clock_step: int, before: int, after: int, ttl: int, right_clock: bool
) -> None:
    """never_expired = 0, exactly: by our own clock, and by one that was right all the time."""
    watch = Watch(BOOT_MS)
    made_ms = watch.wall_ms + (clock_step if right_clock else 0)
    watch.wait(before)
    watch.step(clock_step)
    watch.wait(after)
    age_ms = before + after
    assert watch.remaining_ms(message(made_ms, ttl)) == (ttl - age_ms if age_ms <= ttl else -1)


glitches = st.lists(
    st.tuples(observed_steps, st.integers(1, 120), st.integers(0, 300)), max_size=MAX_CLOCK_STEPS // 2
)


@settings(max_examples=200)
@given(glitches, st.integers(0, 900_000))
@example([(YEARS_MS, 1, 0), (YEARS_MS, 1, 59), (YEARS_MS, 120, 300), (YEARS_MS, 120, 0)], 602_000)
def test_random_glitches_end_nothing_early_and_delay_no_end_beyond_them(
    scenario: list[tuple[int, int, int]], valid_ms: int
) -> None:
    """wrongly_expired = 0, never_expired = 0, sub_expiry_error_s <= 1.

    Each glitch returns within the grace period.
    """
    watch = Watch(TODAY_MS)
    end_ns = valid_ms * NS
    ended_ns = None
    for clock_step, glitch_s, quiet_s in [*scenario, (0, 0, 0)]:
        for offset, seconds in ((clock_step, glitch_s), (-clock_step, max(quiet_s, 1))):
            watch.step(offset)
            for _ in range(seconds):
                watch.wait(1_000)
                if ended_ns is None and has_ended(watch, TODAY_MS + valid_ms):
                    ended_ns = watch.now_ns
                    assert ended_ns > end_ns
        # The clock is right again, and was read since.
        assert (ended_ns is not None) is (watch.now_ns > end_ns)
    if ended_ns is None:
        seconds_until_end(watch, TODAY_MS + valid_ms)
        assert 0 < watch.now_ns - end_ns <= 1_000 * NS


# ----------------------------------------------------------------------------------------------------- in a dispatcher


def test_messages_in_flight_during_a_clock_step_are_delivered(world: "World") -> None:
    world.dispatcher.watch_clock()
    world.directory.subscribe(TOPIC, UUri("dash", 7, 1, 0))
    on_the_way = publish(world.id(), TOPIC, b"on the way", ttl=1_000)
    late = publish(world.id(), TOPIC, b"late", ttl=10)
    world.time.advance(ms=500)
    world.time.step(ms=YEARS_MS)
    world.receive("chassis", on_the_way)
    world.receive("chassis", late)
    assert world.verdicts() == [Verdict.EXPIRED]
    assert [each.message for each in world.tap_calls] == [late]
    assert world.ledger().queued == 1


@pytest.mark.parametrize(
    ("ingress", "source", "sink", "verdict"),
    [
        ("dash", UUri("hpc", 16, 1, 0), UUri("chassis", 1, 1, 1), Verdict.DENIED),
        ("backbone", UUri("hpc", 16, 1, 0), UUri("cloud", 1, 1, 1), Verdict.NO_SUBSCRIBER),
    ],
    ids=["of another endpoint", "in transit to a peer"],
)
def test_a_message_without_target_is_not_checked_for_expiry(
    world: "World", ingress: str, source: UUri, sink: UUri, verdict: Verdict
) -> None:
    """A late peer gets no response from us, and an unknown sender cannot fill the dead letters with old ids."""
    sent_request = request(world.id(), source, sink, ttl=10)
    world.time.advance(ms=100)
    world.receive(ingress, sent_request)
    assert (world.verdicts(), len(world.dispatcher.dead_letters)) == ([verdict], 0)
    world.run()
    notified = [each.attributes.commstatus for each in world.egress[ingress].messages]
    assert notified == ([UCode.PERMISSION_DENIED] if verdict is Verdict.DENIED else [])


def test_the_clock_is_observed_every_second(world: "World") -> None:
    world.dispatcher.watch_clock()
    for n in range(3):
        world.time.step(s=100)
        world.time.advance(s=1)
        assert world.fire() == 1
        assert world.dispatcher.expiry.clock_steps == n + 1


def test_a_clock_that_was_never_set_is_reported(world: "World") -> None:
    sent_request = request(
        UUID(BOOT_MS << 16 | 0x7000, 1 << 63), UUri("hpc", 16, 1, 0), UUri("chassis", 1, 1, 1), ttl=1_000
    )
    world.receive("backbone", sent_request)
    world.run()
    (answer,) = world.egress["backbone"].messages
    days = (world.clock.wall_ms() - BOOT_MS) // DAY_MS
    assert decode_status(answer.payload).message == (
        "ttl of 1000 ms had run out on arrival at 'backbone'; "
        f"by its id it was made {days} days ago: is the clock of its sender set?"
    )


def test_the_grace_is_longer_than_any_usual_ttl_and_shorter_than_a_drive() -> None:
    assert 60 <= STEP_GRACE_NS / 1e9 <= 3600


@pytest.mark.parametrize("step_s", [0, 3_600])
def test_unexpired_yields_messages_up_to_the_first_expired_one_each_checked_on_demand(
    step_s: int,
) -> None:
    time = ManualClock()
    clock = time.clock()
    expiry, now_ms = Expiry(clock), clock.wall_ms()
    ttls = [None, 0, 100, 50, 100, 10, 100]
    messages = [
        UMessage(UUID(now_ms << 16 | 0x7000, 1 << 63 | n), msgspec.structs.replace(EVENT, ttl=ttl))
        for n, ttl in enumerate(ttls)
    ]
    assert list(expiry.unexpired(messages)) == messages
    time.advance(ms=11)
    time.step(s=step_s)
    sent_request = iter(expiry.unexpired(messages))
    assert [next(sent_request) for _ in range(3)] == messages[:3]
    time.advance(ms=60)
    assert list(sent_request) == []
    assert list(expiry.unexpired(messages)) == messages[:3]


EVENT = publish(UUID(0, 0), UUri("chassis", 1, 1, 0x8001)).attributes


def batch_made(made_ms: list[int], ttl: int | None) -> MessageBatch:
    lsbs = [1 << 63 | n for n in range(len(made_ms))]
    msbs = [made << 16 | 0x7FFF for made in made_ms]  # a counter that would make them look younger
    return MessageBatch(
        msgspec.structs.replace(EVENT, ttl=ttl),
        IdColumns(msbs, lsbs),
        [b"%d" % n for n in range(len(made_ms))],
    )


@pytest.mark.parametrize("reqids", [None, [UUID(0x7000, 1 << 63 | n) for n in range(5)]])
@pytest.mark.parametrize("where", [0, 2, 4])
@pytest.mark.parametrize(
    ("ttl", "age_ms", "lasts"),
    [
        (1_000, 0, True),
        (1_000, 1_000 - BATCH_SEND_MS, True),
        (1_000, 1_001 - BATCH_SEND_MS, False),
        (1_000, 1_000, False),
        (1_000, 1_001, False),
        (BATCH_SEND_MS, 0, True),
        (BATCH_SEND_MS - 1, 0, False),
        (BATCH_SEND_MS - 1, -1, True),  # from the future, so that it is young for longer
        (0, 10_000_000, True),
        (None, 10_000_000, True),
    ],
)
def test_a_batch_stays_whole_if_no_message_expires_soon(
    ttl: int | None, age_ms: int, lasts: bool, where: int, reqids: list[UUID] | None
) -> None:
    time = ManualClock()
    expiry, now_ms = Expiry(time.clock()), time.clock().wall_ms()
    run = batch_made([now_ms - (age_ms if n == where else min(age_ms, 0)) for n in range(5)], ttl)
    run.reqids = reqids
    found = expiry.unexpired(run)
    assert (found is run) is lasts
    late = bool(ttl) and ttl is not None and age_ms > ttl
    assert list(found) == list(run)[: where if late else None]


def test_a_batch_returned_whole_stays_unexpired_for_the_send_time() -> None:
    time = ManualClock()
    expiry, now_ms = Expiry(time.clock()), time.clock().wall_ms()
    run = batch_made([now_ms - 400, now_ms], 400 + BATCH_SEND_MS)
    assert expiry.unexpired(run) is run
    time.advance(ms=BATCH_SEND_MS)
    sent_request = expiry.unexpired(run)
    assert sent_request is not run
    assert list(sent_request) == list(run)
    time.advance(ms=1)
    assert list(expiry.unexpired(run)) == []


def test_a_batch_that_may_expire_is_checked_message_by_message() -> None:
    time = ManualClock()
    expiry, now_ms = Expiry(time.clock()), time.clock().wall_ms()
    run = batch_made([now_ms, now_ms, now_ms - 45, now_ms], 50)
    sent_request = iter(expiry.unexpired(run))
    assert [next(sent_request), next(sent_request)] == list(run)[:2]
    time.advance(ms=6)
    assert list(sent_request) == []


def test_an_empty_batch_has_no_unexpired_messages() -> None:
    assert list(Expiry(ManualClock().clock()).unexpired(batch_made([], 50))) == []
    assert list(Expiry(ManualClock().clock()).unexpired(batch_made([], None))) == []


@given(
    st.lists(st.integers(-50, 400), max_size=12), st.none() | st.integers(0, 400), st.sampled_from([0, 3_600])
)
def test_unexpired_equals_is_expired_per_message(ages_ms: list[int], ttl: int | None, step_s: int) -> None:
    time = ManualClock()
    expiry, now_ms = Expiry(time.clock()), time.clock().wall_ms()
    batch = batch_made([now_ms - age_ms for age_ms in ages_ms], ttl)
    time.step(s=step_s)
    expected = list(takewhile(lambda each: not (ttl and expiry.is_expired(each.id.time_ms, ttl)), batch))
    assert list(expiry.unexpired(batch)) == expected
    assert list(expiry.unexpired(list(batch))) == expected
