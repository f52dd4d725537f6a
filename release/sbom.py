# SPDX-License-Identifier: Apache-2.0
"""`python -m release.sbom`: writes a bill of materials of a gateway, `dist/ustreamer.cdx.json`, in CycloneDX 1.6.

An environment of its own gets the packages of `release/gateway.lock`, with their hashes checked, and the wheels of
dist/. `cyclonedx-bom` lists what is installed there. The licences are those that `release.licences` finds, as SPDX
expressions. Two runs with one lock and one commit have the same bytes.
"""

import json
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import distributions as installed_in
from pathlib import Path
from typing import Any, Final

from packaging.utils import canonicalize_name

from release.build import OUTPUT
from release.distributions import REPO, version
from release.distributions import distributions as own_distributions
from release.licences import OURS, declared_licence, is_permissive, spdx
from release.lock import LOCK

SBOM: Final = "ustreamer.cdx.json"
_EXPRESSION: Final = re.compile(r"[\w.+-]+(?: (?:OR|AND) [\w.+-]+)*")
"""Of SPDX, without parentheses."""


class SbomError(Exception):
    """The bill of materials would be incomplete."""


def install_locked(folder: Path, wheels: Path) -> Path:
    """An environment in `folder` with the packages of the lock and our wheels, and nothing else; its Python."""
    venv.create(folder)
    python = folder / "bin" / "python"
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "-q",
        "--disable-pip-version-check",
    ]
    _run([*pip, "--require-hashes", "--only-binary", ":all:", "-r", LOCK])
    _run([*pip, "--no-deps", "--no-index", *_own_wheels(wheels)])
    _run([sys.executable, "-m", "pip", "--python", python, "check"])
    return python


def _own_wheels(wheels: Path) -> list[Path]:
    return [
        wheels / f"{each.name.replace('-', '_')}-{version()}-py3-none-any.whl"
        for each in own_distributions()
        if each.name in OURS
    ]


def make_sbom(python: Path) -> str:
    """The bill of materials of an environment, as JSON."""
    tool = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"]
    text = _run([*tool, "--pyproject", REPO / "pyproject.toml", "-o", "-", python])
    bom: dict[str, Any] = json.loads(text)
    (libraries,) = python.parents[1].glob("lib/python*/site-packages")
    licences = {
        canonicalize_name(each.metadata["Name"]): declared_licence(each.metadata)
        for each in installed_in(path=[str(libraries)])
    }
    for component in bom["components"]:
        _complete(component, licences[canonicalize_name(component["name"])])
    text = json.dumps(bom, indent=2, sort_keys=True) + "\n"
    _validate(text)
    return text


def _complete(component: dict[str, Any], licence: str) -> None:
    """Set the licence, of which the tool knows SPDX only, and replace the place of a wheel here by its hash."""
    if not is_permissive(licence) or not _EXPRESSION.fullmatch(spdx(licence)):
        raise SbomError(f"{component['name']}: no permissive licence: {licence!r}")
    component["licenses"] = [{"expression": spdx(licence)}]
    references = component.get("externalReferences", [])
    component["externalReferences"] = [each for each in references if not each["url"].startswith("file:")]
    hashes = [each["hashes"] for each in references if each["url"].startswith("file:") and "hashes" in each]
    if hashes:
        (component["hashes"],) = hashes


def _validate(text: str) -> None:
    schema = import_module("cyclonedx.schema").SchemaVersion.V1_6
    error = import_module("cyclonedx.validation.json").JsonStrictValidator(schema).validate_str(text)
    if error is not None:
        raise SbomError(f"not valid in CycloneDX 1.6: {error}")


def _run(command: Sequence[str | Path]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPO)
    if done.returncode:
        raise SbomError(f"{' '.join(map(str, command))}: exit code {done.returncode}:\n{done.stderr}")
    return done.stdout


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        try:
            text = make_sbom(install_locked(Path(directory, "gateway"), OUTPUT))
        except SbomError as error:
            print(error, file=sys.stderr)
            return 1
    (OUTPUT / SBOM).write_text(text, encoding="utf-8")
    print(f"{OUTPUT / SBOM}: {len(json.loads(text)['components'])} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
