# SPDX-License-Identifier: Apache-2.0
"""`ustreamer import`: converts the configuration of another program. Settings that cannot be converted go to stderr."""

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ustreamer.host.importers.catalogue import CatalogueOptions, ImportedCatalogue

_OK: Final = 0


def add_import_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    kinds = commands.add_parser("import", help="convert the configuration of another program").add_subparsers(
        metavar="KIND", required=True
    )
    vsomeip = kinds.add_parser("vsomeip", help="convert the JSON of a vsomeip host to an endpoint")
    vsomeip.add_argument("file", type=Path, metavar="FILE", help="the JSON file")
    vsomeip.add_argument(
        "--endpoint",
        type=_name,
        default="vehicle",
        metavar="NAME",
        help="name of the endpoint and its authority",
    )
    vsomeip.add_argument(
        "--authority", type=_name, default="gateway", metavar="NAME", help="the streamer's own authority"
    )
    vsomeip.add_argument(
        "--bind",
        metavar="IP",
        help="the streamer's address, if FILE is of another host; its services are then not offered",
    )
    vsomeip.add_argument(
        "--major",
        type=_major,
        default=0,
        metavar="N",
        help="version of services that have none in FILE (0)",
    )
    vsomeip.set_defaults(run=_vsomeip)
    for kind, run, what in (
        ("arxml", _arxml, "AUTOSAR files (extra `arxml`)"),
        ("fidl", _fidl, "Franca interfaces and deployments (.fidl, .fdepl)"),
    ):
        _add_catalogue(kinds.add_parser(kind, help=f"convert {what} to an endpoint and payload types"), run)
    up_streamer = kinds.add_parser(
        "up-streamer", help="convert the CONFIG.json5 of up-streamer to a configuration"
    )
    up_streamer.add_argument("file", type=Path, metavar="FILE", help="the JSON5 file")
    up_streamer.add_argument(
        "--endpoint", type=_name, default="backbone", metavar="NAME", help="name of the Zenoh endpoint"
    )
    up_streamer.set_defaults(run=_up_streamer)


def _add_catalogue(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> None:
    parser.add_argument("files", type=Path, metavar="FILE", nargs="+", help="they may refer to each other")
    parser.add_argument(
        "--endpoint",
        type=_name,
        default="vehicle",
        metavar="NAME",
        help="name of the endpoint and its authority",
    )
    parser.add_argument(
        "--authority", type=_name, default="gateway", metavar="NAME", help="the streamer's own authority"
    )
    parser.add_argument("--bind", metavar="IP", help="the streamer's address on the network")
    parser.add_argument(
        "--ecu",
        metavar="NAME",
        help="offer the services of this ECU or provider; all others are those of the network",
    )
    parser.set_defaults(run=run)


def _name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,63}(\.[a-z0-9_-]{1,63})*", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a name of a-z 0-9 - _")
    return text


def _major(text: str) -> int:
    number = int(text, 0)
    if not 0 <= number <= 0xFE:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a major version, 0 to 254")
    return number


def _vsomeip(arguments: argparse.Namespace) -> int:
    # Imported late: the importers load the SOME/IP configuration, which few commands need.
    from ustreamer.host.config import endpoint_text
    from ustreamer.host.importers.vsomeip import importer

    options = importer.ImportOptions(
        arguments.authority, arguments.endpoint, bind=arguments.bind, major=arguments.major
    )
    imported = importer.import_file(arguments.file, options)
    text = endpoint_text.toml_text(
        arguments.endpoint, arguments.authority, imported.endpoint, arguments.file.name
    )
    return _print_result(text, arguments.file, imported.left_out)


def _arxml(arguments: argparse.Namespace) -> int:
    from ustreamer.host.importers.arxml import importer

    return _print_catalogue(
        arguments, importer.import_files(arguments.files, _catalogue_options(arguments)), "arxml"
    )


def _fidl(arguments: argparse.Namespace) -> int:
    from ustreamer.host.importers.fidl import importer

    return _print_catalogue(
        arguments, importer.import_files(arguments.files, _catalogue_options(arguments)), "fidl"
    )


def _catalogue_options(arguments: argparse.Namespace) -> "CatalogueOptions":
    from ustreamer.host.importers.catalogue import CatalogueOptions

    return CatalogueOptions(arguments.authority, arguments.endpoint, bind=arguments.bind, ecu=arguments.ecu)


def _print_catalogue(arguments: argparse.Namespace, imported: "ImportedCatalogue", kind: str) -> int:
    from ustreamer.host.config import endpoint_text
    from ustreamer.host.importers.payload_text import payloads_toml

    origin = ", ".join(each.name for each in arguments.files)
    text = endpoint_text.toml_text(arguments.endpoint, arguments.authority, imported.endpoint, origin, kind)
    print(text + payloads_toml(imported.types, imported.topics), end="")
    for line in imported.left_out:
        print(line, file=sys.stderr)
    return _OK


def _up_streamer(arguments: argparse.Namespace) -> int:
    from ustreamer.host.importers import up_streamer

    imported = up_streamer.import_file(arguments.file)
    text = up_streamer.toml_text(arguments.endpoint, imported, arguments.file.name)
    return _print_result(text, arguments.file, imported.left_out)


def _print_result(text: str, file: Path, left_out: Iterable[str]) -> int:
    print(text, end="")
    for line in left_out:
        print(f"{file}: {line}", file=sys.stderr)
    return _OK
