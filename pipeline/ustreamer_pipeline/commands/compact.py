# SPDX-License-Identifier: Apache-2.0
"""`ustreamer-pipeline compact LAKE`."""

import argparse
import json
from functools import partial

from ustreamer_pipeline import session
from ustreamer_pipeline.errors import UsageError

HELP = "write dates that are over once more in large files, so that a question to the whole fleet opens few"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lake", metavar="LAKE", help="folder of the tables")
    parser.add_argument("--until", default="", metavar="DATE", help="last day (all but the last one there)")
    parser.add_argument(
        "--file-mb", type=int, default=512, metavar="N", help="megabytes of a large file, more or less (512)"
    )
    parser.add_argument(
        "--keep-hours",
        type=float,
        default=24.0,
        metavar="N",
        help="how long large files that are read no more stay, for readers that began before (24)",
    )
    parser.add_argument("--json", action="store_true", help="what was done, as one JSON object")
    session.arguments(parser)


def run(options: argparse.Namespace) -> int:
    from ustreamer_pipeline.days import day
    from ustreamer_pipeline.ingest.compact import compact
    from ustreamer_pipeline.lake.storage import storage_of
    from ustreamer_pipeline.progress import progress

    until = day("--until", options.until)
    for name, value, least in (("--file-mb", options.file_mb, 1), ("--keep-hours", options.keep_hours, 0)):
        if not value >= least:
            raise UsageError(f"{name} {value}: expected {least} or more")
    storage_of(options.lake)
    with session.session("compact", **session.chosen(options), reads=[options.lake]) as spark:
        done = compact(
            spark,
            options.lake,
            partial(progress, spark),
            until=until,
            file_bytes=options.file_mb << 20,
            keep_s=options.keep_hours * 3_600,
        )
    if options.json:
        print(json.dumps(vars(done)))
        return 0
    print(
        f"dates  {done.dates} compacted, {done.rows} rows: {done.small} small files, {done.large} large files"
    )
    print(f"old    {done.removed} folders removed")
    return 0
