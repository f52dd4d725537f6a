# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.simulation --seeds A B`: run the seeds from A to B, and print failures as minimal stories.

`--seed N` prints the story of one seed, its minimal story, and what the networks did. `--kinds` selects violations.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing import get_context

from tests.simulation.known_stories import STORIES
from tests.simulation.seeds import run, run_chunk, story_of, use_core, use_next_core, with_fixed_hashes
from tests.simulation.someip import known_stories as someip_stories
from tests.simulation.story import Result, Story, shrink

_CHUNK = 25


def describe(story: Story, result: Result) -> str:
    """A failure for people: the minimal story, the violations, and what the networks did."""
    lines = [str(story), *(f"  violates: {each.kind}: {each.text}" for each in result.violations)]
    lines += [f"  network:  {text} (x {count})" for text, count in result.notes.items()]
    return "\n".join(lines)


def _failures(seeds: range, jobs: int, *, someip: bool) -> list[tuple[int, list[str]]]:
    chunks = [seeds[at : at + _CHUNK] for at in range(0, len(seeds), _CHUNK)]
    if jobs == 1:
        outcomes = [outcome for chunk in chunks for outcome in run_chunk(chunk, someip=someip)]
    else:
        context = get_context("spawn")
        cores = context.Value("i", 0)
        with context.Pool(jobs, use_next_core, (cores,), maxtasksperchild=40) as pool:
            outcomes = [
                outcome for part in pool.imap(partial(run_chunk, someip=someip), chunks) for outcome in part
            ]
    return [(seed, kinds) for seed, kinds in outcomes if kinds]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, nargs=2, metavar=("FIRST", "END"), default=(0, 200))
    parser.add_argument("--seed", type=int)
    parser.add_argument(
        "--first", help="print only the first seed that fails; JSON of the kinds that are known"
    )
    parser.add_argument(
        "--someip", action="store_true", help="stories with a SOME/IP network, with seeds of their own"
    )
    parser.add_argument("--known", action="store_true", help="run the known stories")
    parser.add_argument("--kinds", nargs="*", default=[], help="only these kinds of violations")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--core", type=int, default=os.getpid(), help="the number of the core for one job")
    parser.add_argument("--stories", type=int, default=3, help="minimal stories to print for each kind")
    options = parser.parse_args(arguments)
    if options.jobs == 1:
        use_core(options.core)
    if options.known:
        return _print_known()
    if options.seed is not None:
        return _explain(story_of(options.seed, someip=options.someip), options.kinds)
    seeds = range(*options.seeds)
    if options.first is not None:
        return _find_first(seeds, json.loads(options.first), someip=options.someip)
    return _run_seeds(seeds, options.kinds, options.jobs, options.stories, someip=options.someip)


def _find_first(seeds: range, known: Mapping[str, Sequence[str]], *, someip: bool) -> int:
    for at in range(0, len(seeds), _CHUNK):
        for seed, kinds in run_chunk(seeds[at : at + _CHUNK], someip=someip):
            new = sorted(set(kinds) - set(known.get(str(seed), ())))
            if new:
                print(f"seed {seed}: {', '.join(new)}")
                return 1
    for name, story in (someip_stories.STORIES if someip else STORIES).items():
        if violations := run(story).violations:
            print(f"known story {name!r}: {', '.join(sorted({each.kind for each in violations}))}")
            return 1
    return 0


def _print_known() -> int:
    """Print one line for each known story: its violations, or "holds"."""
    for name, story in {**STORIES, **someip_stories.STORIES}.items():
        violations = run(story).violations
        print(f"{name}: {'; '.join(f'{each.kind}: {each.text}' for each in violations) or 'holds'}")
    return 0


def _explain(story: Story, kinds: Sequence[str]) -> int:
    result = run(story)
    print(describe(story, result))
    found = [each.kind for each in result.violations if not kinds or each.kind in kinds]
    if found:
        smallest = shrink(story, found, run_story=run)
        print("\nminimal story:", describe(smallest, run(smallest)), sep="\n")
    return bool(found)


def _run_seeds(seeds: range, kinds: Sequence[str], jobs: int, stories: int, *, someip: bool) -> int:
    started, cpu = time.perf_counter(), time.process_time()
    failures = _failures(seeds, jobs, someip=someip)
    elapsed = time.perf_counter() - started if jobs > 1 else time.process_time() - cpu
    counts: Counter[str] = Counter()
    for seed, found in failures:
        wanted = [kind for kind in found if not kinds or kind in kinds]
        counts.update(set(wanted))
        if any(counts[kind] <= stories for kind in wanted):
            smallest = shrink(story_of(seed, someip=someip), wanted, run_story=run)
            print(describe(smallest, run(smallest)), end="\n\n")
    print(f"{len(seeds)} seeds, {len(seeds) / elapsed:.0f} seeds/s, failures: {dict(counts) or 'none'}")
    return bool(counts)


if __name__ == "__main__":
    with_fixed_hashes("tests.simulation")
    sys.exit(main(sys.argv[1:]))
