# SPDX-License-Identifier: Apache-2.0
"""`python -m release.try_deb`: installs the package of dist/ in a clean Debian root, runs the streamer, and purges it.

The root is made by debootstrap and has Python, and nothing of this machine. Needs root. Every step is printed. Exit code
69: the machine cannot make such a root.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from release.build import OUTPUT
from release.distributions import version

_SUITE: Final = "bookworm"
_INSIDE: Final = """
set -e
mount -t proc proc /proc
mkdir -p /dev/shm
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
step() { echo "\\$ $*"; "$@"; }
step dpkg -i /package.deb
test "$(ustreamer --version)" = "ustreamer $1"
step ustreamer check /etc/ustreamer/ustreamer.toml --offline
install -d -o ustreamer -g ustreamer -m 700 /var/lib/ustreamer
echo '$ ustreamer run, as user ustreamer, until READY'
mkfifo /lines
setpriv --reuid ustreamer --regid ustreamer --clear-groups \\
    ustreamer run /etc/ustreamer/ustreamer.toml >/lines &
read -r line </lines
test "$line" = READY
kill -TERM $!
wait $!
step dpkg --purge ustreamer
for left in /usr/lib/ustreamer /usr/bin/ustreamer /etc/ustreamer /var/lib/ustreamer; do
    if [ -e $left ]; then echo "$left is left"; exit 1; fi
done
"""


class TryError(Exception):
    """A step of the trial failed."""


def try_deb(package: Path, folder: Path) -> None:
    """`folder` gets the root. Raises TryError."""
    root = folder / "root"
    _run(["debootstrap", "--variant=minbase", "--include=python3,adduser", _SUITE, str(root)], quiet=True)
    shutil.copy(package, root / "package.deb")
    inside = ["chroot", str(root), "/bin/sh", "-c", _INSIDE, "sh", version()]
    _run(["unshare", "--mount", "--pid", "--fork", "--kill-child", *inside])


def _run(command: Sequence[str], *, quiet: bool = False) -> None:
    print("$", *command[: 5 if quiet else 4], flush=True)
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, env=environment, capture_output=quiet, text=True, check=False)
    if done.returncode:
        raise TryError(f"exit code {done.returncode}\n{done.stdout if quiet else ''}")


def main(arguments: Sequence[str]) -> int:
    if arguments:
        print("usage: python -m release.try_deb", file=sys.stderr)
        return 2
    packages = sorted(OUTPUT.glob(f"ustreamer_{version()}_*.deb"))
    if not packages:
        print("dist/ has no package: run python -m release.deb", file=sys.stderr)
        return 1
    if os.geteuid() or shutil.which("debootstrap", path="/usr/sbin:/usr/bin") is None:
        print("not tried: needs root, and debootstrap (apt install debootstrap)", file=sys.stderr)
        return 69
    with tempfile.TemporaryDirectory() as directory:
        try:
            try_deb(packages[-1], Path(directory))
        except TryError as error:
            print(error, file=sys.stderr)
            return 1
    print("installed, run and purged in a clean root")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
