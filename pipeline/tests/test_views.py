# SPDX-License-Identifier: Apache-2.0
"""The views of a lake have readable times and ids, and the page of the tables describes their columns."""

import datetime as dt
from pathlib import Path

from pyspark.sql import SparkSession
from tests.sample_recordings import NOON_MS, TOPIC, Record, make_row
from ustreamer_pipeline.ingest.ingest import ingest
from ustreamer_pipeline.schemas import DELIVERIES
from ustreamer_pipeline.views import TABLES, data_dictionary, register_views, view_columns

from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.uuid import UUID

PAGE = Path(__file__).parents[2] / "docs" / "tables.md"
DURATIONS = {"queue_wait_us", "latency_us"}


def test_every_table_and_column_has_a_comment_and_every_time_is_a_timestamp() -> None:
    assert all(table.note for table in TABLES)
    columns = [column for table in TABLES for column in view_columns(table)]
    assert all(column.note for column in columns)
    assert {column.name for column in columns if column.name.endswith("_us")} == DURATIONS
    assert not [column.name for column in columns if column.name.endswith(("_msb", "_lsb"))]


def test_the_page_of_the_tables_is_generated_from_the_schemas() -> None:
    assert PAGE.read_text(encoding="utf-8") == data_dictionary(), (
        "python -m ustreamer_pipeline.views > docs/tables.md"
    )


def test_views_have_timestamps_uuids_and_comments(
    spark: SparkSession, record: Record, tmp_path: Path
) -> None:
    request = UUID(NOON_MS << 16 | 0x7ABC, 0b10 << 62 | 77)
    small = UUID(0x7001, 0b10 << 62)  # leading zeros in the upper half
    path = record(
        [make_row(0, 1.5, id=small), make_row(1, 2, type=UMessageType.RESPONSE, sink=TOPIC, request=request)]
    )
    lake = tmp_path / "lake"
    ingest(spark, [str(path.parent)], str(lake))
    names = register_views(spark, lake)
    assert set(names) == {table.name for table in TABLES}
    try:
        rows = spark.sql("SELECT * FROM deliveries ORDER BY seq").collect()
        assert [row.id for row in rows] == [str(small), str(make_row(1).id)]
        assert [row.request for row in rows] == [None, str(request)]
        noon = dt.datetime.fromtimestamp(NOON_MS / 1_000, dt.UTC)
        (found,) = spark.sql(
            f"SELECT seq FROM deliveries WHERE received_time = TIMESTAMP '{noon:%Y-%m-%d %H:%M:%S}.001500Z'"
        ).collect()
        assert found.seq == 0
        described = {row.col_name: row for row in spark.sql("DESCRIBE deliveries").collect()}
        for column in view_columns(DELIVERIES):
            assert described[column.name].data_type == column.type
            assert described[column.name].comment == column.note
        assert spark.sql("SELECT ended_time FROM segments").collect()[0].ended_time is not None
    finally:
        for name in names:
            spark.catalog.dropTempView(name)
