# SPDX-License-Identifier: Apache-2.0
"""A progress bar for Spark on stderr, only in a terminal. Spark's own bar would mix with the output of a command."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from ustreamer_pipeline.session import is_connect

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession
    from rich.progress import Progress, TaskID

_REFRESH_S: Final = 0.2


@contextmanager
def progress(spark: "SparkSession", text: str, *, shown: bool | None = None) -> Iterator[None]:
    """Show `text` and the number of finished tasks of the jobs inside. Without a terminal only if `shown` is set.

    A Spark Connect server does not report tasks: there the bar has no total.
    """
    if not (sys.stderr.isatty() if shown is None else shown):
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[tasks]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=shown is None) as bar:
        task = bar.add_task(text, total=None, tasks="")
        tracker = None if is_connect(spark) else spark.sparkContext.statusTracker()
        stopped = Event()
        thread = Thread(target=_follow, args=(tracker, bar, task, stopped), name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()


def _follow(tracker: "StatusTracker | None", bar: "Progress", task: "TaskID", stopped: Event) -> None:
    """Progress only grows: a finished stage is no longer active and is remembered here."""
    seen: dict[int, tuple[int, int]] = {}
    while tracker is not None and not stopped.wait(_REFRESH_S):
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                seen[stage] = (info.numCompletedTasks, info.numTasks)
        done, total = totals(seen, set(tracker.getActiveStageIds()))
        if total:
            bar.update(task, completed=done, total=total, tasks=f"{done}/{total} tasks")


def totals(seen: dict[int, tuple[int, int]], active: set[int]) -> tuple[int, int]:
    """Finished and known tasks over all stages; all tasks of an inactive stage are finished."""
    done = sum(finished if stage in active else tasks for stage, (finished, tasks) in seen.items())
    return done, sum(tasks for _, tasks in seen.values())
