# SPDX-License-Identifier: Apache-2.0
"""The same answers in the SQL of DuckDB: gold/rules, report/tables.py, views.py."""

from pathlib import Path
from typing import Final

import duckdb
from ustreamer_pipeline.schemas import DELIVERIES, EVENTS_FOLDER, SAMPLED_FOLDER, VERDICTS

from benchmarks.analyses.answers import COLUMNS, SIGNALS, STEP_S, Answer, answer_of
from benchmarks.analyses.lakes import TOPIC

_COUNTS: Final = ", ".join(f"count(*) FILTER (verdict = '{each}') AS {each.lower()}" for each in VERDICTS)

_RATE: Final = """
WITH tolerances AS (
  SELECT DISTINCT ON (gateway, run, epoch) gateway, run, epoch,
    CAST(settings ->> '$.throttle.tolerance' AS DOUBLE) AS tolerance,
    CAST(settings ->> '$.throttle.max_delay_ms' AS INTEGER) AS max_delay_ms
  FROM events WHERE "table" = 'epochs'
), passed AS (
  SELECT gateway, run, delivery, period_ns, tuned_ns, received_ns, seq,
    CASE WHEN tolerance > 0 AND max_delay_ms > 0 THEN 0.5 ELSE coalesce(tolerance, 0.1) END AS tolerance
  FROM deliveries LEFT JOIN tolerances USING (gateway, run, epoch)
  WHERE period_ns > 0 AND delivery > 0 AND verdict IN ('DELIVERED', 'EXPIRED', 'DEAD_LETTERED')
    AND NOT (held AND verdict = 'DEAD_LETTERED' AND code = 14 AND settled_ns = received_ns)
), numbered AS (
  SELECT *, (row_number() OVER by_time - 1) * period_ns - received_ns AS lead_ns
  FROM passed
  WINDOW by_time AS (PARTITION BY gateway, run, delivery, period_ns, tuned_ns, tolerance ORDER BY received_ns, seq)
), ahead AS (
  SELECT *, min(lead_ns) OVER (
    PARTITION BY gateway, run, delivery, period_ns, tuned_ns, tolerance ORDER BY received_ns, seq
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS least_ns
  FROM numbered
)
SELECT 'rate' AS rule, gateway, run, seq FROM ahead
WHERE lead_ns - least_ns
  > CASE WHEN tolerance = 0 THEN 0 ELSE period_ns + CAST(floor(tolerance * period_ns) AS BIGINT) END
"""

_ORDER: Final = """
SELECT 'order' AS rule, gateway, run, seq FROM (
  SELECT gateway, run, seq, received_ns, max(received_ns) OVER (
    PARTITION BY gateway, run, ingress, source, sink, priority, egress, subscriber ORDER BY seq
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS latest_ns
  FROM deliveries WHERE verdict = 'DELIVERED')
WHERE received_ns < latest_ns
"""

_SEQUENCE: Final = """
WITH numbers AS (
  SELECT gateway, run, seq, true AS is_row FROM deliveries
  UNION ALL
  SELECT gateway, run, max(next_seq), false FROM events WHERE "table" = 'segments' GROUP BY gateway, run
), holes AS (
  SELECT *, seq - before - 1 AS missing FROM (
    SELECT *, lag(seq, 1, -1) OVER (PARTITION BY gateway, run ORDER BY seq, is_row DESC) AS before FROM numbers)
  WHERE seq - before - 1 > 0 OR (seq - before - 1 < 0 AND is_row)
), steps AS (
  SELECT gateway, run, first_seq, lag(next_seq, 1, 0) OVER in_run AS from_seq,
    number - lag(number, 1, -1) OVER in_run AS step
  FROM events WHERE "table" = 'segments'
  WINDOW in_run AS (PARTITION BY gateway, run ORDER BY number)
), announced AS (
  SELECT gateway, run, first_seq, rows FROM events WHERE "table" = 'gaps'
  UNION ALL
  SELECT gateway, run, from_seq, first_seq - from_seq FROM steps WHERE step > 1 AND first_seq > from_seq
), explained AS (
  SELECT holes.gateway, holes.run, seq, missing,
    coalesce(sum(rows) FILTER (first_seq > before AND first_seq < seq), 0) AS known
  FROM holes LEFT JOIN announced USING (gateway, run) GROUP BY ALL
)
SELECT 'sequence' AS rule, gateway, run, seq FROM explained WHERE missing < 0 OR known < missing
"""

_GATEWAYS: Final = f"""
SELECT gateway, count(*) AS rows, {_COUNTS}, sum(size) AS bytes,
  coalesce(sum(size) FILTER (verdict = 'THROTTLED'), 0) AS saved_bytes,
  min(received_us) AS from_us, max(received_us) AS until_us, count(DISTINCT run) AS runs
FROM deliveries GROUP BY gateway
"""  # noqa: S608 - of our own names only

_OVER_TIME: Final = f"""
SELECT received_us // {STEP_S * 1_000_000} * {STEP_S} AS time_s, gateway, count(*) AS rows, {_COUNTS},
  coalesce(sum(size) FILTER (verdict = 'DELIVERED'), 0) AS delivered_bytes
FROM deliveries GROUP BY time_s, gateway
"""  # noqa: S608 - of our own names only

_LOSSES: Final = r"""
SELECT verdict, code, regexp_replace(coalesce(reason, 'no reason given'), '\d+', 'N', 'g') AS cause,
  coalesce(egress, ingress) AS endpoint, count(*) AS rows, count(DISTINCT gateway) AS gateways,
  min(received_us) AS from_us, max(received_us) AS until_us
FROM deliveries WHERE verdict IN ('EXPIRED', 'DEAD_LETTERED') GROUP BY verdict, code, cause, endpoint
"""

_THROTTLE: Final = """
WITH by_run AS (
  SELECT gateway, source, egress, subscriber, period_ns, count(*) AS published,
    count(*) FILTER (verdict <> 'THROTTLED') AS passed,
    coalesce(sum(size) FILTER (verdict = 'THROTTLED'), 0) AS saved_bytes,
    (max(arrived_ns) - min(arrived_ns)) / 1e9 AS seconds
  FROM deliveries WHERE period_ns > 0 AND delivery > 0 AND type = 'PUBLISH'
  GROUP BY gateway, run, source, egress, subscriber, period_ns
)
SELECT gateway, source, egress, subscriber, period_ns, sum(published) AS published, sum(passed) AS passed,
  sum(saved_bytes) AS saved_bytes, sum(seconds) AS seconds
FROM by_run GROUP BY gateway, source, egress, subscriber, period_ns HAVING sum(seconds) > 0
"""

_QUEUES: Final = """
WITH taken AS (
  SELECT * FROM deliveries WHERE egress IS NOT NULL AND settled_ns > received_ns
    AND verdict IN ('DELIVERED', 'EXPIRED', 'DEAD_LETTERED')
), moves AS (
  SELECT gateway, run, egress, received_ns AS at_ns, 1 AS one, size FROM taken
  UNION ALL
  SELECT gateway, run, egress, settled_ns, -1, -size FROM taken
), lines AS (
  SELECT gateway, egress, sum(one) OVER line AS messages, sum(size) OVER line AS bytes FROM moves
  WINDOW line AS (PARTITION BY gateway, run, egress ORDER BY at_ns, one
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
)
SELECT gateway, egress, max(messages) AS peak_messages, max(bytes) AS peak_bytes FROM lines GROUP BY gateway, egress
"""

_TALKERS: Final = """
SELECT source, type, count(*) AS messages, sum(size) AS bytes, count(DISTINCT gateway) AS gateways FROM (
  SELECT gateway, source, type, max(size) AS size FROM deliveries
  GROUP BY gateway, run, source, type, arrived_ns, id_msb, id_lsb)
GROUP BY source, type
"""

_SERIES: Final = f"""
SELECT topic, signal, time_us // {STEP_S * 1_000_000} * {STEP_S} AS time_s, avg(value_double) AS average,
  min(value_double) AS lowest, max(value_double) AS highest, count(*) AS "values", count(DISTINCT gateway) AS gateways
FROM sampled
WHERE "table" = 'signals' AND topic = '{TOPIC}' AND signal IN {SIGNALS} AND value_double IS NOT NULL
GROUP BY topic, signal, time_s
"""  # noqa: S608 - of our own names only

_WIDE: Final = ", ".join(f"any_value(value_double) FILTER (signal = '{each}') AS {each}" for each in SIGNALS)
_LARGEST: Final = ", ".join(f"max({each}) AS {each}" for each in SIGNALS)
_MESSAGES: Final = f"""
SELECT gateway, count(*) AS messages, {_LARGEST} FROM (
  SELECT gateway, {_WIDE} FROM sampled WHERE "table" = 'signals' AND topic = '{TOPIC}'
  GROUP BY gateway, date, run, time_us, time_ns, id_msb, id_lsb)
GROUP BY gateway
"""  # noqa: S608 - of our own names only

QUERIES: Final = {
    "audit": {"findings": f"({_RATE}) UNION ALL ({_ORDER}) UNION ALL ({_SEQUENCE})"},
    "report": {
        "gateways": _GATEWAYS,
        "over_time": _OVER_TIME,
        "losses": _LOSSES,
        "throttle": _THROTTLE,
        "queues": _QUEUES,
        "talkers": _TALKERS,
    },
    "signals": {"series": _SERIES, "messages": _MESSAGES},
}
"""Queries by task and table."""

_FOLDERS: Final = {"deliveries": DELIVERIES.folder, "events": EVENTS_FOLDER, "sampled": SAMPLED_FOLDER}


def answers(task: str, lake: Path, cores: int) -> Answer:
    """The tables of a task. DuckDB reads only the columns that a query names."""
    with duckdb.connect(config={"threads": cores}) as connection:
        connection.execute("SET enable_progress_bar = false")
        for name, folder in _FOLDERS.items():
            if (lake / folder).is_dir():
                files = f"read_parquet('{lake}/{folder}/*/*/*.parquet', hive_partitioning = true)"
                connection.execute(f"CREATE VIEW {name} AS SELECT * FROM {files}")  # noqa: S608 - of our own names only
        tables = {}
        for name, columns in COLUMNS[task].items():
            names = ", ".join(f'"{each}"' for each in columns)
            query = f"SELECT {names} FROM ({QUERIES[task][name]})"  # noqa: S608 - of our own names only
            tables[name] = connection.execute(query).fetchall()
    return answer_of(tables)
