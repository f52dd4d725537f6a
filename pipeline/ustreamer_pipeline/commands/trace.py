# SPDX-License-Identifier: Apache-2.0
"""`ustreamer-pipeline trace LAKE ID`."""

import argparse
import datetime as dt
import json

HELP = "the story of one message across gateways: verdicts, response, dead letters, signals"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lake", metavar="LAKE", help="folder of the tables")
    parser.add_argument("id", metavar="ID", help="UUID of the message")
    parser.add_argument("--json", action="store_true", help="one JSON object in a line for each event")


def run(options: argparse.Namespace) -> int:
    from ustreamer_pipeline.errors import UnavailableError
    from ustreamer_pipeline.export.trace import trace

    events = trace(options.lake, options.id)
    if not events:
        raise UnavailableError(f"{options.lake}: no row of message {options.id}")
    for event in events:
        if options.json:
            print(json.dumps(event._asdict()))
            continue
        moment = dt.datetime.fromtimestamp(event.time_us // 1_000_000, dt.UTC)
        print(f"{moment:%Y-%m-%d %H:%M:%S}.{event.time_us % 1_000_000:06d}  {event.gateway}  {event.text}")
    return 0
