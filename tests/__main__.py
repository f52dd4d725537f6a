# SPDX-License-Identifier: Apache-2.0
"""`python -m tests [ARGUMENTS OF PYTEST]`: every test. On two cores 11 to 12 minutes, of the 10 it may take.

What measures time runs alone; then whole processes, which wait for each other more than they work, and then all the rest, each
in two parts side by side. Named places (`python -m tests tests/core`) are left to one pytest.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

REPO: Final = Path(__file__).parents[1]
E2E: Final = "tests/e2e"
ALONE: Final = (
    "tests/benchmarks",
    *(f"{E2E}/test_{each}.py" for each in ("command_line", "hostile_ecus", "isolation", "rates")),
)
STREAMERS: Final = tuple(
    f"{E2E}/test_{each}.py"
    for each in ("neighbours", "networks", "puts", "remote_subscriptions", "restart", "topologies")
)
"""Several streamers at a time, most of them: half of what there is to wait for."""
LARGEST: Final = "plugins/usubscription"  # goes with the first half, so that they take as long as each other


def _without(*places: str) -> tuple[str, ...]:
    return tuple(f"--ignore={each}" for each in places)


PARTS: Final = (
    (ALONE,),
    (STREAMERS, (E2E, *_without(*ALONE[1:], *STREAMERS))),
    (
        ("tests", LARGEST, *_without(E2E, ALONE[0])),
        ("plugins", *_without(LARGEST), "pipeline/tests"),
    ),
)
"""One after the other; what is within one, side by side."""
NOTHING: Final = 5  # what pytest ends with if no test was asked for


def pytest(where: Sequence[str], arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-rs", *where, *arguments]


def code_of(codes: Sequence[int]) -> int:
    """What to end with: the first failure; that nothing was asked for only if it was so everywhere."""
    asked = [code for code in codes if code != NOTHING]
    return next((code for code in asked if code), 0 if asked else NOTHING)


def side_by_side(first: Sequence[str], *second: Sequence[str]) -> list[int]:
    """Run two commands at once, or one; what the second one says comes when both have ended."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        later = [subprocess.Popen(each, cwd=REPO, stdout=said, stderr=subprocess.STDOUT) for each in second]
        try:
            code = subprocess.run(first, cwd=REPO, check=False).returncode
            codes = [code, *(each.wait() for each in later)]
        finally:
            for each in later:
                each.kill()  # if this was interrupted; nothing otherwise
        said.seek(0)
        sys.stdout.write(said.read())
        sys.stdout.flush()
    return codes


def main(arguments: Sequence[str]) -> int:
    if any((REPO / each.split("::", 1)[0]).exists() for each in arguments if not each.startswith("-")):
        return subprocess.run(pytest((), arguments), cwd=REPO, check=False).returncode
    codes: list[int] = []
    for part in PARTS:
        # Each with a cache of its own: of what failed last, one would forget what the other knows.
        commands = [
            pytest(where, (*arguments, "-o", f"cache_dir=.pytest_cache/{number}"))
            for number, where in enumerate(part)
        ]
        codes += side_by_side(commands[0], *commands[1:])
        if code_of(codes) not in {0, NOTHING} and {"-x", "--exitfirst"} & set(arguments):
            break
    return code_of(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
