# SPDX-License-Identifier: Apache-2.0
"""A real systemd for a test: a user manager of root, in a mount namespace of its own.

systemd needs the directory /run/systemd/system, which says that it has booted the machine. The namespace has a /run of
its own with this directory, so the machine does not see it.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.waiting import wait_until

_SYSTEMD: Final = Path("/lib/systemd/systemd")
_BOOTED: Final = (
    "mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system && "
    f'exec {_SYSTEMD} --user --unit=test.target --log-target=console --log-level=info 2>"$XDG_RUNTIME_DIR/log"'
)
_COMMAND_S: Final = 60.0


class UserSystemd:
    """A running manager; see `running_systemd`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._environment = os.environ | {
            "XDG_RUNTIME_DIR": str(directory),
            "XDG_CONFIG_HOME": str(directory / "config"),
        }
        self._units = directory / "config/systemd/user"
        self._units.mkdir(parents=True)
        (self._units / "test.target").write_text("[Unit]\nDefaultDependencies=no\n", encoding="utf-8")
        self._process = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", _BOOTED],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def control(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`systemctl` with these arguments."""
        namespace = ["nsenter", f"--target={self._process.pid}", "--mount"]
        return subprocess.run(
            [*namespace, "systemctl", "--user", *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )

    def start(self, name: str, unit: str) -> None:
        """Start a unit with this text. Returns when it is ready."""
        (self._units / name).write_text(unit, encoding="utf-8")
        self.control("daemon-reload")
        done = self.control("start", name)
        assert done.returncode == 0, f"{done.stderr}\n{self.control('status', name).stdout}\n{self.log}"

    def properties(self, name: str) -> Mapping[str, str]:
        """The properties of a unit, as `systemctl show` has them."""
        lines = self.control("show", name).stdout.splitlines()
        return {key: value for key, _, value in (line.partition("=") for line in lines)}

    @property
    def log(self) -> str:
        return (self._directory / "log").read_text(encoding="utf-8")

    def is_running(self) -> bool:
        """Whether it has booted. False also after its end."""
        return self.control("is-system-running").stdout.strip() in {"running", "degraded"}

    def stop(self) -> None:
        self.control("exit")
        try:
            self._process.wait(_COMMAND_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def running_systemd() -> Iterator[UserSystemd]:
    """A manager until the end of the block. Skips the test where none can run."""
    if os.geteuid() != 0 or not _SYSTEMD.exists() or not all(map(shutil.which, ("unshare", "nsenter"))):
        pytest.skip("needs root, systemd, unshare and nsenter")
    # Not in tmp_path: the name of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="sd-") as name:
        systemd = UserSystemd(Path(name))
        try:
            wait_until(systemd.is_running, "systemd", within_s=20.0)
        except AssertionError:
            reason = systemd.log
            systemd.stop()
            pytest.skip(f"systemd does not run here: {reason[-500:]}")
        try:
            yield systemd
        finally:
            systemd.stop()
