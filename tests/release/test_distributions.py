# SPDX-License-Identifier: Apache-2.0
"""The distributions: one version, complete metadata, reproducible files, an installation without the source tree."""

import gzip
import io
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest

from release.build import SUMS, build, normalize_sdist
from release.distributions import INSTALL_PAGE, REPO, distributions, main, set_version, version, with_version
from release.try_install import TryError, commands_of_page, try_install

ALL = list(distributions())
COMMIT_TIME_S = 1_700_000_000
PYTHON_VERSIONS = {"ustreamer-pipeline": 1, "up-python-zenoh": 3}
"""Spark has one version here; Python 3.14 does not load the protobuf of up-python."""
NOT_FOR_A_GATEWAY = {"ustreamer-pipeline", "uprotocol-tck", "up-python-zenoh"}


def project(folder: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def copied(folder: Path) -> Path:
    """The files that have a version, below `folder`."""
    for each in [
        INSTALL_PAGE,
        REPO / "ustreamer/__init__.py",
        *(found.folder / "pyproject.toml" for found in ALL),
    ]:
        copy = folder / each.relative_to(REPO)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(each.read_bytes())
    return folder


def test_the_streamer_its_plugins_and_the_pipeline_are_distributions() -> None:
    names = [each.name for each in ALL]
    assert (names[0], names[-1]) == ("ustreamer", "ustreamer-pipeline")
    assert {"ustreamer-usubscription", "ustreamer-throttle"} < set(names)


@pytest.mark.parametrize("name", [each.name for each in ALL])
def test_each_distribution_has_the_version_of_the_streamer_and_what_an_index_shows(name: str) -> None:
    (folder,) = [each.folder for each in ALL if each.name == name]
    about = project(folder)
    text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    assert about["version"] == version()
    assert with_version(text, version()) == text, "it requires another version of a distribution"
    assert about["description"]
    assert about["keywords"]
    kinds = {each.rpartition(" :: ")[0] for each in about["classifiers"]}
    assert kinds >= {
        "Development Status",
        "Intended Audience",
        "Operating System :: POSIX",
        "Programming Language :: Python",
        "Topic :: System",
        "Typing",
    }
    assert about["urls"]


def test_the_python_versions_are_those_of_the_page() -> None:
    page = (REPO / "docs/install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (3\.\d+) \|", page, re.MULTILINE)
    assert rows[0] == "3.11"
    for each in ALL:
        about = project(each.folder)
        versions = [line.rpartition(" ")[2] for line in about["classifiers"] if ":: Python ::" in line]
        assert versions == rows[: PYTHON_VERSIONS.get(each.name)], each.name
        assert about["requires-python"] == f">={rows[0]}", each.name


def test_all_plugins_are_in_the_extra_all() -> None:
    extra = project(REPO)["optional-dependencies"]["all"]
    plugins = {each.name for each in ALL if each.folder.parent.name == "plugins"}
    assert {line.split(">")[0] for line in extra if line.startswith("ustreamer-")} == plugins


def test_one_command_sets_every_version(tmp_path: Path) -> None:
    root = copied(tmp_path)
    set_version("1.12.3", root)
    assert version(root) == "1.12.3"
    for each in distributions(root):
        about = project(each.folder)
        extras = about.get("optional-dependencies", {}).values()
        required = [line for lines in (about["dependencies"], *extras) for line in lines]
        bounds = {line.split(">=")[1] for line in required if line.startswith("ustreamer") and ">=" in line}
        assert about["version"] == "1.12.3"
        assert bounds <= {"1.12,<1.13"}, each.name
    page = (root / INSTALL_PAGE.relative_to(REPO)).read_text(encoding="utf-8")
    assert set(re.findall(r"ustreamer-[\d.]+-", page)) == {"ustreamer-1.12.3-"}


def test_the_page_installs_the_streamer_and_each_plugin_and_nothing_else(tmp_path: Path) -> None:
    """The patterns of the command, as the shell of the reader expands them."""
    dist = tmp_path / "dist"
    dist.mkdir()
    wheels = {f"{each.name.replace('-', '_')}-{version()}-py3-none-any.whl": each.name for each in ALL}
    for wheel in wheels:
        (dist / wheel).touch()
    make_environment, install, run = commands_of_page("## Try it")
    assert make_environment == "python3 -m venv .venv"
    assert run.startswith(".venv/bin/ustreamer ")
    shown = subprocess.run(
        ["sh", "-c", install.replace(".venv/bin/pip install", "echo")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    names = [wheels[each.removeprefix("dist/").removesuffix("[all]")] for each in shown.stdout.split()]
    assert sorted(names) == sorted({each.name for each in ALL} - NOT_FOR_A_GATEWAY)


@pytest.mark.parametrize("wrong", [["1.2"], ["v1.2.3"], ["1.2.3", "1.2.4"], ["1.2.3rc1"]])
def test_a_wrong_version_changes_nothing(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    before = version()
    assert main(wrong) == 2
    assert "three numbers" in capsys.readouterr().err
    assert version() == before


def sdist(file: Path, *, time_s: int, names: list[str]) -> Path:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname, member.mode = len(name), time_s, "someone", 0o664
            archive.addfile(member, io.BytesIO(name.encode()))
    file.write_bytes(gzip.compress(content.getvalue(), mtime=time_s))
    return file


def test_a_normalized_sdist_depends_on_its_files_only(tmp_path: Path) -> None:
    one = sdist(tmp_path / "one.tar.gz", time_s=1, names=["a/x", "a/y"])
    two = sdist(tmp_path / "two.tar.gz", time_s=2, names=["a/y", "a/x"])
    other = sdist(tmp_path / "other.tar.gz", time_s=1, names=["a/x", "a/z"])
    for file in (one, two, other):
        normalize_sdist(file, COMMIT_TIME_S)
    assert one.read_bytes() == two.read_bytes() != other.read_bytes()
    with tarfile.open(one) as archive:
        assert {each.mtime for each in archive} == {COMMIT_TIME_S}
        member = archive.extractfile("a/y")
        assert member is not None
        assert member.read() == b"a/y"


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_two_builds_are_equal_and_their_wheels_run_without_the_source_tree(tmp_path: Path) -> None:
    files = build(tmp_path / "one")
    build(tmp_path / "two")
    sums = (tmp_path / "one" / SUMS).read_text(encoding="utf-8")
    assert sums == (tmp_path / "two" / SUMS).read_text(encoding="utf-8")
    assert len(files) == 2 * len(ALL)
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, files)], check=True)
    (tmp_path / "trial").mkdir()
    try_install(tmp_path / "one", tmp_path / "trial")


@pytest.mark.soak
def test_an_installation_without_a_wheel_of_the_streamer_fails(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "trial").mkdir()
    with pytest.raises(TryError, match="ustreamer"):
        try_install(tmp_path / "empty", tmp_path / "trial")
