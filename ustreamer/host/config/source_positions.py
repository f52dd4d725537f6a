# SPDX-License-Identifier: Apache-2.0
"""The line of every key in a TOML text: tomllib knows it while parsing, but does not return it.

In flow a TOML text. Out flow a line for every table, array, element and value of a text that tomllib accepts. For any
other text the lines are meaningless, but no function fails.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

KeyPath = tuple[str | int, ...]
"""Keys of tables and indexes (from 0) of arrays, from the root: ("endpoints", "chassis", "services", 0)."""

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


class SourcePositions(msgspec.Struct, frozen=True):
    """The line (from 1) of every key path of one TOML text."""

    lines: Mapping[KeyPath, int]

    @classmethod
    def from_text(cls, text: str) -> "SourcePositions":
        """The positions in a text that tomllib has accepted."""
        return cls(_Scanner(text).scan())

    def line_of(self, path: KeyPath) -> int:
        """The line of `path` or, if absent, of its nearest ancestor; 1 without one.

        The line of a key is that of its name; of an array element, its beginning; of a table or an array of tables,
        its header. The line of an implicit table is that of the first key or header below it.
        """
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 1


def first_unclosed(text: str) -> int | None:
    """The line of the first bracket still open at the end of `text`, or else of the open string."""
    brackets: list[int] = []
    for token in _tokens(text):
        match token.text:
            case "[" | "{":
                brackets.append(token.line)
            case "]" | "}" if brackets:
                brackets.pop()
            case '"""' | "'''" | '"' | "'":
                brackets.append(token.line)
                break
    return brackets[0] if brackets else None


class DuplicateKey(NamedTuple):
    """A key or table defined twice, which tomllib refuses."""

    path: KeyPath
    first: int
    second: int


def find_duplicate(text: str) -> DuplicateKey | None:
    """The first key or table defined twice in `text`, which may end anywhere."""
    scanner = _Scanner(text)
    scanner.scan()
    return scanner.duplicate


class _Token(NamedTuple):
    text: str
    line: int


def _tokens(text: str) -> Iterator[_Token]:
    """All tokens except blanks and comments; ends at an unterminated multi-line string."""
    line = 1
    for match in _TOKEN.finditer(text):
        token = match.group()
        if match.lastgroup != "blank":
            yield _Token(token, line)
        if match.lastgroup == "unclosed":
            return
        line += token.count("\n")


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
        self._lines: dict[KeyPath, int] = {}
        self._sizes: dict[KeyPath, int] = {}  # of arrays of tables
        self._defined: set[KeyPath] = set()  # by its own key or header
        self.duplicate: DuplicateKey | None = None

    def scan(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        for token in self._tokens:
            if token.text == "[":
                table = self._header()
            elif token.text != "\n":
                path = self._key(table, token)
                self._skip_rest_of_line(self._value(path))
        return self._lines

    def _next(self) -> _Token:
        return next(self._tokens, _Token("\n", 0))

    def _skip_rest_of_line(self, token: _Token) -> None:
        while token.text != "\n":
            token = self._next()

    # --- tables and keys ---------------------------------------------------------------------------------------------

    def _header(self) -> KeyPath:
        """Pass a table's header after its first bracket; returns the path of the table."""
        token = self._next()
        is_array = token.text == "["
        if is_array:
            token = self._next()
        line = token.line
        names = self._names(token, "]")
        self._skip_rest_of_line(self._next())
        path = (*self._descend((), names[:-1], line), *names[-1:])
        if not is_array:
            # A table implied by other headers may still get its own header.
            self._define(path, line, is_duplicate=path in self._defined)
            return path
        if path not in self._sizes:
            self._define(path, line, is_duplicate=path in self._lines)
        index = self._sizes.get(path, 0)
        self._sizes[path] = index + 1
        path = (*path, index)
        self._lines[path] = line
        return path

    def _key(self, table: KeyPath, first: _Token) -> KeyPath:
        """Pass a key and its equals sign; returns the path of its value."""
        names = self._names(first, "=")
        parent = self._descend(table, names[:-1], first.line)
        # A table named in a dotted key is defined by it, and gets no header.
        self._defined.update(parent[:length] for length in range(len(table) + 1, len(parent) + 1))
        path = (*parent, *names[-1:])
        self._define(path, first.line, is_duplicate=path in self._lines)
        return path

    def _define(self, path: KeyPath, line: int, *, is_duplicate: bool) -> None:
        if is_duplicate and self.duplicate is None:
            self.duplicate = DuplicateKey(path, self._lines[path], line)
        self._lines[path] = line
        self._defined.add(path)

    def _names(self, token: _Token, end: str) -> list[str]:
        """Pass a dotted key up to and including the sign that ends it."""
        names = []
        while token.text not in {end, "\n"}:
            if token.text != ".":
                names.append(_name(token.text))
            token = self._next()
        return names

    def _descend(self, table: KeyPath, names: list[str], line: int) -> KeyPath:
        """The table at `names`; of an array of tables, the last one."""
        path = table
        for name in names:
            path = (*path, name)
            self._lines.setdefault(path, line)
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
            if not containers or not token.line:
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
                    self._lines[path] = token.line
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
