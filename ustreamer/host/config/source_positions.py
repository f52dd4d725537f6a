# SPDX-License-Identifier: Apache-2.0
"""The position of every key in a TOML text: tomllib knows it while parsing, but does not return it.

In: a TOML text. Out: line and column of every table, array, element and value of a text that tomllib accepts.
For any other text the positions are meaningless, but no function fails.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from ustreamer.host.config.document import KeyPath

# Possessive quantifiers (++, *+) pass a long string without backtracking. A multi-line string may end in up to five
# quotes; the last three close it.
_TOKEN: Final = re.compile(
    r'''
      (?P<blank>  [ \t\r]+ | \#[^\n]*+ )
    | (?P<quoted> """ (?: [^"\\]++ | \\. | "{1,2}+(?!") )*+ "{3,5}
                | \'\'\' (?: [^']++ | '{1,2}+(?!') )*+ '{3,5} )
    | (?P<unclosed> """ | \'\'\' )
    | (?P<word>   " (?: [^"\\\n]++ | \\[^\n] )*+ "
                | ' [^'\n]*+ '
                | [^\ \t\r\n\[\]{},=.\#"']++ )
    | (?P<sign>   [\[\]{},=.\n"'] )
    ''',
    re.VERBOSE | re.DOTALL,
)


class Position(NamedTuple):
    """A line, and a column in characters; both count from 1."""

    line: int
    column: int


class SourcePositions(msgspec.Struct, frozen=True):
    """The position of every key path of one TOML text."""

    positions: Mapping[KeyPath, Position]

    @classmethod
    def from_text(cls, text: str) -> "SourcePositions":
        """The positions in a text that tomllib has accepted."""
        return cls(_Scanner(text).scan())

    def position_of(self, path: KeyPath) -> Position:
        """The position of `path` or, if absent, of its nearest ancestor; the first character without one.

        The position of a key is that of its name; of an array element, its beginning; of a table or an array of tables,
        its header. The position of an implicit table is that of the first key or header below it.
        """
        for length in range(len(path), 0, -1):
            if path[:length] in self.positions:
                return self.positions[path[:length]]
        return Position(1, 1)

    def line_of(self, path: KeyPath) -> int:
        """The line of `position_of`."""
        return self.position_of(path).line


def first_unclosed(text: str) -> Position | None:
    """The position of the first bracket still open at the end of `text`, or else of the open string."""
    brackets: list[Position] = []
    for token in _tokens(text):
        match token.text:
            case "[" | "{":
                brackets.append(token.position)
            case "]" | "}" if brackets:
                brackets.pop()
            case '"""' | "'''" | '"' | "'":
                brackets.append(token.position)
                break
    return brackets[0] if brackets else None


class DuplicateKey(NamedTuple):
    """A key or table defined twice, which tomllib refuses."""

    path: KeyPath
    first: Position
    second: Position


def find_duplicate(text: str) -> DuplicateKey | None:
    """The first key or table defined twice in `text`, which may end anywhere."""
    scanner = _Scanner(text)
    scanner.scan()
    return scanner.duplicate


class _Token(NamedTuple):
    text: str
    position: Position


def _tokens(text: str) -> Iterator[_Token]:
    """All tokens except blanks and comments; ends at an unterminated multi-line string."""
    line, line_start = 1, 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        if match.lastgroup != "blank":
            yield _Token(token, Position(line, match.start() - line_start + 1))
        if match.lastgroup == "unclosed":
            return
        breaks = token.count("\n")
        if breaks:
            line += breaks
            line_start = match.start() + token.rindex("\n") + 1


_END: Final = _Token("\n", Position(0, 0))


class _Container:
    """An array or inline table that contains the current token."""

    __slots__ = ("expects_item", "is_array", "path", "size")

    def __init__(self, path: KeyPath, opening: str) -> None:
        self.path = path
        self.is_array = opening == "["
        self.size = 0
        self.expects_item = True  # the next token begins an element, or a key with its value


class _Scanner:
    """Scans the tokens of one text once, without recursion: only tomllib limits the nesting."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._positions: dict[KeyPath, Position] = {}
        self._sizes: dict[KeyPath, int] = {}  # of arrays of tables
        self._defined: set[KeyPath] = set()  # by its own key or header
        self.duplicate: DuplicateKey | None = None

    def scan(self) -> dict[KeyPath, Position]:
        table: KeyPath = ()
        for token in self._tokens:
            if token.text == "[":
                table = self._header(token.position)
            elif token.text != "\n":
                path = self._key(table, token)
                self._skip_rest_of_line(self._value(path))
        return self._positions

    def _next(self) -> _Token:
        return next(self._tokens, _END)

    def _skip_rest_of_line(self, token: _Token) -> None:
        while token.text != "\n":
            token = self._next()

    # --- tables and keys ---------------------------------------------------------------------------------------------

    def _header(self, position: Position) -> KeyPath:
        """Pass a table's header after its first bracket, at `position`; returns the path of the table."""
        token = self._next()
        is_array = token.text == "["
        if is_array:
            token = self._next()
        names = self._names(token, "]")
        self._skip_rest_of_line(self._next())
        path = (*self._descend((), names[:-1], position), *names[-1:])
        if not is_array:
            # A table implied by other headers may still get its own header.
            self._define(path, position, is_duplicate=path in self._defined)
            return path
        if path not in self._sizes:
            self._define(path, position, is_duplicate=path in self._positions)
        index = self._sizes.get(path, 0)
        self._sizes[path] = index + 1
        path = (*path, index)
        self._positions[path] = position
        return path

    def _key(self, table: KeyPath, first: _Token) -> KeyPath:
        """Pass a key and its equals sign; returns the path of its value."""
        names = self._names(first, "=")
        parent = self._descend(table, names[:-1], first.position)
        # A table named in a dotted key is defined by it, and gets no header.
        self._defined.update(parent[:length] for length in range(len(table) + 1, len(parent) + 1))
        path = (*parent, *names[-1:])
        self._define(path, first.position, is_duplicate=path in self._positions)
        return path

    def _define(self, path: KeyPath, position: Position, *, is_duplicate: bool) -> None:
        if is_duplicate and self.duplicate is None:
            self.duplicate = DuplicateKey(path, self._positions[path], position)
        self._positions[path] = position
        self._defined.add(path)

    def _names(self, token: _Token, end: str) -> list[str]:
        """Pass a dotted key up to and including the sign that ends it."""
        names = []
        while token.text not in {end, "\n"}:
            if token.text != ".":
                names.append(_name(token.text))
            token = self._next()
        return names

    def _descend(self, table: KeyPath, names: list[str], position: Position) -> KeyPath:
        """The table at `names`; of an array of tables, the last one."""
        path = table
        for name in names:
            path = (*path, name)
            self._positions.setdefault(path, position)
            if path in self._sizes:
                path = (*path, self._sizes[path] - 1)
        return path

    # --- values ------------------------------------------------------------------------------------------------------

    def _value(self, path: KeyPath) -> _Token:
        """Pass a value with its content, or the first token of a plain value; returns the token after it."""
        token = self._next()
        containers: list[_Container] = []
        while True:
            if token.text in {"[", "{"}:
                containers.append(_Container(path, token.text))
            elif token.text in {"]", "}"} and containers:
                containers.pop()
            if not containers or token is _END:
                return token
            token = self._next()
            inner = containers[-1]
            if token.text == ",":
                inner.expects_item = True
            elif inner.expects_item and token.text not in {"\n", "]", "}"}:
                inner.expects_item = False
                if inner.is_array:
                    path = (*inner.path, inner.size)
                    inner.size += 1
                    self._positions[path] = token.position
                else:
                    path = self._key(inner.path, token)
                    token = self._next()


def _name(raw: str) -> str:
    if raw[0] not in "\"'":
        return raw
    try:
        return str(tomllib.loads(f"key={raw}")["key"])  # tomllib knows the escapes of its TOML version
    except tomllib.TOMLDecodeError:
        return raw
