# SPDX-License-Identifier: Apache-2.0
"""`python -m tests [ARGUMENTS OF PYTEST]`: every test, in 7 minutes on two quiet cores.

Tests that measure time run first, alone. Then three suites run that start whole processes; those wait for each other
three quarters of the time. All other tests run next to them in four suites with a lower priority. Named paths
(`python -m tests tests/core`) go to one pytest.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Final

REPO: Final = Path(__file__).parents[1]
E2E: Final = "tests/e2e"


def _e2e_files(*names: str) -> tuple[str, ...]:
    return tuple(f"{E2E}/{each.replace('/', '/test_')}.py" for each in names)


def _ignoring(*places: str) -> tuple[str, ...]:
    return tuple(f"--ignore={each}" for each in places)


BENCHMARKS: Final = "tests/benchmarks"
STALLED_CLIENTS: Final = f"{BENCHMARKS}/test_wamp.py"
(DEMO,) = _e2e_files("operations/demo")
(RATES,) = _e2e_files("subscriptions/rates")
TIMED_E2E: Final = _e2e_files("conformance/kit", "discovery/hostile_ecus", "delivery/isolation")
TIMING_SENSITIVE: Final = (STALLED_CLIENTS, DEMO, RATES, *TIMED_E2E)
"""Each test repeats a measurement that the machine disturbed.

Next to two busy processes with the priority `NICE`, on the same two cores, no measurement had to be repeated.
"""
MULTI_STREAMER: Final = f"{E2E}/multi_streamer"
"""Several streamers at a time."""
SUBSCRIPTIONS: Final = f"{E2E}/subscriptions"
KIT_RUNS: Final = _e2e_files("conformance/kit_runs")
"""They take 50 s."""
CLOCK_STEPS: Final = _e2e_files("operations/clock_steps")
"""They wait for 40 s."""
FULL_DISK: Final = _e2e_files("operations/full_disk")
"""They wait for 75 s."""
OPERATIONS: Final = f"{E2E}/operations"
COMMANDS: Final = (BENCHMARKS, OPERATIONS)
"""Commands, restarts and recordings; benchmarks, whose tests assert no speed."""
VEHICLE: Final = f"{BENCHMARKS}/test_vehicle.py"
"""It waits for 50 s."""
PLUGINS: Final = "plugins"
KIT: Final = "tck/tests"
LARGEST_SUITES: Final = (f"{PLUGINS}/usubscription", f"{PLUGINS}/wamp")
"""Together they take as long as the pipeline."""
TRANSPORTS: Final = "tests/transports"
WITH_TRANSPORTS: Final = (f"{PLUGINS}/mqtt", "tests/testing", "tests/docs", "tests/simulation")
"""They make the suite of transports as long as the others."""

WAITING_SUITES: Final = (
    (MULTI_STREAMER, SUBSCRIPTIONS, *KIT_RUNS, *CLOCK_STEPS, *FULL_DISK, *_ignoring(RATES)),
    (E2E, VEHICLE, *_ignoring(*TIMED_E2E, MULTI_STREAMER, SUBSCRIPTIONS, *KIT_RUNS, OPERATIONS)),
    (*COMMANDS, *_ignoring(STALLED_CLIENTS, DEMO, *CLOCK_STEPS, *FULL_DISK, VEHICLE)),
)
"""Whole processes, which wait for each other three quarters of the time. Each suite takes as long as the others."""
CPU_BOUND_SUITES: Final = (
    ("tests", PLUGINS, KIT, *_ignoring(E2E, BENCHMARKS, TRANSPORTS, *LARGEST_SUITES, *WITH_TRANSPORTS)),
    (TRANSPORTS, *WITH_TRANSPORTS),
    ("pipeline/tests",),
    LARGEST_SUITES,
)
"""CPU-bound tests; they use the cores that the other tests leave idle."""
STAGES: Final = ((TIMING_SENSITIVE,), (*WAITING_SUITES, *CPU_BOUND_SUITES))
"""Stages run one after the other, the suites of a stage in parallel."""
NICE: Final = ("nice", "-n", "10")
NO_TESTS_COLLECTED: Final = 5  # exit code of pytest if no test was selected


def pytest_command(paths: Sequence[str], arguments: Sequence[str]) -> list[str]:
    before = NICE if paths in CPU_BOUND_SUITES else ()
    return [*before, sys.executable, "-m", "pytest", "-q", "-rs", *paths, *arguments]


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Where bytecode must not be written next to the sources, it is written to another folder.

    Some hundred streamers and commands are started, and each would compile 20,000 lines: half of the CPU time that it
    takes.
    """
    if not environ.get("PYTHONDONTWRITEBYTECODE"):
        return dict(environ)
    prefix = {"PYTHONPYCACHEPREFIX": str(REPO / ".pytest_cache" / "bytecode")}
    return {key: value for key, value in environ.items() if key != "PYTHONDONTWRITEBYTECODE"} | prefix


def exit_code_of(codes: Sequence[int]) -> int:
    """The exit code: the first failure, or "no test selected" only if this is the result of all suites."""
    codes_with_tests = [code for code in codes if code != NO_TESTS_COLLECTED]
    return next((code for code in codes_with_tests if code), 0 if codes_with_tests else NO_TESTS_COLLECTED)


@contextmanager
def running(*commands: Sequence[str]) -> Iterator[list[int]]:
    """Run some commands next to the body. After it their exit codes are in the list and their output is written."""
    env = child_environment(os.environ)
    codes: list[int] = []
    with ExitStack() as files:
        outputs: list[IO[str]] = [
            files.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace"))
            for _ in commands
        ]
        processes = [
            subprocess.Popen(each, cwd=REPO, env=env, stdout=file, stderr=subprocess.STDOUT)
            for each, file in zip(commands, outputs, strict=True)
        ]
        try:
            yield codes
            codes += [each.wait() for each in processes]
        finally:
            for each in processes:
                each.kill()  # if this was interrupted; nothing otherwise
                each.wait()
        for file in outputs:
            file.seek(0)
            sys.stdout.write(file.read())
        sys.stdout.flush()


def run_parallel(first: Sequence[str], *others: Sequence[str]) -> list[int]:
    """Run some commands at once; the output of the others is written after the end of all."""
    with running(*others) as codes:
        code = subprocess.run(first, cwd=REPO, env=child_environment(os.environ), check=False).returncode
    return [code, *codes]


def suite_commands(suites: Sequence[Sequence[str]], arguments: Sequence[str], cache: str) -> list[list[str]]:
    """The command of each suite. Each has its own pytest cache: a shared one loses what failed in other suites."""
    return [
        pytest_command(where, (*arguments, "-o", f"cache_dir=.pytest_cache/{cache}{number}"))
        for number, where in enumerate(suites)
    ]


def main(arguments: Sequence[str]) -> int:
    if any((REPO / each.split("::", 1)[0]).exists() for each in arguments if not each.startswith("-")):
        return run_parallel(pytest_command((), arguments))[0]
    codes: list[int] = []
    for number, suites in enumerate(STAGES):
        codes += run_parallel(*suite_commands(suites, arguments, f"stage{number}-"))
        if exit_code_of(codes) not in {0, NO_TESTS_COLLECTED} and {"-x", "--exitfirst"} & set(arguments):
            break
    return exit_code_of(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
