# SPDX-License-Identifier: Apache-2.0
"""Lost Zenoh nodes that may return with the same id. A node that has left its session has a new id.

In: lost nodes, and nodes that have connected. Out: since when puts must be remembered, and the nodes that returned while
another one was connected. Publishers detect no such loss: the other node may have their subscribers.
"""

from typing import Final

import msgspec

from ustreamer.transports.zenoh.connected_node import NodeLoss

_ABSENT_NS: Final = 60_000_000_000
"""A node may be frozen for so long. After that, its return is not noticed."""
_DECLARED_NS: Final = 250_000_000
"""A node that returned has declared its subscribers by then (measured: 3 ms)."""
_MAX_NODES: Final = 64
_NEVER_NS: Final = 1 << 62


class AbsentNode(msgspec.Struct):
    """A node that is lost, or has just returned."""

    zid: str
    loss: NodeLoss
    has_others: bool
    """True if another node was connected when this one was lost, or when it returned."""
    is_alone: bool
    """True if no other node was absent meanwhile."""
    returned_ns: int = 0

    @property
    def since_ns(self) -> int:
        """The time since which it may have missed messages."""
        return self.loss.since_ns


class AbsentNodes:
    """The lost nodes by their ids. For the monitor thread."""

    def __init__(self) -> None:
        self._absent: dict[str, AbsentNode] = {}
        self._returned: dict[str, AbsentNode] = {}
        """Nodes that have returned, and whose subscribers may not be declared yet."""

    def add(self, zid: str, loss: NodeLoss, *, has_others: bool) -> None:
        """A node is lost. `has_others`: another one is connected."""
        earlier = self._returned.pop(zid, None)
        if earlier is not None:  # lost again before its subscribers were declared
            loss.since_ns = min(loss.since_ns, earlier.since_ns)
            has_others |= earlier.has_others
        self._drop_old(loss.at_ns)
        others = [each for each in (*self._absent.values(), *self._returned.values()) if each.zid != zid]
        for each in others:
            each.is_alone = False
        self._absent[zid] = AbsentNode(zid, loss, has_others, is_alone=not others)

    def _drop_old(self, now_ns: int) -> None:
        for each in tuple(self._absent.values()):
            if now_ns - each.loss.at_ns > _ABSENT_NS or len(self._absent) >= _MAX_NODES:
                del self._absent[each.zid]

    def on_connected(self, zid: str, now_ns: int, *, has_others: bool) -> None:
        """A node has connected. If it was lost, it had not left."""
        node = self._absent.pop(zid, None)
        if node is None or now_ns - node.loss.at_ns > _ABSENT_NS:
            return
        node.loss.set_node_present()
        node.has_others |= has_others
        node.returned_ns = now_ns
        if node.has_others:
            self._returned[zid] = node

    def discard(self, zid: str) -> None:
        """The node has another connection, and all is put again."""
        self._absent.pop(zid, None)

    def pop_returned(self, now_ns: int) -> list[AbsentNode]:
        """The nodes that have returned and whose subscribers are declared by now, each once."""
        declared = [each for each in self._returned.values() if now_ns - each.returned_ns >= _DECLARED_NS]
        for each in declared:
            del self._returned[each.zid]
        return declared

    def needed_since_ns(self, now_ns: int) -> int:
        """Puts since then are needed when an absent node returns."""
        absent = [
            each
            for each in self._absent.values()
            if each.has_others and not each.loss.is_receiver_gone and now_ns - each.loss.at_ns <= _ABSENT_NS
        ]
        return min((each.since_ns for each in (*absent, *self._returned.values())), default=_NEVER_NS)
