# SPDX-License-Identifier: Apache-2.0
"""The lock of a gateway: it has all that our distributions require, with hashes, and nothing of ours."""

import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from release.licences import OURS, closure
from release.lock import LOCK, MACHINES, PYTHONS, LockedPackage, environment, locked, third_party, write_lock

PACKAGES = locked(LOCK.read_text(encoding="utf-8"))
COMBINATIONS = [(python, machine) for python in PYTHONS for machine in MACHINES]
TEXT = """\
# a comment
a-b==1.2 \\
    --hash=sha256:{one} \\
    --hash=sha256:{two}
c==2 ; python_full_version < '3.12' \\
    --hash=sha256:{one}
d==3
""".format(one="0" * 64, two="f" * 64)


def test_a_lock_is_read_with_hashes_and_markers() -> None:
    first, second, third = locked(TEXT)
    assert (first.name, str(first.version), len(first.hashes), first.marker) == ("a-b", "1.2", 2, None)
    assert (second.applies("3.11", "x86_64"), second.applies("3.12", "x86_64")) == (True, False)
    assert (third.name, third.hashes) == ("d", ())


def package(name: str, python: str, machine: str) -> LockedPackage | None:
    found = [
        each for each in PACKAGES if each.name == canonicalize_name(name) and each.applies(python, machine)
    ]
    assert len(found) <= 1, "one version for one machine"
    return found[0] if found else None


@pytest.mark.parametrize(("python", "machine"), COMBINATIONS)
def test_the_lock_satisfies_every_requirement_of_our_distributions(python: str, machine: str) -> None:
    wanted = [
        each
        for each in third_party()
        if each.marker is None or each.marker.evaluate(environment(python, machine))
    ]
    assert {"msgspec", "eclipse-zenoh", "websockets", "paho-mqtt", "cryptography"} <= {
        each.name for each in wanted
    }
    for each in wanted:
        found = package(each.name, python, machine)
        assert found is not None, f"{each}: run `make lock`"
        assert each.specifier.contains(found.version), f"{each} and {found.version}: run `make lock`"


def test_the_lock_has_what_locked_packages_require() -> None:
    """As far as they are installed here."""
    present, _ = closure()
    lock = {each.name for each in PACKAGES}
    assert {canonicalize_name(name) for name in present} - OURS.keys() - lock == set()


def test_each_package_has_hashes_and_none_is_ours() -> None:
    assert [each.name for each in PACKAGES if not each.hashes] == []
    assert [each.name for each in PACKAGES if each.name.startswith("ustreamer")] == []
    assert len(PACKAGES) >= 15


def test_a_requirement_of_ours_is_not_one_of_others() -> None:
    assert not {canonicalize_name(each.name) for each in third_party()} & OURS.keys()
    assert all(isinstance(each, Requirement) for each in third_party())


# --- with the package index -------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize(("python", "machine"), COMBINATIONS)
def test_each_machine_has_wheels_of_the_lock(python: str, machine: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "uv", "pip", "install", "--dry-run", "--require-hashes", "--no-deps"]
    command += ["--only-binary", ":all:", "--python-platform", f"{machine}-manylinux_2_28"]
    command += ["--python-version", python, "--target", str(tmp_path), "-r", str(LOCK)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    count = sum(each.applies(python, machine) for each in PACKAGES)
    assert f"Would install {count} packages" in done.stderr


@pytest.mark.soak
def test_the_command_keeps_a_lock_that_fits(tmp_path: Path) -> None:
    copy = tmp_path / "gateway.lock"
    copy.write_bytes(LOCK.read_bytes())
    write_lock(copy)
    assert copy.read_text(encoding="utf-8") == LOCK.read_text(encoding="utf-8")
