# SPDX-License-Identifier: Apache-2.0
"""`ustreamer-pipeline trace LAKE ID|TOPIC|SUBSCRIBER`."""

import argparse
import datetime as dt
import json

from ustreamer_pipeline.days import LAST_DATE, day

HELP = "the story of a message, a topic or a subscriber across gateways"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lake", metavar="LAKE", help="folder of the tables")
    parser.add_argument(
        "what",
        metavar="ID|TOPIC|SUBSCRIBER",
        help="UUID of a message, topic such as //chassis/1234/1/8001, or entity such as //hpc/10A0/1/0",
    )
    parser.add_argument("--since", default="", metavar="DATE", help="a topic or subscriber: from this day on")
    parser.add_argument("--until", default=LAST_DATE, metavar="DATE", help="up to this day")
    parser.add_argument("--json", action="store_true", help="one JSON object in a line for each event")


def run(options: argparse.Namespace) -> int:
    from ustreamer_pipeline.errors import UnavailableError
    from ustreamer_pipeline.export.address_trace import trace_address
    from ustreamer_pipeline.export.trace import is_uuid, trace

    if is_uuid(options.what):
        events = trace(options.lake, options.what)
        missing = f"message {options.what}"
    else:
        days = day("--since", options.since), day("--until", options.until)
        events = trace_address(options.lake, options.what, *days)
        missing = options.what
    if not events:
        raise UnavailableError(f"{options.lake}: no row of {missing}")
    for event in events:
        if options.json:
            print(json.dumps(event._asdict()))
            continue
        moment = dt.datetime.fromtimestamp(event.time_us // 1_000_000, dt.UTC)
        print(f"{moment:%Y-%m-%d %H:%M:%S}.{event.time_us % 1_000_000:06d}  {event.gateway}  {event.text}")
    return 0
