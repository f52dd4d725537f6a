# SPDX-License-Identifier: Apache-2.0
"""Nodes that return with their id: they had not left. And this process, frozen: no end of a node is a leave."""

from types import SimpleNamespace
from typing import Final

import pytest

from tests.transports.zenoh.publisher_bench import MakeBench, numbered, received
from tests.transports.zenoh.test_link_monitor import MS, Kernel, connect_kernel, event, monitor_of
from ustreamer.transports.zenoh.absent_nodes import AbsentNode, AbsentNodes
from ustreamer.transports.zenoh.connected_node import NodeLoss
from ustreamer.transports.zenoh.retransmit import OVERHEAD_BYTES

START_MS: Final = 20_700
FREEZE_MS: Final = 9_500


class Nodes:
    """A monitor with connected nodes that read everything."""

    def __init__(self, *names: str) -> None:
        self.now_ms = START_MS
        self.links = monitor_of(*names)
        self.kernels = {name: Kernel() for name in names}
        for name, kernel in self.kernels.items():
            connect_kernel(self.links, name, kernel)
        self.missed: list[AbsentNode] = []
        self.links.add_return_watcher(self.count_missed)
        self.run(START_MS, from_ms=0)

    def count_missed(self, node: AbsentNode) -> int:
        self.missed.append(node)
        return 1

    def run(self, ms: int, from_ms: int | None = None) -> None:
        begin_ms = self.now_ms if from_ms is None else from_ms
        for now_ms in range(begin_ms + 50, begin_ms + ms + 1, 50):
            self.links._sample_nodes(now_ms * MS)
            for kernel in self.kernels.values():
                kernel.run(50)
            self.links._tick(now_ms * MS)
        self.now_ms = begin_ms + ms

    def freeze(self, ms: int) -> None:
        """This process does nothing; the nodes live on."""
        self.now_ms += ms
        for kernel in self.kernels.values():
            kernel.now_ms += ms
            kernel.receive(9)  # keep-alives

    def lose(self, name: str) -> None:
        del self.kernels[name]
        self.links._apply_event(event(name, here=False), self.now_ms * MS)

    def connect(self, name: str) -> None:
        self.links._apply_event(event(name, here=True), self.now_ms * MS)
        self.kernels[name] = kernel = Kernel()
        kernel.now_ms = kernel.received_at_ms = self.now_ms
        self.links._nodes[name, False].set_link(kernel)  # type: ignore[arg-type]

    @property
    def lost_since_ms(self) -> float:
        return self.links.lost_since_ns(self.now_ms * MS) / MS

    @property
    def is_gone(self) -> bool:
        return self.links.is_receiver_gone(self.now_ms * MS)


@pytest.fixture
def one() -> Nodes:
    return Nodes("one")


def test_a_node_that_is_lost_as_this_process_resumes_has_not_left(one: Nodes) -> None:
    one.freeze(FREEZE_MS)
    one.links._sample_nodes(one.now_ms * MS)  # Zenoh has all puts until now, and loses them
    one.now_ms += 4
    one.lose("one")
    assert not one.is_gone
    assert one.lost_since_ms <= START_MS


def test_the_acknowledgements_of_the_first_2_s_after_a_freeze_are_not_trusted(one: Nodes) -> None:
    one.freeze(FREEZE_MS)
    one.run(1_900)
    assert one.links.confirmed_ns <= START_MS * MS
    one.run(3_000)
    assert one.links.confirmed_ns > (START_MS + FREEZE_MS) * MS


def test_a_node_that_leaves_2_s_after_a_freeze_has_left(one: Nodes) -> None:
    one.freeze(FREEZE_MS)
    one.run(2_500)
    one.lose("one")
    assert one.is_gone
    assert one.lost_since_ms == one.now_ms


def test_a_pause_of_less_than_half_a_lease_is_no_freeze(one: Nodes) -> None:
    one.freeze(4_900)
    one.run(50)
    one.lose("one")
    assert one.is_gone


def test_a_node_that_returns_with_its_id_had_not_left(one: Nodes) -> None:
    one.lose("one")
    had_left = one.is_gone
    one.now_ms += 8
    one.connect("one")
    assert (had_left, one.is_gone) == (True, False)
    assert one.lost_since_ms == START_MS - 100
    one.run(1_000)
    assert one.missed == []  # its publishers have detected the loss


def test_what_one_of_two_nodes_may_have_missed_is_counted_when_its_subscribers_are_declared() -> None:
    two = Nodes("one", "two")
    two.lose("one")
    two.run(3_000)
    two.connect("one")
    two.run(200)
    assert two.missed == []
    two.run(1_000)
    assert [(each.zid, each.since_ns) for each in two.missed] == [("one", (START_MS - 100) * MS)]


def test_a_node_that_returns_before_another_one_is_lost_may_have_missed_messages() -> None:
    two = Nodes("one", "two")
    two.lose("one")
    two.lose("two")
    two.connect("one")
    two.connect("two")
    two.run(500)
    assert sorted((each.zid, each.is_alone) for each in two.missed) == [("one", False), ("two", False)]


def test_puts_are_remembered_for_a_second_after_a_node_seems_to_have_left() -> None:
    two = Nodes("one", "two")
    two.run(1_750)
    lost_ms = two.now_ms
    two.lose("one")
    two.run(900)  # a keep-alive came 50 ms after the loss
    assert two.links.confirmed_ns == (lost_ms - 100) * MS
    two.run(3_000)
    assert two.links.confirmed_ns > lost_ms * MS


def test_puts_are_remembered_while_a_frozen_node_is_absent() -> None:
    two = Nodes("one", "two")
    two.kernels["one"].is_cut = True
    two.run(4_500)
    two.lose("one")
    two.run(30_000)
    assert two.links.confirmed_ns <= START_MS * MS
    two.connect("one")
    two.run(5_000)
    assert two.links.confirmed_ns > (START_MS + 34_500) * MS


def test_a_node_with_another_id_has_missed_nothing() -> None:
    two = Nodes("one", "two")
    two.lose("one")
    two.connect("three")
    two.run(1_000)
    assert two.missed == []


def loss(at_ms: int, since_ms: int, *, is_gone: bool = False) -> NodeLoss:
    return NodeLoss(at_ms * MS, since_ms * MS, is_receiver_gone=is_gone, acked_ns=at_ms * MS)


def test_puts_are_needed_until_an_absent_node_has_returned() -> None:
    absent = AbsentNodes()
    absent.add("one", loss(5_000, 1_000), has_others=True)
    assert absent.needed_since_ns(9_000 * MS) == 1_000 * MS
    absent.on_connected("one", 9_000 * MS, has_others=True)
    assert absent.needed_since_ns(9_100 * MS) == 1_000 * MS
    assert [each.zid for each in absent.pop_returned(9_300 * MS)] == ["one"]
    assert absent.needed_since_ns(9_300 * MS) > 1 << 61


@pytest.mark.parametrize(("is_gone", "has_others"), [(True, True), (False, False)])
def test_puts_are_not_needed_for_a_node_that_left_or_that_was_the_only_one(
    is_gone: bool, has_others: bool
) -> None:
    absent = AbsentNodes()
    absent.add("one", loss(5_000, 1_000, is_gone=is_gone), has_others=has_others)
    assert absent.needed_since_ns(5_100 * MS) > 1 << 61


def test_a_node_that_is_absent_for_longer_than_a_minute_is_forgotten() -> None:
    absent = AbsentNodes()
    absent.add("one", loss(5_000, 1_000), has_others=True)
    assert absent.needed_since_ns(65_000 * MS) == 1_000 * MS
    assert absent.needed_since_ns(65_001 * MS) > 1 << 61
    absent.on_connected("one", 65_001 * MS, has_others=True)
    assert absent.pop_returned(70_000 * MS) == []


def test_a_node_that_is_lost_again_at_once_has_missed_messages_since_its_first_loss() -> None:
    absent = AbsentNodes()
    absent.add("one", loss(5_000, 1_000), has_others=True)
    absent.on_connected("one", 6_000 * MS, has_others=True)
    absent.add("one", loss(6_100, 6_050), has_others=False)
    absent.on_connected("one", 7_000 * MS, has_others=False)
    assert [each.since_ns for each in absent.pop_returned(7_250 * MS)] == [1_000 * MS]


def test_64_absent_nodes_are_remembered() -> None:
    absent = AbsentNodes()
    for number in range(65):
        absent.add(f"{number}", loss(5_000, 1_000), has_others=True)
    for number in range(65):
        absent.on_connected(f"{number}", 6_000 * MS, has_others=True)
    returned = [each.zid for each in absent.pop_returned(7_000 * MS)]
    assert returned == [f"{number}" for number in range(1, 65)]


def absent_node(*, is_alone: bool = True, returned_ns: int = 1 << 61) -> AbsentNode:
    return AbsentNode("one", loss(0, 0), has_others=True, is_alone=is_alone, returned_ns=returned_ns)


@pytest.mark.parametrize(
    ("is_alone", "returned_ns", "counted"),
    [
        pytest.param(True, 1 << 61, 3, id="the publisher kept its subscribers"),
        pytest.param(True, 0, 0, id="the publisher lost them and has put all again"),
        pytest.param(False, 0, 3, id="another node was absent too"),
    ],
)
def test_the_messages_that_a_node_may_have_missed_are_counted_once(
    make_bench: MakeBench, is_alone: bool, returned_ns: int, counted: int
) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(*(numbered(n) for n in range(3)))
    assert received(subscriber, 3) == [0, 1, 2]
    for each in bench.publishers:
        each.lost_ns = 1 << 60
    node = absent_node(is_alone=is_alone, returned_ns=returned_ns)
    assert bench.sender._possible_losses._count_missed(node) == counted
    assert bench.sender.not_retransmitted == counted


def test_evicted_messages_that_a_node_may_have_missed_are_counted_once(make_bench: MakeBench) -> None:
    bench = make_bench(bytes=2 * (OVERHEAD_BYTES + 1))
    subscriber = bench.listen()
    bench.put(*(numbered(n) for n in range(5)))
    assert received(subscriber, 5) == [0, 1, 2, 3, 4]
    losses = bench.sender._possible_losses
    assert [losses._count_missed(absent_node()) for _ in range(2)] == [5, 2]


def test_messages_that_wait_for_a_subscriber_are_not_counted(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(numbered(0))
    bench.unsubscribe(subscriber)
    assert bench.sender._possible_losses._count_missed(absent_node()) == 0


def test_with_receivers_that_give_receipts_nothing_is_counted(make_bench: MakeBench) -> None:
    bench = make_bench()
    subscriber = bench.listen()
    bench.put(numbered(0))
    assert received(subscriber, 1) == [0]
    losses = bench.sender._possible_losses
    losses._receipts = SimpleNamespace(has_receivers=True)  # type: ignore[assignment]
    assert losses._count_missed(absent_node()) == 0
