# SPDX-License-Identifier: Apache-2.0
"""The Debian package: its facts, its configuration, and what it must not contain. `make deb` installs it."""

import sys
from pathlib import Path

import pytest

from release import deb, try_deb
from release.distributions import REPO, version
from ustreamer.host.runtime.process import load


def test_the_package_fits_one_version_of_python() -> None:
    fields = dict(
        line.split(": ", 1) for line in deb.control("amd64", 7).splitlines() if not line.startswith(" ")
    )
    minor = sys.version_info.minor
    assert fields["Version"] == version()
    assert fields["Depends"].startswith(f"python3 (>= 3.{minor}), python3 (<< 3.{minor + 1}), ")
    assert fields["Installed-Size"] == "7"


def test_the_configuration_of_the_service_is_valid_and_writes_to_its_state_directory(tmp_path: Path) -> None:
    file = tmp_path / "ustreamer.toml"
    file.write_text(deb.service_config(), encoding="utf-8")
    assert load(file).config.state_dir == Path("/var/lib/ustreamer")


def test_the_unit_runs_the_command_and_the_file_of_the_package() -> None:
    unit = (REPO / "deploy/systemd/ustreamer.service").read_text(encoding="utf-8")
    (start,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    assert start.startswith("ExecStart=/usr/bin/ustreamer run ")
    assert start.endswith(" /etc/ustreamer/ustreamer.toml")


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(deb.DebError, match="dpkg is missing"):
        deb.build(tmp_path, tmp_path)


@pytest.mark.parametrize("module", [deb, try_deb])
def test_arguments_are_refused(module: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert module.main(["x"]) == 2  # type: ignore[attr-defined]
    assert "usage: python -m release." in capsys.readouterr().err
