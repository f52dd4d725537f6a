# SPDX-License-Identifier: Apache-2.0
"""Entry points of distributions in the directories of `sys.path`, read without importlib.metadata.

In: a group. Out: its entry points, as text. importlib.metadata also finds distributions in archives and by import
hooks, but its import takes 12 ms, a tenth of a start: it imports email, tempfile and zipfile.
"""

import os
import sys
from collections.abc import Iterator
from importlib import import_module
from operator import attrgetter
from typing import Any, Final, NamedTuple

PLUGINS: Final = "ustreamer"
"""The group of plugins."""


class PathEntryPoint(NamedTuple):
    """An entry point: `value` is `module:attribute`."""

    name: str
    value: str

    @property
    def package(self) -> str:
        """The package of the module; "" for a module outside of any package."""
        return self._module_and_attribute()[0].rpartition(".")[0]

    def load(self) -> Any:
        """Import the module, and return the attribute."""
        module, attribute = self._module_and_attribute()
        loaded = import_module(module)
        return attrgetter(attribute)(loaded) if attribute else loaded

    def _module_and_attribute(self) -> tuple[str, str]:
        module, _, attribute = self.value.partition("[")[0].replace(" ", "").partition(":")
        return module, attribute


# Fast path of importlib.metadata.entry_points, which is its oracle; compared by
# tests/host/runtime/test_entry_points.py::test_the_entry_points_are_those_of_importlib
def path_entry_points(group: str) -> Iterator[PathEntryPoint]:
    """The entry points of `group`. Of two distributions with one name, the first on the path counts."""
    projects = set()
    for directory in sys.path:
        try:
            names = os.listdir(directory or ".")  # noqa: PTH208 - a Path for each of 500 names takes 1 ms
        except OSError:
            continue
        for name in names:
            project, dot, kind = name.rpartition(".")
            if kind not in {"dist-info", "egg-info"} or not dot:
                continue
            project = project.partition("-")[0].lower().replace(".", "_")
            if project not in projects:
                projects.add(project)
                yield from _entries_in(f"{directory or '.'}/{name}/entry_points.txt", group)


def _entries_in(path: str, group: str) -> Iterator[PathEntryPoint]:
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - as above
            text = file.read()
    except OSError:  # a distribution without entry points
        return
    in_group = False
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            in_group = line == f"[{group}]"
        elif in_group and "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield PathEntryPoint(name.strip(), value.strip())
