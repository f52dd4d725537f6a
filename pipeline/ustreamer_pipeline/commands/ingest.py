# SPDX-License-Identifier: Apache-2.0
"""`ustreamer-pipeline ingest RECORDINGS... LAKE`."""

import argparse
import json
from functools import partial

from ustreamer_pipeline import session
from ustreamer_pipeline.errors import UsageError

HELP = "take recordings of gateways into the tables of a lake; again at any time, with what has come since"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recordings", nargs="+", metavar="RECORDINGS", help="folders of recordings, or single ones"
    )
    parser.add_argument("lake", metavar="LAKE", help="folder of the tables; made if it is not there")
    parser.add_argument(
        "--stream",
        metavar="CHECKPOINT",
        help="as Structured Streaming: remember in this folder what was seen, take what is there, and end",
    )
    parser.add_argument("--json", action="store_true", help="what was done, as one JSON object")
    session.arguments(parser)


def run(options: argparse.Namespace) -> int:
    from ustreamer_pipeline.ingest.ingest import ingest, ingest_stream
    from ustreamer_pipeline.lake.storage import storage_of
    from ustreamer_pipeline.progress import progress

    if options.stream and len(options.recordings) > 1:
        raise UsageError(f"--stream: {len(options.recordings)} folders: expected one")
    storage_of(options.lake)
    with session.session("ingest", **session.chosen(options), reads=options.recordings) as spark:
        shown = partial(progress, spark)
        if options.stream:
            done = ingest_stream(spark, options.recordings[0], options.lake, options.stream, shown)
        else:
            done = ingest(spark, options.recordings, options.lake, shown)
    if options.json:
        print(json.dumps(vars(done)))
        return 0
    print(f"recordings  {done.files} seen, {done.landed} with something new, {done.refused} refused")
    print(f"days        {done.days} of gateways made again")
    print(f"rows        {done.rows} recorded = {done.silver} in silver + {done.quarantined} in quarantine")
    return 0
