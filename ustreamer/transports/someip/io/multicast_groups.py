# SPDX-License-Identifier: Apache-2.0
"""The multicast groups of subscribed events: one socket per group, while a subscription needs it."""

import socket
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Final

from ustreamer.transports.someip.io.poller import Handler, Poller
from ustreamer.transports.someip.io.udp import dropped_datagrams
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.socket_marks import UNMARKED, SocketMarks
from ustreamer.uprotocol.ustatus import UStatusError

MAX_GROUPS: Final = 64
"""A limit, because an ECU chooses the group in its Ack. Linux has one too: igmp_max_memberships, 20 per socket."""


# [impl->RPC-811]
class MulticastGroups:
    """Belongs to the receiving thread."""

    def __init__(
        self,
        interface: str,
        buffer: int,
        make_reader: Callable[[socket.socket], Handler],
        marks: SocketMarks = UNMARKED,
    ) -> None:
        """`interface` is our address on the network; `make_reader` returns the handler of a socket."""
        self._interface, self._marks = interface, marks
        self._buffer = buffer
        self._make_reader = make_reader
        self._poller: Poller | None = None
        self._group_of: dict[Hashable, Address] = {}
        self._use_counts: Counter[Address] = Counter()
        self._sockets: dict[Address, socket.socket] = {}
        self.not_joined = 0
        self._dropped_by_closed = 0

    def open(self, poller: Poller) -> None:
        self._poller = poller

    def join_all(self, groups: Iterable[Address]) -> None:
        """Join the configured groups. Raises UStatusError(UNAVAILABLE) for the first that cannot be joined."""
        assert self._poller is not None
        for group in groups:
            self._open_group(group, self._poller)
            self._use_counts[group] += 1

    # [impl->RPC-814, SD-791]
    def set_membership(self, key: Hashable, group: Address | None) -> None:
        """Receive `key` in `group` from now on, or (None) in none. A group that cannot be joined is counted."""
        before = self._group_of.get(key)
        if group == before:
            return
        if before is not None:
            del self._group_of[key]
            self._leave(before)
        if group is not None:
            self._group_of[key] = group
            self._join(group)

    def _join(self, group: Address) -> None:
        self._use_counts[group] += 1
        if group in self._sockets or self._poller is None:
            return
        if len(self._sockets) >= MAX_GROUPS:
            self.not_joined += 1
            return
        try:
            self._open_group(group, self._poller)
        except UStatusError:
            self.not_joined += 1

    def _open_group(self, group: Address, poller: Poller) -> None:
        from ustreamer.transports.someip.sd.sockets import join_group  # most endpoints have no group

        opened = join_group(group, self._interface, self._buffer, self._marks)
        self._sockets[group] = opened
        poller.add(opened.fileno(), self._make_reader(opened))

    def _leave(self, group: Address) -> None:
        self._use_counts[group] -= 1
        if self._use_counts[group] > 0:
            return
        del self._use_counts[group]
        opened = self._sockets.pop(group, None)
        if opened is not None:
            assert self._poller is not None
            self._poller.remove(opened.fileno())
            self._dropped_by_closed += dropped_datagrams(opened)
            opened.close()

    def rejoin(self) -> None:
        """Join again after the link is up again."""
        from ustreamer.transports.someip.sd.sockets import rejoin_group

        for (host, _), opened in self._sockets.items():
            rejoin_group(opened, host, self._interface)

    @property
    def dropped(self) -> int:
        """Datagrams that the kernel dropped in full buffers. From any thread."""
        return self._dropped_by_closed + sum(map(dropped_datagrams, tuple(self._sockets.values())))

    def close(self) -> None:
        self._dropped_by_closed = self.dropped
        for opened in self._sockets.values():
            if self._poller is not None:
                self._poller.remove(opened.fileno())
            opened.close()
        self._sockets.clear()
        self._group_of.clear()
        self._use_counts.clear()

    def __len__(self) -> int:
        return len(self._sockets)
