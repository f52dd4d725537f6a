# SPDX-License-Identifier: Apache-2.0
"""A deterministic scheduler: threads of the product run one at a time, in virtual time.

Each product thread is a thread of the operating system that waits for its gate. Exactly one gate is open. A thread
that blocks opens the gate of the next one. The seed decides which ready thread runs next, and where a running thread
is interrupted. If no thread is ready, the clock moves to the next timer.

In: threads, timers, kills. Out: one interleaving for each seed.
"""

import _thread
import heapq
from collections.abc import Callable
from random import Random
from typing import Any, Final

NS_PER_S: Final = 1_000_000_000
NS_PER_MS: Final = 1_000_000
WALL_AT_ZERO_MS: Final = 1_700_000_000_000
_CLOCK_READ_NS: Final = 500
"""Virtual time of one reading of the clock: a loop that polls the clock ends."""
_MAX_SWITCHES: Final = 500_000


class Killed(BaseException):
    """The process of the thread was killed. Not an Exception: product code must not handle it."""


class SimulationStuck(Exception):
    """No thread can run, and no timer is left; or the run does not end."""


class Process:
    """A simulated process: its threads end with it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.killed = False
        self.tasks: dict[Task, None] = {}
        self.frozen: list[Task] | None = None
        """The threads that could run, while the process is frozen."""


class Task:
    """One thread."""

    __slots__ = (
        "alive",
        "blocked",
        "gate",
        "name",
        "process",
        "thread",
        "timed_out",
        "wait_id",
        "waiters",
    )

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.process = process
        self.gate = _thread.allocate_lock()
        self.gate.acquire()
        self.alive = True
        self.blocked = False
        self.wait_id = 0
        """The number of the current wait; a timer of an earlier wait is obsolete."""
        self.timed_out = False
        self.waiters: list[Task] = []
        """Threads that join this one."""
        self.thread: Any = None


class Scheduler:
    """The threads, timers and the clock of one run. The creating thread is the thread of the story."""

    def __init__(self, seed: int, interrupt_every: int = 0) -> None:
        """`interrupt_every`: the mean number of lock operations between two interruptions; 0 is never."""
        self.rng = Random(seed)
        self.now_ns = NS_PER_S
        self.wall_offset_ms = WALL_AT_ZERO_MS
        self.switches = 0
        self.failures: list[str] = []
        """Threads that ended with an exception."""
        self.story = Task("story", Process("story"))
        self.current = self.story
        self._ready: list[Task] = []
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._timer_count = 0
        self._interrupt_every = interrupt_every
        self.until_interrupt = self._draw_interrupt()
        """Lock operations until the next interruption."""
        self._stuck: str | None = None
        self._max_switches = _MAX_SWITCHES

    # --- clock ------------------------------------------------------------------------------------------------------

    def monotonic_ns(self) -> int:
        if self.current.process.killed:
            raise Killed
        self.now_ns += _CLOCK_READ_NS
        return self.now_ns

    def wall_ms(self) -> int:
        self.check_killed()
        return self.wall_offset_ms + self.now_ns // NS_PER_MS

    def check_killed(self) -> None:
        if self.current.process.killed:
            raise Killed

    # --- timers: run in the scheduler, so an action must not block ----------------------------------------------------

    def call_at(self, at_ns: int, action: Callable[[], None]) -> None:
        self._timer_count += 1
        heapq.heappush(self._timers, (at_ns, self._timer_count, action))

    def call_after(self, delay_ns: int, action: Callable[[], None]) -> None:
        self.call_at(self.now_ns + delay_ns, action)

    # --- threads ----------------------------------------------------------------------------------------------------

    def spawn(self, name: str, target: Callable[[], None], process: Process | None = None) -> Task:
        """Start a thread; it is ready, and runs when it is chosen."""
        task = Task(name, process or self.current.process)
        task.process.tasks[task] = None
        worker = _idle_workers.pop() if _idle_workers else _Worker()
        worker.run(self, task, target)
        self._ready.append(task)
        return task

    def run_task(self, task: Task, target: Callable[[], None], worker: "_Worker") -> None:
        """The life of a thread, on its own thread of the operating system."""
        task.gate.acquire()
        try:
            if not task.process.killed:
                target()
        except Killed:
            pass
        except Exception as error:  # noqa: BLE001
            self.failures.append(f"thread {task.name}: {type(error).__name__}: {error}")
        finally:
            task.alive = False
            task.process.tasks.pop(task, None)
            for each in task.waiters:
                self.make_ready(each)
            _idle_workers.append(worker)
            self._pick().gate.release()

    def make_ready(self, task: Task) -> None:
        """End the wait of `task`, if it waits."""
        if task.blocked:
            task.blocked = False
            task.wait_id += 1
            frozen = task.process.frozen
            (self._ready if frozen is None else frozen).append(task)

    def block(self, deadline_ns: int | None = None) -> bool:
        """Wait until `make_ready`, or the deadline; false after the deadline. The caller has registered the waiter."""
        me = self.current
        me.timed_out, me.blocked = False, True
        if deadline_ns is not None:
            wait_id = me.wait_id

            def on_deadline() -> None:
                if me.wait_id == wait_id and me.blocked:
                    me.timed_out = True
                    self.make_ready(me)

            self.call_at(deadline_ns, on_deadline)
        self._switch(me)
        return not me.timed_out

    def interrupt(self) -> None:
        """Let another ready thread run, if it is time: called at lock operations."""
        self.until_interrupt -= 1
        if self.until_interrupt <= 0:
            self.interrupt_now()

    def interrupt_now(self) -> None:
        """Let another ready thread run, and draw the time of the next interruption."""
        self.until_interrupt = self._draw_interrupt()
        me = self.current
        if self._ready and not me.process.killed:
            self._ready.append(me)
            self._switch(me)

    def spend(self, ns: int) -> None:
        """Let computing take time. Other threads run if a timer is due."""
        self.now_ns += ns
        me = self.current
        if self._timers and self._timers[0][0] <= self.now_ns and not me.process.killed:
            self._ready.append(me)
            self._switch(me)

    def _draw_interrupt(self) -> int:
        return self.rng.randrange(1, 2 * self._interrupt_every) if self._interrupt_every else 1 << 60

    def _switch(self, me: Task) -> None:
        self.switches += 1
        following = self._pick()
        if following is not me:
            following.gate.release()
            me.gate.acquire()
        if me.process.killed:
            raise Killed
        if me is self.story and self._stuck is not None:
            stuck, self._stuck = self._stuck, None
            raise SimulationStuck(stuck)

    def _pick(self) -> Task:
        """The next thread; moves the clock."""
        ready, timers = self._ready, self._timers
        while True:
            if self.switches > self._max_switches:
                return self._report_stuck("the run does not end")
            while timers and timers[0][0] <= self.now_ns:
                heapq.heappop(timers)[2]()
            if ready:
                count = len(ready)
                following = ready.pop(0 if count == 1 else self.rng.randrange(count))
                self.current = following
                return following
            if not timers:
                return self._report_stuck("no thread can run, and no timer is left")
            self.now_ns = timers[0][0]

    def _report_stuck(self, why: str) -> Task:
        self._stuck = why
        self._max_switches = 1 << 60
        if self.story in self._ready:
            self._ready.remove(self.story)
        self.story.blocked = False
        self.story.wait_id += 1
        self.current = self.story
        return self.story

    # --- the story --------------------------------------------------------------------------------------------------

    def sleep(self, ns: int) -> None:
        self.block(self.now_ns + ns)

    def join(self, task: Task, timeout_ns: int | None = None) -> bool:
        """Wait for the end of a thread; returns whether it ended."""
        if not task.alive:
            return True
        me = self.current
        task.waiters.append(me)
        self.block(None if timeout_ns is None else self.now_ns + timeout_ns)
        if me in task.waiters:
            task.waiters.remove(me)
        return not task.alive

    def freeze(self, process: Process) -> None:
        """Let no thread of a process run until `thaw`: SIGSTOP. The clock and timers go on."""
        process.frozen = [each for each in self._ready if each.process is process]
        self._ready = [each for each in self._ready if each.process is not process]

    def thaw(self, process: Process) -> None:
        """SIGCONT."""
        frozen, process.frozen = process.frozen, None
        self._ready += frozen or ()

    def kill(self, process: Process) -> None:
        """End all threads of a process at once. No code of it has an effect from here on."""
        process.killed = True
        self.thaw(process)
        for task in list(process.tasks):
            self.make_ready(task)
        for task in list(process.tasks):
            self.join(task)


class _Worker:
    """A thread of the operating system, used for one simulated thread after the other."""

    def __init__(self) -> None:
        self._gate = _thread.allocate_lock()
        self._gate.acquire()
        self._job: tuple[Scheduler, Task, Callable[[], None]] | None = None
        _thread.start_new_thread(self._loop, ())

    def run(self, scheduler: Scheduler, task: Task, target: Callable[[], None]) -> None:
        self._job = scheduler, task, target
        self._gate.release()

    def _loop(self) -> None:
        while True:
            self._gate.acquire()
            if self._job is None:
                return
            (scheduler, task, target), self._job = self._job, None
            scheduler.run_task(task, target, self)
            del scheduler, task, target


_idle_workers: Final[list[_Worker]] = []
"""Threads of the operating system without a job: the next run uses them."""
