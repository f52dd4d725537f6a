# SPDX-License-Identifier: Apache-2.0
"""The rule `readable`: the only one about recordings whose gateway may be unknown, so a query over the whole lake."""

from typing import TYPE_CHECKING, Final

from ustreamer_pipeline.gold.rules.run import FINDINGS
from ustreamer_pipeline.recording.segments import NO_HEADER
from ustreamer_pipeline.schemas import UNKNOWN_GATEWAY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PROMISE: Final = "every recording that arrived, and every row of it, could be read"


def readable(quarantine: "DataFrame") -> "DataFrame":
    """No recording was refused as a whole, and no row of one: a row with an impossible value, or with the number of
    another row.

    The gateway and date of a refused recording are unknown, so its rows are missing anywhere. A file without a header
    was created at the moment of a power cut, and has no rows.
    """
    from pyspark.sql import functions as f

    is_refused_file = (
        (f.col("gateway") == UNKNOWN_GATEWAY)
        & f.col("offset").isNull()
        & ~f.col("reason").contains(NO_HEADER)
    )
    refused = quarantine.where(is_refused_file | (f.col("rows") > 0))
    return refused.select(
        f.lit("readable").alias("rule"),
        "gateway",
        f.lit(None).cast("long").alias("run"),
        f.lit(None).cast("long").alias("seq"),
        f.lit(None).cast("long").alias("time_us"),
        f.col("file").alias("subject"),
        f.when(f.col("rows") > 0, "a row").otherwise("a recording").alias("expected"),
        f.col("reason").alias("found"),
    ).select(*FINDINGS)
