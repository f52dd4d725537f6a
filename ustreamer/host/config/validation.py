# SPDX-License-Identifier: Apache-2.0
"""Converts sections of a TOML file to msgspec Structs. `faults` finds every problem of a section that is refused."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from ustreamer.host.config.document import (
    ConfigError,
    KeyPath,
    Problem,
    TomlDocument,
    format_path,
    value_at,
)

T = TypeVar("T")

_VARIABLE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)\})")

Advice = Callable[[KeyPath], str]
"""The suggestion for an unknown key at a path, or ""."""


class Problems:
    """Collects the problems of one document."""

    def __init__(self, document: TomlDocument) -> None:
        self.document = document
        self.problems: list[Problem] = []

    def add_problem(self, path: KeyPath, text: str, suggestion: str = "") -> None:
        self.problems.append(self.document.problem(path, text, suggestion))

    def raise_if_any(self) -> None:
        """Raises ConfigError if a problem was noted."""
        if self.problems:
            raise ConfigError(self.problems)

    def convert_section(self, at: KeyPath, shape: type[T], advice: Advice = lambda _: "") -> T | None:
        """The section at `at` as a `shape`; None, with all its problems noted, if it is invalid.

        A field of type `Path` is relative to the file. `__post_init__` of a Struct may raise ValueError. A text that
        begins with a field and a colon ("sd.port: ...", "services[0]: ...") is noted at that field. `advice` is called
        for an unknown key that resembles no known one.
        """
        try:
            return msgspec.convert(value_at(self.document.data, at), shape, dec_hook=self._convert_path)
        except msgspec.ValidationError:
            from ustreamer.host.config.faults import note_faults  # only for a file with problems

            note_faults(self, at, shape, self._convert_path, advice)
            return None

    def _convert_path(self, shape: type, value: object) -> object:
        if shape is not Path:
            raise TypeError(f"a configuration has no values of type {shape.__name__}")
        if not isinstance(value, str):
            raise TypeError(f"Expected `str`, got `{type(value).__name__}`")
        if not value or "\0" in value:
            raise ValueError(f"{value!r} is not a path")
        if trouble := home_problem(value):
            raise ValueError(trouble)
        return self.document.base / value


def suggest_move_up(key: str, table: KeyPath) -> str:
    """The suggestion for a key of a section that belongs in a table above it."""
    where = f"to [{format_path(table)}]" if table else "above the first [section]"
    return f"move {key} up {where}: a key belongs to the header above it"


def home_problem(path: str) -> str:
    """The problem of a path that begins with ~ or a variable, which only a shell expands; "" for any other path."""
    if variable := _VARIABLE.match(path):
        known = os.environ.get(variable[1] or variable[2], "")
        whole = f"{known or '/path'}{path[variable.end() :]}"
        return f"{path!r}: only a shell expands {variable[0]}: expected the whole path, such as {whole}"
    if not path.startswith("~"):
        return ""
    return f"{path!r}: only a shell expands ~: expected the whole path, such as {os.path.expanduser(path)}"  # noqa: PTH111 - no Path: it may name no user
