# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.first_minute`: the time from `git clone` to the first forwarded message of `make demo`.

It clones this repository into a temporary directory and runs `make demo` there, with the packages of the index. With
`--cold`, pip has an empty cache. Exit code 1 if it takes more than 60 s: run it on a quiet machine.
"""

import argparse
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from ustreamer.host.runtime.clock import SYSTEM_CLOCK

LIMIT_S: Final = 60.0
_REPOSITORY: Final = Path(__file__).parents[1]
_RECEIVED: Final = re.compile(r"received (\d+)$")


def seconds_since(began_ns: int) -> float:
    return (SYSTEM_CLOCK.monotonic_ns() - began_ns) / 1e9


def first_message(checkout: Path, environment: dict[str, str]) -> str:
    """Run `make demo` until a message was forwarded. Returns the line that shows it; raises ValueError without one."""
    command = ["make", "demo", "ARGS=--seconds 30"]
    lines: list[str] = []
    with subprocess.Popen(
        command,
        cwd=checkout,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as make:
        assert make.stdout is not None
        for line in make.stdout:
            lines.append(line)
            found = _RECEIVED.search(line.rstrip())
            if found is not None and int(found[1]) > 0:
                os.killpg(make.pid, signal.SIGTERM)
                return line.strip()
    raise ValueError("".join(lines))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cold", action="store_true", help="with an empty cache of pip")
    cold = parser.parse_args().cold
    with tempfile.TemporaryDirectory(prefix="first-minute-") as name:
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        if cold:
            environment |= {"PIP_CACHE_DIR": f"{name}/pip"}
        checkout = Path(name) / "ustreamer"
        began_ns = SYSTEM_CLOCK.monotonic_ns()
        subprocess.run(["git", "clone", "-q", f"file://{_REPOSITORY}", checkout], check=True)
        cloned_s = seconds_since(began_ns)
        line = first_message(checkout, environment)
        total_s = seconds_since(began_ns)
    print(line)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime
    print(f"cold_cache={cold} clone_s={cloned_s:.1f} first_message_s={total_s:.1f} cpu_s={cpu_s:.1f}")
    return int(total_s > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
