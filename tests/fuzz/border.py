# SPDX-License-Identifier: Apache-2.0
"""A border: where bytes of others come in. Each module of this folder lists the borders of one area."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

Take = Callable[[bytes], None]
"""Takes one input. It returns for each input, accepted or refused; what it raises is a defect."""

PIECE_HEAD: Final = 3


class Border(NamedTuple):
    """One border: `make` builds what takes the inputs, with a directory for its files; `seeds` are valid inputs."""

    make: Callable[[Path], Take]
    seeds: Sequence[bytes]
    max_length: int = 4_096


def pure(take: Take) -> Callable[[Path], Take]:
    """`make` of a border that writes no file."""
    return lambda directory: take


def join_pieces(*pieces: bytes, kind: int = 0) -> bytes:
    """One input for a border that takes several pieces in order: each with its kind and its length before it."""
    return b"".join(bytes([kind]) + len(piece).to_bytes(2) + piece for piece in pieces)


def split_pieces(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The kinds and pieces of an input; the last piece may be shorter than its length."""
    at = 0
    while at + PIECE_HEAD <= len(data):
        length = int.from_bytes(data[at + 1 : at + PIECE_HEAD])
        yield data[at], data[at + PIECE_HEAD : at + PIECE_HEAD + length]
        at += PIECE_HEAD + length
