# SPDX-License-Identifier: Apache-2.0
"""Open requests with deadlines: answered at most once, never open forever, and bounded."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ustreamer.transports.someip.protocol.correlation import DeadlineTable
from ustreamer.uprotocol.ustatus import UCode, UStatusError


def pending(limit: int = 10) -> DeadlineTable[str, str]:
    return DeadlineTable(limit, "calls")


def test_an_entry_is_found_until_just_before_its_deadline() -> None:
    calls = pending()
    calls.add_entry("a", "call a", 100)

    assert [calls.get("a", now) for now in (0, 99, 100, 101)] == ["call a", "call a", None, None]


def test_an_unknown_entry_is_not_found() -> None:
    assert pending().get("a", 0) is None


def test_a_removed_entry_is_neither_found_nor_expired() -> None:
    calls = pending()
    calls.add_entry("a", "call a", 100)
    calls.remove_entry("a")

    assert calls.get("a", 0) is None
    assert calls.pop_expired(1000) == []
    assert calls.next_deadline_ns is None


def test_remove_all_returns_the_entries_once_and_leaves_no_deadline() -> None:
    calls: DeadlineTable[str, str] = DeadlineTable(10, "calls")
    for key in ("a", "b"):
        calls.add_entry(key, key.upper(), 100)

    assert calls.remove_all() == ["A", "B"]
    assert (calls.remove_all(), len(calls), calls.next_deadline_ns) == ([], 0, None)
    assert calls.pop_expired(1_000) == []


def test_remove_where_removes_the_open_entries_of_one_group() -> None:
    calls: DeadlineTable[str, str] = DeadlineTable(10, "calls", group_of=lambda value: value[0])
    for key, value, deadline in (("1", "a1", 100), ("2", "b2", 100), ("3", "a3", 100), ("4", "a4", 10)):
        calls.add_entry(key, value, deadline)
    calls.add_entry("5", "a5", 200)
    calls.remove_entry("1")
    assert calls.pop_expired(10) == ["a4"]

    def take(group: str, but: str = "") -> list[str]:
        return calls.remove_where(group, lambda key, value: but not in {key, value})

    assert take("a", but="3") == ["a5"]
    assert take("a", but="a4") == ["a3"]
    assert (take("a"), take("c"), len(calls)) == ([], [], 1)
    calls.add_entry("3", "a6", 300)
    assert calls.remove_all() == ["b2", "a6"]
    assert take("a") == []


def test_remove_entry_returns_whether_the_entry_existed() -> None:
    calls: DeadlineTable[str, str] = DeadlineTable(10, "calls")
    calls.add_entry("a", "", 100)

    assert [calls.remove_entry("a"), calls.remove_entry("a"), calls.remove_entry("b")] == [True, False, False]


def test_removing_an_unknown_entry_changes_nothing() -> None:
    calls = pending()
    calls.add_entry("a", "call a", 100)
    calls.remove_entry("b")

    assert len(calls) == 1


def test_entries_expire_once_and_in_order_of_deadline() -> None:
    calls = pending()
    for key, deadline_ns in (("late", 300), ("early", 100), ("middle", 200)):
        calls.add_entry(key, key, deadline_ns)

    assert calls.next_deadline_ns == 100
    assert calls.pop_expired(99) == []
    assert calls.pop_expired(200) == ["early", "middle"]
    assert calls.next_deadline_ns == 300
    assert calls.pop_expired(1000) == ["late"]
    assert calls.pop_expired(1000) == []


def test_a_reused_key_has_its_new_deadline() -> None:
    calls = pending()
    calls.add_entry("a", "first", 100)
    calls.remove_entry("a")
    calls.add_entry("a", "second", 500)

    assert calls.pop_expired(100) == []
    assert calls.get("a", 100) == "second"
    assert calls.next_deadline_ns == 500


def test_the_error_of_a_full_table_names_its_entries_and_its_limit() -> None:
    calls = pending(limit=2)
    calls.add_entry("a", "", 100)
    calls.add_entry("b", "", 100)

    with pytest.raises(UStatusError) as refused:
        calls.add_entry("c", "", 100)

    assert refused.value.code is UCode.RESOURCE_EXHAUSTED
    assert "calls: 2 are open" in refused.value.message
    assert "c" not in calls


def test_an_owner_cannot_exceed_its_share() -> None:
    calls: DeadlineTable[int, str] = DeadlineTable(4, "calls", owner_of=lambda value: value[0])
    for key, value in ((1, "a1"), (2, "a2"), (3, "b1")):
        calls.add_entry(key, value, 100)
    with pytest.raises(UStatusError) as full:
        calls.add_entry(4, "a3", 100)
    assert full.value.code is UCode.RESOURCE_EXHAUSTED
    assert full.value.message == "calls: 2 of a are open, its share of max_pending"
    calls.remove_entry(1)
    calls.add_entry(4, "a3", 100)
    calls.add_entry(5, "b2", 100)
    with pytest.raises(UStatusError, match="4 are open, the limit"):
        calls.add_entry(6, "c1", 100)


def test_a_full_table_has_room_after_a_removal_and_after_a_deadline() -> None:
    calls = pending(limit=1)
    calls.add_entry("a", "", 100)
    calls.remove_entry("a")
    calls.add_entry("b", "", 100)
    calls.pop_expired(100)
    calls.add_entry("c", "", 100)

    assert "c" in calls


KEYS = st.integers(0, 7)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), KEYS, st.integers(1, 50)),
        st.tuples(st.just("close"), KEYS, st.just(0)),
        st.tuples(st.just("get"), KEYS, st.just(0)),
        st.tuples(st.just("pass"), st.just(0), st.integers(0, 30)),
    ),
    max_size=200,
)


@settings(deadline=None)  # no deadline: the machine may be busy
@given(STEPS)
def test_the_table_behaves_like_a_dict_with_deadlines(steps: list[tuple[str, int, int]]) -> None:
    calls: DeadlineTable[int, int] = DeadlineTable(4, "calls")
    model: dict[int, tuple[int, int]] = {}  # key -> (deadline, value)
    now = 0
    for value, (step, key, time) in enumerate(steps):
        if step == "open" and key not in model:
            if len(model) < 4:
                calls.add_entry(key, value, now + time)
                model[key] = (now + time, value)
            else:
                with pytest.raises(UStatusError):
                    calls.add_entry(key, value, now + time)
        elif step == "close":
            calls.remove_entry(key)
            model.pop(key, None)
        elif step == "get":
            known = model.get(key)
            assert calls.get(key, now) == (known[1] if known and known[0] > now else None)
        elif step == "pass":
            now += time
            due = sorted(entry for entry in model.values() if entry[0] <= now)
            assert calls.pop_expired(now) == [entry[1] for entry in due]
            model = {key: entry for key, entry in model.items() if entry[0] > now}
        assert len(calls) == len(model)
        assert calls.next_deadline_ns == min((deadline for deadline, _ in model.values()), default=None)
