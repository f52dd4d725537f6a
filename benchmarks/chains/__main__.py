# SPDX-License-Identifier: Apache-2.0
"""See the docstring of the package."""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import chains
from benchmarks.chains.figures import is_exact, measured, table
from benchmarks.chains.publisher import serve_publisher


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["publish"]:
        serve_publisher([int(each) for each in arguments[1:]])
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chains", description=chains.__doc__)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ustreamer-benchmark-") as directory:
        rows = measured(Path(directory), options.seconds)
    print(json.dumps(rows, indent=1) if options.json else table(rows))
    return int(not all(map(is_exact, rows)))


if __name__ == "__main__":
    sys.exit(main())
