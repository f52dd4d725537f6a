# SPDX-License-Identifier: Apache-2.0
"""A parsed TOML file, and the format of its problems: file, line, column, key path, value and suggestion.

vehicle.toml:14:1: endpoints.chassis.transport: 'zenho' is not a transport (have: local, zenoh); did you mean 'zenoh'?
"""

import datetime as dt
import os
import re
import stat
import tomllib
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

# These two have the patterns and texts for a file with problems.
from ustreamer.host.config.secrets import is_secret_key

if TYPE_CHECKING:
    from ustreamer.host.config.source_positions import SourcePositions
    from ustreamer.host.config.syntax_errors import TomlSyntaxError

KeyPath = tuple[str | int, ...]
"""Keys of tables and indexes (from 0) of arrays, from the root: ("endpoints", "chassis", "services", 0)."""

LIMIT_BYTES: Final = 1_000_000
LIMIT_PROBLEMS: Final = 100  # the number of problems shown; a file of another kind has thousands
_SHOWN_CHARACTERS: Final = 60
_MAX_NAME_LENGTH: Final = 64  # difflib takes quadratic time
_MIN_STEM_LENGTH: Final = 3
_BARE: Final = r"[A-Za-z0-9_-]+"
PATH_STEP: Final = r"\.([^.\[]+)|\[(\d+)\]|\[\.\.\.\]"
"""A step of a path in a text, msgspec's own too: a key, an index, or any key."""
_ABSENT: Final = object()


# --- problems --------------------------------------------------------------------------------------------------------


class Problem(msgspec.Struct, frozen=True):
    """One problem of a file; `str` is one line of text.

    `line` and `column` count from 1, in characters; 0 is the file, or the line, as a whole. `path` is the key path as in
    TOML, "" for the whole file. `value` is the shortened value, "" if absent. `suggestion` is a clause, such as "did you
    mean 'zenoh'?", or "".
    """

    file: str
    line: int
    path: str
    value: str
    text: str
    suggestion: str = ""
    column: int = 0

    def __str__(self) -> str:
        place = ":".join([self.file, *(str(number) for number in (self.line, self.column) if number)])
        words = ": ".join(part for part in (place, self.path, self.text) if part)
        return f"{words}; {self.suggestion}" if self.suggestion else words


class ConfigError(Exception):
    """An unusable configuration, with all its problems in the order of their lines."""

    exit_code: ClassVar[int] = os.EX_CONFIG

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: Final = tuple(sorted(problems, key=lambda problem: (problem.line, problem.column)))
        super().__init__(self.problems)

    def __str__(self) -> str:
        shown = [str(problem) for problem in self.problems[:LIMIT_PROBLEMS]]
        left = len(self.problems) - len(shown)
        return "\n".join([*shown, f"and {left} more"] if left else shown)


def format_path(path: KeyPath) -> str:
    """A key path as in TOML: endpoints.chassis.services[0]."a b"."""
    import json  # only for a file with problems

    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            plain = re.fullmatch(_BARE, step) is not None
            text += ("." if text else "") + (
                step if plain else json.dumps(step, ensure_ascii=not step.isprintable())
            )
    return text


def parse_steps(text: str) -> KeyPath:
    """The path in a text like "services[0].remote"."""
    return tuple(int(index) if index else key for key, index in re.findall(PATH_STEP, f".{text}"))


def format_value(value: object, *, as_hex: bool = False) -> str:
    """A value on one line, shortened."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() if as_hex:
            return f"{value:#x}"
        case dict():
            return "a table"
        case list():
            return "an array"
        case dt.date() | dt.time():
            return value.isoformat()
    text = repr(value[:_SHOWN_CHARACTERS] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def closest_name(word: str, names: Iterable[str]) -> str | None:
    """The known name closest to `word`; None if none is close."""
    if len(word) > _MAX_NAME_LENGTH:
        return None
    import difflib  # only for a file with problems

    plain = {_normalize(name): name for name in names}
    wanted = _normalize(word)
    found = difflib.get_close_matches(wanted, plain, n=1)
    # difflib does not find abbreviations: dir for directory.
    longer = [name for name in plain if len(wanted) >= _MIN_STEM_LENGTH and name.startswith(wanted)]
    if not found and len(longer) == 1:
        found = longer
    return plain[found[0]] if found else None


def _normalize(name: str) -> str:
    """A name without its easily confused characters."""
    return re.sub(r"[-.\s]", "_", name.lower())


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """The suggestion of the nearest name, or ""."""
    name = closest_name(word, names)
    return f"did you mean {name!r}?" if name is not None else ""


def format_names(names: Iterable[str]) -> str:
    """Names in alphabetical order, or "none"."""
    return ", ".join(sorted(names)) or "none"


# --- document --------------------------------------------------------------------------------------------------------


class TomlDocument:
    """A parsed TOML file. `data` is the result of tomllib; relative paths start at `base`."""

    def __init__(self, file: Path, text: str) -> None:
        """Raises ConfigError for text that is not TOML."""
        self.file: Final = file
        self.text: Final = text
        self.secret_sources: Final[dict[KeyPath, Path | None]] = {}  # files of secrets; None: the environment
        self.unreadable_secrets: Final[dict[KeyPath, str]] = {}  # the reason of each
        try:
            self.data: Final[dict[str, Any]] = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            from ustreamer.host.config.syntax_errors import explain

            raise ConfigError([self._syntax_problem(explain(text, error))]) from error

    def _syntax_problem(self, error: "TomlSyntaxError") -> Problem:
        line, column = error.position
        path = format_path(error.path)
        return Problem(str(self.file), line, path, "", error.text, error.suggestion, column)

    @property
    def base(self) -> Path:
        return self.file.absolute().parent

    @cached_property
    def positions(self) -> "SourcePositions":
        from ustreamer.host.config.source_positions import SourcePositions

        return SourcePositions.from_text(self.text)

    @cached_property
    def _lines(self) -> list[str]:
        return self.text.split("\n")

    def problem(self, path: KeyPath, text: str, suggestion: str = "") -> Problem:
        """A problem with the value at `path`, or with its absence."""
        value = value_at(self.data, path, _ABSENT)
        is_secret = any(is_secret_key(step) for step in path)
        words = "" if value is _ABSENT or is_secret else format_value(value, as_hex=self.writes_hex(path))
        if is_secret:
            suggestion = ""  # it may have the value
        line, column = self.positions.position_of(path)
        text = " ".join(text.split())
        return Problem(str(self.file), line, format_path(path), words, text, suggestion, column)

    def line_at(self, path: KeyPath) -> str:
        """The line of the value at `path`, as it is written."""
        return self._lines[self.positions.line_of(path) - 1]

    def writes_header(self, path: KeyPath) -> bool:
        """Whether the table at `path` has a header of its own, `[...]` or `[[...]]`."""
        line, column = self.positions.position_of(path)
        return self._lines[line - 1][:column].strip() == "["

    def writes_hex(self, path: KeyPath) -> bool:
        """Whether the integer at `path` is written as 0x..., as is usual for SOME/IP."""
        value = value_at(self.data, path)
        if not isinstance(value, int):
            return False
        digits = self._lines[self.positions.line_of(path) - 1].replace("_", "").lower()
        return re.search(rf"\b0x0*{value:x}\b", digits) is not None


def read(file: Path) -> TomlDocument:
    """Read a regular file, TOML in UTF-8 of at most LIMIT_BYTES. Raises ConfigError; no side effects."""

    def refused(text: str, line: int = 0, suggestion: str = "", column: int = 0) -> ConfigError:
        return ConfigError([Problem(str(file), line, "", "", text, suggestion, column)])

    try:
        with open(file, "rb", opener=_open_at_once) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise refused("is no regular file: expected a configuration file")
            content = stream.read(LIMIT_BYTES + 1)
    except OSError as error:
        raise refused(
            f"cannot be read: {error.strerror or error}", suggestion=_suggest_nearby_file(file)
        ) from error
    if len(content) > LIMIT_BYTES:
        raise refused(f"is larger than {LIMIT_BYTES} bytes")
    try:
        text = content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = len(content[content.rfind(b"\n", 0, error.start) + 1 : error.start].decode()) + 1
        what = f"byte 0x{content[error.start]:02x} is not UTF-8"
        raise refused(what, line, "save the file as UTF-8", column) from error
    return TomlDocument(file, text)


def _open_at_once(path: str, flags: int) -> int:
    """Open a file, without a wait for the writer of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def _suggest_nearby_file(file: Path) -> str:
    """The suggestion of another TOML file in the directory of a missing one, or what a link should lead to."""
    try:
        if file.is_symlink():
            return f"it is a link to {file.readlink()}: expected a link to a file"
        return did_you_mean(file.name, [each.name for each in file.parent.glob("*.toml") if each.exists()])
    except OSError:
        return ""


def value_at(tree: object, path: KeyPath, default: object = None) -> object:
    """The value at `path`; `default` if absent."""
    for step in path:
        match tree:
            case dict() if step in tree:
                tree = tree[step]
            case list() if isinstance(step, int) and step < len(tree):
                tree = tree[step]
            case _:
                return default
    return tree
