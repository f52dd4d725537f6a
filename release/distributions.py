# SPDX-License-Identifier: Apache-2.0
"""The distributions of this repository, and their version.

`python -m release.distributions 0.2.0` sets the version of all of them, the versions of each other that they require,
and the wheel that docs/install.md names. Without an argument it prints the version. `ustreamer/__init__.py` is the
place that has it; the other places must agree, since a distribution cannot read a file of another one.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

REPO: Final = Path(__file__).resolve().parents[1]
INSTALL_PAGE: Final = REPO / "docs/install.md"
VERSION_FILE: Final = "ustreamer/__init__.py"
_VERSION: Final = re.compile(r'^__version__ = "(.*)"$', re.MULTILINE)
_DECLARED: Final = re.compile(r'^version = ".*"$', re.MULTILINE)
_REQUIRED: Final = re.compile(r"\b(ustreamer(?:-\w+)?(?:\[[\w,]+\])?)>=[\d.]+,<[\d.]+")
_WHEEL: Final = re.compile(r"\bustreamer-[\d.]+-py3")
_ALLOWED: Final = re.compile(r"\d+\.\d+\.\d+")


class Distribution(NamedTuple):
    """One folder with a pyproject.toml."""

    name: str
    folder: Path


def distributions(root: Path = REPO) -> Iterator[Distribution]:
    """The streamer first, because all others require it."""
    for file in (root / "pyproject.toml", *sorted(root.glob("plugins/*/pyproject.toml"))):
        yield Distribution(_name_in(file), file.parent)
    for folder in ("tck", "clients/up-python", "pipeline"):
        yield Distribution(_name_in(root / folder / "pyproject.toml"), root / folder)


def _name_in(file: Path) -> str:
    name: str = tomllib.loads(file.read_text(encoding="utf-8"))["project"]["name"]
    return name


def gateway_wheels(folder: Path) -> list[str]:
    """The streamer with all extras, and its plugins, as files: a name could be that of another project in the index."""
    return [
        f"{folder}/{each.name.replace('-', '_')}-{version()}-py3-none-any.whl{'[all]' if each.folder == REPO else ''}"
        for each in distributions()
        if each.folder not in {REPO / "pipeline", REPO / "tck", REPO / "clients/up-python"}
    ]


def version(root: Path = REPO) -> str:
    (found,) = _VERSION.findall((root / VERSION_FILE).read_text(encoding="utf-8"))
    return str(found)


def with_version(pyproject: str, version: str) -> str:
    """The text of a pyproject.toml that declares `version` and requires the same minor version of the others."""
    major, minor, _ = version.split(".")
    bounds = f">={major}.{minor},<{major}.{int(minor) + 1}"
    return _REQUIRED.sub(lambda found: found[1] + bounds, _DECLARED.sub(f'version = "{version}"', pyproject))


def set_version(version: str, root: Path = REPO) -> None:
    file = root / VERSION_FILE
    text = file.read_text(encoding="utf-8")
    file.write_text(_VERSION.sub(f'__version__ = "{version}"', text), encoding="utf-8")
    for each in distributions(root):
        declared = each.folder / "pyproject.toml"
        declared.write_text(with_version(declared.read_text(encoding="utf-8"), version), encoding="utf-8")
    page = root / INSTALL_PAGE.relative_to(REPO)
    shown = page.read_text(encoding="utf-8")
    page.write_text(_WHEEL.sub(f"ustreamer-{version}-py3", shown), encoding="utf-8")


def main(arguments: list[str]) -> int:
    match arguments:
        case []:
            print(version())
        case [wanted] if _ALLOWED.fullmatch(wanted):
            set_version(wanted)
        case _:
            print(f"{' '.join(arguments)!r}: a version is three numbers, such as 0.2.0", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
