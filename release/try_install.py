# SPDX-License-Identifier: Apache-2.0
"""`python -m release.try_install`: does what docs/install.md says, where no source tree is, and runs a streamer.

Dependencies come from the package index. Every step is printed; the first one that fails ends the command with exit
code 1.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from release.build import OUTPUT
from release.distributions import INSTALL_PAGE, REPO, version
from ustreamer.host.runtime.clock import SYSTEM_CLOCK

_STOP_S: Final = 30.0


class TryError(Exception):
    """A step of the trial failed."""


def try_install(wheels: Path, folder: Path) -> None:
    """`folder` gets a virtual environment and a state of its own. Raises TryError."""
    began_ns = SYSTEM_CLOCK.monotonic_ns()
    (folder / "dist").symlink_to(wheels.absolute())
    for command in commands_of_page("## Try it"):
        _run(["sh", "-c", command], folder)
    passed_s = (SYSTEM_CLOCK.monotonic_ns() - began_ns) / 1e9
    print(f"the demo has forwarded messages after {passed_s:.0f} s")
    binaries = folder / ".venv" / "bin"
    shown = _run([binaries / "ustreamer", "--version"], folder)
    if shown != f"ustreamer {version()}\n":
        raise TryError(f"ustreamer --version printed {shown!r}, not {version()!r}")
    config = folder / "minimal.toml"
    config.write_bytes((REPO / "configs/minimal.toml").read_bytes())
    _run([binaries / "ustreamer", "check", config, "--offline"], folder)
    _run_streamer([binaries / "ustreamer", "run", config], folder)
    for command in commands_of_page("use pipx or uv:"):
        _run(["sh", "-c", command], folder)


def commands_of_page(before: str) -> list[str]:
    """The commands of docs/install.md in the first block after a line."""
    section = INSTALL_PAGE.read_text(encoding="utf-8").split(before)[1]
    return section.split("```sh\n")[1].split("```")[0].replace("\\\n", "").splitlines()


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
    """Without what leads to the source tree; `python3`, `pipx` and `uvx` are those of this environment."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])}


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
