# SPDX-License-Identifier: Apache-2.0
"""`ustreamer-pipeline generate FOLDER`."""

import argparse
import os
import sys
from dataclasses import fields

from ustreamer_pipeline.errors import UsageError
from ustreamer_pipeline.folders import local_folder

HELP = "make recordings of a fleet that does not exist, to try and to scale everything else with"

_OPTIONS = {
    "vehicles": "gateways, a folder each",
    "seconds": "length of each drive",
    "topics": "topics of each vehicle, at 1 to 100 Hz",
    "fast": "topics of each vehicle at 1 kHz, besides",
    "subscribers": "of each topic, on average",
    "jitter": "of publishers, as a fraction of their period",
    "outages": "per hour and link",
    "requests_hz": "requests of each vehicle, all answered",
    "killed": "vehicles of a hundred that end without a stop",
    "seed": "another one makes another fleet",
    "start_ms": "when it starts, ms since 1970",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="where to write the recordings")
    parser.add_argument("--minutes", type=float, metavar="N", help="instead of --seconds")
    for name, text in _OPTIONS.items():
        kind = float if name in {"seconds", "subscribers", "jitter", "outages", "requests_hz"} else int
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N", help=text)
    parser.add_argument("--release", metavar="NAME", help="release that the recordings name")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="at once (all cores)"
    )


def run(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import track

    from ustreamer_pipeline.fleet.fleet import Fleet, write_fleet

    given = {f.name: getattr(options, f.name, None) for f in fields(Fleet)}
    if options.minutes is not None:
        given["seconds"] = options.minutes * 60
    fleet = Fleet(**{name: value for name, value in given.items() if value is not None})
    try:
        fleet.check()
    except ValueError as error:
        raise UsageError(str(error)) from error
    made = write_fleet(fleet, local_folder(options.folder), max(1, options.processes))
    console = Console(stderr=True)
    shown = track(
        made, "vehicles", fleet.vehicles, console=console, transient=True, disable=not sys.stderr.isatty()
    )
    rows = sum(shown)
    print(f"{options.folder}: {fleet.vehicles} vehicles, {rows} rows")
    return 0
