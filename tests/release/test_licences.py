# SPDX-License-Identifier: Apache-2.0
"""Every package that a gateway may install has a permissive licence."""

from pathlib import Path

import pytest

from release import licences


@pytest.mark.parametrize(
    ("text", "permissive"),
    [
        ("MIT", True),
        ("MIT License", True),
        ("Apache-2.0 AND BSD-2-Clause", True),
        ("Apache Software License OR Eclipse Public License 2.0 (EPL-2.0)", True),
        ("Apache-2.0 AND GPL-3.0-only", False),
        ("GPL-3.0-or-later", False),
        ("LGPL-2.1-only OR GPL-2.0-only", False),
        ("", False),
    ],
)
def test_a_licence_is_permissive_if_one_choice_is(text: str, permissive: bool) -> None:
    assert licences.is_permissive(text) is permissive


def test_the_packages_of_a_gateway_are_permissive(capsys: pytest.CaptureFixture[str]) -> None:
    assert licences.main() == 0
    shown = capsys.readouterr().out
    for name in ("eclipse-zenoh", "lmdb", "msgspec", "pluggy", "protobuf", "websockets", "cbor2"):
        assert f"{name}: " in shown


def test_a_package_without_a_permissive_licence_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(licences, "PERMISSIVE", licences.PERMISSIVE - {"OLDAP-2.8"})
    assert licences.main() == 1
    assert "lmdb: OLDAP-2.8: expected one of" in capsys.readouterr().err


def test_every_plugin_is_checked() -> None:
    folders = (Path(__file__).parents[2] / "plugins").glob("*/pyproject.toml")
    assert {"ustreamer", *(f"ustreamer-{each.parent.name}" for each in folders)} == licences.OURS.keys()
