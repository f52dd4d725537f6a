# SPDX-License-Identifier: Apache-2.0
"""Each table is described once, and Spark and Arrow read the same columns."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from ustreamer_pipeline.schemas import QUARANTINE, SILVER, Table

TABLES = [*SILVER, QUARANTINE]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_spark_and_arrow_read_the_same_columns_from_one_description(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    empty = table.read_table(spark, tmp_path)
    assert empty.columns == table.names == table.arrow_schema().names
    assert spark.createDataFrame(table.arrow_schema().empty_table(), table.ddl).schema == empty.schema
    assert table.names[-2:] == list(table.partitioned_by)
    assert all(column.note for column in table.columns)
