# SPDX-License-Identifier: Apache-2.0
"""`python -m release.lock`: locks every third-party package that a gateway may install, with its hashes.

The requirements in all pyproject.toml files go in, with the extras for run time. Out goes `release/gateway.lock`, for
pip on Linux: one version of each package, valid for each supported Python and for x86-64 and aarch64. Versions in the
present file stay while they fit; `--upgrade` takes the newest ones.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from release.distributions import REPO, distributions
from release.licences import OURS

LOCK: Final = REPO / "release/gateway.lock"
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
MACHINES: Final = ("x86_64", "aarch64")
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_HEAD: Final = """\
# Third-party packages on a gateway, with the hashes of their files. Written by `make lock`.
# pip install --require-hashes -r release/gateway.lock
"""


class LockedPackage(NamedTuple):
    """One line of the lock, with its hashes."""

    name: str
    version: Version
    marker: Marker | None
    hashes: tuple[str, ...]

    def applies(self, python: str, machine: str) -> bool:
        """Whether a machine with Linux installs it."""
        return self.marker is None or self.marker.evaluate(environment(python, machine))


def environment(python: str, machine: str) -> dict[str, str]:
    """The values of markers on Linux."""
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "extra": "",
    }


def third_party() -> Iterator[Requirement]:
    """What our distributions require of others, with their extras for run time."""
    for each in distributions():
        if each.name not in OURS:
            continue
        project = tomllib.loads((each.folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extras = project.get("optional-dependencies", {})
        lines = [*project["dependencies"], *(line for name in OURS[each.name] for line in extras[name])]
        for requirement in map(Requirement, lines):
            if canonicalize_name(requirement.name) not in OURS:
                yield requirement


def locked(text: str) -> list[LockedPackage]:
    """The packages of a lock."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith(("#", " ")) or not line.strip():
            continue
        requirement = Requirement(line.partition(" --hash=")[0].strip())
        (pin,) = requirement.specifier
        hashes = tuple(_HASH.findall(line))
        found.append(
            LockedPackage(
                canonicalize_name(requirement.name), Version(pin.version), requirement.marker, hashes
            )
        )
    return found


def write_lock(path: Path, options: Sequence[str] = ()) -> None:
    """Resolve the requirements, and write the lock."""
    with tempfile.TemporaryDirectory() as directory:
        wanted, resolved = Path(directory, "gateway.in"), Path(directory, "gateway.lock")
        wanted.write_text("".join(f"{each}\n" for each in third_party()), encoding="utf-8")
        if path.exists():
            resolved.write_bytes(path.read_bytes())  # its versions are preferred
        command = [
            sys.executable,
            "-m",
            "uv",
            "pip",
            "compile",
            "--quiet",
            "--universal",
            "--generate-hashes",
        ]
        command += ["--python-version", PYTHONS[0], "--no-header", "--no-annotate", *options]
        subprocess.run([*command, "-o", resolved, wanted], check=True, stdout=subprocess.DEVNULL)
        path.write_text(_HEAD + resolved.read_text(encoding="utf-8"), encoding="utf-8")


if __name__ == "__main__":
    write_lock(LOCK, sys.argv[1:])
