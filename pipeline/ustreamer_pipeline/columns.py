# SPDX-License-Identifier: Apache-2.0
"""Columns of Arrow as arrays of numpy."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]


class Dictionary:
    """Numbers for texts, equal in all batches; each batch has its own Arrow dictionary."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        number = self._numbers.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number

    def text(self, number: int) -> str | None:
        return None if number < 0 else self.texts[number]

    def codes(self, column: pa.Array) -> Codes:
        """Numbers of a column; -1 is null."""
        if not isinstance(column, pa.DictionaryArray):
            column = column.dictionary_encode()
        here = np.array([self.number(text) for text in column.dictionary.to_pylist()] + [-1], dtype=np.int32)
        indices = column.indices
        if indices.null_count:
            indices = pc.fill_null(indices, len(here) - 1)
        if len(here) == 2 and not column.null_count:
            return np.full(len(column), here[0])
        codes: Codes = here[indices.to_numpy(zero_copy_only=False)]
        return codes


def int_column(batch: pa.RecordBatch, name: str, null: int = 0) -> Ints:
    column = batch.column(name)
    if column.null_count:
        column = pc.fill_null(column, null)
    array: Ints = column.to_numpy(zero_copy_only=False)
    return array
