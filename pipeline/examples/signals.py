# SPDX-License-Identifier: Apache-2.0
"""From recordings to an answer in five lines: how fast was each gateway? `python signals.py RECORDINGS LAKE`"""

import sys

from ustreamer_pipeline.ingest.ingest import ingest
from ustreamer_pipeline.session import session
from ustreamer_pipeline.views import register_signal_views

with session("signals") as spark:
    recordings, lake = sys.argv[1:]
    ingest(spark, [recordings], lake)
    register_signal_views(spark, lake)
    spark.sql("SELECT gateway, max(speed) FROM signals_chassis_1234_1_8001 GROUP BY gateway").show()
