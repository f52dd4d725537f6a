# SPDX-License-Identifier: Apache-2.0
"""A JSON5 reader: JSON with comments, bare keys, single quotes and trailing commas.

Supported: objects, arrays, strings with JSON's escapes and line continuations, decimal and hexadecimal numbers, true,
false, null. Not supported: Infinity and NaN, which no configuration uses.
"""

import re
from typing import Any, Final

LIMIT_DEPTH: Final = 64

_SPACE: Final = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_BARE: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_NUMBER: Final = re.compile(
    r"[+-]?(?:0[xX][0-9a-fA-F]{1,16}|(?:\d{1,32}(?:\.\d{0,32})?|\.\d{1,32})(?:[eE][+-]?\d{1,3})?)"
)
_PLAIN: Final = re.compile(r"[^\\'\"\n]+")
_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0", "\n": ""}
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_WORDS: Final = {"true": True, "false": False, "null": None}


class Json5Error(ValueError):
    """The text at `line` is not JSON5."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(line, problem)
        self.line = line
        self.problem = problem

    def __str__(self) -> str:
        return f"line {self.line}: {self.problem}"


def parse(text: str) -> Any:
    """The value of `text`. Raises Json5Error."""
    reader = _Reader(text)
    value = reader.value(0)
    reader.space()
    if reader.at != len(text):
        raise reader.error("more behind the end")
    return value


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0

    def error(self, problem: str) -> Json5Error:
        return Json5Error(self._text.count("\n", 0, self.at) + 1, problem)

    def space(self) -> None:
        found = _SPACE.match(self._text, self.at)
        self.at = found.end() if found is not None else self.at

    def _next(self) -> str:
        self.space()
        return self._text[self.at : self.at + 1]

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self.at)
        if found is None:
            return ""
        self.at = found.end()
        return found.group()

    def value(self, depth: int) -> Any:
        if depth > LIMIT_DEPTH:
            raise self.error(f"deeper than {LIMIT_DEPTH}")
        first = self._next()
        if first == "{":
            return self._object(depth)
        if first == "[":
            return self._array(depth)
        if first in {'"', "'"}:
            return self._string(first)
        word = self._match(_BARE)
        if word in _WORDS:
            return _WORDS[word]
        number = "" if word else self._match(_NUMBER)
        if not number:
            raise self.error(f"{word or first or 'the end'!r}: expected a value")
        if "x" in number.lower():
            return int(number, 16)
        return float(number) if re.search(r"[.eE]", number) else int(number)

    def _object(self, depth: int) -> dict[str, Any]:
        self.at += 1
        found: dict[str, Any] = {}
        while (first := self._next()) != "}":
            key = self._string(first) if first in {'"', "'"} else self._match(_BARE)
            if not key:
                raise self.error(f"{first or 'the end'!r}: expected a key or }}")
            if self._next() != ":":
                raise self.error(f"expected : behind the key {key!r}")
            self.at += 1
            found[key] = self.value(depth + 1)
            self._comma("}")
        self.at += 1
        return found

    def _array(self, depth: int) -> list[Any]:
        self.at += 1
        found: list[Any] = []
        while self._next() != "]":
            found.append(self.value(depth + 1))
            self._comma("]")
        self.at += 1
        return found

    def _comma(self, end: str) -> None:
        first = self._next()
        if first == ",":
            self.at += 1
        elif first != end:
            raise self.error(f"{first or 'the end'!r}: expected , or {end}")

    def _string(self, quote: str) -> str:
        self.at += 1
        parts: list[str] = []
        while (first := self._text[self.at : self.at + 1]) != quote:
            if first == "\\":
                parts.append(self._escape())
            elif first in {'"', "'"}:
                parts.append(first)
                self.at += 1
            elif part := self._match(_PLAIN):
                parts.append(part)
            else:
                raise self.error("a string does not end on its line")
        self.at += 1
        text = "".join(parts)
        if _SURROGATE.search(text):  # a character beyond 16 bits takes two escapes
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return text

    def _escape(self) -> str:
        sign = self._text[self.at + 1 : self.at + 2]
        self.at += 2
        length = {"u": 4, "x": 2}.get(sign)
        if length is None:
            return _ESCAPES.get(sign, sign)
        digits = self._text[self.at : self.at + length]
        if not re.fullmatch(rf"[0-9a-fA-F]{{{length}}}", digits):
            raise self.error(f"\\{sign}{digits}: expected {length} hexadecimal digits")
        self.at += length
        return chr(int(digits, 16))
