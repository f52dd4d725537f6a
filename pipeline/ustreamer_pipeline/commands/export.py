# SPDX-License-Identifier: Apache-2.0
"""`ustreamer-pipeline export LAKE FILE --format mcap|csv|arrow|pcapng`."""

import argparse

from ustreamer_pipeline.days import LAST_DATE, day
from ustreamer_pipeline.errors import UnavailableError, UsageError
from ustreamer_pipeline.folders import local_folder

HELP = "write kept payloads and their signals to a file of another tool"
FORMATS = ("mcap", "csv", "arrow", "pcapng")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lake", metavar="LAKE", help="folder of the tables")
    parser.add_argument("file", metavar="FILE", help="the new file")
    parser.add_argument("--format", required=True, choices=FORMATS, help="of the file")
    parser.add_argument("--topic", default="", metavar="UURI", help="only topics that match (all)")
    parser.add_argument("--gateway", default="", metavar="NAME", help="only this gateway (all)")
    parser.add_argument("--since", default="", metavar="DATE", help="first day, as 2026-11-21")
    parser.add_argument("--until", default=LAST_DATE, metavar="DATE", help="last day")


def run(options: argparse.Namespace) -> int:
    from ustreamer_pipeline.export.mcap_file import write_mcap
    from ustreamer_pipeline.export.messages import Write, read_messages
    from ustreamer_pipeline.export.pcapng import write_pcapng
    from ustreamer_pipeline.export.signal_tables import write_arrow, write_csv

    writers: dict[str, Write] = {
        "mcap": write_mcap,
        "csv": write_csv,
        "arrow": write_arrow,
        "pcapng": write_pcapng,
    }
    since, until = day("--since", options.since), day("--until", options.until)
    path = local_folder(options.file)
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"{path}: expected a new file in a folder")
    messages = read_messages(options.lake, options.topic, options.gateway, since, until)
    try:
        count = writers[options.format](messages, path)
    except OSError as error:
        raise UnavailableError(f"{path}: the file is not complete: {error}") from error
    print(f"{path}: {count} messages")
    return 0
