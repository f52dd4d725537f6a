# SPDX-License-Identifier: Apache-2.0
"""How much of a topic crossed the mobile network? `python -m examples.fleet.answer RECORDINGS LAKE`

The recordings of any number of vehicles can be in RECORDINGS. It needs `ustreamer-pipeline`.
"""

import sys
from typing import Final

from pyspark.sql import Row, SparkSession
from ustreamer_pipeline.ingest.ingest import ingest
from ustreamer_pipeline.session import session
from ustreamer_pipeline.views import register_views

_QUESTION: Final = """
SELECT gateway, topic, count(*) AS published, count_if(verdict = 'DELIVERED') AS sent,
       round(100 * count_if(verdict = 'DELIVERED') / count(*), 1) AS percent
FROM deliveries WHERE egress = 'cloud' AND topic IS NOT NULL
GROUP BY gateway, topic ORDER BY gateway, topic
"""


def answer(spark: SparkSession, recordings: str, lake: str) -> list[Row]:
    """For each gateway and topic: the publications for the cloud, and those that were sent there."""
    ingest(spark, [recordings], lake)
    register_views(spark, lake)
    return spark.sql(_QUESTION).collect()


if __name__ == "__main__":
    with session("fleet") as spark:
        for row in answer(spark, *sys.argv[1:]):
            print(f"{row.gateway} sent {row.sent} of {row.published} ({row.percent} %) of {row.topic}")
