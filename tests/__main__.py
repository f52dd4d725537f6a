# SPDX-License-Identifier: Apache-2.0
"""`python -m tests [ARGUMENTS OF PYTEST]`: every test. On two cores 5 to 6 minutes, of the 10 it may take.

What measures time runs alone, 90 s. Then whole processes, which wait for each other three quarters of the time, in two parts side by
side, 185 s; and beside them all the rest in two more, which keep the cores busy and give way: 190 s of CPU time, of which the
first two leave 270. Named places (`python -m tests tests/core`) are left to one pytest.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final

REPO: Final = Path(__file__).parents[1]
E2E: Final = "tests/e2e"


def _e2e(*names: str) -> tuple[str, ...]:
    return tuple(f"{E2E}/test_{each}.py" for each in names)


def _without(*places: str) -> tuple[str, ...]:
    return tuple(f"--ignore={each}" for each in places)


BENCHMARKS: Final = "tests/benchmarks"
ALONE: Final = (BENCHMARKS, *_e2e("command_line", "hostile_ecus", "isolation", "rates"))
STREAMERS: Final = _e2e("neighbours", "networks", "puts", "remote_subscriptions", "restart", "topologies")
"""Several streamers at a time, most of them: half of what there is to wait for."""
PLUGINS: Final = "plugins"
LARGEST: Final = (f"{PLUGINS}/usubscription", f"{PLUGINS}/wamp")
"""With the pipeline they take as long as all that is left."""

WAITING: Final = (STREAMERS, (E2E, *_without(*ALONE[1:], *STREAMERS)))
"""Whole processes, which wait for each other three quarters of the time."""
WORKING: Final = (
    ("tests", PLUGINS, *_without(E2E, BENCHMARKS, *LARGEST)),
    ("pipeline/tests", *LARGEST),
)
"""What keeps a core busy; it takes what the others leave."""
PARTS: Final = ((ALONE,), (*WAITING, *WORKING))
"""One after the other; what is within one, side by side."""
PATIENT: Final = ("nice", "-n", "10")
NOTHING: Final = 5  # what pytest ends with if no test was asked for


def command(where: Sequence[str], arguments: Sequence[str]) -> list[str]:
    before = PATIENT if where in WORKING else ()
    return [*before, sys.executable, "-m", "pytest", "-q", "-rs", *where, *arguments]


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Where no bytecode is to be left beside the sources, it is left elsewhere.

    Some hundred streamers and commands are started, and each would compile 20,000 lines: half of the CPU time that it takes.
    """
    if not environ.get("PYTHONDONTWRITEBYTECODE"):
        return dict(environ)
    prefix = {"PYTHONPYCACHEPREFIX": str(REPO / ".pytest_cache" / "bytecode")}
    return {key: value for key, value in environ.items() if key != "PYTHONDONTWRITEBYTECODE"} | prefix


def code_of(codes: Sequence[int]) -> int:
    """What to end with: the first failure; that nothing was asked for only if it was so everywhere."""
    asked = [code for code in codes if code != NOTHING]
    return next((code for code in asked if code), 0 if asked else NOTHING)


def side_by_side(first: Sequence[str], *others: Sequence[str]) -> list[int]:
    """Run some commands at once; what the others say comes when all have ended, one after the other."""
    known = environment(os.environ)
    with ExitStack() as files:
        said: list[IO[str]] = [
            files.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))
            for _ in others
        ]
        later = [
            subprocess.Popen(each, cwd=REPO, env=known, stdout=file, stderr=subprocess.STDOUT)
            for each, file in zip(others, said, strict=True)
        ]
        try:
            code = subprocess.run(first, cwd=REPO, env=known, check=False).returncode
            codes = [code, *(each.wait() for each in later)]
        finally:
            for each in later:
                each.kill()  # if this was interrupted; nothing otherwise
        for file in said:
            file.seek(0)
            sys.stdout.write(file.read())
        sys.stdout.flush()
    return codes


def main(arguments: Sequence[str]) -> int:
    if any((REPO / each.split("::", 1)[0]).exists() for each in arguments if not each.startswith("-")):
        return side_by_side(command((), arguments))[0]
    codes: list[int] = []
    for part in PARTS:
        # Each with a cache of its own: of what failed last, one would forget what the other knows.
        commands = [
            command(where, (*arguments, "-o", f"cache_dir=.pytest_cache/{number}"))
            for number, where in enumerate(part)
        ]
        codes += side_by_side(commands[0], *commands[1:])
        if code_of(codes) not in {0, NOTHING} and {"-x", "--exitfirst"} & set(arguments):
            break
    return code_of(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
