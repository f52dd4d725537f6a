# SPDX-License-Identifier: Apache-2.0
"""`ustreamer-pipeline whatif LAKE`."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ustreamer_pipeline import session
from ustreamer_pipeline.days import LAST_DATE, day
from ustreamer_pipeline.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ustreamer_pipeline.replay.whatif_scenarios import Scenario

HELP = "replay recorded traffic under other rates, subscribers, queues or ttl, and say what each link would carry"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lake", metavar="LAKE", help="folder of the tables")
    parser.add_argument(
        "--scenarios",
        type=Path,
        metavar="FILE",
        help="TOML; see ustreamer_pipeline/replay/whatif_scenarios.py",
    )
    parser.add_argument("--hz", metavar="HZ,...", help="a sweep: one scenario for each rate; 0 is no limit")
    parser.add_argument("--topic", metavar="UURI", help="of the sweep: only topics that match (all)")
    parser.add_argument("--egress", metavar="NAME", help="of the sweep: only this link (all)")
    parser.add_argument("--since", default="", metavar="DATE", help="first day, as 2026-11-21")
    parser.add_argument("--until", default=LAST_DATE, metavar="DATE", help="last day")
    parser.add_argument(
        "--out", metavar="FOLDER", help="write every target and link of every gateway here, as Parquet"
    )
    parser.add_argument(
        "--json", action="store_true", help="links, subscribers and the check, as one JSON object"
    )
    session.arguments(parser)


def scenarios(options: argparse.Namespace) -> "list[Scenario]":
    from ustreamer_pipeline.replay.whatif_scenarios import ANY, checked, load, sweep

    if (options.topic or options.egress) and not options.hz:
        raise UsageError("--topic, --egress: of a sweep, so expected --hz as well")
    requested = load(options.scenarios) if options.scenarios else []
    if options.hz:
        try:
            rates = [float(each) for each in options.hz.split(",")]
        except ValueError as error:
            raise UsageError(
                f"--hz {options.hz}: expected numbers with commas between them, as 1,5,10"
            ) from error
        requested = requested + sweep(rates, options.topic or ANY, options.egress)
    return checked(requested, "scenarios")


def run(options: argparse.Namespace) -> int:
    from ustreamer_pipeline.lake.storage import storage_of

    requested = scenarios(options)
    storage_of(options.lake)
    options.since, options.until = day("--since", options.since), day("--until", options.until)
    with session.session("whatif", **session.chosen(options), reads=[options.lake]) as spark:
        from ustreamer_pipeline.progress import progress

        with progress(spark, "replaying"):
            links, subscribers, check, differing = _answers(spark, options, requested)
    if options.json:
        print(
            json.dumps(
                {
                    "check": check,
                    "differing": [row.asDict() for row in differing],
                    "links": [row.asDict() for row in links],
                    "subscribers": [row.asDict() for row in subscribers],
                }
            )
        )
        return 1 if check["differing"] else 0
    from ustreamer_pipeline.replay.whatif_print import links_table as told

    print(told(links))
    print(
        f"\ncheck: {check['decided']:,} decisions of {check['gateways']:,} gateways replayed as recorded, "
        f"{check['differing']:,} differ"
    )
    if check["unknown"]:
        print(f"       {check['unknown']:,} of them follow rows that are missing, and are taken as recorded")
    for row in differing:
        print(
            f"  {row.gateway}: {row.differing:,} differ, as (run, delivery, received_ns, seq) {row.examples}"
        )
    return 1 if check["differing"] else 0


def _answers(
    spark: "SparkSession", options: argparse.Namespace, requested: "list[Scenario]"
) -> tuple[list[Any], list[Any], dict[str, int], list[Any]]:
    from ustreamer_pipeline.lake.snapshot import snapshot_of
    from ustreamer_pipeline.replay.files import event_files_of, files_of, rows_of
    from ustreamer_pipeline.replay.whatif import fleet_links, fleet_subscribers, whatif
    from ustreamer_pipeline.schemas import GAPS

    snapshot = snapshot_of(options.lake)
    files = files_of(snapshot, options.since, options.until)
    gaps = GAPS.read_table(spark, snapshot)
    result: DataFrame = whatif(
        spark,
        files,
        requested,
        event_files_of(snapshot),
        options.since,
        counts=rows_of(snapshot, options.since, options.until),
    ).persist()
    try:
        if options.out:
            result.write.mode("overwrite").parquet(options.out)
        checks = result.where("kind = 'check'")
        total = checks.selectExpr(
            "count(*) gateways",
            "sum(offered) rows",
            "sum(decided) decided",
            "sum(differing) differing",
            "sum(unknown) unknown",
        )
        check = total.collect()[0].asDict()
        check["missing"] = gaps.selectExpr("coalesce(sum(rows), 0) n").collect()[0].n
        differing = (
            checks.where("differing > 0").orderBy("gateway").limit(20).collect() if check["differing"] else []
        )
        return fleet_links(result).collect(), fleet_subscribers(result).collect(), check, differing
    finally:
        result.unpersist()
