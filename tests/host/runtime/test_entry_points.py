# SPDX-License-Identifier: Apache-2.0
"""Entry points read from the directories of the path are those that importlib.metadata finds there."""

from importlib.metadata import entry_points
from pathlib import Path

import pytest

from ustreamer.host.runtime.entry_points import path_entry_points

TEXT = """\
# a comment
[console_scripts]
tester = tester.main:main

[ustreamer.tests]
plain = tester.plugin:Plugin
with-extra = tester.plugin:Other.Inner [extra]
module=tester.plugin

[ustreamer.others]
other = tester.plugin:Plugin
"""


def found(group: str) -> set[tuple[str, str]]:
    return {(each.name, each.value) for each in path_entry_points(group)}


def install(directory: Path, distribution: str, text: str) -> None:
    info = directory / distribution
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("group", ["ustreamer", "console_scripts", "pytest11", "no-such-group"])
def test_the_entry_points_are_those_of_importlib(group: str) -> None:
    assert found(group) == {(each.name, each.value) for each in entry_points(group=group)}


def test_entry_points_of_every_form_are_those_of_importlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "Plug.Tester-1.0.dist-info", TEXT)
    install(tmp_path, "plug_old.egg-info", TEXT.replace("plain", "old"))
    (tmp_path / "plug_bare-1.0.dist-info").mkdir()
    expected = {(each.name, each.value) for each in entry_points(group="ustreamer.tests")}
    assert found("ustreamer.tests") == expected
    assert {name for name, _ in expected} == {"plain", "with-extra", "module", "old"}


def test_the_first_distribution_of_a_name_on_the_path_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for directory, value in (("later", "later:Plugin"), ("earlier", "earlier:Plugin")):
        install(tmp_path / directory, "plug_tester-1.0.dist-info", f"[ustreamer.tests]\ntester = {value}\n")
        monkeypatch.syspath_prepend(tmp_path / directory)
    monkeypatch.syspath_prepend(tmp_path / "no-such-directory")
    assert found("ustreamer.tests") == {("tester", "earlier:Plugin")}
    assert {each.value for each in entry_points(group="ustreamer.tests")} == {"earlier:Plugin"}


def test_an_entry_point_loads_as_that_of_importlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    values = ["json.decoder:JSONDecoder.decode", "json.decoder", "json.decoder : JSONDecoder [extra]"]
    entries = "\n".join(f"entry{number} = {value}" for number, value in enumerate(values))
    install(tmp_path, "plug_tester-1.0.dist-info", f"[ustreamer.tests]\n{entries}\n")
    loaded = {each.name: each.load() for each in path_entry_points("ustreamer.tests")}
    assert loaded == {each.name: each.load() for each in entry_points(group="ustreamer.tests")}
    assert len(loaded) == len(values)
