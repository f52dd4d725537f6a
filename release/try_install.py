# SPDX-License-Identifier: Apache-2.0
"""`python -m release.try_install`: installs the wheels of dist/ where no source tree is, and runs a streamer.

Dependencies come from the package index. Every step is printed; the first one that fails ends the command with exit
code 1.
"""

import os
import signal
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from release.build import OUTPUT
from release.distributions import REPO, gateway_wheels, version

_STOP_S: Final = 30.0


class TryError(Exception):
    """A step of the trial failed."""


def try_install(wheels: Path, folder: Path) -> None:
    """`folder` gets a virtual environment and a state of its own. Raises TryError."""
    venv.create(folder / "venv", with_pip=True)
    binaries = folder / "venv" / "bin"
    _run([binaries / "pip", "install", "-q", *gateway_wheels(wheels)], folder)
    shown = _run([binaries / "ustreamer", "--version"], folder)
    if shown != f"ustreamer {version()}\n":
        raise TryError(f"ustreamer --version printed {shown!r}, not {version()!r}")
    config = folder / "minimal.toml"
    config.write_bytes((REPO / "configs/minimal.toml").read_bytes())
    _run([binaries / "ustreamer", "check", config, "--offline"], folder)
    _run_streamer([binaries / "ustreamer", "run", config], folder)


def _run(command: Sequence[str | Path], folder: Path) -> str:
    print("$", *(Path(each).name if isinstance(each, Path) else each for each in command), flush=True)
    done = subprocess.run(
        command, cwd=folder, env=_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise TryError(f"exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _run_streamer(command: Sequence[str | Path], folder: Path) -> None:
    """Waits for READY, then for an orderly end."""
    print("$", *(Path(each).name if isinstance(each, Path) else each for each in command), flush=True)
    with subprocess.Popen(
        command, cwd=folder, env=_environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()  # the end of the process ends it, too
            if line.strip() != "READY":
                raise TryError(f"the streamer printed {line!r}, not READY")
            process.send_signal(signal.SIGTERM)
            if code := process.wait(_STOP_S):
                raise TryError(f"the streamer ended with exit code {code}")
        finally:
            process.kill()


def _environment() -> dict[str, str]:
    """Without what leads to the source tree."""
    return {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        try:
            try_install(OUTPUT, Path(directory))
        except TryError as error:
            print(error, file=sys.stderr)
            return 1
    print("installed and run without the source tree")
    return 0


if __name__ == "__main__":
    sys.exit(main())
