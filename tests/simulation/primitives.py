# SPDX-License-Identifier: Apache-2.0
"""The names of `threading` and `queue` that product code uses, on the simulated scheduler.

Product modules get these classes for the time of a simulation (`installed`), and are not changed. A lock that was
created while a module was imported stays a real one: no thread blocks while it holds one of those.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from queue import Empty, Full, Queue, SimpleQueue
from types import ModuleType, SimpleNamespace
from typing import Any, Final, Self

from tests.simulation.scheduler import NS_PER_S, Killed, Scheduler, Task

_scheduler: Scheduler


def use(scheduler: Scheduler) -> None:
    """Let all primitives that are created from now on belong to `scheduler`."""
    global _scheduler  # noqa: PLW0603
    _scheduler = scheduler


def _deadline_ns(timeout_s: float | None) -> int | None:
    return None if timeout_s is None or timeout_s < 0 else _scheduler.now_ns + round(timeout_s * NS_PER_S)


class SimLock:
    """`threading.Lock`."""

    __slots__ = ("_owner", "_waiters")

    def __init__(self) -> None:
        self._owner: Task | None = None
        self._waiters: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        scheduler = _scheduler
        me = scheduler.current
        if me.process.killed:
            raise Killed
        scheduler.until_interrupt -= 1
        if scheduler.until_interrupt <= 0:
            scheduler.interrupt_now()
        if self._owner is not None:
            if not blocking:
                return False
            deadline_ns = _deadline_ns(timeout)
            while self._owner is not None:
                self._waiters.append(me)
                if not scheduler.block(deadline_ns) and self._owner is not None:
                    if me in self._waiters:  # a release at the same time has removed it
                        self._waiters.remove(me)
                    return False
        self._owner = me
        return True

    def release(self) -> None:
        if self._owner is None:
            if _scheduler.current.process.killed:
                return
            raise RuntimeError("release unlocked lock")
        self._owner = None
        if self._waiters:
            self._wake_next()

    def _wake_next(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if waiter.blocked:
                _scheduler.make_ready(waiter)
                return

    def release_all(self) -> int:
        self.release()
        return 1

    def acquire_again(self, depth: int) -> None:
        self.acquire()

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimRLock(SimLock):
    """`threading.RLock`."""

    __slots__ = ("_depth",)

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._owner is _scheduler.current:
            _scheduler.check_killed()
            self._depth += 1
            return True
        if super().acquire(blocking, timeout):
            self._depth = 1
            return True
        return False

    def release(self) -> None:
        if self._owner is not _scheduler.current:
            if _scheduler.current.process.killed:
                return
            raise RuntimeError("cannot release un-acquired lock")
        self._depth -= 1
        if not self._depth:
            super().release()

    def release_all(self) -> int:
        """For a Condition: release the lock, whatever its depth."""
        depth, self._depth = self._depth, 0
        super().release()
        return depth

    def acquire_again(self, depth: int) -> None:
        super().acquire()
        self._depth = depth


class SimCondition:
    """`threading.Condition`."""

    def __init__(self, lock: SimLock | None = None) -> None:
        self._lock = SimRLock() if lock is None else lock
        self._waiters: deque[Task] = deque()
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        scheduler, lock = _scheduler, self._lock
        scheduler.check_killed()
        me = scheduler.current
        self._waiters.append(me)
        # Read before other threads run: the wait begins now.
        deadline_ns = None if timeout is None else scheduler.now_ns + max(0, round(timeout * NS_PER_S))
        depth = lock.release_all()
        in_time = scheduler.block(deadline_ns)
        if not in_time and me in self._waiters:
            self._waiters.remove(me)
        lock.acquire_again(depth)
        return in_time

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> Any:
        deadline_ns = None if timeout is None else _scheduler.now_ns + round(timeout * NS_PER_S)
        while not (result := predicate()):
            if deadline_ns is None:
                self.wait()
            elif (left_ns := deadline_ns - _scheduler.now_ns) > 0:
                self.wait(left_ns / NS_PER_S)
            else:
                return predicate()
        return result

    def notify(self, n: int = 1) -> None:
        while n and self._waiters:
            waiter = self._waiters.popleft()
            if waiter.blocked:
                _scheduler.make_ready(waiter)
                n -= 1

    def notify_all(self) -> None:
        self.notify(len(self._waiters))


class SimEvent:
    """`threading.Event`."""

    def __init__(self) -> None:
        self._condition = SimCondition(SimLock())
        self._is_set = False

    def is_set(self) -> bool:
        _scheduler.check_killed()
        return self._is_set

    def set(self) -> None:
        with self._condition:
            self._is_set = True
            self._condition.notify_all()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        with self._condition:
            if not self._is_set:
                self._condition.wait(timeout)
            return self._is_set


class SimQueue:
    """`queue.Queue` and `queue.SimpleQueue`. `put_unlocked` is for the scheduler, which must not block."""

    def __init__(self, maxsize: int = 0) -> None:
        self._items: deque[Any] = deque()
        self._maxsize = maxsize
        self._getters: deque[Task] = deque()
        self._putters: deque[Task] = deque()

    def __class_getitem__(cls, _: object) -> type[Self]:
        return cls

    def put_unlocked(self, item: object) -> None:
        self._items.append(item)
        self._wake(self._getters)

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        scheduler = _scheduler
        scheduler.check_killed()
        deadline_ns = _deadline_ns(timeout)
        while self._maxsize and len(self._items) >= self._maxsize:
            if not block or (deadline_ns is not None and scheduler.now_ns >= deadline_ns):
                raise Full
            self._wait(self._putters, deadline_ns)
        self.put_unlocked(item)
        scheduler.interrupt()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        scheduler = _scheduler
        scheduler.check_killed()
        deadline_ns = _deadline_ns(timeout)
        while not self._items:
            if not block or (deadline_ns is not None and scheduler.now_ns >= deadline_ns):
                raise Empty
            self._wait(self._getters, deadline_ns)
        item = self._items.popleft()
        self._wake(self._putters)
        return item

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def put_nowait(self, item: object) -> None:
        self.put(item, block=False)

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)

    @staticmethod
    def _wait(waiters: deque[Task], deadline_ns: int | None) -> None:
        me = _scheduler.current
        waiters.append(me)
        if not _scheduler.block(deadline_ns) and me in waiters:
            waiters.remove(me)

    @staticmethod
    def _wake(waiters: deque[Task]) -> None:
        while waiters:
            waiter = waiters.popleft()
            if waiter.blocked:
                _scheduler.make_ready(waiter)
                return


class SimThread:
    """`threading.Thread`. A thread belongs to the process of the thread that creates it."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str = "",
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._target, self._args, self._kwargs = target, args, kwargs or {}
        self.name = name
        self.daemon = daemon
        self._process = _scheduler.current.process
        self._task: Task | None = None

    def start(self) -> None:
        _scheduler.check_killed()
        self._task = _scheduler.spawn(self.name, self._run, self._process)
        self._task.thread = self
        _scheduler.interrupt()

    def _run(self) -> None:
        assert self._target is not None
        self._target(*self._args, **self._kwargs)

    def is_alive(self) -> bool:
        return self._task is not None and self._task.alive

    def join(self, timeout: float | None = None) -> None:
        _scheduler.check_killed()
        if self._task is not None:
            _scheduler.join(self._task, None if timeout is None else round(timeout * NS_PER_S))

    @property
    def ident(self) -> int:
        return id(self)


def current_thread() -> Any:
    return _scheduler.current.thread or _scheduler.current


_REPLACEMENTS: Final[Mapping[int, object]] = {
    id(real): simulated
    for real, simulated in (
        (threading.Lock, SimLock),
        (threading.RLock, SimRLock),
        (threading.Condition, SimCondition),
        (threading.Event, SimEvent),
        (threading.Thread, SimThread),
        (threading.current_thread, current_thread),
        (SimpleQueue, SimQueue),
        (Queue, SimQueue),
        (
            threading,
            SimpleNamespace(
                Lock=SimLock,
                RLock=SimRLock,
                Condition=SimCondition,
                Event=SimEvent,
                Thread=SimThread,
                current_thread=current_thread,
            ),
        ),
    )
}


def product_modules() -> list[ModuleType]:
    return [
        module for name, module in list(sys.modules.items()) if name.split(".")[0].startswith("ustreamer")
    ]


@lru_cache(1)
def _places(_loaded: int) -> list[tuple[ModuleType, str]]:
    """The names to replace. They change only when modules are loaded."""
    return [
        (module, name)
        for module in product_modules()
        for name, value in vars(module).items()
        if id(value) in _REPLACEMENTS
    ]


@contextmanager
def installed(others: Mapping[tuple[str, str], object]) -> Iterator[None]:
    """Replace the primitives in all product modules, and `others`: (module, name) to value."""
    undo: list[tuple[ModuleType, str, object]] = []

    def replace(module: ModuleType, name: str, value: object) -> None:
        undo.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    try:
        for module, name in _places(len(sys.modules)):
            replace(module, name, _REPLACEMENTS[id(getattr(module, name))])
        for (module_name, name), value in others.items():
            if hasattr(sys.modules[module_name], name):  # one version of the product may not have it
                replace(sys.modules[module_name], name, value)
        yield
    finally:
        for module, name, value in reversed(undo):
            setattr(module, name, value)
