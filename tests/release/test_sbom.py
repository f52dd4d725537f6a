# SPDX-License-Identifier: Apache-2.0
"""The bill of materials: it names every package of the lock with its licence, and our distributions with their hashes."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import canonicalize_name

from release import sbom
from release.build import build
from release.distributions import REPO, version
from release.licences import OURS, is_permissive, spdx
from release.lock import LOCK, locked
from release.sbom import SbomError, install_locked, make_sbom


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MIT", "MIT"),
        ("3-Clause BSD License", "BSD-3-Clause"),
        ("EPL-2.0 OR BSD-3-Clause", "EPL-2.0 OR BSD-3-Clause"),
        ("Apache-2.0 AND BSD-2-Clause", "Apache-2.0 AND BSD-2-Clause"),
        (
            "Apache Software License OR Eclipse Public License 2.0 (EPL-2.0)",
            "Apache-2.0 OR EPL-2.0",
        ),
        ("ISC License (ISCL)", "ISC"),
        ("MIT License OR Apache Software License", "MIT OR Apache-2.0"),
    ],
)
def test_a_licence_is_an_spdx_expression(text: str, expected: str) -> None:
    assert spdx(text) == expected


def test_a_package_without_a_known_licence_is_an_error() -> None:
    for licence in ("", "GPL-3.0", "MIT OR Some Other Words"):
        with pytest.raises(SbomError, match=f"thing: no permissive licence: '{licence}'"):
            sbom._complete({"name": "thing"}, licence)


def test_the_place_of_a_wheel_is_replaced_by_its_hash() -> None:
    hashes = [{"alg": "SHA-256", "content": "00"}]
    web = {"type": "website", "url": "https://example.com"}
    component: dict[str, Any] = {
        "name": "thing",
        "externalReferences": [
            {"type": "distribution", "url": "file:///home/me/x.whl", "hashes": hashes},
            web,
        ],
    }
    sbom._complete(component, "MIT")
    assert (component["externalReferences"], component["hashes"]) == ([web], hashes)
    assert component["licenses"] == [{"expression": "MIT"}]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_gateway_installs_from_the_lock_and_its_bill_names_every_package(tmp_path: Path) -> None:
    build(tmp_path / "dist")
    python = install_locked(tmp_path / "gateway", tmp_path / "dist")
    text = make_sbom(python)
    bom = json.loads(text)
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    assert (bom["metadata"]["component"]["name"], bom["metadata"]["component"]["version"]) == (
        "ustreamer",
        version(),
    )
    components: dict[str, Any] = {canonicalize_name(each["name"]): each for each in bom["components"]}
    lock = {each.name: str(each.version) for each in locked(LOCK.read_text(encoding="utf-8"))}
    plugins = OURS.keys() - {"ustreamer"}
    assert {name: components[name]["version"] for name in lock} == lock
    assert components.keys() == lock.keys() | plugins
    assert [
        name for name, each in components.items() if not is_permissive(each["licenses"][0]["expression"])
    ] == []
    for name in plugins:
        wheel = tmp_path / "dist" / f"{name.replace('-', '_')}-{version()}-py3-none-any.whl"
        expected = {"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}
        assert components[name]["hashes"] == [expected]
    assert str(REPO) not in text
    assert str(tmp_path) not in text


@pytest.mark.soak
def test_a_package_with_other_bytes_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = LOCK.read_text(encoding="utf-8")
    changed = tmp_path / "gateway.lock"
    before, _, rest = text.partition("pluggy==")
    pluggy, _, after = rest.partition("prometheus-client==")
    lines = [f"--hash=sha256:{'0' * 64}" if "--hash" in line else line for line in pluggy.split()]
    changed.write_text(
        f"{before}pluggy=={' '.join(each for each in lines if each != chr(92))}\nprometheus-client=={after}"
    )
    monkeypatch.setattr(sbom, "LOCK", changed)
    with pytest.raises(SbomError, match="THESE PACKAGES DO NOT MATCH THE HASHES"):
        install_locked(tmp_path / "gateway", tmp_path)
