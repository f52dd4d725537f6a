# SPDX-License-Identifier: Apache-2.0
"""Tokens of Franca files, and the errors of their parsers: each with file, line, column and what would be right."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from ustreamer.uprotocol.ustatus import UStatusError, invalid_argument

_TOKEN: Final = re.compile(
    r"""
    (?P<space>\s+|//[^\n]*|/\*.*?\*/|<\*\*.*?\*\*>)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<number>-?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|[0-9]+(?:\.[0-9]+)?))
    |(?P<name>\^?[A-Za-z_][A-Za-z_0-9]*(?:\.\^?[A-Za-z_][A-Za-z_0-9]*)*(?:\.\*)?)
    |(?P<sign>(?!/\*|<\*\*)[{}\[\]=,:;()<>|&!+*/-])
    """,
    re.VERBOSE | re.DOTALL,
)
MAX_DEPTH: Final = 32
"""Blocks inside each other."""


class Token(NamedTuple):
    """`kind` is "string", "number", "name", "sign" or "end". The text of a string is without its quotes."""

    kind: str
    text: str
    line: int
    column: int


class Tokens:
    """The tokens of one file, read from the first to the last. `name` is the file in errors."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._tokens = list(_split(name, text))
        self._at = 0

    @property
    def next(self) -> Token:
        return self._tokens[self._at]

    def take(self) -> Token:
        """The next token. The last one, of kind "end", stays."""
        token = self._tokens[self._at]
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def accept(self, text: str) -> bool:
        """Take the next token if it is this name or sign."""
        found = self.next.text == text and self.next.kind in {"name", "sign"}
        if found:
            self.take()
        return found

    def expect(self, text: str) -> Token:
        """Take this name or sign. Raises UStatusError for another one."""
        if self.next.text != text or self.next.kind not in {"name", "sign"}:
            raise self.error(self.next, repr(text))
        return self.take()

    def expect_name(self, what: str) -> Token:
        """Take a name; `what` describes it in an error."""
        if self.next.kind != "name":
            raise self.error(self.next, what)
        return self.take()

    def expect_number(self, what: str) -> int:
        token = self.take()
        number = parse_number(token.text) if token.kind in {"number", "string"} else None
        if number is None:
            raise self.error(token, what)
        return number

    def error(self, at: Token, expected: str) -> UStatusError:
        """The error for a token in place of something else."""
        found = "the end of the file" if at.kind == "end" else repr(at.text[:60])
        return invalid_argument(f"{self.name}:{at.line}:{at.column}: {found}, expected {expected}")

    def skip_block(self) -> None:
        """Take a block with all its inner blocks."""
        opened, depth = self.expect("{"), 1
        while depth:
            token = self.take()
            if token.kind == "end":
                raise self.error(token, f"'}}' for the block at line {opened.line}")
            depth += (token.kind == "sign") * ((token.text == "{") - (token.text == "}"))


def parse_number(text: str) -> int | None:
    """A whole number, decimal, 0x or 0b; None for any other text."""
    try:
        return int(text, 0)
    except ValueError:
        pass
    try:
        return int(text)  # with leading zeros
    except ValueError:
        return None


def _split(name: str, text: str) -> Iterator[Token]:
    line, line_start, at = 1, 0, 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            column, found = at - line_start + 1, text[at]
            why = "a closing quote" if found == '"' else "a name, a number, a string or a sign such as '{'"
            if text.startswith(("/*", "<**"), at):
                why = "the end of the comment"
            raise invalid_argument(f"{name}:{line}:{column}: {found!r}, expected {why}")
        kind, value = match.lastgroup or "space", match.group()
        if kind != "space":
            shown = value[1:-1] if kind == "string" else value.replace("^", "")
            yield Token(kind, shown, line, at - line_start + 1)
        newlines = value.count("\n")
        if newlines:
            line, line_start = line + newlines, at + value.rindex("\n") + 1
        at = match.end()
    yield Token("end", "", line, at - line_start + 1)
