# SPDX-License-Identifier: Apache-2.0
"""The files of the streamer's host: file descriptors, the wait for events, eventfd and netlink.

A call takes 2 us of virtual time, and other threads may run then. File descriptors are numbers of the simulated
kernel, the lowest free one first, as in Linux. The wait for events is level-triggered. A call of a killed process has
no effect.
"""

import errno
import select
from collections import Counter
from collections.abc import Callable
from typing import Final

from tests.simulation.scheduler import NS_PER_MS, NS_PER_S, Process, Scheduler, Task
from tests.simulation.someip.ip_network import IpAddress, SimIpHost, error_of

CALL_NS: Final = 2_000
"""Virtual time of one system call."""
_FIRST_FD: Final = 1_000

OnMessage = Callable[[bytes, IpAddress], None]
"""A whole datagram, or a SOME/IP message of a stream, and the address of the other side."""


class SimFile:
    """Something with a file descriptor, which belongs to a process."""

    def __init__(self, kernel: "SimKernel") -> None:
        self.kernel = kernel
        self.process: Process = kernel.scheduler.current.process
        self.fd = kernel.open_file(self)
        self.watchers: dict[SimEpoll, None] = {}

    def events(self) -> int:
        """The events that the file has now."""
        return 0

    def fileno(self) -> int:
        return self.fd

    def changed(self) -> None:
        for each in self.watchers:
            each.wake()

    def enter(self) -> None:
        """Begin a system call."""
        scheduler = self.kernel.scheduler
        scheduler.check_killed()
        scheduler.spend(CALL_NS)
        if self.fd < 0:
            raise error_of(errno.EBADF)

    def close(self) -> None:
        self.kernel.scheduler.check_killed()
        self.close_file()

    def close_file(self) -> None:
        self.kernel.files.pop(self.fd, None)
        self.fd = -1
        for each in self.watchers:
            each.forget(self)
        self.watchers.clear()


class SimEventFd(SimFile):
    """An eventfd."""

    count = 0

    def events(self) -> int:
        return select.EPOLLIN if self.count else 0


class SimEpoll:
    """`select.epoll`."""

    def __init__(self, kernel: "SimKernel") -> None:
        self._kernel = kernel
        self._files: dict[int, tuple[SimFile, int]] = {}
        self._waiting: Task | None = None

    def register(self, fd: int, events: int) -> None:
        self._kernel.scheduler.check_killed()
        file = self._kernel.file(fd)
        if fd in self._files:
            raise error_of(errno.EEXIST)
        self._files[fd] = file, events
        file.watchers[self] = None
        self.wake()

    def modify(self, fd: int, events: int) -> None:
        self._kernel.scheduler.check_killed()
        if fd not in self._files:
            raise error_of(errno.ENOENT)
        self._files[fd] = self._files[fd][0], events
        self.wake()

    def unregister(self, fd: int) -> None:
        self._kernel.scheduler.check_killed()
        if fd not in self._files:
            raise error_of(errno.ENOENT)
        self._files.pop(fd)[0].watchers.pop(self, None)

    def forget(self, file: SimFile) -> None:
        """A closed file leaves the set."""
        for fd in [fd for fd, (each, _) in self._files.items() if each is file]:
            del self._files[fd]

    def wake(self) -> None:
        if self._waiting is not None:
            self._kernel.scheduler.make_ready(self._waiting)

    def _ready(self) -> list[tuple[int, int]]:
        always = select.EPOLLERR | select.EPOLLHUP
        found = ((fd, file.events() & (wanted | always)) for fd, (file, wanted) in self._files.items())
        ready = [each for each in found if each[1]]
        if len(ready) > 1:
            self._kernel.scheduler.rng.shuffle(ready)
        return ready

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        scheduler = self._kernel.scheduler
        scheduler.check_killed()
        scheduler.spend(CALL_NS)
        until_ns = None
        if timeout is not None and timeout >= 0:  # rounded up to whole ms, as `select.epoll` does
            until_ns = scheduler.now_ns + -(-int(timeout * NS_PER_S) // NS_PER_MS) * NS_PER_MS
        while not (ready := self._ready()):
            if until_ns is not None and scheduler.now_ns >= until_ns:
                return []
            self._waiting = scheduler.current
            scheduler.block(until_ns)
            self._waiting = None
        return ready

    def close(self) -> None:
        self._kernel.scheduler.check_killed()
        for file, _ in self._files.values():
            file.watchers.pop(self, None)
        self._files.clear()


class SimNetlink(SimFile):
    """A netlink socket: one message for each change of the link."""

    changes = 0

    def events(self) -> int:
        return select.EPOLLIN if self.changes else 0

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def bind(self, address: tuple[int, int]) -> None:
        pass

    def recv(self, size: int) -> bytes:
        self.enter()
        if not self.changes:
            raise error_of(errno.EAGAIN)
        self.changes -= 1
        return b"change"


class SimKernel:
    """The kernel of the streamer's host: its files, and what the streamer sent and read. `wall_ns` is its clock."""

    def __init__(self, scheduler: Scheduler, host: SimIpHost, wall_ns: Callable[[int], int]) -> None:
        self.scheduler = scheduler
        self.host = host
        self.wall_ns = wall_ns
        self.files: dict[int, SimFile] = {}
        self.on_sent: OnMessage = lambda data, address: None
        self.on_read: OnMessage = lambda data, address: None
        self.dropped_until_read: Counter[Process] = Counter()
        """As `dropped`, until the last read of each socket."""
        self.dropped: Counter[Process] = Counter()
        """Datagrams that full buffers of closed sockets of a process dropped."""
        host.on_link_change = self._report_link

    def file(self, fd: int) -> SimFile:
        if fd not in self.files:
            raise error_of(errno.EBADF)
        return self.files[fd]

    def open_file(self, file: SimFile) -> int:
        fd = _FIRST_FD
        while fd in self.files:
            fd += 1
        self.files[fd] = file
        return fd

    def end_process(self, process: Process) -> None:
        """Close all files of a process that has ended."""
        for file in [each for each in self.files.values() if each.process is process]:
            file.close_file()

    def _report_link(self) -> None:
        for file in self.files.values():
            if isinstance(file, SimNetlink):
                file.changes += 1
                file.changed()
