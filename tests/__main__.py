# SPDX-License-Identifier: Apache-2.0
"""`python -m tests [ARGUMENTS OF PYTEST]`: every test, in less than ten minutes on two cores.

What measures time, or starts whole processes, runs alone; most of it waits, so it gains nothing from company. The rest runs
in two halves side by side. Named places (`python -m tests tests/core`) are left to one pytest.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

REPO: Final = Path(__file__).parents[1]
ALONE: Final = ("tests/e2e", "tests/benchmarks")
LARGEST: Final = "plugins/usubscription"  # goes with the first half, so that they take as long as each other
HALVES: Final = (
    ("tests", LARGEST, *(f"--ignore={each}" for each in ALONE)),
    ("plugins", f"--ignore={LARGEST}", "pipeline/tests"),
)
NOTHING: Final = 5  # what pytest ends with if no test was asked for


def pytest(where: Sequence[str], arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", *where, *arguments]


def code_of(codes: Sequence[int]) -> int:
    """What to end with: the first failure; that nothing was asked for only if it was so everywhere."""
    asked = [code for code in codes if code != NOTHING]
    return next((code for code in asked if code), 0 if asked else NOTHING)


def side_by_side(first: Sequence[str], second: Sequence[str]) -> list[int]:
    """Run two commands at once; what the second one says comes when both have ended."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        later = subprocess.Popen(second, cwd=REPO, stdout=said, stderr=subprocess.STDOUT)
        try:
            code = subprocess.run(first, cwd=REPO, check=False).returncode
            codes = [code, later.wait()]
        finally:
            later.kill()  # if this was interrupted; nothing otherwise
        said.seek(0)
        sys.stdout.write(said.read())
        sys.stdout.flush()
    return codes


def main(arguments: Sequence[str]) -> int:
    if any((REPO / each.split("::", 1)[0]).exists() for each in arguments if not each.startswith("-")):
        return subprocess.run(pytest((), arguments), cwd=REPO, check=False).returncode
    alone = subprocess.run(pytest(ALONE, arguments), cwd=REPO, check=False).returncode
    if alone not in {0, NOTHING} and {"-x", "--exitfirst"} & set(arguments):
        return alone
    # Each with a cache of its own: of what failed last, one would forget what the other knows.
    first, second = (
        pytest(where, (*arguments, "-o", f"cache_dir=.pytest_cache/{number}"))
        for number, where in enumerate(HALVES)
    )
    return code_of([alone, *side_by_side(first, second)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
