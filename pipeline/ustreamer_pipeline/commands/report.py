# SPDX-License-Identifier: Apache-2.0
"""`ustreamer-pipeline report LAKE OUT`."""

import argparse
import json

from ustreamer_pipeline import session
from ustreamer_pipeline.days import LAST_DATE, day
from ustreamer_pipeline.errors import UsageError
from ustreamer_pipeline.folders import local_folder

HELP = "what gateways did: tables as CSV and JSON, and one HTML page"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lake", metavar="LAKE", help="folder of the tables")
    parser.add_argument("out", metavar="OUT", help="folder for report.html, report.json and the CSV files")
    parser.add_argument("--since", default="", metavar="DATE", help="first day, as 2026-11-21")
    parser.add_argument("--until", default=LAST_DATE, metavar="DATE", help="last day")
    parser.add_argument(
        "--signal",
        action="append",
        default=[],
        metavar="[TOPIC:]NAME",
        help="plot a signal below the rates; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="the totals, as one JSON object")
    session.arguments(parser)


def run(options: argparse.Namespace) -> int:
    from ustreamer_pipeline.lake.storage import storage_of
    from ustreamer_pipeline.progress import progress
    from ustreamer_pipeline.report.page import headline, page
    from ustreamer_pipeline.report.report import report, write_tables

    since, until = day("--since", options.since), day("--until", options.until)
    storage_of(options.lake)
    out = local_folder(options.out)
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out}: expected a folder")
    with (
        session.session("report", **session.chosen(options), reads=[options.lake]) as spark,
        progress(spark, "reporting"),
    ):
        made = report(spark, options.lake, since, until, signals=[_signal(each) for each in options.signal])
    write_tables(made, out)
    html = out / "report.html"
    html.write_text(page(made, options.lake), encoding="utf-8")
    if options.json:
        summary = {"totals": made.totals, "delivery_ratio": made.delivery_ratio, "page": str(html)}
        print(json.dumps(summary))
    else:
        print(f"{headline(made)}\n{html}")
    return 0


def _signal(text: str) -> tuple[str, str]:
    """Topic and name of a signal; an empty topic is any. Tables have UUris with their scheme."""
    topic, _, name = text.rpartition(":")
    return (topic if not topic or topic.startswith("up:") else f"up:{topic}"), name
