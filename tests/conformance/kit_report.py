# SPDX-License-Identifier: Apache-2.0
"""The page docs/conformance-kit.md: what the test kit finds, and what it cannot see."""

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from tests.conformance.mutants import MUTANTS

PAGE_FILE: Final = Path("docs/conformance-kit.md")
RESULTS_FILE: Final = Path("tests/conformance/kit_results.json")
_COLUMNS: Final = 118

_PAGE_HEAD: Final = f"""\
<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Made by `python -m tests.conformance.kit_trials`; a test compares it with the mutants and the stored results. -->
# The test kit, tested

[tck](../tck/README.md) judges a uSubscription or a streamer from outside. Two trials judge the kit:

```sh
python -m tests.conformance.kit_trials mutants    # {len(MUTANTS)} streamers with one defect each, about ten minutes
python -m tests.conformance.kit_trials alarms     # 20 runs against the correct streamer next to two busy loops
```
"""


class AlarmResult(msgspec.Struct, frozen=True):
    """`failed` are the false alarms: the cases that failed a correct streamer."""

    runs: int = 0
    busy_loops: int = 0
    cases: int = 0
    failed: list[str] = []
    longest_s: int = 0


class KitResults(msgspec.Struct, frozen=True):
    """`found_by` has the cases that found each mutant, by its name."""

    found_by: dict[str, list[str]] = {}
    alarms: AlarmResult = AlarmResult()


def load_results(root: Path) -> KitResults:
    path = root / RESULTS_FILE
    return msgspec.json.decode(path.read_bytes(), type=KitResults) if path.exists() else KitResults()


def faults(results: KitResults) -> list[str]:
    """Mutants that were not found without a reason, or found in spite of one; mutants without a result; alarms."""
    wrong = []
    for mutant in MUTANTS:
        cases = results.found_by.get(mutant.name)
        if cases is None:
            wrong.append(f"{mutant.name}: not run")
        elif bool(cases) is bool(mutant.unseen):
            wrong.append(f"{mutant.name}: {'found, but has a reason not to be' if cases else 'not found'}")
    unknown = results.found_by.keys() - {each.name for each in MUTANTS}
    return [*wrong, *(f"{each}: no such mutant" for each in sorted(unknown)), *results.alarms.failed]


def mutant_summary(results: KitResults) -> str:
    """One sentence: how many mutants were found."""
    found = sum(bool(each) for each in results.found_by.values())
    unseen = sum(bool(each.unseen) for each in MUTANTS)
    return f"{found} of {len(MUTANTS)} mutants found; {unseen} cannot be seen from outside."


def alarm_summary(results: KitResults) -> str:
    """One sentence: how often the kit failed a correct streamer."""
    alarms = results.alarms
    return (
        f"{len(alarms.failed)} false alarms in {alarms.runs} runs of {alarms.cases} cases next to {alarms.busy_loops} "
        f"busy loops; the longest run took {alarms.longest_s} s."
    )


def summary_items(results: KitResults) -> Iterator[str]:
    """The figures, as items of a list."""
    for sentence in (mutant_summary(results), alarm_summary(results)):
        yield from textwrap.wrap(f"* {sentence}", _COLUMNS, subsequent_indent="  ")


def render_page(results: KitResults) -> str:
    return "\n".join(_page(results)) + "\n"


def _page(results: KitResults) -> Iterator[str]:
    yield _PAGE_HEAD
    yield from summary_items(results)
    yield "\n## Mutants\n"
    yield "Each is the streamer with one changed place. The first case that fails ends a run."
    yield ""
    yield "| defect | place | found by |"
    yield "|---|---|---|"
    for mutant in MUTANTS:
        cases = results.found_by.get(mutant.name, [])
        found = "<br>".join(f"`{each}`" for each in cases) or "not found"
        yield f"| {mutant.name} | `{Path(mutant.path).name}` | {found} |"
    yield "\n## What cannot be seen from outside\n"
    for mutant in MUTANTS:
        if mutant.unseen:
            yield from textwrap.wrap(f"* {mutant.name}: {mutant.unseen}", _COLUMNS, subsequent_indent="  ")
