# SPDX-License-Identifier: Apache-2.0
"""`ustreamer new plugin | transport NAME`: writes a distribution that works and has tests, to start from.

In: the files of `skeletons`, in which `${...}` stands for a name. Out: a folder.
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Final

from ustreamer import __version__

_SKELETONS: Final = Path(__file__).with_name("skeletons")
_SUFFIX: Final = ".in"
_PACKAGE: Final = "PACKAGE"
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_KINDS: Final = {
    "plugin": "a plugin with a filter",
    "transport": "a plugin with a transport, over TCP until you replace the protocol",
}


def add_new_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("new", help="write a plugin or a transport to start from, with tests")
    kinds = parser.add_subparsers(metavar="KIND", required=True)
    for kind, text in _KINDS.items():
        of_kind = kinds.add_parser(kind, help=text)
        of_kind.add_argument(
            "name", type=_name, metavar="NAME", help="its name in a configuration: night-mode"
        )
        of_kind.add_argument(
            "--directory", type=Path, metavar="DIR", help="where to write it (ustreamer-NAME); must not exist"
        )
        of_kind.set_defaults(run=_run, kind=kind)


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a-z, 0-9 and single dashes, such as night-mode")
    if text.startswith("test"):
        raise argparse.ArgumentTypeError(f"{text!r}: pytest would take its classes for tests")
    return text


def _run(arguments: argparse.Namespace) -> int:
    import shlex
    import sys

    directory: Path = arguments.directory or Path(f"ustreamer-{arguments.name}")
    conflict = _name_conflict(arguments.kind, arguments.name)
    try:
        if conflict:
            raise FileExistsError(conflict)
        written = write_skeleton(arguments.kind, arguments.name, directory)
    except OSError as error:
        print(f"nothing written: {error}", file=sys.stderr)
        return 1
    print(f"{directory}: {len(written)} files. Next:")
    print(f"  pip install -e {shlex.quote(f'{directory}[test]')}")
    print(f"  pytest {shlex.quote(str(directory))}")
    print(f"  ustreamer check {shlex.quote(f'{directory}/example.toml')} --offline")
    return 0


def _name_conflict(kind: str, name: str) -> str:
    """Why the name conflicts with an installed plugin or transport; else ""."""
    from ustreamer.host.runtime import plugins

    section = _section(name)
    if section in plugins.installed_plugins():
        return f"a plugin {section!r} is installed already; choose another name"
    classes, _ = plugins.load_plugin_classes()
    if kind == "transport" and section in plugins.transport_kinds(plugins.class_plugin_manager(classes)):
        return f"there is a transport {section!r} already; choose another name"
    return ""


def _section(name: str) -> str:
    return name.replace("-", "_")


def write_skeleton(kind: str, name: str, directory: Path) -> list[Path]:
    """Write the files of a skeleton; returns their paths. Raises FileExistsError if `directory` exists, OSError."""
    section = _section(name)
    names = {
        "distribution": f"ustreamer-{name}",
        "package": f"ustreamer_{section}",
        "section": section,
        "class_name": "".join(part.capitalize() for part in name.split("-")),
        "version": ".".join(__version__.split(".")[:2]),
    }
    directory.mkdir(parents=True)
    written = []
    for source, target in _files(_SKELETONS / kind):
        path = directory / str(target).replace(_PACKAGE, names["package"])
        path.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8")
        path.write_text(Template(text).substitute(names), encoding="utf-8")
        written.append(path)
    return written


def _files(skeleton: Path) -> Iterator[tuple[Path, Path]]:
    """Each file of a skeleton, and its place below the target."""
    for source in sorted(skeleton.rglob(f"*{_SUFFIX}")):
        yield source, source.relative_to(skeleton).with_suffix("")
