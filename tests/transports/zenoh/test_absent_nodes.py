# SPDX-License-Identifier: Apache-2.0
"""Nodes that return with their id: they had not left. And this process, frozen: no end of a node is a leave."""

from typing import Final

import pytest

from tests.transports.zenoh.test_link_monitor import CLOSE, MS, Kernel, connect_kernel, event, monitor_of
from ustreamer.transports.zenoh import link_monitor
from ustreamer.transports.zenoh.absent_nodes import AbsentNodes, SentTotals
from ustreamer.transports.zenoh.connected_node import ConnectedNode, NodeLoss

START_MS: Final = 20_700
FREEZE_MS: Final = 9_500
LEASE_MS: Final = 10_000
LONGEST_MS: Final = 60_000 + 1_000 + LEASE_MS + 2_000
"""An absence, the time until subscribers are declared, and the time before it."""


class Nodes:
    """A monitor with connected nodes that read everything."""

    def __init__(self, *names: str) -> None:
        self.now_ms = START_MS
        self.links = monitor_of(*names)
        self.kernels = {name: Kernel() for name in names}
        for name, kernel in self.kernels.items():
            connect_kernel(self.links, name, kernel)
        self.links._monotonic_ns = lambda: self.now_ms * MS
        self.links.count_sent = lambda: self.now_ms // 50  # one message per tick
        self.run(START_MS, from_ms=0)

    @property
    def counted(self) -> int:
        return self.links.sent_while_node_lost

    def run(self, ms: int, from_ms: int | None = None) -> None:
        begin_ms = self.now_ms if from_ms is None else from_ms
        for now_ms in range(begin_ms + 50, begin_ms + ms + 1, 50):
            self.links._sample_nodes(now_ms * MS)
            for kernel in self.kernels.values():
                kernel.run(50)
            self.now_ms = now_ms
            self.links._tick(now_ms * MS)

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


def test_a_node_that_is_lost_after_a_suspension_has_not_left(
    one: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The monotonic clock stands still in it."""
    suspended_ns = link_monitor._total_suspended_ns() + FREEZE_MS * MS
    monkeypatch.setattr(link_monitor, "_total_suspended_ns", lambda: suspended_ns)
    one.run(50)
    one.lose("one")
    assert not one.is_gone
    assert one.lost_since_ms <= START_MS


def test_the_acknowledgements_of_the_first_2_s_after_a_freeze_are_not_trusted(one: Nodes) -> None:
    one.freeze(FREEZE_MS)
    one.run(1_900)
    assert one.links.confirmed_ns <= START_MS * MS
    one.run(3_000)
    assert one.links.confirmed_ns > (START_MS + FREEZE_MS) * MS


def test_each_of_two_threads_that_sample_after_a_freeze_detects_it(
    one: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one samples before the first one has distrusted the acknowledgements."""
    distrust = ConnectedNode.distrust_acks

    def sample_first(node: ConnectedNode, until_ns: int) -> None:
        with monkeypatch.context() as second:
            second.setattr(ConnectedNode, "distrust_acks", distrust)
            one.links._sample_nodes(one.now_ms * MS)
        distrust(node, until_ns)

    monkeypatch.setattr(ConnectedNode, "distrust_acks", sample_first)
    one.freeze(FREEZE_MS)
    one.links._sample_nodes(one.now_ms * MS)
    one.lose("one")
    assert one.lost_since_ms <= START_MS


def test_a_node_that_leaves_2_s_after_a_freeze_has_left(one: Nodes) -> None:
    one.freeze(FREEZE_MS)
    one.run(2_500)
    one.lose("one")
    assert one.is_gone
    assert one.lost_since_ms == one.now_ms


def test_a_pause_of_less_than_most_of_a_lease_is_no_freeze(one: Nodes) -> None:
    one.freeze(6_900)
    one.run(50)
    one.lose("one")
    assert one.is_gone


def test_a_stop_just_after_a_freeze_reports_what_a_closed_connection_lost(one: Nodes) -> None:
    one.freeze(FREEZE_MS)
    one.links._sample_nodes(one.now_ms * MS)
    one.kernels["one"].receive(CLOSE)
    one.kernels["one"].ended = True
    one.links.hold_links()
    assert [each.begin_ns <= START_MS * MS for each in one.links.unconfirmed_spans()] == [True]


def test_a_node_that_returns_with_its_id_had_not_left(one: Nodes) -> None:
    one.lose("one")
    had_left = one.is_gone
    one.now_ms += 8
    one.connect("one")
    assert (had_left, one.is_gone) == (True, False)
    assert one.lost_since_ms == START_MS - 100
    one.run(2_000)
    assert one.counted == 0  # its publishers have detected the loss


def test_puts_are_remembered_for_a_second_after_a_node_seems_to_have_left() -> None:
    two = Nodes("one", "two")
    two.run(1_750)
    lost_ms = two.now_ms
    two.lose("one")
    two.run(900)  # a keep-alive came 50 ms after the loss
    assert two.links.confirmed_ns == (lost_ms - 100) * MS
    two.run(3_000)
    assert two.links.confirmed_ns > lost_ms * MS


def test_what_was_sent_while_one_of_two_nodes_was_lost_is_counted() -> None:
    """From 100 ms before the loss until a second after the return, as its subscribers may be declared so late."""
    two = Nodes("one", "two")
    two.lose("one")
    two.run(3_000)
    two.connect("one")
    two.run(950)
    assert two.counted == 0
    two.run(2_000)
    assert two.counted == (100 + 3_000 + 1_000) // 50


def test_what_was_sent_is_counted_although_the_other_node_came_and_went_meanwhile(one: Nodes) -> None:
    one.lose("one")
    one.connect("two")
    one.run(1_000)
    one.lose("two")
    one.connect("one")
    one.run(2_000)
    assert one.counted == (100 + 1_000 + 1_000) // 50


def test_what_was_sent_counts_for_each_of_two_nodes_that_were_lost_together() -> None:
    """One of them received what was put again. It is not known which one."""
    two = Nodes("one", "two")
    two.lose("one")
    two.lose("two")
    two.connect("one")
    two.connect("two")
    two.run(1_500)
    assert two.counted == 2 * (100 + 1_000) // 50


def test_nothing_is_counted_for_a_node_with_another_id() -> None:
    two = Nodes("one", "two")
    two.lose("one")
    two.connect("three")
    two.run(2_000)
    assert two.counted == 0


@pytest.mark.parametrize(("is_cut", "counted"), [(True, 4_500), (False, 0)])
def test_a_stop_counts_for_a_node_that_may_return(is_cut: bool, counted: int) -> None:
    two = Nodes("one", "two")
    two.kernels["one"].is_cut = is_cut
    two.run(4_500)
    two.lose("one")
    two.links.unconfirmed_spans()
    assert two.counted * 50 == pytest.approx(counted, abs=2_600)  # since its last keep-alive
    assert bool(two.counted) is is_cut


def test_a_connection_that_zenoh_forgets_does_not_end_the_absence() -> None:
    two = Nodes("one", "two")
    two.lose("one")
    two.run(3_000)
    two.connect("one")
    two.run(150)
    two.links._remove_forgotten(("one", False), two.links._nodes["one", False], two.now_ms * MS)
    two.connect("one")
    two.run(1_500)
    assert two.counted == (100 + 3_150 + 1_000) // 50


def loss(at_ms: int, since_ms: int, *, is_gone: bool = False) -> NodeLoss:
    return NodeLoss(at_ms * MS, since_ms * MS, is_receiver_gone=is_gone, acked_ns=at_ms * MS)


@pytest.fixture
def absent() -> AbsentNodes:
    return AbsentNodes(LEASE_MS * MS)


def returned(absent: AbsentNodes, at_ms: int) -> list[tuple[str, float]]:
    return [(each.zid, each.since_ns / MS) for each in absent.pop_returned(at_ms * MS)]


def test_a_node_that_is_absent_for_longer_than_a_minute_is_forgotten(absent: AbsentNodes) -> None:
    for zid in ("one", "two"):
        absent.add(zid, loss(5_000, 1_000), has_others=True)
    absent.on_connected("one", 65_000 * MS)
    absent.on_connected("two", 65_001 * MS)
    assert returned(absent, 70_000) == [("one", 1_000)]


def test_a_node_that_is_lost_again_at_once_was_lost_since_its_first_loss(absent: AbsentNodes) -> None:
    absent.add("one", loss(5_000, 1_000), has_others=True)
    absent.on_connected("one", 6_000 * MS)
    absent.add("one", loss(6_100, 6_050), has_others=False)
    absent.on_connected("one", 7_000 * MS)
    assert returned(absent, 8_000) == [("one", 1_000)]


@pytest.mark.parametrize(("acked_ms", "since_ms"), [(29_000, 28_900), (5_000, 30_000 - LEASE_MS - 100)])
def test_with_an_unknown_time_a_node_was_lost_for_a_lease_at_most(
    absent: AbsentNodes, acked_ms: int, since_ms: int
) -> None:
    unknown = NodeLoss(30_000 * MS, 0, is_receiver_gone=True, acked_ns=acked_ms * MS)
    absent.add("one", unknown, has_others=True)
    absent.on_connected("one", 31_000 * MS)
    assert returned(absent, 32_000) == [("one", since_ms)]


def test_64_absent_nodes_are_remembered(absent: AbsentNodes) -> None:
    for number in range(65):
        absent.add(f"{number}", loss(5_000 + number, 1_000), has_others=True)
    for number in range(65):
        absent.on_connected(f"{number}", 6_000 * MS)
    assert returned(absent, 7_000) == [(f"{number}", 1_000) for number in range(1, 65)]


def test_at_a_stop_those_are_absent_that_may_return_and_missed_what_others_received(
    absent: AbsentNodes,
) -> None:
    absent.add("left", loss(5_000, 1_000, is_gone=True), has_others=True)
    absent.add("may return", loss(5_000, 1_000), has_others=True)
    absent.add("was alone", loss(5_000, 1_000), has_others=False)
    absent.add("has returned", loss(5_000, 1_000), has_others=True)
    absent.on_connected("has returned", 5_100 * MS)
    absent._absent["was alone"].has_others = False
    assert [each.zid for each in absent.pop_all(6_000 * MS)] == ["has returned", "may return"]
    assert absent.pop_all(6_000 * MS) == []


@pytest.mark.parametrize(("has_ended", "counted"), [(True, []), (False, ["router"])])
def test_a_lone_router_that_ended_and_was_replaced_is_not_counted(
    absent: AbsentNodes, has_ended: bool, counted: list[str]
) -> None:
    """All its subscribers were lost with it, so they get everything again. One that is cut off may still have some."""
    lost = NodeLoss(5_000 * MS, 5_000 * MS, is_receiver_gone=False, is_router=True, has_ended=has_ended)
    absent.add("router", lost, has_others=False)
    absent.on_connected("next router", 5_100 * MS)
    assert [each.zid for each in absent.pop_all(6_000 * MS)] == counted


def test_one_of_two_routers_that_ended_is_counted_at_a_stop(absent: AbsentNodes) -> None:
    """Its clients may be back at a new router, which the streamer does not know."""
    lost = NodeLoss(5_000 * MS, 5_000 * MS, is_receiver_gone=False, is_router=True, has_ended=True)
    absent.add("router", lost, has_others=True)
    absent.on_connected("next router", 5_100 * MS)
    assert [each.zid for each in absent.pop_all(6_000 * MS)] == ["router"]


def test_the_sent_messages_of_a_time_are_known_to_the_tick() -> None:
    totals = SentTotals(LEASE_MS * MS)
    for tick in range(1, 2_001):
        totals.add(tick * 50 * MS, tick)
    assert totals.sent_since(100_000 * MS) == 0
    assert totals.sent_since(99_999 * MS) == 1
    assert totals.sent_since(50_000 * MS) == 1_000
    assert totals.sent_since(100_000 * MS - LONGEST_MS * MS) == LONGEST_MS // 50
    assert totals.sent_since(0) == LONGEST_MS // 50  # older than what is kept


def test_many_ticks_in_a_short_time_do_not_shorten_the_time_that_is_kept() -> None:
    totals = SentTotals(LEASE_MS * MS)
    for tick in range(1, 100_001):
        totals.add(tick * MS, tick)
    assert totals.sent_since(100_000 * MS - LONGEST_MS * MS) == pytest.approx(LONGEST_MS, abs=50)
    assert totals.sent_since(99_999 * MS) == pytest.approx(1, abs=50)
    assert len(totals._totals) < 2_000


def test_a_further_connection_does_not_end_an_earlier_absence(absent: AbsentNodes) -> None:
    absent.add("one", loss(5_000, 1_000), has_others=True)
    absent.on_connected("one", 6_000 * MS)
    absent.add("one", loss(6_100, 6_050), has_others=False)
    absent.discard("one")
    assert returned(absent, 8_000) == [("one", 1_000)]
    absent.add("one", loss(9_000, 9_000), has_others=True)
    absent.discard("one")
    assert returned(absent, 20_000) == []


def test_a_lone_node_that_seemed_to_have_left_and_returns_late_is_counted(absent: AbsentNodes) -> None:
    """Its publishers have dropped by then what it seemed to have read."""
    for zid, at_ms, is_gone in (("late", 3_001, True), ("soon", 6_000, True), ("lost", 3_001, False)):
        absent.add(zid, loss(at_ms, at_ms, is_gone=is_gone), has_others=False)
        absent.on_connected(zid, 7_000 * MS)
    assert returned(absent, 9_000) == [("late", 2_901)]
