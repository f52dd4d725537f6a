# SPDX-License-Identifier: Apache-2.0
"""From what the kernel says of a link: what may be lost with the node at its other end."""

from typing import Final

import pytest

from ustreamer.core.clock import ManualClock
from ustreamer.hookspecs import EndpointContext
from ustreamer.transports.zenoh.links import Links, _Node
from ustreamer.transports.zenoh.tcp import TcpLink, TcpState

LEASE_NS: Final = 10_000_000_000
MS: Final = 1_000_000
CLOSE: Final = 4


class Kernel:
    """Says of a link what a test has it say."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.node = _Node(0)
        self.node.link = self  # type: ignore[assignment]
        self.received = 0
        self.heard_at_ms = self.acked_at_ms = 0
        self.frozen = self.unacked = self.not_sent = False
        self.ended = self.closed = False

    def state(self) -> TcpState | None:
        if self.closed:
            return None
        return TcpState(
            established=not self.ended,
            unacked=int(self.unacked),
            not_sent=int(self.not_sent),
            ack_ms=self.now_ms - self.acked_at_ms,
            heard_ms=self.now_ms - self.heard_at_ms,
            received=self.received,
        )

    def hear(self, size: int) -> None:
        self.received += size
        self.heard_at_ms = self.now_ms

    def run(self, ms: int) -> None:
        """Time passes, with a look every 100 ms and, unless the node is away, a keep-alive every 2.5 s."""
        for _ in range(ms // 100):
            self.now_ms += 100
            if not self.unacked:
                self.acked_at_ms = self.now_ms
                if not self.frozen and self.now_ms % 2_500 == 0:
                    self.hear(3)
            self.node.look(self.now_ms * MS)

    def lost_ms(self) -> float:
        """For how long before its end what was put may be lost."""
        self.node.look(self.now_ms * MS)
        return self.now_ms - self.node.lost_since_ns(self.now_ms * MS, LEASE_NS) / MS


@pytest.fixture
def kernel() -> Kernel:
    kernel = Kernel()
    kernel.run(20_700)
    return kernel


def test_a_node_that_says_goodbye_has_read_everything(kernel: Kernel) -> None:
    kernel.hear(CLOSE)
    kernel.ended = True
    assert kernel.lost_ms() == 0


def test_so_has_one_whose_socket_zenoh_has_closed_already(kernel: Kernel) -> None:
    kernel.closed = True
    assert kernel.lost_ms() == 0


def test_so_has_one_that_spoke_and_left(kernel: Kernel) -> None:
    kernel.now_ms += 50
    kernel.hear(200 + CLOSE)
    kernel.ended = True
    assert kernel.lost_ms() == 0


def test_with_a_node_that_is_killed_the_last_moments_are_lost(kernel: Kernel) -> None:
    kernel.received += 1  # the end of the stream counts
    kernel.ended = True
    assert kernel.lost_ms() == 100


def test_also_if_it_was_talking_all_the_time(kernel: Kernel) -> None:
    for _ in range(10):
        kernel.hear(100)
        kernel.run(100)
    kernel.hear(100)
    kernel.ended = True
    assert kernel.lost_ms() == 100


def test_what_was_put_since_a_node_froze_is_lost(kernel: Kernel) -> None:
    kernel.frozen = True  # its kernel goes on to acknowledge; it was last heard at 20 000
    kernel.run(9_300)
    kernel.closed = True
    assert kernel.lost_ms() == 10_000 + 100


def test_what_was_put_since_the_cable_was_cut_is_lost_and_nothing_before(kernel: Kernel) -> None:
    kernel.unacked = True
    kernel.run(9_300)
    kernel.closed = True
    assert kernel.lost_ms() == 9_300 + 100


def test_a_cable_that_is_cut_after_the_node_froze_changes_nothing(kernel: Kernel) -> None:
    kernel.frozen = True
    kernel.run(5_000)
    kernel.unacked = True
    kernel.run(4_300)
    kernel.closed = True
    assert kernel.lost_ms() == 10_000 + 100


def test_what_was_put_while_an_ecu_started_anew_is_lost(kernel: Kernel) -> None:
    kernel.unacked = True
    kernel.run(2_000)
    kernel.ended = True
    assert kernel.lost_ms() == 2_000 + 100


def test_what_waits_for_a_slow_reader_is_not_acknowledged_by_what_it_reads(kernel: Kernel) -> None:
    kernel.unacked = kernel.not_sent = True
    for _ in range(10):
        kernel.acked_at_ms = kernel.now_ms
        kernel.run(100)
    kernel.ended = True
    assert kernel.lost_ms() == 1_000 + 100


def test_of_a_node_whose_connection_is_unknown_everything_may_be_lost() -> None:
    assert _Node(0).lost_since_ns(20_000 * MS, LEASE_NS) == 0


def test_a_subscriber_was_behind_the_node_that_went_at_the_same_time() -> None:
    links = Links(EndpointContext("backbone", "hpc", ManualClock().clock()))
    links._losses.extend([(10_000 * MS, 9_900 * MS), (10_030 * MS, 10_030 * MS)])
    assert links.lost_since_ns(10_002 * MS) == 9_900 * MS
    assert links.lost_since_ns(10_028 * MS) == 10_030 * MS
    # Behind a node that is still there, and that has taken all there was.
    assert links.lost_since_ns(12_000 * MS) == 12_000 * MS
    assert Links(EndpointContext("backbone", "hpc", ManualClock().clock())).lost_since_ns(5) == 5


def test_a_link_that_is_no_more_has_no_state() -> None:
    assert TcpLink(10**6, (("127.0.0.1", 1), ("127.0.0.1", 2))).state() is None
