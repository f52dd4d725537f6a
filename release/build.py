# SPDX-License-Identifier: Apache-2.0
"""`python -m release.build`: builds the sdist and the wheel of every distribution into dist/, from the last commit.

Two builds of one commit have the same bytes: every file has the time of the commit. A wheel is built from its sdist,
so the sdist is complete. `SHA256SUMS` lists all files. Files that are not committed are not in the build.
"""

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from release.distributions import REPO, distributions

OUTPUT: Final = REPO / "dist"
SUMS: Final = "SHA256SUMS"


def build(output: Path, commit: str = "HEAD") -> list[Path]:
    """The files of all distributions, in `output`. Older files there are deleted."""
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    time_s = int(_git("show", "-s", "--format=%ct", commit))
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        _export(commit, tree)
        for each in distributions(tree):
            sdist = _build("--sdist", each.folder, output, time_s)
            normalize_sdist(sdist, time_s)
            _build("--wheel", _unpacked(sdist, tree / "unpacked"), output, time_s)
    files = sorted(output.iterdir())
    sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (output / SUMS).write_text(sums, encoding="utf-8")
    return files


def normalize_sdist(sdist: Path, time_s: int) -> None:
    """Writes the archive again: members by name, with one time and without an owner."""
    content = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=content, mode="w") as new:
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = time_s, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    sdist.write_bytes(gzip.compress(content.getvalue(), mtime=time_s))


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=REPO, capture_output=True, text=True, check=True).stdout


def _export(commit: str, tree: Path) -> None:
    """The files of a commit. A link (the licence of a plugin) becomes the file that it points to."""
    archive = subprocess.run(["git", "archive", commit], cwd=REPO, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(tree, filter="data")
    for link in [each for each in tree.rglob("*") if each.is_symlink()]:
        content = link.read_bytes()
        link.unlink()
        link.write_bytes(content)


def _build(kind: str, folder: Path, output: Path, time_s: int) -> Path:
    before = set(output.iterdir())
    command = [sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", str(output), str(folder)]
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(time_s), "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{folder.name}: {' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    (new,) = set(output.iterdir()) - before
    return new


def _unpacked(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / sdist.name.removesuffix(".tar.gz")


def main(arguments: Sequence[str]) -> int:
    if arguments:
        print("usage: python -m release.build", file=sys.stderr)
        return 2
    files = build(OUTPUT)
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, files)], check=True)
    print(f"{len(files)} files in {OUTPUT.relative_to(REPO)}/, with their hashes in {SUMS}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
