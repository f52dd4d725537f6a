# SPDX-License-Identifier: Apache-2.0
"""Lost Zenoh nodes that may return with the same id. A node that has left its session has a new id.

In: lost nodes, and nodes that have connected. Out: the nodes that returned and whose losses no publisher detects, each
with the time since which it may have missed messages. Another node was connected, and may have the same subscribers. Or
the node seemed to have left, and returned too late.
"""

from collections import deque
from typing import Final

import msgspec

from ustreamer.transports.zenoh.connected_node import DETECTION_NS, MARGIN_NS, NodeLoss

ABSENT_NS: Final = 60_000_000_000
"""The longest time between the loss of a node and its return. A later return is not noticed."""
_DECLARED_NS: Final = 1_000_000_000
"""A node that returned has declared its subscribers by then: 3 ms, on a busy machine 340 ms."""
_MAX_NODES: Final = 64
_TOTALS_NS: Final = 40_000_000
"""The least time between two totals: less than a tick."""


class SentTotals:
    """How many messages had been sent at each tick, since an absence and a lease ago."""

    def __init__(self, lease_ns: int) -> None:
        self._kept_ns = ABSENT_NS + _DECLARED_NS + lease_ns + DETECTION_NS
        self._totals: deque[tuple[int, int]] = deque([(0, 0)])
        self._newest = 0

    def add(self, now_ns: int, total: int) -> None:
        self._newest = total
        totals = self._totals
        if now_ns - totals[-1][0] < _TOTALS_NS:
            return
        totals.append((now_ns, total))
        while totals[1][0] <= now_ns - self._kept_ns:
            totals.popleft()

    def sent_since(self, since_ns: int) -> int:
        """The number of messages since then, rather too high, but none from before the times that are kept."""
        before = (total for at_ns, total in reversed(self._totals) if at_ns <= since_ns)
        return self._newest - next(before, self._totals[0][1])


class AbsentNode(msgspec.Struct):
    """A node that is lost, or has just returned. Since `since_ns` it may have missed messages."""

    zid: str
    loss: NodeLoss
    since_ns: int
    has_others: bool
    """True if another node was connected meanwhile."""
    returned_ns: int = 0
    """When it has returned; in a lost node: from an earlier loss."""


class AbsentNodes:
    """The lost nodes by their ids. For the monitor thread."""

    def __init__(self, lease_ns: int) -> None:
        self._lease_ns = lease_ns
        self._absent: dict[str, AbsentNode] = {}
        self._returned: dict[str, AbsentNode] = {}
        """Nodes that have returned, and whose subscribers may not be declared yet."""

    def add(self, zid: str, loss: NodeLoss, *, has_others: bool) -> None:
        """A node is lost. `has_others`: another one is connected."""
        node = AbsentNode(zid, loss, self._missed_since_ns(loss), has_others)
        earlier = self._returned.pop(zid, None)
        if earlier is not None:  # lost again before its subscribers were declared
            node.since_ns = min(node.since_ns, earlier.since_ns)
            node.has_others |= earlier.has_others
            node.returned_ns = earlier.returned_ns
        self._drop_old(loss.at_ns)
        self._absent[zid] = node

    def _missed_since_ns(self, loss: NodeLoss) -> int:
        # With an unknown time of the loss: one lease.
        return loss.since_ns or max(loss.acked_ns, loss.at_ns - self._lease_ns) - MARGIN_NS

    def _drop_old(self, now_ns: int) -> None:
        for each in tuple(self._absent.values()):
            if now_ns - each.loss.at_ns > ABSENT_NS or len(self._absent) >= _MAX_NODES:
                del self._absent[each.zid]

    def on_connected(self, zid: str, now_ns: int) -> None:
        """A node has connected. If it was lost, it had not left."""
        node = self._absent.pop(zid, None)
        for each in self._absent.values():
            # After the end of a lone router its publishers have lost all subscribers: they put everything again.
            each.has_others |= not (each.loss.is_router and each.loss.has_ended)
        if node is None or now_ns - node.loss.at_ns > ABSENT_NS:
            return
        # Too late for the publishers: they have dropped what a node that left has read.
        is_late = node.loss.is_receiver_gone and now_ns - node.loss.at_ns >= DETECTION_NS
        node.loss.set_not_left()
        node.since_ns = min(node.since_ns, self._missed_since_ns(node.loss))
        node.returned_ns = now_ns
        if node.has_others or is_late:
            self._returned[zid] = node

    def discard(self, zid: str) -> None:
        """The node has a further connection: its messages are put again, except those of an earlier absence."""
        node = self._absent.pop(zid, None)
        if node is not None and node.returned_ns:
            self._returned[zid] = node

    def pop_returned(self, now_ns: int) -> list[AbsentNode]:
        """The nodes that have returned and whose subscribers are declared by now, each once."""
        declared = [each for each in self._returned.values() if now_ns - each.returned_ns >= _DECLARED_NS]
        for each in declared:
            del self._returned[each.zid]
        return declared

    def pop_all(self, now_ns: int) -> list[AbsentNode]:
        """At a stop: the nodes that have returned, and those that may return."""
        absent = [
            each
            for each in self._absent.values()
            if each.has_others and not each.loss.is_receiver_gone and now_ns - each.loss.at_ns <= ABSENT_NS
        ]
        found = [*self._returned.values(), *absent]
        self._absent.clear()
        self._returned.clear()
        return found
