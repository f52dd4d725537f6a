# SPDX-License-Identifier: Apache-2.0
"""Runs consecutive seeds. A module of its own: a spawned process cannot import `__main__`."""

import gc

from tests.simulation.story import generate, run


def run_chunk(seeds: range) -> list[tuple[int, list[str]]]:
    """The kinds of violations of each seed."""
    gc.disable()  # its moments are no part of the story, and cost a tenth
    gc.freeze()  # the modules, and what the last chunk left: a collection need not visit them again
    outcomes = [(seed, [each.kind for each in run(generate(seed)).violations]) for seed in seeds]
    gc.enable()
    gc.collect()
    return outcomes
