# SPDX-License-Identifier: Apache-2.0
"""Open requests with deadlines: nothing is answered twice, nothing stays for ever, nothing grows without a bound."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ustreamer.transports.someip.protocol.correlation import Pending
from ustreamer.uprotocol.ustatus import UCode, UStatusError


def pending(limit: int = 10) -> Pending[str, str]:
    return Pending(limit, "calls")


def test_an_open_entry_is_found_until_its_deadline_and_not_at_it() -> None:
    calls = pending()
    calls.open("a", "call a", 100)

    assert [calls.get("a", now) for now in (0, 99, 100, 101)] == ["call a", "call a", None, None]


def test_an_entry_that_was_never_opened_is_not_found() -> None:
    assert pending().get("a", 0) is None


def test_a_closed_entry_is_neither_found_nor_expired() -> None:
    calls = pending()
    calls.open("a", "call a", 100)
    calls.close("a")

    assert calls.get("a", 0) is None
    assert calls.expired(1000) == []
    assert calls.next_deadline_ns is None


def test_closing_everything_hands_it_out_once_and_leaves_no_deadline() -> None:
    calls: Pending[str, str] = Pending(10, "calls")
    for key in ("a", "b"):
        calls.open(key, key.upper(), 100)

    assert calls.close_all() == ["A", "B"]
    assert (calls.close_all(), len(calls), calls.next_deadline_ns) == ([], 0, None)
    assert calls.expired(1_000) == []


def test_a_group_is_taken_out_at_once_and_only_what_is_open_of_it() -> None:
    calls: Pending[str, str] = Pending(10, "calls", group_of=lambda value: value[0])
    for key, value, deadline in (("1", "a1", 100), ("2", "b2", 100), ("3", "a3", 100), ("4", "a4", 10)):
        calls.open(key, value, deadline)
    calls.open("5", "a5", 200)
    calls.close("1")
    assert calls.expired(10) == ["a4"]

    def take(group: str, but: str = "") -> list[str]:
        return calls.close_those(group, lambda key, value: but not in {key, value})

    assert take("a", but="3") == ["a5"]
    assert take("a", but="a4") == ["a3"]
    assert (take("a"), take("c"), len(calls)) == ([], [], 1)
    calls.open("3", "a6", 300)
    assert calls.close_all() == ["b2", "a6"]
    assert take("a") == []


def test_closing_tells_whether_there_was_anything_to_close() -> None:
    calls: Pending[str, str] = Pending(10, "calls")
    calls.open("a", "", 100)

    assert [calls.close("a"), calls.close("a"), calls.close("b")] == [True, False, False]


def test_closing_what_is_not_open_changes_nothing() -> None:
    calls = pending()
    calls.open("a", "call a", 100)
    calls.close("b")

    assert len(calls) == 1


def test_entries_expire_once_and_in_order_of_deadline() -> None:
    calls = pending()
    for key, deadline_ns in (("late", 300), ("early", 100), ("middle", 200)):
        calls.open(key, key, deadline_ns)

    assert calls.next_deadline_ns == 100
    assert calls.expired(99) == []
    assert calls.expired(200) == ["early", "middle"]
    assert calls.next_deadline_ns == 300
    assert calls.expired(1000) == ["late"]
    assert calls.expired(1000) == []


def test_a_key_that_is_used_again_keeps_to_its_new_deadline() -> None:
    calls = pending()
    calls.open("a", "first", 100)
    calls.close("a")
    calls.open("a", "second", 500)

    assert calls.expired(100) == []
    assert calls.get("a", 100) == "second"
    assert calls.next_deadline_ns == 500


def test_a_full_table_says_what_is_full_and_how_much_it_holds() -> None:
    calls = pending(limit=2)
    calls.open("a", "", 100)
    calls.open("b", "", 100)

    with pytest.raises(UStatusError) as refused:
        calls.open("c", "", 100)

    assert refused.value.code is UCode.RESOURCE_EXHAUSTED
    assert "calls: 2 are open" in refused.value.message
    assert "c" not in calls


def test_no_group_takes_the_room_of_the_others() -> None:
    calls: Pending[int, str] = Pending(4, "calls", group_of=lambda value: value[0], group_limit=2)
    for key, value in ((1, "a1"), (2, "a2"), (3, "b1")):
        calls.open(key, value, 100)
    with pytest.raises(UStatusError) as full:
        calls.open(4, "a3", 100)
    assert full.value.code is UCode.RESOURCE_EXHAUSTED
    assert full.value.message == "calls: 2 of a are open, its share of max_pending"
    calls.close(1)
    calls.open(4, "a3", 100)
    calls.open(5, "b2", 100)
    with pytest.raises(UStatusError, match="4 are open, the limit"):
        calls.open(6, "c1", 100)


def test_a_full_table_has_room_again_after_an_answer_and_after_a_deadline() -> None:
    calls = pending(limit=1)
    calls.open("a", "", 100)
    calls.close("a")
    calls.open("b", "", 100)
    calls.expired(100)
    calls.open("c", "", 100)

    assert "c" in calls


def test_calls_that_are_answered_at_once_leave_no_trail_of_deadlines() -> None:
    calls: Pending[int, None] = Pending(10, "calls")
    for number in range(10_000):
        calls.open(number, None, 10**12)  # far away, as with a ttl of minutes
        calls.close(number)
        assert len(calls._deadlines) <= 100


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


@settings(deadline=None)  # a busy machine is no failure
@given(STEPS)
def test_it_does_what_a_plain_dict_would_do(steps: list[tuple[str, int, int]]) -> None:
    calls: Pending[int, int] = Pending(4, "calls")
    model: dict[int, tuple[int, int]] = {}  # key -> (deadline, value)
    now = 0
    for value, (step, key, time) in enumerate(steps):
        if step == "open" and key not in model:
            if len(model) < 4:
                calls.open(key, value, now + time)
                model[key] = (now + time, value)
            else:
                with pytest.raises(UStatusError):
                    calls.open(key, value, now + time)
        elif step == "close":
            calls.close(key)
            model.pop(key, None)
        elif step == "get":
            known = model.get(key)
            assert calls.get(key, now) == (known[1] if known and known[0] > now else None)
        elif step == "pass":
            now += time
            due = sorted(entry for entry in model.values() if entry[0] <= now)
            assert calls.expired(now) == [entry[1] for entry in due]
            model = {key: entry for key, entry in model.items() if entry[0] > now}
        assert len(calls) == len(model)
        assert calls.next_deadline_ns == min((deadline for deadline, _ in model.values()), default=None)
