# SPDX-License-Identifier: Apache-2.0
"""All borders by name, and their kept inputs."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.fuzz import files, host, mqtt, someip, usubscription, wamp, zenoh
from tests.fuzz.border import Border

BORDERS: Final[Mapping[str, Border]] = {
    name: border
    for area in (someip, zenoh, mqtt, wamp, usubscription, host, files)
    for name, border in area.BORDERS.items()
}
CORPUS: Final = Path(__file__).parent / "corpus"
"""A file for each border: inputs that reach different code, one line of base64 each."""
DEFECTS: Final = Path(__file__).parent / "defects"
"""As CORPUS: inputs that once found a defect. They are never removed."""
_MAX_KEPT_BYTES: Final = 12_000  # of the inputs in a file of CORPUS, before the encoding


def kept_inputs(name: str) -> list[bytes]:
    """All kept inputs of a border."""
    return [*_read(DEFECTS, name), *_read(CORPUS, name)]


def keep_inputs(name: str, defects: Sequence[bytes], others: Sequence[bytes]) -> None:
    """Add inputs to the kept ones of a border; of `others` the shortest."""
    if defects:
        _write(DEFECTS, name, [*dict.fromkeys([*_read(DEFECTS, name), *defects])])
    short, size = list[bytes](), 0
    for each in sorted({*others, *_read(CORPUS, name)}, key=lambda each: (len(each), each)):
        size += len(each)
        if size > _MAX_KEPT_BYTES:
            break
        short.append(each)
    _write(CORPUS, name, short)


def _read(folder: Path, name: str) -> list[bytes]:
    file = folder / f"{name}.txt"
    lines = file.read_text(encoding="ascii").splitlines() if file.exists() else []
    return [base64.b64decode(line) for line in lines]


def _write(folder: Path, name: str, inputs: Sequence[bytes]) -> None:
    folder.mkdir(exist_ok=True)
    lines = [base64.b64encode(each).decode("ascii") + "\n" for each in inputs]
    (folder / f"{name}.txt").write_text("".join(lines), encoding="ascii")
