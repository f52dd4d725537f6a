# SPDX-License-Identifier: Apache-2.0
"""`python -m release.deb`: makes a Debian package of the wheels in dist/, with the locked dependencies: dist/*.deb.

The package has an environment of its own in /usr/lib/ustreamer, which uses the machine's Python. So it neither needs
nor changes other Python packages. It fits the Python version and the processor of the machine that builds it.
"""

import gzip
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from release.build import OUTPUT
from release.distributions import REPO, gateway_wheels, version
from release.lock import LOCK

ENVIRONMENT: Final = Path("usr/lib/ustreamer")
"""The folder of the virtual environment, relative to the root."""
PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
_LAUNCHER: Final = f"""#!/{ENVIRONMENT}/bin/python3
import sys

from ustreamer.host.cli.main import main

sys.exit(main())
"""
_PYVENV: Final = f"""home = /usr/bin
include-system-site-packages = false
version = {PYTHON}
"""
_POSTINST: Final = """#!/bin/sh
set -e
if [ "$1" = configure ]; then
    if ! getent passwd ustreamer >/dev/null; then
        adduser --system --group --home /var/lib/ustreamer --no-create-home --quiet ustreamer
    fi
    chown root:ustreamer /etc/ustreamer /etc/ustreamer/ustreamer.toml
    chmod 750 /etc/ustreamer
    chmod 640 /etc/ustreamer/ustreamer.toml
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        if systemctl is-active --quiet ustreamer; then systemctl restart ustreamer; fi
    fi
fi
"""
_PRERM: Final = """#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then systemctl disable --now --quiet ustreamer || true; fi
"""
_POSTRM: Final = """#!/bin/sh
set -e
if [ "$1" = purge ]; then rm -rf /var/lib/ustreamer; fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
"""
_STATE: Final = 'state_dir = "/var/lib/ustreamer"'


class DebError(Exception):
    """The package cannot be made."""


def control(architecture: str, installed_kb: int) -> str:
    """The file with the facts of the package."""
    major, minor = map(int, PYTHON.split("."))
    return f"""Package: ustreamer
Version: {version()}
Architecture: {architecture}
Section: net
Priority: optional
Maintainer: uStreamer maintainers <security@ustreamer.invalid>
Depends: python3 (>= {PYTHON}), python3 (<< {major}.{minor + 1}), adduser, libc6
Installed-Size: {installed_kb}
Description: dispatcher of uProtocol messages on a vehicle gateway
 The uStreamer carries messages between Zenoh, SOME/IP, MQTT and WAMP networks.
 It forwards a publication only to subscribers, at the requested rate. The
 installation does not start the service: adapt /etc/ustreamer/ustreamer.toml
 first.
"""


def service_config() -> str:
    """configs/minimal.toml with the state directory of the service."""
    text = (REPO / "configs/minimal.toml").read_text(encoding="utf-8")
    lines = [_STATE if line.startswith("state_dir") else line for line in text.splitlines()]
    if _STATE not in lines:
        raise DebError("configs/minimal.toml: expected a line that begins with state_dir")
    return "\n".join(lines) + "\n"


def build(wheels: Path, output: Path) -> Path:
    """The package, in `output`. Raises DebError."""
    architecture = _run(["dpkg", "--print-architecture"]).strip()
    epoch_s = _run(["git", "show", "-s", "--format=%ct", "HEAD"]).strip()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        root.chmod(0o755)
        _install(wheels, root)
        _add_files(root)
        installed_kb = sum(each.stat().st_size for each in root.rglob("*") if each.is_file()) // 1024
        _write(root / "DEBIAN/control", control(architecture, installed_kb))
        _write(root / "DEBIAN/conffiles", "/etc/ustreamer/ustreamer.toml\n")
        for name, text in (("postinst", _POSTINST), ("prerm", _PRERM), ("postrm", _POSTRM)):
            _write(root / "DEBIAN" / name, text, mode=0o755)
        package = output / f"ustreamer_{version()}_{architecture}.deb"
        _run(
            ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(root), str(package)],
            SOURCE_DATE_EPOCH=epoch_s,
        )
    return package


def _install(wheels: Path, root: Path) -> None:
    """The environment: the wheels, their dependencies and the compiled files."""
    packages = root / ENVIRONMENT / "lib" / f"python{PYTHON}" / "site-packages"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", str(packages)]
    _run([*pip, "--require-hashes", "--only-binary", ":all:", "-r", str(LOCK)])
    _run([*pip, "--no-deps", "--no-index", *gateway_wheels(wheels)])
    shutil.rmtree(packages / "bin", ignore_errors=True)  # they name the Python of this machine
    for place in packages.glob("*.dist-info/direct_url.json"):  # it names the folder of the wheel
        place.unlink()
        record = place.with_name("RECORD")
        lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
        record.write_text("".join(line for line in lines if "direct_url.json" not in line), encoding="utf-8")
    final = f"/{ENVIRONMENT}/lib/python{PYTHON}/site-packages"
    compile_all = [sys.executable, "-m", "compileall", "-q", "-s", str(packages), "-p", final]
    _run([*compile_all, "--invalidation-mode", "unchecked-hash", str(packages)])
    binaries = root / ENVIRONMENT / "bin"
    binaries.mkdir()
    (binaries / "python3").symlink_to("/usr/bin/python3")
    _write(binaries / "ustreamer", _LAUNCHER, mode=0o755)
    _write(root / ENVIRONMENT / "pyvenv.cfg", _PYVENV)


def _add_files(root: Path) -> None:
    """What is outside of the environment."""
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/ustreamer").symlink_to(f"/{ENVIRONMENT}/bin/ustreamer")
    unit = (REPO / "deploy/systemd/ustreamer.service").read_text(encoding="utf-8")
    _write(root / "lib/systemd/system/ustreamer.service", unit)
    _write(root / "etc/ustreamer/ustreamer.toml", service_config())
    documents = root / "usr/share/doc/ustreamer"
    _write(documents / "copyright", (REPO / "LICENSE").read_text(encoding="utf-8"))
    for name in ("README.md", "CHANGELOG.md", "SECURITY.md"):
        _write(documents / name, (REPO / name).read_text(encoding="utf-8"))
    for file in sorted((REPO / "configs").glob("*.toml")):
        _write(documents / "examples" / file.name, file.read_text(encoding="utf-8"))
    program = "import sys; from ustreamer.host.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "completion"]
    _write(root / "usr/share/bash-completion/completions/ustreamer", _run([*command, "bash"]))
    manual = root / "usr/share/man/man1/ustreamer.1.gz"
    manual.parent.mkdir(parents=True)
    manual.write_bytes(gzip.compress(_run([*command, "man"]).encode(), mtime=0))


def _write(file: Path, text: str, mode: int = 0o644) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    file.chmod(mode)


def _run(command: Sequence[str], **environment: str) -> str:
    try:
        done = subprocess.run(
            command, cwd=REPO, env=os.environ | environment, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise DebError(f"{command[0]} is missing") from error
    if done.returncode:
        raise DebError(f"{' '.join(command)}: exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    if arguments:
        print("usage: python -m release.deb", file=sys.stderr)
        return 2
    try:
        package = build(OUTPUT, OUTPUT)
    except DebError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{package.relative_to(REPO)}: {package.stat().st_size // 1_000_000} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
