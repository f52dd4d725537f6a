# SPDX-License-Identifier: Apache-2.0
"""On which line of a TOML text a key stands: what tomllib knows while it parses and does not tell.

A text that tomllib accepts gets a line for every table, array, element and value in it, and for nothing else. Of any
other text the answers are worth nothing, but there are answers: no text makes these functions fail.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

KeyPath = tuple[str | int, ...]
"""Keys of tables and indexes (from 0) of arrays, from the root: ("endpoints", "chassis", "services", 0)."""

# Possessive quantifiers (++, *+) so that a long string is passed in one go and never tried again. A multi-line string
# may end in up to five quotes, of which three are its end.
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
        """The places of a text that tomllib has accepted."""
        return cls(_Scanner(text).scan())

    def line_of(self, path: KeyPath) -> int:
        """The line of `path` or, if it is not in the text, of its nearest ancestor that is; 1 if there is none.

        A key stands where its own name is, an element of an array where it begins, a table or an array of tables where
        its header is, and a table that only keys or headers of others speak of where the first of them is.
        """
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 1


def first_unclosed(text: str) -> int | None:
    """The line of the first bracket or, if none, of the string that is still open where `text` ends."""
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
    """A key or table that a text defines twice, which tomllib refuses."""

    path: KeyPath
    first: int
    second: int


def find_duplicate(text: str) -> DuplicateKey | None:
    """The first key or table that is defined twice in `text`, which may end anywhere."""
    scanner = _Scanner(text)
    scanner.scan()
    return scanner.duplicate


class _Token(NamedTuple):
    text: str
    line: int


def _tokens(text: str) -> Iterator[_Token]:
    """All but blanks and comments; ends at a multi-line string that does not."""
    line = 1
    for match in _TOKEN.finditer(text):
        token = match.group()
        if match.lastgroup != "blank":
            yield _Token(token, line)
        if match.lastgroup == "unclosed":
            return
        line += token.count("\n")


class _Container:
    """An array or inline table that the scanner is inside of."""

    __slots__ = ("expects_item", "is_array", "path", "size")

    def __init__(self, path: KeyPath, opening: str) -> None:
        self.path = path
        self.is_array = opening == "["
        self.size = 0
        self.expects_item = True  # what comes next begins an element, or a key with its value


class _Scanner:
    """Goes over the tokens of one text once. Does not recurse: tomllib's own limit is the one that counts."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._lines: dict[KeyPath, int] = {}
        self._sizes: dict[KeyPath, int] = {}  # of arrays of tables
        self._defined: set[KeyPath] = set()  # by a key or a header of its own
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

    # --- tables and keys --------------------------------------------------------------------------------------------

    def _header(self) -> KeyPath:
        """Pass a table's header, whose first bracket is gone; the path of the table that it opens."""
        token = self._next()
        is_array = token.text == "["
        if is_array:
            token = self._next()
        line = token.line
        names = self._names(token, "]")
        self._skip_rest_of_line(self._next())
        path = (*self._descend((), names[:-1], line), *names[-1:])
        if not is_array:
            # What only the headers of others have spoken of may still get one of its own.
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
        """Pass a key and its equals sign; the path that it gives a value to."""
        names = self._names(first, "=")
        parent = self._descend(table, names[:-1], first.line)
        # Tables that a dotted key speaks of are thereby defined, and get no header.
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
        """Pass a dotted key up to and with the sign that ends it."""
        names = []
        while token.text not in {end, "\n"}:
            if token.text != ".":
                names.append(_name(token.text))
            token = self._next()
        return names

    def _descend(self, table: KeyPath, names: list[str], line: int) -> KeyPath:
        """The table that `names` lead to; of an array of tables the last one is meant."""
        path = table
        for name in names:
            path = (*path, name)
            self._lines.setdefault(path, line)
            if path in self._sizes:
                path = (*path, self._sizes[path] - 1)
        return path

    # --- values -----------------------------------------------------------------------------------------------------

    def _value(self, path: KeyPath) -> _Token:
        """Pass a value with all that is in it, or the first token of a plain one; the token that ended it."""
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
        return str(tomllib.loads(f"key={raw}")["key"])  # knows the escapes of its own version of TOML
    except tomllib.TOMLDecodeError:
        return raw
