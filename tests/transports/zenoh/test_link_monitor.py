# SPDX-License-Identifier: Apache-2.0
"""The possible losses with a node, from the kernel's state of its link."""

import socket
from types import SimpleNamespace
from typing import Any, Final

import pytest
import zenoh

from ustreamer.core.base.clock import ManualClock
from ustreamer.transport_port import EndpointContext
from ustreamer.transports.zenoh import link_monitor
from ustreamer.transports.zenoh.connected_node import ConnectedNode, NodeLoss
from ustreamer.transports.zenoh.link_monitor import LinkMonitor
from ustreamer.transports.zenoh.tcp_info import LinkEnd, TcpState

MS: Final = 1_000_000
CLOSE: Final = 5  # the end of the stream counts


class Kernel:
    """A link with a simulated state. Messages are put all the time: 10 bytes per sample of 50 ms."""

    def __init__(self, *, is_router: bool = False) -> None:
        self.now_ms = 0
        self.node = ConnectedNode(0, is_router=is_router)
        self.node.link = self  # type: ignore[assignment]
        self.received = self.acked = self.written = 0
        self.received_at_ms = self.acked_at_ms = 0
        self.frozen = self.is_cut = self.is_full = False
        self.in_flight = 0
        """The data without acknowledgement at the time of the check, as on a busy link."""
        self.ended = self.is_closed = self.is_released = self.is_shut_down = False
        self.unread = 0

    def release(self) -> None:
        self.is_released = True

    def shut_down(self) -> None:
        assert not self.is_released
        self.is_shut_down = True

    def state(self) -> TcpState:
        return TcpState(
            peer_open=not self.ended,
            acked=self.acked,
            unacked=self.written - self.acked,
            received_ago_ms=self.now_ms - self.received_at_ms,
            received=self.received,
            unread=self.unread,
            acked_ago_ms=self.now_ms - self.acked_at_ms,
        )

    def receive(self, size: int) -> None:
        self.received += size
        self.received_at_ms = self.now_ms

    def run(self, ms: int) -> None:
        """Advance the time, with a sample every 50 ms and, unless the node is away, a keep-alive every 2.5 s."""
        for _ in range(ms // 50):
            self.now_ms += 50
            self.written += 10
            if not self.is_cut and (not self.is_full or self.now_ms % 1_000 == 0):
                self.acked_at_ms = self.now_ms  # of a full buffer: the answer to a probe
            if not (self.is_full or self.is_cut):
                self.acked = max(self.acked, self.written - self.in_flight)
                if not self.frozen and self.now_ms % 2_500 == 0:
                    self.receive(3)
            self.node.sample(self.now_ms * MS)

    def lost_ms(self) -> float:
        """The time before the loss since which puts may be lost."""
        self.node.sample(self.now_ms * MS)
        return self.now_ms - self.node.loss(self.now_ms * MS).since_ns / MS


@pytest.fixture
def monitor() -> LinkMonitor:
    return LinkMonitor(EndpointContext("backbone", "alpha", ManualClock().clock()))


@pytest.fixture
def kernel() -> Kernel:
    kernel = Kernel()
    kernel.run(20_700)
    return kernel


@pytest.mark.parametrize(
    ("waits_ms", "reads", "unread", "counted"),
    [
        pytest.param(2_000, False, 70_000, True, id="nothing was read for two seconds"),
        pytest.param(500, False, 70_000, False, id="nothing was read for half a second"),
        pytest.param(2_000, True, 70_000, False, id="reads slowly"),
        pytest.param(2_000, False, 0, False, id="all is read at the end"),
        pytest.param(0, False, 70_000, False, id="data and the end came together"),
    ],
)
def test_a_node_that_ends_its_link_while_its_data_waits_is_counted(
    kernel: Kernel, monitor: LinkMonitor, waits_ms: int, reads: bool, unread: int, counted: bool
) -> None:
    kernel.frozen = True  # no keep-alive arrives behind the unread data
    for _ in range(waits_ms // 50):
        kernel.unread = 90_000
        if reads:
            kernel.receive(10)
        kernel.run(50)
    kernel.unread = unread
    kernel.ended = True
    kernel.run(50)
    monitor._nodes["a", False] = kernel.node
    monitor._remove_node(("a", False), kernel.now_ms * MS)
    assert monitor.closed_unread == counted
    assert monitor.closed_stalled == 0


@pytest.mark.parametrize(("ms", "counted"), [(4_500, True), (3_000, False)])
def test_the_end_of_a_link_to_a_stalled_node_is_counted(
    kernel: Kernel, monitor: LinkMonitor, ms: int, counted: bool
) -> None:
    kernel.is_full = True
    kernel.run(ms)
    kernel.is_closed = True  # by Zenoh, on this side
    monitor._nodes["a", False] = kernel.node
    monitor._remove_node(("a", False), kernel.now_ms * MS)
    assert (monitor.closed_stalled, monitor.closed_unread) == (counted, 0)


@pytest.mark.parametrize(
    ("is_full", "frozen", "is_cut", "ms", "stopped"),
    [
        pytest.param(True, False, False, 4_500, True, id="its buffer is full"),
        pytest.param(True, True, False, 9_000, True, id="frozen, and its buffer is full"),
        pytest.param(False, True, False, 10_000, True, id="frozen, and its kernel has room"),
        pytest.param(False, False, True, 4_500, False, id="cut off for the time of a stall"),
        pytest.param(False, False, True, 10_000, False, id="cut off"),
        pytest.param(False, False, False, 10_000, False, id="alive"),
    ],
)
def test_a_node_that_has_stopped_is_not_cut_off(
    kernel: Kernel, is_full: bool, frozen: bool, is_cut: bool, ms: int, stopped: bool
) -> None:
    kernel.is_full, kernel.frozen, kernel.is_cut = is_full, frozen, is_cut
    kernel.run(ms)
    assert kernel.node.has_stopped(kernel.now_ms * MS) is stopped


@pytest.mark.parametrize("has_stopped", [True, False])
def test_the_end_of_a_stopped_node_is_known_for_its_subscribers_after_others_join(
    kernel: Kernel, *, has_stopped: bool
) -> None:
    monitor = monitor_of("b")
    kernel.is_full = has_stopped
    kernel.run(5_000)
    monitor._nodes["a", False] = kernel.node
    monitor._remove_node(("a", False), kernel.now_ms * MS)
    monitor._apply_event(event("c", here=True), kernel.now_ms * MS)
    assert monitor.stopped_ns(kernel.now_ms * MS) == (kernel.now_ms * MS if has_stopped else None)
    assert monitor.stopped_ns((kernel.now_ms + 1_000) * MS) is None


def test_a_node_that_closes_its_session_has_read_everything(kernel: Kernel) -> None:
    kernel.receive(CLOSE)
    kernel.ended = True
    assert kernel.lost_ms() == 0


def test_a_node_whose_socket_zenoh_closed_has_read_all_data(kernel: Kernel) -> None:
    kernel.is_closed = True
    assert kernel.lost_ms() == 0


def test_a_node_that_sent_and_closed_has_read_everything(kernel: Kernel) -> None:
    kernel.now_ms += 50
    kernel.receive(200 + CLOSE)
    kernel.ended = True
    assert kernel.lost_ms() == 0


@pytest.mark.parametrize(("is_router", "lost_ms"), [(True, 100), (False, 0)])
def test_a_router_that_answered_just_before_its_end_may_have_been_killed(
    is_router: bool, lost_ms: int
) -> None:
    kernel = Kernel(is_router=is_router)
    kernel.run(20_700)
    kernel.receive(13)  # the answer to a query
    kernel.node.sample(kernel.now_ms * MS)
    kernel.now_ms += 3
    kernel.received += 1
    kernel.ended = True
    assert kernel.lost_ms() == lost_ms + 3 * is_router


def test_a_close_that_a_sample_divides_is_a_close(kernel: Kernel) -> None:
    """The Close message and the end of the stream come milliseconds apart."""
    kernel.receive(CLOSE - 1)
    kernel.run(50)
    kernel.received += 1
    kernel.ended = True
    assert kernel.lost_ms() == 0


def test_later_samples_judge_an_end_no_more(kernel: Kernel) -> None:
    kernel.now_ms += 50
    kernel.receive(200 + CLOSE)
    kernel.ended = True
    kernel.node.sample(kernel.now_ms * MS)
    kernel.now_ms += 20
    assert kernel.lost_ms() == 0


def test_a_killed_node_loses_the_last_moments(kernel: Kernel) -> None:
    kernel.received += 1  # the end of the stream counts
    kernel.ended = True
    assert kernel.lost_ms() == 100


def test_a_killed_node_loses_the_last_moments_also_if_zenoh_has_closed_its_socket(kernel: Kernel) -> None:
    kernel.received += 1
    kernel.ended = kernel.is_closed = True
    assert kernel.lost_ms() == 100


def test_a_node_that_is_killed_just_after_a_keep_alive_has_not_closed_its_session(kernel: Kernel) -> None:
    kernel.receive(3 + 1)
    kernel.ended = True
    assert kernel.lost_ms() == 100


@pytest.mark.parametrize(("is_router", "lost_ms"), [(True, 700 + 100), (False, 100)])
def test_a_killed_router_with_unread_data_may_have_been_frozen(is_router: bool, lost_ms: int) -> None:
    """Since it last sent something; a client or peer ends with what it had not read."""
    kernel = Kernel(is_router=is_router)
    kernel.run(20_700)
    kernel.ended = True
    assert kernel.lost_ms() == lost_ms


@pytest.mark.parametrize("is_router", [True, False])
def test_a_stop_reports_no_puts_to_a_killed_client(is_router: bool) -> None:
    links = monitor_of("killed")
    kernel = Kernel(is_router=is_router)
    connect_kernel(links, "killed", kernel)
    run(links, kernel, 2_700)
    kernel.received += 1  # the end of the stream counts
    kernel.ended = True
    links._sample_nodes(kernel.now_ms * MS)
    links._apply_event(event("killed", here=False), kernel.now_ms * MS)
    begins_ns = [each.begin_ns for each in links.unconfirmed_spans()]
    assert begins_ns == ([2_600 * MS] if is_router else [])
    assert links.is_receiver_gone(kernel.now_ms * MS) is not is_router


@pytest.mark.parametrize(
    ("end", "is_router", "is_reported"),
    [
        (LinkEnd.READ, True, False),
        (LinkEnd.READ, False, False),
        (LinkEnd.UNREAD, True, True),
        (LinkEnd.UNREAD, False, False),
        (LinkEnd.NONE, True, True),
        (LinkEnd.NONE, False, True),
    ],
)
def test_a_stop_reports_puts_to_nodes_that_may_miss_them(
    end: LinkEnd, is_router: bool, is_reported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client or peer that ends while our session closes is gone with what it had not read."""
    monkeypatch.setattr(link_monitor, "wait_link_end", lambda *_: end)
    links = monitor_of()
    with socket.socket() as held:
        links._held.append((held, 7 * MS, is_router))
        assert [each.begin_ns for each in links.unconfirmed_spans()] == ([7 * MS] if is_reported else [])


def test_after_the_end_no_node_is_connected_and_a_stop_still_reports_puts_to_a_router_that_resumed() -> None:
    links, kernel = monitor_of("router"), Kernel(is_router=True)
    connect_kernel(links, "router", kernel)
    run(links, kernel, 20_700)
    kernel.frozen = True
    run(links, kernel, 6_000)
    kernel.receive(3)
    run(links, kernel, 50)
    spans = links.unconfirmed_spans()
    assert [each.begin_ns for each in spans] == [(20_000 - 100) * MS]
    links.close()
    assert (len(links), links.connected.is_set(), links.up) == (0, False, False)
    assert links.unconfirmed_spans() == spans


@pytest.mark.parametrize("late_ms", [10, 150, 290, 1_000])
def test_puts_until_the_detection_of_a_killed_node_are_lost(kernel: Kernel, late_ms: int) -> None:
    """On a busy machine: puts into the dead connection are lost too."""
    kernel.ended = True
    kernel.now_ms += late_ms
    assert kernel.lost_ms() == late_ms + 100


def test_a_killed_node_that_was_sending_loses_the_last_moments(kernel: Kernel) -> None:
    for _ in range(10):
        kernel.receive(100)
        kernel.run(100)
    kernel.receive(100)
    kernel.ended = True
    assert kernel.lost_ms() == 100


def test_puts_since_a_node_froze_are_lost(kernel: Kernel) -> None:
    kernel.frozen = True  # its kernel keeps acknowledging; its last data arrived at 20 000
    kernel.run(9_300)
    kernel.is_closed = True
    assert kernel.lost_ms() == 10_000 + 100


def test_puts_since_a_node_froze_are_lost_although_its_buffer_was_soon_full(kernel: Kernel) -> None:
    kernel.frozen = True
    kernel.run(500)
    kernel.is_full = True
    kernel.run(8_800)
    kernel.is_closed = True
    assert kernel.lost_ms() == 10_000 + 100


@pytest.mark.parametrize("frozen_ms", [0, 500])
def test_puts_since_the_last_sign_of_life_are_lost_with_a_cable_cut(kernel: Kernel, frozen_ms: int) -> None:
    """The node may have frozen before the cut: its kernel acknowledged what the node has not read."""
    kernel.frozen = True
    kernel.run(frozen_ms)
    kernel.is_cut = True
    kernel.run(9_300 - frozen_ms)
    kernel.is_closed = True
    assert kernel.lost_ms() == 10_000 + 100


def test_a_cable_cut_after_a_freeze_changes_nothing(kernel: Kernel) -> None:
    kernel.frozen = True
    kernel.run(5_000)
    kernel.is_cut = True
    kernel.run(4_300)
    kernel.is_closed = True
    assert kernel.lost_ms() == 10_000 + 100


def test_keep_alives_of_a_node_that_reads_nothing_confirm_no_puts(kernel: Kernel) -> None:
    """A router waits for a stalled application: it sends, and its kernel answers probes. Then the cable is cut."""
    kernel.is_full = True
    kernel.run(3_000)
    kernel.receive(3)
    kernel.is_full, kernel.is_cut = False, True
    kernel.run(6_300)
    kernel.is_closed = True
    assert kernel.lost_ms() == 3_000 + 6_300 + 100


def test_puts_during_an_ecu_restart_are_lost(kernel: Kernel) -> None:
    kernel.is_cut = True
    kernel.run(2_000)
    kernel.ended = True
    assert kernel.lost_ms() == 2_000 + 100


def test_a_busy_link_can_be_known_to_keep_up(kernel: Kernel) -> None:
    kernel.in_flight = 10
    kernel.run(5_000)
    kernel.received += 1  # killed
    kernel.ended = True
    assert kernel.lost_ms() == 50 + 100  # bytes written by the previous sample are known to have arrived


def test_reads_of_a_slow_node_do_not_acknowledge_its_backlog(kernel: Kernel) -> None:
    kernel.is_cut = True
    for _ in range(20):
        kernel.run(50)
        kernel.acked += 5
    kernel.ended = True
    assert kernel.lost_ms() == 1_000 + 100


def test_the_backlog_of_a_link_closed_by_zenoh_is_lost(kernel: Kernel) -> None:
    kernel.run(1_800)  # it has spoken just now, so that its lease is not over
    kernel.is_cut = True
    kernel.run(3_000)
    kernel.is_closed = True
    kernel.is_cut = False
    kernel.run(200)  # its kernel gets what ours had, without what Zenoh has discarded
    assert kernel.lost_ms() == 3_200 + 100


def test_progress_after_an_outage_does_not_acknowledge_the_backlog_in_zenoh(
    kernel: Kernel,
) -> None:
    kernel.is_cut = True
    kernel.run(5_000)
    waiting = kernel.written - kernel.acked
    kernel.acked = kernel.written  # it gets through just now, and as much is written for it
    kernel.written += waiting
    kernel.now_ms += 50
    kernel.receive(3)
    kernel.node.sample(kernel.now_ms * MS)
    kernel.ended = True
    assert kernel.lost_ms() == 5_050 + 100


def test_a_link_that_survives_an_outage_is_trusted_again(kernel: Kernel) -> None:
    kernel.is_cut = True
    kernel.run(5_000)
    kernel.is_cut = False
    kernel.run(2_500)
    kernel.is_cut = True
    kernel.run(9_300)
    kernel.is_closed = True
    assert kernel.lost_ms() == 10_000 + 100


def confirmed_ago_ms(kernel: Kernel) -> float:
    return kernel.now_ms - kernel.node.confirmed_ns / MS


def test_puts_before_the_last_sign_of_life_are_confirmed(kernel: Kernel) -> None:
    """The last keep-alive of this kernel came at 20 000, and all its data is acknowledged."""
    assert confirmed_ago_ms(kernel) == 700 + 100
    kernel.receive(1)
    kernel.run(50)
    assert confirmed_ago_ms(kernel) == 50 + 100


def test_a_frozen_node_confirms_nothing_although_its_kernel_acknowledges(kernel: Kernel) -> None:
    kernel.frozen = True
    kernel.run(2_600)
    assert confirmed_ago_ms(kernel) == 3_300 + 100
    assert not kernel.node.is_suspect(kernel.now_ms * MS)
    kernel.run(100)
    assert kernel.node.is_suspect(kernel.now_ms * MS)


def test_a_node_that_stops_reading_is_suspect_before_its_lease_ends(kernel: Kernel) -> None:
    kernel.is_cut = True
    kernel.run(300)
    assert not kernel.node.is_suspect(kernel.now_ms * MS)
    kernel.run(50)
    assert kernel.node.is_suspect(kernel.now_ms * MS)
    kernel.is_cut = False
    kernel.run(50)
    assert not kernel.node.is_suspect(kernel.now_ms * MS)


def test_puts_to_a_node_that_is_always_behind_are_confirmed_after_2_mb_more(kernel: Kernel) -> None:
    """It never catches up with what was written 50 ms ago."""
    kernel.in_flight = 1_000_000
    for _ in range(400):
        kernel.written += 99_990
        kernel.run(50)
        kernel.receive(1)
    behind_ms = (1_000_000 + 2 * 2**20) / 100_000 * 50
    assert behind_ms + 100 <= confirmed_ago_ms(kernel) <= behind_ms + 100 + 150


def test_a_node_with_unknown_connection_may_lose_everything() -> None:
    assert ConnectedNode(0, is_router=True).loss(20_000 * MS).since_ns == 0


def monitor_of(*names: str) -> LinkMonitor:
    """Links to these nodes."""
    links = LinkMonitor(EndpointContext("backbone", "hpc", ManualClock().clock()))
    for name in names:
        links._apply_event(event(name, here=True), 0)
        connect_kernel(links, name, Kernel())
    return links


def node_loss(at_ms: int, since_ms: int) -> NodeLoss:
    return NodeLoss(at_ms * MS, since_ms * MS, is_receiver_gone=False)


def event(name: str, *, here: bool, is_router: bool = False) -> zenoh.TransportEvent:
    whatami = zenoh.WhatAmI.ROUTER if is_router else zenoh.WhatAmI.CLIENT
    happened: Any = SimpleNamespace(
        kind=zenoh.SampleKind.PUT if here else zenoh.SampleKind.DELETE,
        transport=SimpleNamespace(zid=name, is_multicast=False, whatami=whatami),
    )
    return happened  # type: ignore[no-any-return]


def connect_kernel(links: LinkMonitor, name: str, kernel: Kernel) -> None:
    links._nodes[name, False] = kernel.node


def test_a_lost_subscriber_belongs_to_the_node_lost_at_the_same_time() -> None:
    links = monitor_of("there")
    links._losses.extend([node_loss(10_000, 9_900), node_loss(10_030, 10_030)])
    assert links.lost_since_ns(10_002 * MS) == 9_900 * MS
    assert links.lost_since_ns(10_028 * MS) == 10_030 * MS
    # Behind a connected node, which has read everything.
    assert links.lost_since_ns(12_000 * MS) == 12_000 * MS
    assert monitor_of().lost_since_ns(5) == 5


@pytest.mark.parametrize(
    ("is_router", "frozen_ms", "is_lost"), [(True, 8_000, True), (True, 4_000, False), (False, 8_000, False)]
)
def test_a_router_that_resumes_after_most_of_a_lease_may_have_dropped_its_clients(
    is_router: bool, frozen_ms: int, is_lost: bool
) -> None:
    """Real routers: `python -m tests.e2e.delivery.stop_scenarios resume`."""
    links, kernel = monitor_of("router"), Kernel(is_router=is_router)
    connect_kernel(links, "router", kernel)
    run(links, kernel, 5_000)
    kernel.frozen = True
    run(links, kernel, frozen_ms)
    kernel.frozen = False
    kernel.now_ms += 20
    kernel.receive(3)
    links.sample()  # the clients are lost: a Zenoh thread samples
    kernel.node.sample(kernel.now_ms * MS)
    assert links.lost_since_ns(kernel.now_ms * MS) == (4_900 if is_lost else kernel.now_ms) * MS
    run(links, kernel, 900)
    assert (links.confirmed_ns == 4_900 * MS) is is_lost  # publishers may not have noticed
    run(links, kernel, 1_000)
    assert links.lost_since_ns(kernel.now_ms * MS) == kernel.now_ms * MS
    assert links.confirmed_ns > 10_000 * MS or not is_lost


@pytest.mark.parametrize(
    ("is_router", "after_ms", "is_lost"), [(True, 900, True), (True, 1_000, False), (False, 5, False)]
)
def test_a_router_that_has_just_connected_may_have_resumed_and_dropped_its_clients(
    is_router: bool, after_ms: int, is_lost: bool
) -> None:
    """Whole: the known story "11 a streamer starts while its router is frozen" of the simulation."""
    links, kernel = monitor_of("router"), Kernel(is_router=is_router)
    connect_kernel(links, "router", kernel)
    kernel.node.joined_ns = joined_ns = 10 * MS
    run(links, kernel, after_ms)
    noticed_ns = joined_ns + after_ms * MS
    assert links.lost_since_ns(noticed_ns) == (joined_ns if is_lost else noticed_ns)
    assert links.unconfirmed_spans() == []


def test_what_a_router_has_answered_in_its_first_second_is_remembered_for_a_second() -> None:
    links, kernel = monitor_of("router"), Kernel(is_router=True)
    connect_kernel(links, "router", kernel)
    kernel.node.joined_ns = 10 * MS
    run(links, kernel, 800)
    kernel.receive(3)
    run(links, kernel, 100)
    assert links.confirmed_ns <= 10 * MS
    run(links, kernel, 200)
    assert links.confirmed_ns > 600 * MS


def test_a_known_loss_counts_before_that_of_a_new_router() -> None:
    links = monitor_of("only")
    links._apply_event(event("only", here=False), 10_000 * MS)
    since_ns = links._losses[0].since_ns
    router = Kernel(is_router=True)
    links._apply_event(event("router", here=True), 12_000 * MS)
    connect_kernel(links, "router", router)
    router.node.joined_ns = 12_000 * MS
    assert links.lost_since_ns(12_500 * MS) == since_ns


def test_all_subscribers_are_lost_with_the_last_node() -> None:
    links = monitor_of("only")
    assert links._apply_event(event("only", here=False), 10_000 * MS)
    assert links.lost_since_ns(17_000 * MS) == links._losses[0].since_ns < 10_000 * MS
    assert links._apply_event(event("only", here=True), 20_000 * MS)
    assert links.lost_since_ns(20_500 * MS) < 10_000 * MS
    assert links.lost_since_ns(22_000 * MS) == 22_000 * MS  # of another outage


def test_a_node_is_lost_with_its_connection_before_zenoh_reports_it() -> None:
    links = monitor_of("cut", "there")
    kernel = Kernel()
    connect_kernel(links, "cut", kernel)
    kernel.run(5_000)
    kernel.is_cut = True
    kernel.run(10_000)
    links._tick(kernel.now_ms * MS)
    assert len(links) == 2
    kernel.is_closed = True
    links._tick(kernel.now_ms * MS)
    assert len(links) == 1
    # Another lease later Zenoh reports the node as lost, and only then its subscribers.
    assert not links._apply_event(event("cut", here=False), 25_000 * MS)
    assert len(links) == 1
    assert links.lost_since_ns(25_010 * MS) == 4_900 * MS


def run(links: LinkMonitor, kernel: Kernel, ms: int) -> None:
    for _ in range(ms // 50):
        kernel.run(50)
        links._tick(kernel.now_ms * MS)


def test_a_link_without_progress_for_4_s_is_down_until_progress(kernel: Kernel) -> None:
    links = monitor_of("slow")
    connect_kernel(links, "slow", kernel)
    notified: list[bool] = []
    links.add_watcher(notified.append)
    kernel.is_cut = True
    run(links, kernel, 4_000)
    assert links.up
    run(links, kernel, 50)
    assert (links.up, notified) == (False, [False])
    kernel.is_cut = False
    run(links, kernel, 50)
    assert (links.up, notified) == (True, [False, True])


def test_the_puts_of_a_lost_node_count_as_confirmed_when_publishers_have_noticed(kernel: Kernel) -> None:
    links = monitor_of("lost", "there")
    connect_kernel(links, "lost", Kernel())
    connect_kernel(links, "there", kernel)
    run(links, kernel, 1_000)
    links._losses.append(node_loss(kernel.now_ms, 12_000))
    run(links, kernel, 50)
    assert links.confirmed_ns <= 12_000 * MS
    links._nodes.pop(("lost", False))
    run(links, kernel, 900)
    assert links.confirmed_ns == 12_000 * MS
    run(links, kernel, 100)
    assert links.confirmed_ns > 15_000 * MS


def test_a_link_with_little_progress_or_no_data_is_up(
    kernel: Kernel,
) -> None:
    links = monitor_of("slow")
    connect_kernel(links, "slow", kernel)
    kernel.is_cut = True
    for _ in range(10):
        run(links, kernel, 2_000)
        kernel.acked += 1
        assert links.up
    kernel.acked = kernel.written
    for _ in range(200):
        kernel.now_ms += 50
        links._tick(kernel.now_ms * MS)
        assert links.up


def test_one_stalled_node_of_several_keeps_the_link_up(kernel: Kernel) -> None:
    links = monitor_of("stuck", "there")
    connect_kernel(links, "stuck", kernel)
    kernel.is_cut = True
    run(links, kernel, 6_000)
    assert links.up


def test_one_of_two_nodes_that_reads_nothing_is_suspect(kernel: Kernel) -> None:
    links, there = monitor_of("stuck", "there"), Kernel()
    there.run(kernel.now_ms)
    connect_kernel(links, "stuck", kernel)
    connect_kernel(links, "there", there)
    for is_cut in (False, True, False):
        kernel.is_cut = is_cut
        for _ in range(10):
            there.run(50)
            run(links, kernel, 50)
        assert (links.all_suspect, links.any_suspect) == (False, is_cut)


def test_a_suspicion_is_reported_for_people_after_a_second_without_progress(kernel: Kernel) -> None:
    links, there = monitor_of("stuck", "there"), Kernel()
    there.run(kernel.now_ms)
    connect_kernel(links, "stuck", kernel)
    run(links, kernel, 50)
    kernel.is_cut = True
    run(links, kernel, 1_000)
    assert links.suspicion() == ""
    run(links, kernel, 50)
    assert links.suspicion() == "1 of 2 nodes has acknowledged no data for 1.1 s although data waits"
    kernel.is_cut = False
    run(links, kernel, 50)
    assert links.suspicion() == ""


def test_a_frozen_node_whose_kernel_takes_all_data_is_reported_after_half_a_lease(kernel: Kernel) -> None:
    links = monitor_of("frozen")
    connect_kernel(links, "frozen", kernel)
    kernel.frozen = True
    run(links, kernel, 4_300)
    assert links.suspicion() == ""
    run(links, kernel, 50)
    assert links.suspicion() == "the node has sent no sign of life for 5.0 s"


def test_a_late_sample_is_no_suspicion(kernel: Kernel) -> None:
    links = monitor_of("busy")
    connect_kernel(links, "busy", kernel)
    kernel.in_flight = 10
    run(links, kernel, 50)
    kernel.now_ms += 5_000  # this machine was busy: nothing was sampled, and the node did read
    kernel.written = kernel.acked = kernel.written + 500
    kernel.received_at_ms = kernel.now_ms
    assert links.suspicion() == ""
    run(links, kernel, 50)
    assert links.suspicion() == ""


def test_a_node_joining_a_stalled_one_is_served_at_once(
    kernel: Kernel,
) -> None:
    links = monitor_of("stuck")
    connect_kernel(links, "stuck", kernel)
    notified: list[bool] = []
    links.add_watcher(notified.append)
    kernel.is_cut = True
    run(links, kernel, 5_000)
    assert not links._apply_event(event("stuck", here=False), kernel.now_ms * MS)
    assert notified == [False]
    assert links._apply_event(event("new", here=True), kernel.now_ms * MS)
    assert links.up


def test_a_lost_last_connection_is_reported_once() -> None:
    links = monitor_of("only")
    notified: list[bool] = []
    links.add_watcher(notified.append)
    kernel = Kernel()
    connect_kernel(links, "only", kernel)
    kernel.is_closed = True
    links._tick(10_000 * MS)
    assert not links.up
    assert not links._apply_event(event("only", here=False), 20_000 * MS)
    assert notified == [False]
    assert links._apply_event(event("only", here=True), 21_000 * MS)
    assert links.up


@pytest.mark.parametrize("is_reported", [True, False])
def test_the_connection_of_a_removed_node_is_shut_down(is_reported: bool) -> None:
    """Zenoh waits for its end, and then removes its transport to the node once more."""
    links, kernel = monitor_of("stalled"), Kernel()
    connect_kernel(links, "stalled", kernel)
    kernel.is_closed = not is_reported
    if is_reported:
        links._apply_event(event("stalled", here=False), 10_000 * MS)
    else:
        links._tick(10_000 * MS)
    assert kernel.is_shut_down
    assert not links.up


ADDRESSES: Final = ("tcp/a", "tcp/b")


def link_event(*, here: bool) -> zenoh.LinkEvent:
    happened: Any = SimpleNamespace(
        kind=zenoh.SampleKind.PUT if here else zenoh.SampleKind.DELETE,
        link=SimpleNamespace(zid="node", src=ADDRESSES[0], dst=ADDRESSES[1]),
    )
    return happened  # type: ignore[no-any-return]


class ListedNode:
    """A monitor with one node, which connected at 1 000 ms. `listed`: Zenoh has a transport to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.listed = True
        self.kernel = Kernel()
        monkeypatch.setattr(link_monitor, "find_link", lambda *ends: {ADDRESSES: self.kernel}.get(ends))
        self.links = LinkMonitor(EndpointContext("backbone", "hpc", ManualClock().clock()))
        self.notified: list[bool] = []
        self.links.add_watcher(self.notified.append)
        info = SimpleNamespace(transports=self.transports, links=list)
        self.links._session = SimpleNamespace(info=info)  # type: ignore[assignment]
        self.links._apply_event(event("node", here=True), 1_000 * MS)
        self.links._on_link_event(link_event(here=True))

    def transports(self) -> list[Any]:
        return [SimpleNamespace(zid="node", is_multicast=False)] if self.listed else []

    def run(self, from_ms: int, until_ms: int) -> None:
        for at_ms in range(from_ms, until_ms + 1, 50):
            self.links._tick(at_ms * MS)


@pytest.mark.parametrize("is_found", [True, False])
def test_a_forgotten_connection_is_shut_down(monkeypatch: pytest.MonkeyPatch, is_found: bool) -> None:
    node = ListedNode(monkeypatch)
    if is_found:
        connected = node.links._nodes["node", False]
        connected.set_link(node.kernel)  # type: ignore[arg-type]
    node.run(1_000, 1_000)
    node.listed = False
    node.run(1_050, 1_100)
    assert node.links._confirmed_ns(1_100 * MS) <= 1_000 * MS
    assert node.notified == []  # the report of its end may still come
    node.run(1_150, 1_150)
    assert node.notified == [False]
    assert node.kernel.is_shut_down
    # All puts since it connected may be lost, and the node has not left.
    assert node.links.lost_since_ns(1_155 * MS) == 1_000 * MS
    assert not node.links.is_receiver_gone(1_155 * MS)
    assert not node.links._unreported
    assert node.links._apply_event(event("node", here=True), 1_200 * MS)
    assert node.links.up


def test_a_node_whose_end_may_be_reported_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    node = ListedNode(monkeypatch)
    node.listed = False
    node.links.run_on_monitor(lambda: None)
    node.run(1_000, 2_000)
    assert node.links.up


def test_a_node_that_is_missed_by_the_last_check_is_checked_until_it_is_clear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = ListedNode(monkeypatch)
    node.run(1_000, 2_900)
    node.listed = False
    node.run(2_950, 3_050)
    assert node.notified == [False]


def test_a_listed_connection_stays_up(monkeypatch: pytest.MonkeyPatch) -> None:
    node = ListedNode(monkeypatch)
    for at_ms in range(1_000, 5_000, 50):
        node.listed = at_ms % 100 == 0
        node.run(at_ms, at_ms)
    assert node.links.up
    assert not node.kernel.is_shut_down


def test_a_connection_that_ends_before_it_was_found_is_shut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second report of the end of an old connection comes just after that of the new connection."""
    node = ListedNode(monkeypatch)
    node.links._apply_event(event("node", here=False), 6_000 * MS)
    assert node.kernel.is_shut_down
    assert not node.links.up
    assert node.links.closed_stalled == 0  # the connection was never sampled


def test_what_a_connection_without_a_transport_took_is_not_confirmed(kernel: Kernel) -> None:
    arrived_ns = kernel.node.confirmed_ns
    assert arrived_ns > kernel.node.joined_ns
    kernel.node.check_transport(kernel.now_ms * MS, is_listed=False)
    assert kernel.node.confirmed_ns == kernel.node.joined_ns
    kernel.node.check_transport(kernel.now_ms * MS, is_listed=True)
    assert kernel.node.confirmed_ns == arrived_ns


def test_a_held_connection_is_not_shut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop waits until the node has read everything."""
    node = ListedNode(monkeypatch)
    near, far = socket.socketpair()
    with near, far:
        node.links._held.append((near, 0, False))
        node.links._apply_event(event("node", here=False), 1_001 * MS)
    assert not node.kernel.is_shut_down


def test_the_addresses_of_a_link_that_ended_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    node = ListedNode(monkeypatch)
    node.links._on_link_event(link_event(here=False))
    assert not node.links._addresses


class TwoLinks:
    """A node with two links: both peers connect to each other. The session lists the first one first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_router: bool = False) -> None:
        self.kernels = {"first": Kernel(), "second": Kernel()}
        self.listed = ["first", "second"]
        monkeypatch.setattr(link_monitor, "find_link", lambda src, _: self.kernels.get(src))
        self.links = LinkMonitor(EndpointContext("backbone", "hpc", ManualClock().clock()))
        ends = SimpleNamespace(
            links=lambda: [SimpleNamespace(zid="node", src=each, dst="") for each in self.listed],
            transports=lambda: [SimpleNamespace(zid="node", is_multicast=False)],
        )
        self.links._session = SimpleNamespace(info=ends)  # type: ignore[assignment]
        self.links._apply_event(event("node", here=True, is_router=is_router), 0)

    @property
    def now_ns(self) -> int:
        return self.kernels["first"].now_ms * MS

    def run(self, ms: int) -> None:
        for _ in range(ms // 50):
            for each in self.kernels.values():
                each.run(50)
            self.links._tick(self.now_ns)

    def leave(self) -> None:
        self.links._apply_event(event("node", here=False), self.now_ns)


def test_a_node_with_two_links_that_closes_its_session_has_read_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Everything is sent over the first link, so the state of that one counts."""
    two = TwoLinks(monkeypatch)
    two.run(20_700)
    assert two.now_ns - two.links.confirmed_ns == (700 + 100) * MS
    for kernel in two.kernels.values():
        kernel.receive(CLOSE)
        kernel.ended = True
    two.links._sample_nodes(two.now_ns)
    two.leave()
    assert two.links.lost_since_ns(two.now_ns) == two.now_ns
    assert two.links.unconfirmed_spans() == []


def test_a_cut_of_a_node_with_two_links_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    two = TwoLinks(monkeypatch)
    two.run(20_700)
    for kernel in two.kernels.values():
        kernel.is_cut = True
    two.run(9_300)
    two.leave()
    assert [each.begin_ns for each in two.links.unconfirmed_spans()] == [(20_000 - 100) * MS]


@pytest.mark.parametrize("is_router", [False, True])
def test_a_node_that_loses_one_of_two_links_stays_connected_over_the_other(
    is_router: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = TwoLinks(monkeypatch, is_router=is_router)
    two.run(20_700)
    two.kernels["first"].is_cut = True
    two.run(1_000)
    two.kernels["first"].is_closed = True
    two.run(50)
    assert (two.links.up, len(two.links)) == (False, 0)  # until Zenoh has the other one as the first
    two.listed.remove("first")
    two.run(50)
    assert (two.links.up, len(two.links)) == (True, 1)
    assert two.links.lost_since_ns(two.now_ns) == (20_700 - 100) * MS
    assert two.links._nodes["node", False].is_router is is_router
    two.run(5_000)
    assert two.now_ns - two.links.confirmed_ns < 3_000 * MS
    two.leave()
    assert len(two.links) == 0


def test_the_first_of_two_links_that_zenoh_closes_may_have_lost_the_last_moments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node has not closed its session."""
    two, replaced_ns = TwoLinks(monkeypatch), list[int]()
    two.links.add_link_watcher(replaced_ns.append)
    two.run(20_700)
    two.kernels["first"].is_closed = True
    two.run(50)
    two.listed.remove("first")
    two.run(50)
    assert replaced_ns == [20_750 * MS]
    assert not two.links._absent._absent
    assert two.links.lost_since_ns(replaced_ns[0]) == (20_700 - 100) * MS


def test_a_further_link_that_was_cut_with_the_first_one_is_reported_since_the_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Zenoh may close the two links seconds apart, and sends over the second one meanwhile."""
    two = TwoLinks(monkeypatch)
    two.run(20_700)
    for kernel in two.kernels.values():
        kernel.is_cut = True
    two.run(9_300)
    two.kernels["first"].is_closed = True
    two.listed.remove("first")
    two.run(2_000)
    assert two.links.all_suspect
    two.leave()
    spans = two.links.unconfirmed_spans()
    assert min(each.begin_ns for each in spans) <= (20_700 - 100) * MS
    assert max(each.end_ns for each in spans) > two.now_ns


def test_the_descriptors_of_lost_nodes_are_closed() -> None:
    links = monitor_of("left", "closed", "again", "there")
    kernels = {name: Kernel() for name in ("left", "closed", "again", "there")}
    for name, kernel in kernels.items():
        connect_kernel(links, name, kernel)
    links._apply_event(event("left", here=False), MS)
    links._apply_event(event("again", here=True), MS)
    links._nodes.pop(("again", False))
    kernels["closed"].is_closed = True
    links._tick(2 * MS)
    assert [name for name, each in kernels.items() if each.is_released] == ["left", "closed", "again"]
    links.close()
    assert kernels["there"].is_released


def test_the_descriptor_of_a_link_that_is_found_twice_or_too_late_is_closed() -> None:
    node = ConnectedNode(0, is_router=False)
    links: list[Any] = [Kernel() for _ in range(3)]
    first, second, late = links
    node.set_link(first)
    node.set_link(second)
    assert node.link is first
    assert [each.is_released for each in links] == [False, True, False]
    node.release()
    assert [each.is_released for each in links] == [True, True, False]
    released = ConnectedNode(0, is_router=False)
    released.release()
    released.set_link(late)
    assert released.link is None
    assert late.is_released


def test_a_link_found_by_the_monitor_and_by_the_stop_is_held_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop finds the link first, while the monitor looks for it."""
    two = TwoLinks(monkeypatch)
    searches: list[Kernel] = []

    def find(_src: str, _dst: str) -> Kernel:
        found = Kernel()
        searches.append(found)
        if len(searches) == 1:
            two.links.hold_links()
        return found

    monkeypatch.setattr(Kernel, "hold", lambda _: None, raising=False)
    monkeypatch.setattr(link_monitor, "find_link", find)
    two.links._tick(0)
    assert [each.is_released for each in searches] == [True, False]
