# SPDX-License-Identifier: Apache-2.0
"""Sent messages that a durable queue keeps until the transport releases them: kills, restarts, limits, a full disk.

The queue and its spool are real; the threads are removed. A naive model knows what is on disk.
"""

import errno
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.core.storage.refused_writes import with_refused_writes
from tests.host.egress.durable_queue_rig import LIMITS, DurableQueueRig, with_limits
from tests.host.egress.test_endpoint_queue import DOWN, ScriptedTransport
from ustreamer.core.base.clock import ManualClock
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.egress.limits import EgressLimits, QueuedMessage
from ustreamer.host.egress.sent_records import SentRecords
from ustreamer.uprotocol.uattributes import UPriority
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UUID

ROUTES = ("one", "two")
STOPPED = UStatus(UCode.UNAVAILABLE, "stopped")
NS_PER_MS = 1_000_000


class Life(DurableQueueRig):
    """A process: `keep` and `release` are the calls of its transport."""

    def __init__(self, path: Path, *, down: bool = False, limits: EgressLimits = LIMITS) -> None:
        super().__init__(
            path, ScriptedTransport(then=DOWN if down else None), limits, ManualClock(), quick=True
        )
        self._delivery = Delivery(self.gateway, self.queue, None, None)

    def number(self, n: int, priority: UPriority = UPriority.CS1, *, ttl: int | None = None) -> UMessage:
        message = super().number(n, priority, ttl=ttl)
        return replace(message, id=UUID(message.id.msb, message.id.lsb + n))

    def sent_items(self, *numbers: int) -> list[QueuedMessage]:
        return [self.queue.sent_message(self._delivery, self.number(n)) for n in numbers]

    def keep(self, route: str, *numbers: int) -> list[QueuedMessage]:
        items = self.sent_items(*numbers)
        assert self.queue.keep(route, items)
        return items

    def release(self, route: str) -> None:
        assert self.queue.release(route)

    @property
    def kept(self) -> tuple[int, int]:
        """Messages that are kept, and those that had no room."""
        counters = self.queue.counters()
        return counters["spooled_sent"], counters["spool_sent_refused"]

    def send_without_receipts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The link is up: send what waits. No message gets its receipt."""
        monkeypatch.setattr(self.wire, "awaits_receipt", lambda id: True)
        self.wire.then = None
        self.queue.on_link_up()
        self.send()

    def all_sent(self) -> list[int]:
        """Everything that the next life sends first."""
        self.queue.on_link_up()
        self.send()
        return self.sent


def test_kept_messages_are_sent_again_before_all_that_wait(tmp_path: Path) -> None:
    first = Life(tmp_path, down=True)
    first.offer(*first.numbers(3, 4))
    first.write_all()
    items = first.keep("one", 0, 1)
    first.keep("two", 2)
    first.queue.keep("one", items)  # again: kept once
    first.write()
    assert (first.kept, first.queue.persisted, first.queue.queued) == ((3, 0), 2, 2)
    first.die()
    second = Life(tmp_path)
    assert (second.queue.queued, second.kept) == (5, (0, 0))
    assert second.all_sent() == [0, 1, 2, 3, 4]
    second.write_all()
    second.die()
    assert Life(tmp_path).queue.queued == 0


def test_kept_messages_of_the_second_outage_are_before_those_of_the_first_that_wait(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.keep("one", *range(6))
    first.write()
    first.die()
    second = Life(tmp_path)
    second.send()
    second.write_all()  # the sent ones leave the disk
    second.keep("one", 0, 1, 2)
    second.offer(second.number(6))
    second.keep("one", 3, 4, 5)
    second.write()
    second.die()
    assert Life(tmp_path).all_sent() == list(range(7))


def test_each_kept_message_returns_to_its_class(tmp_path: Path) -> None:
    first = Life(tmp_path, down=True)
    first.offer(first.number(2, UPriority.CS1), first.number(3, UPriority.CS5))
    first.write_all()
    delivery = Delivery(first.gateway, first.queue, None, None)
    sent = [first.number(0, UPriority.CS1), first.number(1, UPriority.CS5)]
    first.queue.keep("one", [first.queue.sent_message(delivery, each) for each in sent])
    first.write()
    first.die()
    assert Life(tmp_path).all_sent() == [1, 3, 0, 2]


def test_a_stop_keeps_what_is_unconfirmed_and_deletes_the_rest(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.keep("one", 0, 1, 2)
    first.write()
    left = first.sent_items(1, 2)
    assert first.queue.reclaim(left) == []
    first.die()
    assert Life(tmp_path).all_sent() == [1, 2]


def test_a_stop_without_unconfirmed_messages_leaves_none_on_disk(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.keep("one", 0, 1, 2)
    first.write()
    assert first.queue.reclaim([]) == []
    first.die()
    assert Life(tmp_path).queue.queued == 0


def test_a_stop_keeps_what_is_on_disk_only(tmp_path: Path) -> None:
    """The memory of the transport has no room for 0 and 1, which have not arrived; 2 and 3 have arrived."""
    first = Life(tmp_path)
    items = first.keep("one", 0, 1, 2, 3, 4)
    first.write()
    on_disk = [items[n].message.id for n in (0, 1, 4)]
    assert first.queue.reclaim(first.sent_items(4), on_disk) == []
    assert first.queue.persisted == 3
    first.die()
    assert Life(tmp_path).all_sent() == [0, 1, 4]


def test_a_stop_on_a_full_disk_reports_only_what_is_not_on_disk(tmp_path: Path) -> None:
    first = Life(tmp_path)
    [zero, one] = first.keep("one", 0, 1)
    first.write()
    [two] = first.sent_items(2)
    left = with_refused_writes(errno.ENOSPC, lambda: first.queue.reclaim([zero, one, two]))
    assert left == [two]
    first.die()
    assert Life(tmp_path).all_sent() == [0, 1]


def test_a_start_on_a_full_disk_loses_no_kept_message(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.keep("one", 0, 1)
    first.write()
    first.die()
    second = with_refused_writes(errno.ENOSPC, lambda: Life(tmp_path, down=True))
    assert isinstance(second, Life)
    assert second.queue.queued == 2
    second.offer(second.number(2))
    second.write_all()
    assert second.queue.persisted == 3
    second.die()
    assert Life(tmp_path).all_sent() == [0, 1, 2]


def test_kept_messages_take_no_room_from_those_that_wait(tmp_path: Path) -> None:
    life = Life(tmp_path, down=True, limits=with_limits(spool_messages=5))
    items = life.sent_items(*range(8))
    assert life.queue.keep("one", items) == [each.message.id for each in items[:5]]
    life.write()
    assert life.kept == (5, 3)
    life.offer(*life.numbers(10, 11, 12, 13, 14))
    life.write_all()
    assert (life.queue.persisted, life.undelivered) == (5, [])
    life.release("one")
    life.keep("one", 8)
    assert life.kept == (1, 3)


def test_a_refusing_disk_is_tried_again(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.keep("one", 0, 1)
    assert with_refused_writes(errno.EIO, life.write) is False
    assert life.write()
    life.die()
    assert Life(tmp_path).all_sent() == [0, 1]


def test_the_receivers_survive_a_kill(tmp_path: Path) -> None:
    life = Life(tmp_path)
    assert life.queue.restored_receivers == []
    assert life.queue.keep_receivers(["a"])
    life.write()
    assert life.queue.keep_receivers(["b", "c"])
    assert with_refused_writes(errno.ENOSPC, life.write) is False
    assert life.write()
    life.keep("one", 0)
    life.write()
    life.die()
    second = Life(tmp_path)
    assert (second.queue.restored_receivers, second.all_sent()) == (["b", "c"], [0])


def test_a_full_disk_refuses_the_receivers_and_loses_no_deletion(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.keep("one", 0)
    life.write()
    life.release("one")
    assert life.queue.keep_receivers(["a"])
    assert with_refused_writes(errno.ENOSPC, life.write) is False
    assert life.write()
    life.die()
    second = Life(tmp_path)
    assert (second.queue.restored_receivers, second.all_sent()) == (["a"], [])


def test_a_message_that_is_released_during_its_write_is_deleted(tmp_path: Path) -> None:
    life = Life(tmp_path)
    commit = life.queue._spool.commit

    def slow_commit(*arguments: object) -> list[bytes]:
        keys = commit(*arguments)  # type: ignore[arg-type]
        life.release("one")
        return keys

    life.queue._spool.commit = slow_commit  # type: ignore[method-assign,assignment]
    life.keep("one", 0, 1)
    life.write()
    assert life.queue.counters()["spooled"] == 2
    life.write()
    assert life.queue.counters()["spooled"] == 0


steps = st.lists(
    st.one_of(
        st.tuples(st.just("keep"), st.sampled_from(ROUTES), st.integers(1, 3)),
        st.tuples(st.just("release"), st.sampled_from(ROUTES), st.just(0)),
        st.tuples(st.just("wait"), st.just(""), st.integers(1, 3)),
        st.tuples(st.just("write"), st.just(""), st.just(0)),
        st.tuples(st.just("refuse"), st.just(""), st.just(0)),
    ),
    max_size=30,
)


class Model:
    """What is on disk. A release takes effect on disk with the next write."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, int]] = []
        self.sent_on_disk: list[tuple[str, int]] = []
        self.waiting: list[int] = []
        self.waiting_on_disk: list[int] = []

    def write(self) -> None:
        self.sent_on_disk = list(self.kept)
        self.waiting_on_disk = list(self.waiting)

    def after_a_kill(self) -> list[int]:
        return [n for _, n in self.sent_on_disk] + self.waiting_on_disk


@settings(max_examples=60, deadline=None)
@given(steps)
def test_after_a_kill_the_disk_has_what_the_model_has(steps: list[tuple[str, str, int]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        life, model, last = Life(Path(name), down=True), Model(), 0
        for kind, route, count in steps:
            numbers, last = list(range(last, last + count)), last + count
            match kind:
                case "keep":
                    life.keep(route, *numbers)
                    model.kept += ((route, n) for n in numbers)
                case "release":
                    life.release(route)
                    model.kept = [each for each in model.kept if each[0] != route]
                case "wait":
                    life.offer(*life.numbers(*numbers))
                    model.waiting += numbers
                case "write":
                    life.write()
                    model.write()
                case "refuse":
                    with_refused_writes(errno.EIO, life.write)
        life.die()
        later = Life(Path(name))
        assert later.all_sent() == model.after_a_kill()
        later.die()


def test_a_batch_is_bounded_by_messages_and_bytes(tmp_path: Path) -> None:
    life, records = Life(tmp_path), SentRecords(LIMITS)
    records.add("one", life.sent_items(0, 1, 2))
    size = life.sent_items(0)[0].size
    assert [len(records.peek_batch(*bounds)) for bounds in ((2, 9 * size), (9, 2 * size), (9, 1))] == [
        2,
        2,
        1,
    ]


@pytest.mark.parametrize("size", [1, 512, 513, 1_500])
def test_any_number_of_messages_is_kept_in_order(tmp_path: Path, size: int) -> None:
    life = Life(tmp_path)
    life.keep("one", *range(size))
    while life.queue._sent_records.has_work:
        assert life.write()
    life.die()
    assert Life(tmp_path).queue.queued == size


def test_the_record_of_a_sent_message_stays_until_its_receipt_or_until_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(tmp_path, down=True)
    unreceipted: set[UUID] = set()
    monkeypatch.setattr(life.wire, "awaits_receipt", unreceipted.__contains__)
    messages = life.numbers(0, 1, 2)
    life.offer(*messages)
    life.write_all()
    assert life.queue.persisted == 3
    life.wire.then = None
    unreceipted.update(each.id for each in messages)
    life.queue.on_link_up()
    life.send()
    assert (life.sent, life.write(), life.queue.counters()["spooled"]) == ([0, 1, 2], True, 3)
    unreceipted.discard(messages[0].id)
    assert (life.write(), life.write(), life.queue.counters()["spooled"]) == (True, True, 2)
    life.keep("one", 1)
    assert (life.write(), life.write(), life.queue.counters()["spooled"]) == (True, True, 2)
    assert life.queue.release("one", [messages[1].id])
    assert (life.write(), life.queue.counters()["spooled"]) == (True, 1)
    life.die()
    again = Life(tmp_path)
    again.send()
    assert again.sent == [2]
    again.die()


def test_single_messages_of_a_route_are_released(tmp_path: Path) -> None:
    life = Life(tmp_path)
    items = life.keep("one", 1, 2, 3)
    life.write()
    assert life.queue.release("one", [items[1].message.id, UUID(7, 7)])
    life.write()
    assert life.kept == (2, 0)
    life.die()
    again = Life(tmp_path)
    again.send()
    assert again.sent == [1, 3]
    again.die()


def test_a_kept_message_is_read_before_and_after_its_write_until_its_release(tmp_path: Path) -> None:
    life = Life(tmp_path)
    message = life.number(1, UPriority.CS4, ttl=60_000)
    [item] = [life.queue.sent_message(life._delivery, message)]
    assert life.queue.keep("one", [item])
    assert life.queue.read_sent("one", message.id) == message
    life.write()
    assert life.queue.read_sent("one", message.id) == message
    assert life.queue.read_sent("two", message.id) is None
    assert life.queue.release("one", [message.id])
    assert life.queue.read_sent("one", message.id) is None
    life.die()


def test_a_message_is_safe_when_it_is_on_disk_or_was_sent_some_time_ago(tmp_path: Path) -> None:
    life = Life(tmp_path, down=True)
    life.clock.now_ns += 1_000_000_000
    received_ns = life.clock.now_ns
    life.offer(life.number(0))
    life.clock.now_ns += 500_000_000
    assert life.queue.safe_before_ns() == received_ns
    life.write()
    assert life.queue.safe_before_ns() == life.clock.now_ns - 10_000_000
    life.die()


def test_what_a_stop_abandons_without_a_disk_is_not_safe(tmp_path: Path) -> None:
    life = Life(tmp_path, down=True)
    received_ns = life.clock.now_ns
    life.offer(life.number(0))
    assert len(life.queue.abandon_all(STOPPED)) == 1
    life.clock.now_ns += 500_000_000
    assert life.queue.safe_before_ns() == received_ns


def test_a_stop_deletes_a_message_that_was_kept_for_two_routes(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.keep("one", 1)
    life.keep("two", 1)
    life.write()
    assert life.queue.reclaim([]) == []
    life.die()
    assert Life(tmp_path).queue.queued == 0


def test_a_message_that_was_on_disk_and_was_sent_is_read_until_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(tmp_path, down=True)
    messages = life.numbers(0, 1, 2)
    life.offer(*messages)
    life.write_all()
    ids = [each.id for each in messages]
    assert life.queue.sent_from_disk(ids) == []  # not sent yet
    life.send_without_receipts(monkeypatch)
    assert life.queue.sent_from_disk(ids[1:]) == messages[1:]
    life.clock.advance(ms=1_001)
    life.write()
    assert life.queue.sent_from_disk(ids) == []


def test_a_stop_keeps_one_record_of_a_message_that_was_kept_for_two_routes(tmp_path: Path) -> None:
    life = Life(tmp_path)
    [item] = life.keep("one", 1)
    life.queue.keep("two", [item])
    life.write()
    assert life.queue.reclaim([], [item.message.id]) == []
    life.die()
    assert Life(tmp_path).all_sent() == [1]


def test_a_stop_keeps_what_was_on_disk_and_was_sent_just_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0 was kept. 1 to 4 waited, and 4 has arrived. The transport has 3 only, as its memory has no room for 0 to 2."""
    life = Life(tmp_path, down=True)
    life.offer(*life.numbers(1, 2, 3, 4))
    life.write_all()
    items = life.keep("one", 0)
    life.write()
    life.send_without_receipts(monkeypatch)
    assert life.sent == [1, 2, 3, 4]
    [one, two, three, four] = [life.number(n).id for n in (1, 2, 3, 4)]
    assert {items[0].message.id, one, two, three, four} == life.queue.sent_ids()
    assert life.queue.reclaim(life.sent_items(3), [items[0].message.id, one, two]) == []
    assert life.queue.persisted == 4
    life.die()
    assert Life(tmp_path).all_sent() == [0, 1, 2, 3]


def test_a_stop_reports_what_was_kept_and_could_not_be_written(tmp_path: Path) -> None:
    life = Life(tmp_path)
    [zero, one] = life.keep("one", 0, 1)
    ids = [zero.message.id, one.message.id]
    left = with_refused_writes(errno.ENOSPC, lambda: life.queue.reclaim([], ids))
    assert left == [zero, one]
    life.die()
    assert Life(tmp_path).queue.queued == 0


def test_a_stop_writes_what_was_kept_for_two_routes_and_not_written_once(tmp_path: Path) -> None:
    life = Life(tmp_path)
    [zero] = life.keep("one", 0)
    life.queue.keep("two", [zero])
    with life.queue._lock:
        assert life.queue._sent_records.unwritten([zero.message.id]) == [zero]
    assert life.queue.reclaim([], [zero.message.id]) == []
    life.die()
    assert Life(tmp_path).all_sent() == [0]


@pytest.mark.parametrize("is_full", [False, True])
def test_a_stop_counts_a_message_once_that_was_sent_from_disk_and_could_not_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_full: bool
) -> None:
    life = Life(tmp_path, down=True)
    life.offer(life.number(1))
    life.write_all()
    life.send_without_receipts(monkeypatch)
    [item] = life.keep("one", 1)  # not written yet

    def reclaim() -> Sequence[QueuedMessage]:
        return life.queue.reclaim([], [item.message.id])

    assert (with_refused_writes(errno.ENOSPC, reclaim) if is_full else reclaim()) == []
    assert (life.queue.persisted, life.queue.ledger.settled[Verdict.DELIVERED]) == (1, 0)
    life.die()
    assert Life(tmp_path).all_sent() == [1]


def test_a_stop_of_a_hung_disk_returns_what_was_kept_and_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(tmp_path)
    [zero] = life.keep("one", 0)
    monkeypatch.setattr(life.queue, "_end_writer", lambda timeout_s: False)
    assert life.queue.reclaim([], [zero.message.id]) == [zero]
    life.die()


def test_the_end_of_the_writer_deletes_nothing_that_a_stop_may_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message without a receipt becomes a second old between `sent_ids` and the last write."""
    life = Life(tmp_path, down=True)
    life.offer(life.number(1))
    life.write_all()
    life.send_without_receipts(monkeypatch)
    [id] = life.queue.sent_ids()
    life.clock.now_ns += 2_000_000_000
    life.queue._stop_writing.set()
    life.keep("one", 2)  # a reason to write
    life.write()
    assert life.queue.reclaim([], [id]) == []
    life.die()
    assert Life(tmp_path).all_sent() == [1]


@pytest.mark.parametrize("was_on_disk", [True, False])
def test_what_a_suspect_node_may_lack_is_not_safe_until_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, was_on_disk: bool
) -> None:
    """A kill loses it, if the node is frozen: its kernel accepts messages that it never reads."""
    life = Life(tmp_path, down=was_on_disk)
    life.clock.now_ns += 1_000 * NS_PER_MS
    life.offer(life.number(0))
    if was_on_disk:
        life.write()
        life.wire.then = None
        life.queue.on_link_up()
    sent_ns = unstored_ns = life.clock.now_ns
    monkeypatch.setattr(life.wire, "unstored_since_ns", lambda: unstored_ns)
    life.send()
    life.clock.now_ns += 500 * NS_PER_MS
    life.write()
    safe_ns = sent_ns - 100 * NS_PER_MS
    assert (life.sent, life.queue.safe_before_ns()) == ([0], safe_ns)
    assert life.queue.counters()["spooled"] == was_on_disk
    life.keep("one", 0)
    unstored_ns = life.clock.now_ns
    assert life.queue.safe_before_ns() == safe_ns  # not written yet
    life.write()
    assert life.queue.safe_before_ns() == unstored_ns - 100 * NS_PER_MS
    assert (life.queue.counters()["spooled"], life.kept) == (1, (1, 0))
    life.die()
