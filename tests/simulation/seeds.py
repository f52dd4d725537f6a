# SPDX-License-Identifier: Apache-2.0
"""Runs consecutive seeds. A module of its own: a spawned process cannot import `__main__`."""

import gc
import os
import sys
from typing import Any

from tests.simulation import story
from tests.simulation.someip import stories as someip_stories
from tests.simulation.story import Result, Story


def story_of(seed: int, *, someip: bool) -> Story:
    """The story of a seed; with a SOME/IP network it is another one."""
    return someip_stories.generate(seed) if someip else story.generate(seed)


def run(of_any_kind: Story) -> Result:
    if of_any_kind.config.someip is None:
        return story.run(of_any_kind)
    return someip_stories.run(of_any_kind)


def run_chunk(seeds: range, *, someip: bool = False) -> list[tuple[int, list[str]]]:
    """The kinds of violations of each seed."""
    gc.disable()  # its moments are no part of the story, and cost a tenth
    if not gc.get_freeze_count():
        gc.freeze()  # the modules; once, as what ends after a freeze is never collected
    outcomes = [
        (seed, [each.kind for each in run(story_of(seed, someip=someip)).violations]) for seed in seeds
    ]
    gc.enable()
    gc.collect()
    return outcomes


def use_core(number: int) -> None:
    """Run this process on one core, without preemption by the threads that it wakes.

    One thread opens the gate of the next one and then waits. Measured: 3 us for a switch, and 15 us on two cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def use_next_core(counter: Any) -> None:
    """For the processes of a pool, which share `counter`."""
    with counter.get_lock():
        counter.value += 1
        use_core(counter.value)


def with_fixed_hashes(module: str) -> None:
    """Start this module again with a fixed hash seed: the order of a set is part of the interleaving."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        environment = os.environ | {"PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], environment)
