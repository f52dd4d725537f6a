# SPDX-License-Identifier: Apache-2.0
"""`ustreamer new`: what it writes has passing tests and a configuration that `check` accepts."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ustreamer.host.cli.main import main
from ustreamer.host.cli.new_command import write_skeleton

KINDS = ("plugin", "transport")


def installed(project: Path, site: Path) -> dict[str, str]:
    """Install the project with its entry points in `site`; returns an environment in which it is found."""
    about = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = site / f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    info.mkdir(parents=True)
    head = f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n"
    (info / "METADATA").write_text(head, encoding="utf-8")
    lines = [f"{name} = {value}" for name, value in about["entry-points"]["ustreamer"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[ustreamer]", *lines]), encoding="utf-8")
    path = os.pathsep.join([str(site), str(project)])
    return {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_tests_of_a_new_project_pass_and_its_configuration_is_accepted(kind: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    assert main(["new", kind, "night-mode", "--directory", str(project)]) == 0
    environment = installed(project, tmp_path / "site")
    options = ("-q", "-p", "no:cacheprovider", "-W", "error", "--strict-markers")
    commands: tuple[list[str | Path], ...] = (
        [sys.executable, "-m", "pytest", *options, "--rootdir", project, project],
        [
            Path(sys.executable).with_name("ustreamer"),
            "check",
            project / "example.toml",
            "--offline",
        ],
        [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--line-length", "110", project],
    )
    for command in commands:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_in_a_new_project_is_that_of_the_project(kind: str, tmp_path: Path) -> None:
    project = tmp_path / "project"
    written = write_skeleton(kind, "night-mode", project)
    texts = {str(path.relative_to(project)): path.read_text(encoding="utf-8") for path in written}
    assert {"pyproject.toml", "README.md", "example.toml", "ustreamer_night_mode/plugin.py"} <= texts.keys()
    assert not [name for name, text in texts.items() if re.search(r"\$\{|PACKAGE|\.in$", name + text)]
    silent = [name for name, text in texts.items() if name.endswith((".py", ".toml")) and "SPDX" not in text]
    assert silent == []


def test_the_next_commands_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = tmp_path / "project"
    assert main(["new", "plugin", "night", "--directory", str(project)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1:] == [
        f"  pip install -e '{project}[test]'",
        f"  pytest {project}",
        f"  ustreamer check {project}/example.toml --offline",
    ]


@pytest.mark.parametrize(
    ("kind", "name", "why"),
    [
        ("plugin", "throttle", "a plugin 'throttle' is installed already; choose another name"),
        ("transport", "zenoh", "there is a transport 'zenoh' already; choose another name"),
    ],
)
def test_the_name_of_an_installed_one_is_refused(
    kind: str, name: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", kind, name, "--directory", str(tmp_path / "project")]) == 1
    assert capsys.readouterr().err == f"nothing written: {why}\n"
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").touch()
    assert main(["new", "plugin", "night", "--directory", str(tmp_path)]) == 1
    assert f"{tmp_path}" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("name", ["Night", "night_mode", "9lives", "night-", "../night", "", "test-night"])
def test_an_invalid_name_is_a_usage_error(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["new", "plugin", name])
    assert ended.value.code == 2
    expected = "pytest would take its classes for tests" if name.startswith("test") else "expected a-z, 0-9"
    assert expected in capsys.readouterr().err
