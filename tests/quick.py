# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.quick`: lint and the pure tests side by side, under 90 s on two cores.

Pure tests start no process, open no socket and write no disk, except in a temporary directory. The plugins' own tests
are checked by mypy in `make lint` only.
"""

import sys
from typing import Final

from tests.__main__ import exit_code_of, run_parallel

PURE: Final = (
    "tests/core",
    "tests/uprotocol",
    "tests/transports/someip/protocol",
    "tests/transports/someip/rpc",
    "tests/host/config",
    "tests/host/importers",
    "tests/release",
    "tests/fuzz",
    "tests/test_vocabulary.py",
    "plugins/throttle/tests",
    "plugins/payloads/tests",
)
LINT: Final = "ruff check -q && ruff format -q --check && lint-imports --no-cache >/dev/null && mypy"


def main(arguments: list[str]) -> int:
    tests = [sys.executable, "-m", "pytest", "-q", *PURE, *arguments]
    lint = ["/bin/sh", "-c", f'PATH="$1:$PATH"; {LINT}', "lint", sys.prefix + "/bin"]
    return exit_code_of(run_parallel(tests, lint))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
