# SPDX-License-Identifier: Apache-2.0
"""A durable queue on a real spool. The test decides when it sends, writes and is killed, so every case is
deterministic.
"""

import errno
import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.core.storage.refused_writes import with_refused_writes
from tests.host.egress.durable_queue_rig import (
    BOOT,
    HOUR_MS,
    LIMITS,
    DurableQueueRig,
    MakeDurableQueueRig,
    WouldWait,
    with_limits,
)
from tests.host.egress.test_endpoint_queue import (
    CALLER,
    DOWN,
    AbsentReceivers,
    InlineTransport,
    RoutedTransport,
    ScriptedTransport,
    call,
    number,
    on,
)
from tests.host.waiting import eventually
from tests.waiting import wait_until
from ustreamer.core.base.clock import ManualClock
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.expiry import remaining_after_reboot_ms
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.egress.limits import EgressLimits, QueuedMessage
from ustreamer.host.egress.durable_queue import MAX_DUPLICATES
from ustreamer.host.storage.spool_records import SpoolRecord
from ustreamer.uprotocol.uattributes import UPriority
from ustreamer.uprotocol.umessage import UMessage, response
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

HERE = UUri("chassis", 1, 1, 0x8001)
THERE = UUri("chassis", 2, 1, 0x8001)
DAY_MS = 24 * HOUR_MS
OVER = UStatus(UCode.UNAVAILABLE, "the streamer was stopped")


def down() -> ScriptedTransport:
    return ScriptedTransport(then=DOWN)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[MakeDurableQueueRig]:
    """Starts a process on the same directory after the previous one has ended. Checks the ledger at the end."""
    lives: list[DurableQueueRig] = []

    def start(
        wire: ScriptedTransport,
        limits: EgressLimits = LIMITS,
        clock: ManualClock | None = None,
        boot: bytes = BOOT,
        *,
        threads: bool = False,
        rest_ns: int = 0,
    ) -> DurableQueueRig:
        life = DurableQueueRig(
            tmp_path, wire, limits, clock, boot, threads=threads, quick=True, rest_ns=rest_ns
        )
        lives.append(life)
        return lives[-1]

    yield start
    for life in lives:
        life.die()
        assert life.ledger_snapshot().unaccounted == 0, life.ledger_snapshot()


def close(life: DurableQueueRig) -> None:
    life.wire.gate.set()
    life.queue.close(10.0)
    assert not life.queue._writer.is_alive()


# --- persisted and sent ----------------------------------------------------------------------------------------------


def test_a_message_sent_at_once_never_touches_the_disk(start: MakeDurableQueueRig) -> None:
    life = start(ScriptedTransport())
    life.offer(*life.numbers(*range(300)))
    life.send()
    life.write_all()
    assert life.sent == list(range(300))
    assert (life.queue.committed, life.queue.persisted) == (0, 0)
    assert life.queue.counters()["spool_transactions"] == 0


def test_an_inline_durable_queue_writes_refused_messages_only(start: MakeDurableQueueRig) -> None:
    life = start(InlineTransport(None, DOWN))
    life.offer(*life.numbers(0, 1, 2))
    life.write_all()
    assert (life.sent, life.queue.persisted) == ([0], 2)


def test_waiting_messages_survive_a_kill_in_order_with_ids_and_payloads(start: MakeDurableQueueRig) -> None:
    first = start(down())
    messages = first.numbers(*range(100))
    first.offer(*messages)
    first.write_all()
    assert (first.queue.persisted, first.queue.statistics().persisted, first.queue.sendable) == (100, 100, 0)
    first.die()

    second = start(ScriptedTransport())
    assert second.ledger_snapshot().received == second.queue.persisted == second.queue.queued == 100
    second.offer(second.number(100))
    second.send()
    assert second.wire.sent[:100] == messages
    assert second.sent == list(range(101))
    assert {verdict for _, verdict in second.verdicts} == {Verdict.DELIVERED}
    second.write_all()
    assert second.queue.persisted == second.queue.counters()["spooled"] == 0
    second.die()
    assert start(ScriptedTransport()).queue.queued == 0


def test_a_kill_loses_uncommitted_messages_only(start: MakeDurableQueueRig) -> None:
    first = start(down())
    first.offer(*first.numbers(*range(10)))
    first.write_all()
    first.offer(*first.numbers(*range(10, 15)))
    assert (first.queue.committed, first.queue.sendable) == (10, 5)
    first.die()
    second = start(ScriptedTransport())
    second.send()
    assert second.sent == list(range(10))


def test_higher_priorities_are_sent_first_after_a_restart(start: MakeDurableQueueRig) -> None:
    first = start(down())
    first.offer(*(first.number(n, UPriority.CS6 if n % 2 else UPriority.CS1) for n in range(20)))
    first.write_all()
    first.die()
    second = start(ScriptedTransport())
    second.send()
    assert second.sent == [*range(1, 20, 2), *range(0, 20, 2)]


def test_a_message_for_two_subscribers_is_persisted_for_each(start: MakeDurableQueueRig) -> None:
    first = start(down())
    [message] = first.numbers(7)
    for subscriber in (HERE, THERE):
        first.offer(message, to=subscriber)
    first.write_all()
    first.die()
    second = start(ScriptedTransport())
    queue = second.queue._queue
    taken = [queue.pop_batch(10), queue.pop_batch(10)]  # each has its own subscriber queue
    assert [[item.delivery.subscriber for item in each] for each in taken] == [[HERE], [THERE]]
    for each in taken:
        queue.requeue(each)


def test_a_closed_route_delays_no_other_stream_after_a_restart(start: MakeDurableQueueRig) -> None:
    first = start(RoutedTransport(HERE, THERE))
    for n in range(0, 40, 2):
        first.offer(on(HERE, n), on(THERE, n + 1))
    first.send()
    first.write_all()
    assert (first.queue.blocked, first.queue.persisted) == (40, 40)
    first.die()

    second = start(RoutedTransport(THERE))
    second.offer(on(THERE, 41))
    second.send()
    assert second.sent == list(range(0, 40, 2))
    assert isinstance(second.wire, RoutedTransport)
    second.wire.closed.clear()
    second.queue.on_route_open(THERE)
    second.send()
    assert second.sent[20:] == [*range(1, 40, 2), 41]


def test_a_durable_queue_keeps_requests_for_absent_receivers(start: MakeDurableQueueRig) -> None:
    first = start(AbsentReceivers(0, CALLER))
    first.offer(*(call(CALLER, n) for n in range(3)))
    first.send()
    first.write_all()
    assert (first.queue.blocked, first.queue.persisted, first.undelivered) == (3, 3, [])
    first.die()
    second = start(ScriptedTransport())
    second.send()
    assert second.sent == [0, 1, 2]


# ------------------------------------------------------------------------------------------------------- duplicates


def test_a_kill_duplicates_at_most_the_limit_and_preserves_the_order(
    start: MakeDurableQueueRig,
) -> None:
    first = start(down())
    first.offer(*first.numbers(*range(1000)))
    first.write_all()
    first.die()
    second = start(ScriptedTransport())
    second.send()  # the disk is slow: nothing is deleted
    assert 64 < len(second.sent) <= MAX_DUPLICATES
    second.die()
    third = start(ScriptedTransport())
    third.send()
    assert third.sent == list(range(len(third.sent)))
    third.write()
    third.send()
    while third.queue.queued:
        third.write_all()
        third.send()
    assert third.sent == list(range(1000))


def test_a_message_delivered_during_its_write_is_deleted_again(start: MakeDurableQueueRig) -> None:
    life = start(down())
    commit = life.queue._spool.commit

    def slow_commit(*arguments: object) -> list[bytes]:
        keys = commit(*arguments)  # type: ignore[arg-type]
        life.wire.then = None
        life.queue.on_link_up()
        life.send()
        return keys

    life.queue._spool.commit = slow_commit  # type: ignore[method-assign,assignment]
    life.offer(*life.numbers(1, 2, 3))
    life.write()
    assert life.sent == [1, 2, 3]
    assert (life.queue.persisted, life.queue._undeleted, life.queue.counters()["spooled"]) == (0, 3, 3)
    life.write()
    assert (life.queue._undeleted, life.queue.counters()["spooled"]) == (0, 0)


def test_a_message_sent_just_before_a_kill_is_sent_again(start: MakeDurableQueueRig) -> None:
    """The transport's thread holds an accepted put; a kill loses it."""
    life = start(down(), rest_ns=1_000)
    life.offer(*life.numbers(1, 2, 3))
    life.write()
    life.wire.then = None
    life.queue.on_link_up()
    life.send()
    assert (life.sent, life.write(), life.queue.counters()["spooled"]) == ([1, 2, 3], True, 3)
    life.die()
    second = start(ScriptedTransport(), rest_ns=1_000)
    second.send()
    assert second.sent == [1, 2, 3]
    second.clock.now_ns += 1_000
    assert (second.write(), second.queue.counters()["spooled"]) == (True, 0)


# ------------------------------------------------------------------------------------------------ memory and limits


def test_messages_above_the_memory_limit_are_on_disk_only_and_are_sent_complete(
    start: MakeDurableQueueRig,
) -> None:
    life = start(down(), with_limits(queue_messages=10))
    messages = life.numbers(*range(100))
    for message in messages:
        life.offer(message)
        life.write_all()
    waiting = life.queue._queue.shared_queue.waiting._classes[1]
    assert [item.header_only for item in waiting] == [n >= 10 for n in range(100)]
    assert not any(item.message.payload for item in waiting if item.header_only)
    life.wire.then = None
    life.send()
    assert life.wire.sent == messages


def test_a_message_above_the_spool_limit_is_a_dead_letter(start: MakeDurableQueueRig) -> None:
    life = start(down(), with_limits(queue_messages=10, spool_messages=20))
    for n in range(25):
        life.offer(life.number(n))
        life.write_all()
    assert [number(message) for message, _ in life.undelivered] == list(range(20, 25))
    assert {status.code for _, status in life.undelivered} == {UCode.RESOURCE_EXHAUSTED}
    assert "spool is full (20 messages" in life.undelivered[0][1].message
    assert life.queue.persisted == 20


def test_a_higher_priority_message_evicts_a_persisted_one_with_a_complete_dead_letter(
    start: MakeDurableQueueRig,
) -> None:
    life = start(down(), with_limits(queue_messages=1, spool_messages=5))
    messages = life.numbers(*range(5))
    for message in messages:
        life.offer(message)
        life.write_all()
    life.offer(life.number(9, UPriority.CS6))
    assert [message for message, _ in life.undelivered] == [messages[4]]
    life.write_all()
    life.die()
    second = start(ScriptedTransport())
    second.send()
    assert second.sent == [9, 0, 1, 2, 3]


def test_a_durable_queue_works_from_memory_and_logs_an_error_while_the_disk_refuses(
    start: MakeDurableQueueRig, caplog: pytest.LogCaptureFixture
) -> None:
    life = start(down(), with_limits(queue_messages=10))
    life.limit_spool(5, 1_000_000)
    life.offer(*life.numbers(*range(5)))
    life.write_all()
    with caplog.at_level(logging.ERROR):
        life.offer(*life.numbers(*range(5, 18)))
        assert [life.write(), life.write()] == [False, False]
    assert [record.message for record in caplog.records] == ["egress.not_persisted"]
    assert [number(message) for message, _ in life.undelivered] == [15, 16, 17]
    [status] = {status for _, status in life.undelivered}
    assert status.code is UCode.RESOURCE_EXHAUSTED
    assert "10 messages wait for the disk" in status.message
    assert (life.queue.persisted, life.queue.sendable) == (5, 10)

    life.wire.then = None
    life.send()
    assert life.sent == list(range(15))
    assert life.write()
    life.wire.then = DOWN
    life.offer(life.number(18))
    life.write_all()
    assert life.queue.persisted == 1

    with caplog.at_level(logging.ERROR):
        life.limit_spool(1, 1_000_000)
        life.offer(life.number(19))
        assert not life.write()
    assert [record.message for record in caplog.records] == ["egress.not_persisted", "egress.not_persisted"]


def test_messages_whose_deletion_the_disk_refused_are_deleted_without_further_traffic(
    start: MakeDurableQueueRig,
) -> None:
    first = start(down())
    first.offer(*first.numbers(*range(5)))
    first.write_all()
    first.wire.then = None
    first.send()
    with_refused_writes(errno.EROFS, first.write)
    assert first.queue.counters()["spooled"] == 5
    assert first.write()
    assert first.queue.counters()["spooled"] == 0
    first.die()
    second = start(ScriptedTransport())
    second.send()
    assert second.sent == []


@pytest.mark.parametrize("name", ["EROFS", "EACCES", "ENOSPC"])
def test_a_disk_that_takes_no_writes_loses_nothing_silently_and_is_used_again(
    start: MakeDurableQueueRig, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    life = start(down(), with_limits(queue_messages=10))
    life.offer(*life.numbers(*range(5)))
    life.write_all()
    with caplog.at_level(logging.ERROR):
        life.offer(*life.numbers(*range(5, 18)))
        for _ in range(2):
            assert with_refused_writes(getattr(errno, name), life.write) is False
    events = [record.message for record in caplog.records if record.name == "ustreamer.egress"]
    assert events == ["egress.not_persisted"]
    assert [number(message) for message, _ in life.undelivered] == [15, 16, 17]
    assert life.queue.counters()["unwritten"] == 10
    life.offer(life.number(18))
    [status] = {status for _, status in life.undelivered[3:]}
    assert status.code is UCode.RESOURCE_EXHAUSTED
    assert os.strerror(getattr(errno, name)) in status.message
    life.write_all()
    assert (life.queue.persisted, life.queue.counters()["spool_lost"]) == (15, 0)


def test_other_limits_hold_from_the_next_message_on(start: MakeDurableQueueRig) -> None:
    life = start(down(), with_limits(spool_messages=2))
    life.offer(*life.numbers(0, 1, 2))
    assert len(life.undelivered) == 1
    life.queue.set_limits(with_limits(spool_messages=4, spool_bytes=10**9))
    life.offer(*life.numbers(2, 3, 4))
    assert len(life.undelivered) == 2
    life.write_all()
    assert life.queue.persisted == 4
    life.queue.set_limits(with_limits(spool_messages=1))
    life.write()
    life.die()
    second = start(ScriptedTransport(), with_limits(spool_messages=1))
    second.send()
    assert second.sent == [0, 1, 2, 3]


def test_a_start_above_the_limits_evicts_one_message_for_each_new_one(start: MakeDurableQueueRig) -> None:
    """A stop can leave more messages than `spool_messages`: waiting ones, and sent ones that may not have arrived."""
    life = start(down(), with_limits(spool_messages=6))
    life.offer(*life.numbers(*range(6)))
    life.write_all()
    life.die()
    second = start(down(), with_limits(spool_messages=2))
    second.offer(second.number(6, UPriority.CS4))
    assert [message.payload for message, _ in second.undelivered] == [life.number(5).payload]
    second.write_all()
    second.die()
    third = start(ScriptedTransport(), with_limits(spool_messages=2))
    third.send()
    assert third.sent == [6, 0, 1, 2, 3, 4]


def test_a_reload_can_raise_the_spool_byte_limit(start: MakeDurableQueueRig) -> None:
    life = start(down(), with_limits(spool_bytes=1))
    life.queue.set_limits(with_limits(spool_bytes=100_000_000))
    [message] = life.numbers(0)
    life.offer(UMessage(message.id, message.attributes, b"p" * 10_000_000))
    assert life.write()
    assert life.queue.persisted == 1


def test_a_reload_is_repeated_until_the_disk_takes_its_limits(
    start: MakeDurableQueueRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise MemoryError

    life = start(down(), with_limits(spool_bytes=1))
    life.queue.set_limits(with_limits(spool_bytes=100_000_000))
    life.offer(life.number(0))
    with monkeypatch.context() as no_memory:
        no_memory.setattr(life.queue._spool, "set_limits", refuse)
        assert life.write()
    assert life.queue.persisted == 1
    life.clock.advance(s=1)
    [message] = life.numbers(1)
    life.offer(UMessage(message.id, message.attributes, b"p" * 10_000_000))
    assert life.write()
    assert life.queue.persisted == 2


def test_limits_that_no_memory_can_hold_cost_no_message(start: MakeDurableQueueRig) -> None:
    life = start(down(), with_limits(queue_messages=1))
    for each in life.numbers(0, 1):
        life.offer(each)
        assert life.write()
    life.queue.set_limits(with_limits(queue_messages=1, spool_bytes=1 << 46))
    life.offer(life.number(2))
    assert life.write()
    assert life.queue.persisted == 3
    life.wire.then = None
    life.queue.on_link_up()
    life.send()
    assert life.sent == [0, 1, 2]


def test_the_writer_rests_while_no_memory_can_hold_the_limits(
    start: MakeDurableQueueRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = start(down(), with_limits(queue_messages=1), threads=True)
    write_once, writes = life.queue._write_once, list[int]()

    def count_write() -> bool:
        writes.append(time.monotonic_ns())
        return write_once()

    monkeypatch.setattr(life.queue, "_write_once", count_write)
    life.queue.set_limits(with_limits(queue_messages=1, spool_bytes=1 << 46))
    wait_until(lambda: len(writes) >= 2, "a second try")
    life.queue.set_limits(with_limits(queue_messages=1))
    life.queue.close(1.0)
    assert writes[-1] - writes[0] > 100_000_000


def test_the_writer_rests_while_a_suspect_node_may_lack_the_sent_messages(
    start: MakeDurableQueueRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = start(down(), threads=True)
    life.offer(*life.numbers(*range(150)))  # more deletions than a batch
    wait_until(lambda: life.queue.persisted == 150, "the write")
    monkeypatch.setattr(life.wire, "unstored_since_ns", lambda: 0)
    life.wire.then = None
    life.queue.on_link_up()
    wait_until(lambda: len(life.sent) == 150, "the sends")
    write_once, writes = life.queue._write_once, list[int]()

    def count_write() -> bool:
        writes.append(time.monotonic_ns())
        return write_once()

    monkeypatch.setattr(life.queue, "_write_once", count_write)
    wait_until(lambda: len(writes) >= 5, "further writes")
    life.queue.close(1.0)
    assert writes[4] - writes[0] > 30_000_000


def test_a_message_in_flight_never_becomes_header_only(start: MakeDurableQueueRig) -> None:
    life = start(ScriptedTransport())
    send = life.wire.send

    def slow_send(message: UMessage) -> None:
        life.write()
        send(message)

    life.gateway.delivery.transmit = slow_send
    life.queue.set_limits(with_limits(queue_messages=100))
    life.offer(*life.numbers(*range(1, 101)))
    life.queue.set_limits(with_limits(queue_messages=1))
    life.send()
    assert life.verdicts == [(n, Verdict.DELIVERED) for n in range(1, 101)]
    assert life.queue.committed == 100


# ----------------------------------------------------------------------------------------------------------- expiry


@pytest.mark.parametrize(("ttl", "limit_ms"), [(None, HOUR_MS), (60_000, 60_000)], ids=["max_age_ms", "ttl"])
@pytest.mark.parametrize(("left_ms", "sent"), [(1, [1]), (-1, [])])
@pytest.mark.parametrize(
    ("reboot", "step_ms"),
    # A clock step cannot be distinguished from time in which the machine was off.
    [(False, 0), (False, -DAY_MS), (False, DAY_MS), (True, 0)],
)
def test_a_restart_neither_shortens_nor_extends_a_wait(
    start: MakeDurableQueueRig,
    ttl: int | None,
    limit_ms: int,
    left_ms: int,
    sent: list[int],
    step_ms: int,
    reboot: bool,
) -> None:
    clock = ManualClock()
    clock.advance(s=5)
    first = start(down(), clock=clock)
    first.offer(first.number(1, ttl=ttl))
    first.write_all()
    first.die()
    clock.step(ms=step_ms)
    if reboot:
        clock.advance(ms=limit_ms - left_ms)
        now_ms = clock.clock().wall_ms()
        clock = ManualClock(wall_ms=now_ms)
    else:
        clock.advance(ms=limit_ms - left_ms)
    second = start(ScriptedTransport(), clock=clock, boot=b"another boot" if reboot else BOOT)
    second.send()
    assert second.sent == sent
    assert second.verdicts == [(1, Verdict.DELIVERED if sent else Verdict.EXPIRED)]
    assert [status.code for _, status in second.undelivered] == ([] if sent else [UCode.DEADLINE_EXCEEDED])


@pytest.mark.parametrize(("left_ms", "sent"), [(1, [1]), (-1, [])])
def test_a_monotonic_clock_that_went_back_measures_no_wait(
    start: MakeDurableQueueRig, left_ms: int, sent: list[int]
) -> None:
    """A virtual machine that is restored from a snapshot has the same boot id and an earlier clock."""
    clock = ManualClock()
    clock.advance(s=5)
    first = start(down(), clock=clock)
    first.offer(first.number(1))
    first.write_all()
    first.die()
    clock.advance(ms=HOUR_MS - left_ms)
    second = start(ScriptedTransport(), clock=ManualClock(wall_ms=clock.clock().wall_ms()))
    second.send()
    assert second.sent == sent


@pytest.mark.parametrize(
    ("stored_at", "read_at", "left"),
    [
        ("2026", 0, 1_000),
        ("2026", 400, 600),
        ("2026", 1_000, 0),
        ("2026", 1_001, -1),
        ("2000", 0, 1_000),
        (
            "2000",
            26 * 365 * DAY_MS,
            1_000,
        ),  # the clock was set meanwhile: the elapsed time is unknown
        ("2026", -26 * 365 * DAY_MS, 1_000),  # its deadline has passed
    ],
)
def test_only_a_plausible_wall_clock_is_trusted_after_a_reboot(
    stored_at: str, read_at: int, left: int
) -> None:
    began_ms = {"2026": 1_780_000_000_000, "2000": 946_684_800_000}[stored_at]
    assert remaining_after_reboot_ms(1_000, began_ms + 1_000, began_ms + read_at) == left


# ----------------------------------------------------------------------------------------------------------- damage


def test_a_damaged_record_costs_one_message_and_is_counted(
    start: MakeDurableQueueRig, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    life = start(down(), with_limits(queue_messages=1))
    for n in range(5):
        life.offer(life.number(n))
        life.write_all()
    env = life.queue._spool._store._environment()
    with env.begin(write=True) as txn:
        [key] = [
            item.spool_key for item in life.queue._queue.shared_queue.waiting._classes[1] if item.header_only
        ][1:2]
        assert key
        value = txn.get(key)
        assert value
        txn.put(key, value[:-1] + bytes([value[-1] ^ 1]))
    life.wire.then = None
    with caplog.at_level(logging.ERROR):
        life.send()
    assert life.sent == [0, 1, 3, 4]
    assert [record.message for record in caplog.records] == ["spool.messages_lost"]
    assert life.undelivered == []
    assert life.ledger_snapshot().dead_lettered == life.queue.counters()["spool_lost"] == 1


def test_a_damaged_spool_is_quarantined_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = DurableQueueRig(tmp_path, down())
    first.offer(*first.numbers(*range(100)))
    first.write_all()
    first.die()
    file = tmp_path / "backbone" / "data.mdb"
    file.write_bytes(file.read_bytes()[:5000])
    with caplog.at_level(logging.ERROR):
        second = DurableQueueRig(tmp_path, ScriptedTransport())
    assert "spool.damaged" in [record.message for record in caplog.records]
    assert (tmp_path / "backbone.damaged-1" / "data.mdb").stat().st_size == 5000
    second.offer(second.number(1))
    second.send()
    assert second.sent == [1]
    assert second.queue.counters()["spool_quarantined"] == 1
    second.die()


def test_a_record_that_no_rule_allows_is_deleted_and_logged(
    start: MakeDurableQueueRig, caplog: pytest.LogCaptureFixture
) -> None:
    first = start(down())
    first.queue._spool.commit([(1, SpoolRecord(b"no attributes", b"", "chassis", None, None, 1, 2, b"", 3))])
    first.die()
    with caplog.at_level(logging.ERROR):
        second = start(ScriptedTransport())
    assert [record.message for record in caplog.records] == ["egress.not_restored"]
    assert second.queue.queued == 0
    second.write_all()
    assert second.queue.counters()["spooled"] == 0


def test_a_spool_locked_by_another_process_prevents_restore(start: MakeDurableQueueRig) -> None:
    start(ScriptedTransport())
    with pytest.raises(UStatusError, match="is held") as refused:
        start(ScriptedTransport())
    assert refused.value.code is UCode.UNAVAILABLE


# ------------------------------------------------------------------------------------------------------------- stop


def test_a_stop_leaves_persisted_messages_and_abandons_the_others(start: MakeDurableQueueRig) -> None:
    first = start(down())
    first.offer(*first.numbers(*range(10)))
    first.write_all()
    first.send()
    assert first.queue.is_failing
    assert first.queue.wait_sent(first.clock.now_ns)
    assert first.queue.wait_empty(first.clock.now_ns)
    assert first.queue.sendable == 0
    first.limit_spool(1, 1)  # full
    first.offer(first.number(10))
    assert not first.write()
    assert not first.queue.wait_sent(first.clock.now_ns)
    assert first.queue.sendable == 1

    first.queue.no_more_retries(OVER)
    given_up = first.queue.abandon_all(OVER)
    assert [number(item.message) for item in given_up] == [10]
    assert first.queue.persisted == first.queue.queued == 10
    assert first.ledger_snapshot().dead_lettered == 1
    assert first.queue.abandon_all(OVER) == []
    first.send()  # persisted messages are not tried any more
    assert first.undelivered == []
    first.queue.close(1.0)

    second = start(ScriptedTransport())
    second.send()
    assert second.sent == list(range(10))


def test_a_response_during_a_stop_is_sent_or_persisted(start: MakeDurableQueueRig) -> None:
    life = start(down())
    life.offer(*life.numbers(0, 1))
    life.write_all()
    life.queue.abandon_all(OVER)
    life.queue.no_more_retries(OVER)
    life.offer(life.number(2))
    life.send()
    life.write_all()
    assert (life.queue.abandon_all(OVER), life.queue.persisted, life.undelivered) == ([], 3, [])


def test_a_stop_sends_all_it_can_and_leaves_the_rest_on_disk(start: MakeDurableQueueRig) -> None:
    life = start(ScriptedTransport(), clock=None)
    life.offer(*life.numbers(*range(10)))
    life.write_all()
    assert not life.queue.wait_sent(life.clock.now_ns)  # persisted, but the link is up
    life.send()
    assert life.queue.wait_sent(life.clock.now_ns)
    assert life.sent == list(range(10))


# ---------------------------------------------------------------------------------------------------------- threads


def test_the_threads_write_send_and_remove_by_themselves(start: MakeDurableQueueRig) -> None:
    life = start(down(), threads=True)
    life.offer(*life.numbers(*range(2000)))
    eventually(lambda: life.queue.persisted == 2000, "all to be on disk")
    life.wire.then = None
    life.queue.on_link_up()
    eventually(lambda: len(life.wire.sent) == 2000, "all to be sent")
    assert life.sent == list(range(2000))
    eventually(lambda: life.queue.counters()["spooled"] == 0, "all to be removed")
    close(life)


def test_closing_writes_waiting_messages_and_ends_the_threads(start: MakeDurableQueueRig) -> None:
    first = start(down(), threads=True)
    first.offer(*first.numbers(*range(2000)))  # several commits
    close(first)
    second = start(ScriptedTransport(), threads=True)
    eventually(lambda: len(second.wire.sent) == 2000, "all to be sent")
    close(second)
    assert start(ScriptedTransport()).queue.queued == 0


def test_an_unexpected_disk_error_does_not_end_the_writer_thread(start: MakeDurableQueueRig) -> None:
    life = start(down(), threads=True)
    commit = life.queue._spool.commit
    raised: list[Exception] = []

    def once(*arguments: object) -> list[bytes]:
        if not raised:
            raised.append(ValueError("an unexpected error"))
            raise raised[0]
        return commit(*arguments)  # type: ignore[arg-type]

    life.queue._spool.commit = once  # type: ignore[method-assign,assignment]
    life.offer(life.number(1))
    eventually(lambda: life.queue.persisted == 1, "another try")
    assert raised
    close(life)


# --- subscriber queues -----------------------------------------------------------------------------------------------

ANN, BOB = (UUri("dash", entity, 1, 0) for entity in (1, 2))


def test_persisted_messages_of_one_subscriber_are_limited(
    start: MakeDurableQueueRig,
) -> None:
    life = start(down(), with_limits(queue_messages=10, spool_messages=20, subscriber_messages=6))
    for n in range(10):
        life.offer(life.number(n), to=ANN)
        life.write_all()
    assert [number(message) for message, _ in life.undelivered] == [6, 7, 8, 9]
    for _, status in life.undelivered:
        assert status.code is UCode.RESOURCE_EXHAUSTED
        assert f"subscriber {ANN} at endpoint 'backbone' is full (6 messages" in status.message
    for n in range(10, 16):
        life.offer(life.number(n), to=BOB)
        life.write_all()
    assert life.queue.persisted == 12
    important = life.number(20, UPriority.CS5)
    life.offer(important, to=ANN)
    life.write_all()
    assert number(life.undelivered[-1][0]) == 5
    assert (life.queue.persisted, life.queue.counters()["spooled"]) == (12, 12)


def test_subscriber_queues_are_restored_with_order_and_limits(start: MakeDurableQueueRig) -> None:
    limits = with_limits(spool_messages=100, subscriber_messages=5)
    first = start(down(), limits)
    for n in range(5):
        first.offer(first.number(n), to=ANN)
        first.offer(first.number(n + 10, UPriority.CS5 if n % 2 else UPriority.CS1), to=BOB)
    first.write_all()
    first.die()
    second = start(down(), limits)
    assert {each.subscriber: each.queued for each in second.queue.statistics().fullest} == {ANN: 5, BOB: 5}
    second.offer(second.number(20), to=ANN)
    assert [number(message) for message, _ in second.undelivered] == [20]
    second.wire.then = None
    second.send()
    assert [n for n in second.sent if n < 10] == list(range(5))
    assert [n for n in second.sent if n >= 10] == [11, 13, 10, 12, 14]


def test_while_the_disk_takes_nothing_one_subscriber_has_no_more_than_half_of_the_memory(
    start: MakeDurableQueueRig,
) -> None:
    life = start(down(), with_limits(queue_messages=10))
    life.limit_spool(0, 0)
    for n in range(8):
        life.offer(life.number(n), to=ANN)
    assert not life.write()
    for n in range(8, 12):
        life.offer(life.number(n), to=BOB)
    assert [number(message) for message, _ in life.undelivered] == [5, 6, 7]
    assert {status.code for _, status in life.undelivered} == {UCode.RESOURCE_EXHAUSTED}
    assert f"5 messages for subscriber {ANN} wait for the disk" in life.undelivered[0][1].message
    assert life.queue.statistics().evicted_subscriber_limit == 3


def test_a_subscriber_that_is_away_holds_up_no_other_of_a_durable_endpoint(
    start: MakeDurableQueueRig,
) -> None:
    life = start(ScriptedTransport())
    away = Delivery(life.gateway, life.queue, None, ANN)

    def refuse(message: UMessage, /) -> None:
        raise UStatusError(UCode.UNAVAILABLE, "is away")

    away.transmit, away.transmit_batch = refuse, None
    for n in range(0, 40, 2):
        life.gateway.ledger.received += 1
        away.offer(life.number(n), life.clock.now_ns)
        life.offer(life.number(n + 1), to=BOB)
    life.send()
    assert life.sent == list(range(1, 40, 2))
    life.write_all()
    assert life.queue.wait_sent(1 << 62)  # not for persisted messages of an unavailable subscriber
    life.offer(life.number(41), to=BOB)
    life.write_all()
    with pytest.raises(WouldWait):  # for sendable messages
        life.queue.wait_sent(1 << 62)
    life.send()
    assert life.sent[20:] == [41]
    life.write_all()
    life.die()
    second = start(ScriptedTransport())
    second.send()
    assert second.sent == list(range(0, 40, 2))


# --- sent, but perhaps not arrived -----------------------------------------------------------------------------------


def as_sent(life: DurableQueueRig, *messages: UMessage) -> list[QueuedMessage]:
    topic = messages[0].attributes.source
    return [life.queue.sent_message(Delivery(life.gateway, life.queue, topic), each) for each in messages]


@pytest.mark.parametrize("threads", [True, False])
def test_reclaimed_messages_are_sent_after_the_next_start_before_those_that_waited(
    start: MakeDurableQueueRig, threads: bool
) -> None:
    first = start(ScriptedTransport(*[None] * 1_200, then=DOWN), threads=threads)
    sent = first.numbers(*range(1_200))
    first.offer(*sent)
    if not threads:
        first.send()
    eventually(lambda: first.ledger_snapshot().delivered == 1_200, "the sends")
    first.offer(*first.numbers(*range(1_200, 1_230)))
    if not threads:
        first.write_all()
    eventually(lambda: first.queue.persisted == 30, "the writes")
    assert first.queue.reclaim(as_sent(first, *sent)) == []
    ledger = first.ledger_snapshot()
    assert (ledger.delivered, ledger.queued, first.queue.persisted) == (0, 1_230, 1_230)
    close(first)
    second = start(ScriptedTransport(), threads=True)
    eventually(lambda: second.ledger_snapshot().queued == 0, "the sends")
    assert second.sent == list(range(1_230))
    assert [each.id for each in second.wire.sent[:1_200]] == [each.id for each in sent]
    close(second)


def test_a_reclaimed_message_expires_after_the_next_start(start: MakeDurableQueueRig) -> None:
    first = start(ScriptedTransport())
    short = first.number(0, ttl=1_000)
    first.offer(short, first.number(1))
    first.send()
    assert first.queue.reclaim(as_sent(first, short)) == []
    close(first)
    first.clock.advance(s=2)
    second = start(ScriptedTransport(), clock=first.clock)
    second.send()
    assert second.sent == []
    assert second.verdicts == [(0, Verdict.EXPIRED)]


def test_reclaimed_messages_that_a_full_spool_refuses_are_returned(start: MakeDurableQueueRig) -> None:
    life = start(ScriptedTransport())
    sent = life.numbers(*range(1_000))
    life.offer(*sent)
    life.send()
    life.limit_spool(600)
    refused = life.queue.reclaim(as_sent(life, *sent))
    assert [number(each.message) for each in refused] == list(range(1_000))
    ledger = life.ledger_snapshot()
    assert (ledger.delivered, ledger.queued, ledger.dead_lettered) == (0, 0, 1_000)
    close(life)


# --- answered Requests -----------------------------------------------------------------------------------------------


class Dispatched:
    """An ingress that notes what is on disk at each Response."""

    def __init__(self, life: DurableQueueRig) -> None:
        self._life = life
        self.spooled: list[int] = []
        self.batches = 0

    def __call__(self, message: UMessage, /) -> None:
        self.spooled.append(self._life.queue.counters()["spooled"])

    def on_batch(self, messages: Sequence[UMessage], /) -> None:
        self.batches += 1
        for each in messages:
            self(each)


@pytest.mark.parametrize("receipts", [True, False])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("are_answered", [True, False])
def test_a_kill_repeats_sent_requests_only_if_no_response_was_dispatched(
    start: MakeDurableQueueRig,
    are_answered: bool,
    together: bool,
    receipts: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ScriptedTransport, "awaits_receipt", lambda *_: receipts)
    first = start(ScriptedTransport(then=DOWN), threads=True, rest_ns=HOUR_MS * 1_000_000)
    made = [call(CALLER, n) for n in range(10)]
    calls = [replace(each, id=UUID(each.id.msb, 1 << 63 | n)) for n, each in enumerate(made)]
    first.offer(*calls, first.number(10))
    eventually(lambda: first.queue.persisted == 11, "the writes")
    first.wire.then = None
    first.queue.on_link_up()
    eventually(lambda: len(first.sent) == 11, "the sends")
    ingress = Dispatched(first)
    listener = first.queue.listener(ingress)
    answers = [response(UUID(n, n), each) for n, each in enumerate(calls)] if are_answered else []
    if together:
        listener.on_batch([*answers, first.number(11)])
    else:
        for each in [*answers, first.number(11)]:
            listener(each)
    # A kill repeats what is on disk.
    after = [1] * 11 if together else [*range(10, 0, -1), 1]
    assert ingress.spooled == (after if are_answered else [11])
    assert ingress.batches == together
    close(first)


def test_an_answered_request_that_waits_for_its_receipt_leaves_the_disk_first(
    start: MakeDurableQueueRig,
) -> None:
    life = start(ScriptedTransport(), threads=True)
    made = [call(CALLER, n) for n in range(3)]
    calls = [replace(each, id=UUID(each.id.msb, 1 << 63 | n)) for n, each in enumerate(made)]
    delivery = Delivery(life.gateway, life.queue, None, None)
    assert life.queue.keep("receipts", [life.queue.sent_message(delivery, each) for each in calls[:2]])
    eventually(lambda: life.queue.counters()["spooled"] == 2, "the writes")
    ingress = Dispatched(life)
    listener = life.queue.listener(ingress)
    for each in calls[1:]:
        listener(response(each.id, each))
    assert ingress.spooled == [1, 1]
    assert life.queue.keep("receipts", [life.queue.sent_message(delivery, calls[2])])
    assert life.queue.release("receipts", [each.id for each in calls])
    eventually(lambda: not life.queue.has_sent_requests, "the end of all requests")
    close(life)


def test_a_response_does_not_wait_for_a_request_that_never_touched_the_disk(
    start: MakeDurableQueueRig,
) -> None:
    life = start(ScriptedTransport(), threads=True)
    life.offer(call(CALLER, 0))
    eventually(lambda: life.sent == [0], "the send")
    eventually(lambda: not life.queue.has_sent_requests, "the end of the request")
    close(life)


def test_a_request_that_is_sent_during_a_refused_write_of_it_is_forgotten(
    start: MakeDurableQueueRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record is not on disk, so its Response need not wait."""
    life = start(ScriptedTransport(DOWN))
    life.offer(call(CALLER, 0))
    life.send()

    def send_and_refuse(*_: object) -> list[bytes]:
        life.clock.advance(s=1)
        life.send()
        raise UStatusError(UCode.RESOURCE_EXHAUSTED, "no space left")

    monkeypatch.setattr(life.queue._spool, "commit", send_and_refuse)
    assert life.write() is False
    assert life.sent == [0]
    assert not life.queue.has_sent_requests
    life.die()


def test_a_sent_request_may_be_on_disk_until_the_disk_has_deleted_it(start: MakeDurableQueueRig) -> None:
    life = start(ScriptedTransport(DOWN))
    life.offer(call(CALLER, 0))
    life.send()
    assert life.write()
    life.clock.advance(s=1)
    life.send()
    assert life.sent == [0]
    life.clock.advance(s=1)
    with_refused_writes(errno.EROFS, life.write)
    after_each = [life.queue.has_sent_requests]
    assert life.write()
    after_each.append(life.queue.has_sent_requests)
    assert after_each == [True, False]
    life.die()


def test_a_kept_request_may_be_on_disk_until_the_disk_has_deleted_it(start: MakeDurableQueueRig) -> None:
    life, sent = start(ScriptedTransport()), call(CALLER, 0)
    delivery = Delivery(life.gateway, life.queue, None, None)
    assert life.queue.keep("receipts", [life.queue.sent_message(delivery, sent)])
    assert life.write()
    assert life.queue.release("receipts", [sent.id])
    with_refused_writes(errno.EROFS, life.write)
    after_each = [life.queue.has_sent_requests]
    assert life.write()
    after_each.append(life.queue.has_sent_requests)
    assert after_each == [True, False]
    life.die()


def test_a_write_that_fails_forgets_no_deletion(
    start: MakeDurableQueueRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise ValueError("on purpose")

    life = start(ScriptedTransport(DOWN, None, DOWN))
    life.offer(call(CALLER, 0))
    life.send()
    assert life.write()
    life.clock.advance(s=1)
    life.send()
    life.offer(life.number(1))
    life.send()
    assert life.sent == [0]
    life.clock.advance(s=1)
    with monkeypatch.context() as broken:
        broken.setattr(life.queue, "_encode", fail)
        assert not life.write()
    assert life.queue.has_sent_requests
    assert life.write()
    assert (life.queue.has_sent_requests, life.queue.counters()["spooled"]) == (False, 1)
    life.die()
