# SPDX-License-Identifier: Apache-2.0
"""Rows of one file: only some columns, texts with their dictionary, and a file that is older than a column."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from ustreamer_pipeline.lake.snapshot import TableFile
from ustreamer_pipeline.lake.storage import storage_of
from ustreamer_pipeline.lake.tables import read_file
from ustreamer_pipeline.schemas import SAMPLED


def test_chosen_columns_are_read_with_their_dictionary_and_null_where_the_file_is_older(
    tmp_path: Path,
) -> None:
    rows = pa.table({"run": [1, 1], "signal": ["speed", "speed"]})
    pq.write_table(rows, tmp_path / "old.parquet")
    file = TableFile(SAMPLED.name, "vin1.hpc", 0, "old.parquet", 2, 1)
    texts = ("signal", "unit")
    (batch,) = read_file(storage_of(str(tmp_path)), file, SAMPLED, columns=(*texts, "gateway"), encoded=texts)
    assert batch.to_pydict() == {
        "signal": ["speed", "speed"],
        "unit": [None, None],
        "gateway": ["vin1.hpc", "vin1.hpc"],
    }
    assert {batch.schema.field(name).type for name in texts} == {pa.dictionary(pa.int32(), pa.string())}
