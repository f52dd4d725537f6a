# SPDX-License-Identifier: Apache-2.0
"""UUID: the specification's vectors (`uuid_*.feature`), and a source of rising ids."""

from array import array
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ustreamer.uprotocol.pb import uuid as pb
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID, UuidSource

uint64 = st.integers(0, 2**64 - 1)
TODAY_MS, IN_2040_MS = 1_780_000_000_000, 2_208_988_800_000
HOUR_MS, DAY_MS = 3_600_000, 86_400_000

valid = st.builds(lambda m, n: UUID(m & ~0xF000 | 0x7000, n & (2**62 - 1) | 2**63), uint64, uint64)


@pytest.mark.parametrize(
    ("uuid", "text"),
    [
        (UUID(0x0000000000017000, 0x8010101010101A1A), "00000000-0001-7000-8010-101010101a1a"),
        (UUID(0xFFFFFFFFFFFF7000, 0x8010FFAABB997700), "ffffffff-ffff-7000-8010-ffaabb997700"),
    ],
)
def test_text_is_parsed_and_formatted_in_lower_case(uuid: UUID, text: str) -> None:
    assert str(uuid) == text
    assert UUID.parse(text) == uuid
    assert UUID.parse(text.upper()) == uuid


@pytest.mark.parametrize(
    ("uuid", "data"),
    [
        (UUID(0x0000000000017000, 0x8010101010101A1A), "090070010000000000111a1a101010101080"),
        (UUID(0xFFFFFFFFFFFF7000, 0x8010FFAABB997700), "090070ffffffffffff11007799bbaaff1080"),
    ],
)
def test_the_halves_are_those_of_the_protobuf_message(uuid: UUID, data: str) -> None:
    assert pb.UUID(msb=uuid.msb, lsb=uuid.lsb).SerializeToString().hex() == data


def test_an_id_contains_the_creation_time() -> None:
    uuid = UUID(0x018D548EA8E07000, 0x8000000000000000)
    assert uuid.time_ms == 1706520652000
    assert datetime.fromtimestamp(uuid.time_ms / 1000, UTC) == datetime(2024, 1, 29, 9, 30, 52, tzinfo=UTC)


# [utest->dsn~uuid-spec~1]
@pytest.mark.parametrize("version", "0123456789abcdef")
def test_only_version_7_with_variant_10_is_valid(version: str) -> None:
    for variant in "0123456789abcdef":
        check_validity(version, variant)


def check_validity(version: str, variant: str) -> None:
    text = f"00000000-0001-{version}000-{variant}000-0000000000ab"
    halves = UUID(int(f"000000000001{version}000", 16), int(f"{variant}0000000000000ab", 16))
    if version == "7" and variant in "89ab":
        assert UUID.parse(text).is_valid
        assert halves.is_valid
    else:
        assert not halves.is_valid
        with pytest.raises(UStatusError, match=f"UUID '{text}': expected version 7 and variant 0b10"):
            UUID.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00000000000170008000000000000000",
        "00000000-0001-7000-8000-0000000000a",
        "00000000-0001-7000-8000-0000000000abc",
        "0000000g-0001-7000-8000-0000000000ab",
        "00000000-0001-7000-8000-0000000000ab\n",
        "{00000000-0001-7000-8000-0000000000ab}",
        "0000000０-0001-7000-8000-0000000000ab",
    ],
)
def test_text_other_than_hex_and_dashes_is_refused(text: str) -> None:
    with pytest.raises(UStatusError) as refusal:
        UUID.parse(text)
    assert refusal.value.code is UCode.INVALID_ARGUMENT
    assert refusal.value.message == f"UUID {text!r}: expected 8-4-4-4-12 hex digits"


@given(valid)
def test_every_id_survives_formatting_and_parsing(uuid: UUID) -> None:
    assert uuid.is_valid
    assert UUID.parse(str(uuid)) == uuid


def parsed(text: str) -> UUID | UCode:
    try:
        return UUID.parse(text)
    except UStatusError as error:
        return error.code


@given(st.one_of(st.text(), st.from_regex(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")))
def test_any_text_is_an_id_or_an_invalid_argument(text: str) -> None:
    result = parsed(text)
    if isinstance(result, UCode):
        assert result is UCode.INVALID_ARGUMENT
    else:
        assert str(result) == text


# --------------------------------------------------------------------------------------------------------- UuidSource


def ids_at(readings: Iterable[int]) -> list[UUID]:
    """The ids that a source creates, one per reading of the wall clock in ms."""
    clock = iter(readings)
    source = UuidSource(lambda: next(clock), lambda count: 2**count - 1)
    return [source.next() for _ in readings]


def rises(ids: list[UUID]) -> bool:
    return all(earlier < later for earlier, later in pairwise(ids))


def test_an_id_is_a_version_7_uuid_of_now() -> None:
    assert ids_at([1706520652000]) == [UUID(0x018D548EA8E07000, 0xBFFFFFFFFFFFFFFF)]


def test_within_a_millisecond_the_counter_rises() -> None:
    assert [uuid.msb & 0xFFF for uuid in ids_at([5, 5, 5, 6])] == [0, 1, 2, 0]


def test_ids_rise_while_the_clock_is_corrected_by_up_to_a_second() -> None:
    ids = ids_at([2000, 2000, 1400, 1999, 1001, 2001])
    assert rises(ids)
    assert [uuid.time_ms for uuid in ids] == [2000, 2000, 2000, 2000, 2000, 2001]


def test_ids_follow_a_clock_that_steps_back_by_more_than_a_second() -> None:
    """Receivers judge the ttl by the id: an id from 2040 does not expire before 2040."""
    ids = ids_at([TODAY_MS, IN_2040_MS, TODAY_MS + 5, TODAY_MS + 5])
    assert [uuid.time_ms for uuid in ids] == [TODAY_MS, IN_2040_MS, TODAY_MS + 5, TODAY_MS + 5]
    assert rises(ids[2:])


def test_columns_follow_a_clock_that_steps_back() -> None:
    now = [IN_2040_MS]
    many, one = two_sources(now)
    assert many.next_n(3) == [one.next() for _ in range(3)]
    now[0] = TODAY_MS
    ids = many.next_n(3)
    assert ids == [one.next() for _ in range(3)]
    assert [uuid.time_ms for uuid in ids] == [TODAY_MS] * 3


def test_more_than_4096_ids_in_one_millisecond_run_ahead_of_the_clock() -> None:
    ids = ids_at([1000] * 5000)
    assert all(uuid.is_valid for uuid in ids)
    assert rises(ids)
    assert (ids[4095].time_ms, ids[4096].time_ms) == (1000, 1001)


STEPS_MS = st.sampled_from([0, 0, 0, 1, 400, 1_000, 1_001, HOUR_MS, DAY_MS, IN_2040_MS - TODAY_MS])
STEPS = st.lists(
    st.tuples(STEPS_MS, st.booleans(), st.integers(0, 3_000), st.integers(0, 5_000)), max_size=20
)


@settings(max_examples=60)
@given(STEPS)
@example([(IN_2040_MS - TODAY_MS, True, 0, 2)] * 5)
def test_across_random_clock_steps_ids_stay_near_the_clock_unique_and_in_order_between_steps_back(
    steps: list[tuple[int, bool, int, int]],
) -> None:
    now = TODAY_MS
    source, ids = UuidSource(lambda: now), list[UUID]()
    for step_ms, back, pause_ms, count in steps:
        # No clock is before 1970: Linux refuses to set it there.
        now = max(0, now + pause_ms - (step_ms if back else -step_ms))
        made = source.next_n(count // 2) + [source.next() for _ in range(count % 100)]
        # Up to 1 s of a small correction, and 1 ms for each 4 096 ids.
        assert all(0 <= uuid.time_ms - now <= 1_000 + count // 4_096 + 1 for uuid in made)
        assert rises(made)
        is_in_order = rises([*ids[-1:], *made])
        assert is_in_order or ids[-1].time_ms - now >= 1_000, "no step back"
        ids += made
    assert len(set(ids)) == len(ids)
    assert all(uuid.is_valid for uuid in ids)


def test_two_sources_create_different_ids_at_the_same_time() -> None:
    first, second = UuidSource(lambda: 1000), UuidSource(lambda: 1000)
    assert first.next() != second.next()


COUNTS = st.integers(0, 40) | st.sampled_from([4_095, 4_097])


@settings(max_examples=40)
@given(st.lists(st.tuples(COUNTS, st.integers(0, 3), st.booleans()), max_size=6))
def test_ids_in_columns_equal_ids_drawn_one_by_one(operations: list[tuple[int, int, bool]]) -> None:
    now = 1_700_000_000_000
    one, many = (UuidSource(lambda: now, lambda count: 2**count - 1) for _ in range(2))
    for count, pause_ms, back in operations:
        now += -pause_ms if back else pause_ms
        expected = [one.next() for _ in range(count)]
        assert many.next_n(count) == expected
        assert all(each.is_valid for each in expected)


class Draws:
    """Random bits that contain the number of their id: for one id, or 64 bits per id; the top two do not count."""

    def __init__(self) -> None:
        self._drawn = 0

    def __call__(self, bits: int) -> int:
        first, count = self._drawn + 1, max(1, bits // 64)
        self._drawn += count
        drawn = (number | 1 << 62 for number in range(first, first + count))
        little = b"".join(each.to_bytes(8, "little") for each in drawn)
        return int.from_bytes(little, "little") & (1 << bits) - 1


def two_sources(now: list[int]) -> tuple[UuidSource, UuidSource]:
    """Two sources with the same clock."""
    return UuidSource(lambda: now[0], Draws()), UuidSource(lambda: now[0], Draws())


@settings(max_examples=25)  # thousands of ids each
@given(st.integers(0, 0x1000), st.integers(-2, 2), st.integers(-1, 2))
def test_columns_equal_single_ids_also_at_counter_overflow(used: int, beyond: int, later_ms: int) -> None:
    now = [1000]
    many, one = two_sources(now)
    earlier = many.next_n(used)
    assert earlier == [one.next() for _ in range(used)]
    now[0] += later_ms
    number = max(0, 0x1000 - used + beyond)  # about the rest of the millisecond
    ids = list(map(UUID, *many.next_n_columns(number)))
    assert ids == [one.next() for _ in range(number)]
    assert all(each.is_valid for each in ids)
    assert rises([*earlier, *ids, many.next()])


def test_an_id_can_have_a_time_before_that_of_the_last_one() -> None:
    source, _ = two_sources([TODAY_MS])
    ids = [source.next_at(TODAY_MS - age_ms) for age_ms in (60, 50, 50, 0, 55)]
    assert [TODAY_MS - each.time_ms for each in ids] == [60, 50, 50, 0, 55]
    assert rises(ids[:4])
    assert source.next().time_ms == TODAY_MS
    assert all(each.is_valid for each in ids)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 300)), max_size=4))
def test_columns_of_a_time_equal_single_ids(batches: list[tuple[int, int]]) -> None:
    many, one = two_sources([0])
    now_ms = 1_000
    for later_ms, count in batches:
        now_ms += later_ms
        expected = [one.next_at(now_ms) for _ in range(count)]
        assert list(map(UUID, *many.next_n_columns(count, now_ms))) == expected
        assert all(each.is_valid for each in expected)


@given(st.lists(st.lists(st.integers(0, 5), max_size=128), max_size=5))
def test_columns_have_the_time_of_each_id(batches: list[list[int]]) -> None:
    source, _ = two_sources([TODAY_MS])
    now_ms = TODAY_MS
    made: list[UUID] = []
    for gaps_ms in batches:
        times_ms = [now_ms := now_ms + gap_ms for gap_ms in gaps_ms]
        ids = list(map(UUID, *source.columns_at(times_ms)))
        assert [each.time_ms for each in ids] == times_ms
        made += ids
    assert all(each.is_valid for each in made)
    assert rises(made)


def test_columns_longer_than_two_counter_periods_are_valid_and_rise() -> None:
    many, one = two_sources([1000])
    msbs, lsbs = many.next_n_columns(9000)
    assert (len(msbs), len(lsbs)) == (9000, 9000)
    ids = list(map(UUID, msbs, lsbs))
    assert ids == [one.next() for _ in range(9000)]
    assert all(each.is_valid for each in ids)
    assert rises(ids)
    assert ids[-1].time_ms == 1002


def test_empty_columns_leave_the_source_unchanged() -> None:
    now = [1000]
    many, one = two_sources(now)
    assert many.next_n_columns(0) == (array("Q"), array("Q"))
    assert many.next_n(0) == []
    now[0] = 500
    assert many.next() == one.next()
    assert many.next_n_columns(0) == (array("Q"), array("Q"))
    assert many.next() == one.next()
