# SPDX-License-Identifier: Apache-2.0
"""The history of subscriptions: bounded, stored in the same transactions, and read by commands."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.directory import InMemoryDirectory
from ustreamer_usubscription.events import MAX_REASON_CHARS, SubscriptionEvent, subscription_event_of
from ustreamer_usubscription.model.subscription import SubscriptionRecord, SubscriptionStatusChange
from ustreamer_usubscription.store import store_contents
from ustreamer_usubscription.store.history import EventHistory, PendingEvents, max_events
from ustreamer_usubscription.store.records import (
    EVENT_PREFIX,
    encode_frame,
    event_number,
    put_event,
    read_event,
)
from ustreamer_usubscription.store.store import (
    RecordChange,
    SubscriptionStore,
    delete_subscription,
    put_subscription,
)
from ustreamer_usubscription.store.transaction import ServiceState, Transaction

from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.host.cli.main import main
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.conftest import ServiceRig

TOPIC, OTHER = UUri("device2", 0x10AB, 3, 0x80CD), UUri("device2", 0x10AB, 3, 0x80CE)
FIRST, SECOND = UUri("device1", 1, 1, 0), UUri("device1", 2, 1, 0)
MB = 1 << 20


def numbered(number: int) -> SubscriptionEvent:
    return SubscriptionEvent(number, TOPIC, UUri("device1", number, 1, 0), Status.SUBSCRIBED, "why not", 4)


def in_store(path: Path) -> dict[int, SubscriptionEvent]:
    """The records by number of a store that may be in use."""
    found = store_contents.read_store(path, "snapshot").records_with_prefix(EVENT_PREFIX)
    return {event_number(key): read_event(key, value) for key, value in found}


def times(path: Path) -> list[int]:
    return [event.time_ms for event in in_store(path).values()]


# --- stored events ------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 20), st.sampled_from([0, 1, 3, 16, 40]), st.booleans()), max_size=12)
)
def test_the_store_has_the_last_events_for_any_batch_and_limit(
    commits: Iterable[tuple[int, int, bool]],
) -> None:
    stored: dict[bytes, bytes] = {}
    ever: list[SubscriptionEvent] = []
    highest = b""
    for count, limit, failed in commits:
        history = EventHistory(limit)  # a restart, with another limit
        history.load_stored(sorted(stored))
        events = [numbered(len(ever) + n) for n in range(count)]
        changes = history.changes_for(events)
        if failed:
            assert history.changes_for(events) == changes
            continue
        before = len(stored)
        for key, value in changes:
            if value is None:
                del stored[key]  # it was there
            else:
                assert key > highest or not stored
                stored[key] = value
                highest = key
        history.on_committed(events)
        assert history.changes_for([]) == []
        ever += events
        assert [read_event(*record) for record in sorted(stored.items())] == ever[len(ever) - len(stored) :]
        assert min(before + count, limit - limit // 16) <= len(stored) <= limit


@pytest.mark.parametrize(
    ("wished", "map_mb", "kept"), [(10_000, 512, 10_000), (10_000, 1, 256), (100, 1, 100), (0, 512, 0)]
)
def test_a_history_never_takes_more_than_an_eighth_of_the_map(wished: int, map_mb: int, kept: int) -> None:
    assert max_events(wished, map_mb << 20) == kept


def test_a_long_reason_is_cut() -> None:
    event = subscription_event_of(
        SubscriptionStatusChange(
            SubscriptionRecord(TOPIC, FIRST, version=4), Status.UNSUBSCRIBED, reason="w" * 5000
        ),
        7,
    )
    assert event == SubscriptionEvent(7, TOPIC, FIRST, Status.UNSUBSCRIBED, "w" * MAX_REASON_CHARS, 4)


def test_events_without_changes_wait_for_the_next_commit_within_the_limit() -> None:
    state = ServiceState({TOPIC.authority_name}, InMemoryDirectory())
    unwritten = PendingEvents(3)

    def drafted() -> Transaction:
        transaction = Transaction(state, UsubscriptionConfig(), 5)
        transaction.put_subscription(SubscriptionRecord(TOPIC, FIRST))
        transaction.remove_subscription((TOPIC, FIRST), "gone")
        return transaction

    on, off = (
        SubscriptionEvent(5, TOPIC, FIRST, Status.SUBSCRIBED),
        SubscriptionEvent(5, TOPIC, FIRST, Status.UNSUBSCRIBED, "gone"),
    )
    unwritten.add_events_of(drafted())
    assert unwritten.with_events_of(Transaction(state, UsubscriptionConfig(), 6)) == [on, off]
    unwritten.add_events_of(drafted())
    assert unwritten.with_events_of(drafted()) == [off, on, off, on, off]
    unwritten.clear()
    assert unwritten.with_events_of(drafted()) == [on, off]
    assert PendingEvents(0).with_events_of(drafted()) == []


# --- the record -------------------------------------------------------------------------------------------------------

KEY = b"p/00000000000000ff"


def test_the_record_is_the_documented_one() -> None:
    event = SubscriptionEvent(1_781_565_900_000, TOPIC, FIRST, Status.UNSUBSCRIBED, "reset", 4)
    change = put_event(0xFF, event)
    body = b"\x96\xcf\x00\x00\x01\x9e\xcd\x9a\x44\xe0\xb8up://device2/10AB/3/80CD\xb2up://device1/1/1/0\x00\xa5reset\x04"
    assert change == RecordChange(KEY, encode_frame(KEY, body))
    assert read_event(KEY, encode_frame(KEY, body)) == event


NO_EVENTS = [
    (KEY, b"\x90", "Expected `array` of at least length 6"),
    (KEY, b"\x96\0\xa1a\xa1b\0\xa0\3", "no pair of addresses"),
    (KEY, b"\x96\0\xb2up://device1/1/1/0\xb2up://device1/1/1/0\x04\xa0\3", "Invalid enum value 4"),
    (b"p/ff", b"\x96\0\xb2up://device1/1/1/0\xb2up://device1/1/1/0\0\xa0\3", "no number"),
]


@pytest.mark.parametrize(("key", "body", "why"), NO_EVENTS, ids=[why for _, _, why in NO_EVENTS])
def test_an_invalid_event_record_is_refused_with_its_key(key: bytes, body: bytes, why: str) -> None:
    with pytest.raises(StoreDamaged, match=f"record {key!r}: .*{why}.*expected an event of layout 3"):
        read_event(key, encode_frame(key, body))


@pytest.mark.parametrize("at", [0, 1000, 2499])
def test_one_flipped_bit_in_a_long_history_is_found_at_the_start(tmp_path: Path, at: int) -> None:
    store = SubscriptionStore(tmp_path / "s", 16 * MB, history=5000)
    store.open()
    store.commit([], [numbered(n) for n in range(2500)])
    key, value = put_event(at, numbered(at))
    assert value is not None
    store.commit([RecordChange(key, value[:-9] + b"?" + value[-8:])])
    store.close()
    with pytest.raises(StoreDamaged, match=f"record {key!r}"):
        store.open()


# --- the store --------------------------------------------------------------------------------------------------------


def test_events_are_in_the_transaction_of_their_changes_and_numbers_continue(tmp_path: Path) -> None:
    store = SubscriptionStore(tmp_path / "s", MB, history=3)
    for number in range(5):
        store.open()
        store.commit([put_subscription(SubscriptionRecord(TOPIC, FIRST, number))], [numbered(number)])
        store.close()
    assert store.statistics()["transactions"] == 5
    assert in_store(store.path) == {number: numbered(number) for number in (2, 3, 4)}


def test_a_shorter_history_takes_effect_with_the_next_change(tmp_path: Path) -> None:
    for limit, wanted in [(5, [0, 1, 2, 3, 4]), (2, [3, 4]), (0, [])]:
        store = SubscriptionStore(tmp_path / "s", MB, history=limit)
        store.open()
        store.commit(
            [put_subscription(SubscriptionRecord(TOPIC, FIRST, limit))],
            [numbered(n) for n in range(5)] if limit == 5 else [],
        )
        assert times(store.path) == wanted
        store.close()


def full(path: Path, history: int) -> tuple[SubscriptionStore, int]:
    """A store into which no further subscription fits, and how many are in it."""
    store = SubscriptionStore(path, MB, history=history)
    store.open()
    fitted: list[int] = []

    def fill() -> None:
        for number in range(10_000):
            entry = SubscriptionRecord(TOPIC, UUri("device1", number, 1, 0), details=b"d" * 4000)
            store.commit([put_subscription(entry)], [numbered(number)])
            fitted.append(number)

    with pytest.raises(UStatusError) as refused:
        fill()
    assert refused.value.code is UCode.RESOURCE_EXHAUSTED
    return store, len(fitted)


def test_a_full_map_can_be_emptied_and_the_history_resumes(tmp_path: Path) -> None:
    store, count = full(tmp_path / "s", history=10_000)
    skipped = store.statistics()["history_skipped"]
    for number in range(count):  # each of them, and none is rejected
        store.commit([delete_subscription(TOPIC, UUri("device1", number, 1, 0))], [numbered(1000 + number)])
    assert list(store.load_subscriptions()) == []
    assert store.statistics()["history_skipped"] > skipped
    kept = [time for time in times(store.path) if time >= 1000]
    assert kept
    assert len(kept) < count
    assert kept[-1] == 1000 + count - 1
    assert len(in_store(store.path)) <= max_events(10_000, MB)
    store.close()
    store.open()  # and the rest is correct
    store.close()


def test_a_full_history_leaves_space_for_subscriptions(tmp_path: Path) -> None:
    store, with_history = full(tmp_path / "with", history=10_000)
    store.close()
    store, without = full(tmp_path / "without", history=0)
    store.close()
    assert with_history > 7 / 8 * without - 2


# --- the service ------------------------------------------------------------------------------------------------------


def history_output(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[tuple[str, str, str, str]]:
    """(topic's resource, subscriber's entity, status, reason) of each event that the command prints."""
    assert main(["subscriptions", "history", *map(str, arguments), "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return [(e["topic"][-4:], e["subscriber"].split("/")[3], e["status"], e["why"]) for e in found]


@pytest.fixture(params=["running", "stopped"])
def eventful(request: pytest.FixtureRequest, make_rig: "Callable[..., ServiceRig]") -> "ServiceRig":
    rig = make_rig().start()
    rig.subscribe(TOPIC, caller=FIRST, expire_ms=rig.now_ms + 500)
    rig.subscribe(OTHER, caller=SECOND)
    rig.subscribe(OTHER, caller=SECOND)  # changes nothing
    rig.subscribe(OTHER, caller=SECOND, sample_period_ms=10)
    rig.advance(s=1)
    rig.take_v3_notifications()
    rig.unsubscribe(OTHER, caller=SECOND)
    rig.restart()
    rig.subscribe(TOPIC, caller=SECOND)
    rig.reset()
    if request.param == "stopped":
        rig.stop()
    return rig


def test_the_history_covers_restarts_resets_and_expiry(
    eventful: "ServiceRig", capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("--state-dir", eventful.state_dir)
    ended = eventful.now_ms - 500
    everything = [
        ("80CD", "1", "SUBSCRIBED", ""),
        ("80CE", "2", "SUBSCRIBED", ""),
        ("80CE", "2", "SUBSCRIBED", ""),
        ("80CD", "1", "UNSUBSCRIBED", f"expire, {ended} ms, has passed"),
        ("80CE", "2", "UNSUBSCRIBED", ""),
        ("80CD", "2", "SUBSCRIBED", ""),
        ("80CD", "2", "UNSUBSCRIBED", "reset by up://device3/0/3/0"),
    ]
    assert history_output(capsys, *place) == everything
    assert history_output(capsys, *place, "--limit", 2) == everything[-2:]
    assert history_output(capsys, *place, "--limit", 99) == everything
    assert history_output(capsys, *place, "--topic", OTHER) == [
        event for event in everything if event[0] == "80CE"
    ]
    assert history_output(capsys, *place, "--subscriber", FIRST) == [everything[0], everything[3]]
    assert (
        history_output(capsys, *place, "--topic", TOPIC, "--subscriber", SECOND, "--limit", 1)
        == everything[-1:]
    )


def test_an_event_is_a_line(
    eventful: "ServiceRig", capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "vehicle.toml"
    config.write_text(f'state_dir = "{eventful.state_dir}"\n', encoding="utf-8")
    assert main(["subscriptions", "history", str(config)]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "2023-11-14T22:13:20.000+00:00  up://device2/10AB/3/80CD  up://device1/1/1/0  SUBSCRIBED"
    assert last.endswith("  UNSUBSCRIBED  reset by up://device3/0/3/0")


@pytest.mark.parametrize("limit", ["0", "-1", "many"])
def test_a_limit_is_a_number_of_events(limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["subscriptions", "history", "--state-dir", "/", "--limit", limit])
    assert ended.value.code == 2
    assert "--limit" in capsys.readouterr().err


def test_a_reset_of_many_writes_the_last_of_its_events_in_its_own_transaction(
    make_rig: "Callable[..., ServiceRig]",
) -> None:
    rig = make_rig(history=10).start()
    posted = [
        rig.send_request(1, rig.subscription_request(caller), caller=FIRST)
        for caller in (UUri("device2", 1, 1, 0x8000 + n) for n in range(300))
    ]
    for reqid in posted:
        rig.wait_response(reqid)
    before = rig.statistics("transactions")
    rig.reset()
    assert rig.statistics("transactions") == before + 1
    found = list(in_store(rig.state_dir / "usubscription").values())
    assert [event.topic.resource_id for event in found] == list(range(0x8000 + 290, 0x8000 + 300))
    assert {event.status for event in found} == {Status.UNSUBSCRIBED}


def test_an_end_that_did_not_fit_on_the_disk_is_in_the_commit_that_stores_it(
    make_rig: "Callable[..., ServiceRig]", monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig().start()
    rig.subscribe(expire_ms=rig.now_ms + 500)
    place = rig.state_dir / "usubscription"

    def no_room(*_: object) -> None:
        raise UStatusError(UCode.RESOURCE_EXHAUSTED, "no room")

    with monkeypatch.context() as patched:
        patched.setattr(rig.plugin.service._store, "commit", no_room)
        rig.advance(ms=501)
        assert rig.pairs() == []
        assert len(in_store(place)) == 1
        assert rig.call_refused(1, rig.subscription_request(), caller=FIRST).code is UCode.RESOURCE_EXHAUSTED
    rig.advance(s=1)
    rig.wait_until(lambda: len(in_store(place)) == 2, "the end in the history")
    rig.subscribe(caller=SECOND)
    assert [event.status for event in in_store(place).values()] == [2, 0, 2]


def test_a_subscription_that_ends_in_its_batch_is_in_the_next_commit(
    make_rig: "Callable[..., ServiceRig]",
) -> None:
    rig = make_rig().start()
    before = rig.statistics("transactions")
    with rig.service_blocked():
        posted = [
            rig.send_request(1, rig.subscription_request(), caller=FIRST),
            rig.send_request(2, pb.UnsubscribeRequest(topic=TOPIC.to_pb()), caller=FIRST),
        ]
    for reqid in posted:
        rig.wait_response(reqid)
    assert rig.statistics("transactions") == before  # nothing has changed
    rig.subscribe(caller=SECOND)
    found = in_store(rig.state_dir / "usubscription").values()
    assert [(event.subscriber, int(event.status)) for event in found] == [(FIRST, 2), (FIRST, 0), (SECOND, 2)]


def test_without_a_history_nothing_is_written(make_rig: "Callable[..., ServiceRig]") -> None:
    rig = make_rig(history=0).start()
    rig.subscribe()
    rig.unsubscribe()
    rig.reset()
    assert in_store(rig.state_dir / "usubscription") == {}
