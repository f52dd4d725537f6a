# SPDX-License-Identifier: Apache-2.0
"""UUID: the specification's vectors (`uuid_*.feature`), and a source of rising ids."""

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ustreamer.uprotocol.pb import uuid as pb
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID, UuidSource

uint64 = st.integers(0, 2**64 - 1)
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


def test_ids_rise_while_the_clock_steps_back() -> None:
    ids = ids_at([1000, 1000, 400, 999, 1000, 1001])
    assert rises(ids)
    assert [uuid.time_ms for uuid in ids] == [1000, 1000, 1000, 1000, 1000, 1001]


def test_more_than_4096_ids_in_one_millisecond_run_ahead_of_the_clock() -> None:
    ids = ids_at([1000] * 5000)
    assert all(uuid.is_valid for uuid in ids)
    assert rises(ids)
    assert (ids[4095].time_ms, ids[4096].time_ms) == (1000, 1001)


@given(st.lists(st.integers(0, 2**48 - 2), max_size=50))
def test_ids_are_valid_rising_and_never_older_than_any_clock(
    readings: list[int],
) -> None:
    ids = ids_at(readings)
    assert rises(ids)
    assert all(uuid.is_valid for uuid in ids)
    assert all(uuid.time_ms >= now for uuid, now in zip(ids, readings, strict=True))


def test_two_sources_create_different_ids_at_the_same_time() -> None:
    first, second = UuidSource(lambda: 1000), UuidSource(lambda: 1000)
    assert first.next() != second.next()


@settings(max_examples=40)
@given(st.integers(0, 40) | st.sampled_from([4_095, 4_097, 9_000]), st.integers(-1, 2))
def test_many_ids_equal_ids_created_one_by_one(count: int, later_ms: int) -> None:
    now = 1_700_000_000_000
    one, many = (UuidSource(lambda: now, lambda bits: 2**bits - 1) for _ in range(2))
    for _ in range(2):
        ids = many.next_n(count)
        assert ids == [one.next() for _ in range(count)]
        assert all(each.is_valid for each in ids)
        assert rises(ids)
        now += later_ms
