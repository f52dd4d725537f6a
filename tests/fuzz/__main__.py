# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.fuzz [BORDER ...]`: hostile inputs for each border, guided by the coverage of the code.

atheris makes the inputs; `make fuzz` installs it. It starts from the kept inputs and from the seeds. An input is a
defect if it raises an error that the border does not catch, takes more than 100 ms of CPU time, or needs more than 1 GB
of memory. A defect is in build/fuzz/BORDER: `crash-*`, `oom-*` or `timeout-*`. `BORDER --input FILE` repeats it.
`--keep` adds defects to tests/fuzz/defects, and inputs that reach new code to tests/fuzz/corpus. The exit code is 1
after a defect.
"""

import argparse
import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from tests.fuzz.borders import BORDERS, keep_inputs, kept_inputs

_REPO: Final = Path(__file__).resolve().parents[2]
_BUILD: Final = _REPO / "build/fuzz"
_DEFECTS: Final = ("crash", "oom", "timeout")
_STATISTICS: Final = {
    "inputs": r"stat::number_of_executed_units: (\d+)",
    "per_s": r"stat::average_exec_per_sec: +(\d+)",
    "peak_mb": r"stat::peak_rss_mb: +(\d+)",
    "coverage": r" cov: (\d+)",
    "slowest_us": r"slowest_us (\d+)",
}


class Outcome(NamedTuple):
    """What one border did with its inputs. `defect` is empty, or the end of the process's output."""

    border: str
    figures: dict[str, int]
    defect: str

    def __str__(self) -> str:
        figures = "  ".join(f"{name}={self.figures.get(name, 0)}" for name in _STATISTICS)
        return f"{self.border:<24}{figures}  {'DEFECT' if self.defect else 'ok'}"


def fuzz(border: str, inputs: int, seconds: int) -> Outcome:
    """Run one border until it has taken `inputs` inputs, or for `seconds`; 0 is no limit."""
    corpus = _BUILD / border / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for each in (*BORDERS[border].seeds, *kept_inputs(border)):
        (corpus / sha256(each).hexdigest()[:32]).write_bytes(each)
    limits = ["-print_final_stats=1", f"-runs={inputs or -1}", f"-max_total_time={seconds}"]
    code, text = _run_child(border, *limits, str(corpus))
    figures = {
        name: int(found[-1]) for name, pattern in _STATISTICS.items() if (found := re.findall(pattern, text))
    }
    return Outcome(border, figures, "\n".join(text.splitlines()[-40:]) if code else "")


def keep(border: str) -> None:
    """Keep inputs of earlier runs: those that found a defect, and the shortest of those that reached new code."""
    directory = _BUILD / border
    defects = [each.read_bytes() for kind in _DEFECTS for each in directory.glob(f"{kind}-*")]
    keep_inputs(border, defects, [each.read_bytes() for each in (directory / "corpus").iterdir()])


def _run_child(border: str, *options: str) -> tuple[int, str]:
    """The exit code and the output of the process for a border."""
    command = [sys.executable, "-m", "tests.fuzz.child", border, str(_BUILD / border), *options]
    done = subprocess.run(command, cwd=_REPO, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    return done.returncode, done.stderr.decode("utf-8", errors="replace")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("borders", nargs="*", metavar="BORDER", help="all by default")
    parser.add_argument("--inputs", type=int, default=0, help="for each border")
    parser.add_argument("--seconds", type=int, default=0, help="for each border; 60 without --inputs")
    parser.add_argument("--jobs", type=int, default=1, help="borders at the same time (1)")
    parser.add_argument("--keep", action="store_true", help="add what was found to the kept inputs")
    parser.add_argument("--input", type=Path, metavar="FILE", help="instead: one input, without atheris")
    parser.add_argument("--list", action="store_true", help="instead: the names of the borders")
    options = parser.parse_args(arguments)
    names = options.borders or list(BORDERS)
    unknown = [each for each in names if each not in BORDERS]
    if unknown:
        parser.error(f"no border {', '.join(unknown)} (have: {', '.join(BORDERS)})")
    if options.list:
        print("\n".join(BORDERS))
        return 0
    if min(options.inputs, options.seconds, options.jobs - 1) < 0:
        parser.error("--inputs and --seconds are 0 or more, --jobs 1 or more")
    if options.input:
        if len(options.borders) != 1 or not options.input.is_file():
            parser.error("--input needs the name of one border, and a file")
        for name in names:
            with tempfile.TemporaryDirectory() as directory:
                BORDERS[name].make(Path(directory))(options.input.read_bytes())
        return 0
    if importlib.util.find_spec("atheris") is None:
        parser.error("atheris is missing: run `make fuzz`")
    seconds = options.seconds or (0 if options.inputs else 60)
    defects = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for outcome in pool.map(lambda name: fuzz(name, options.inputs, seconds), names):
            print(outcome, flush=True)
            if outcome.defect:
                print(outcome.defect, flush=True)
                defects += 1
            if options.keep:
                keep(outcome.border)
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
