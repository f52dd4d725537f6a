# SPDX-License-Identifier: Apache-2.0
"""Applies the advice of a problem to the text of a configuration, word by word, as a person would."""

import re
from collections.abc import Callable
from typing import Final

from ustreamer.host.config.document import Problem

Edit = Callable[["Place", re.Match[str]], str]


class Place:
    """The place of a problem in a text: a header, a key with its value, or an element of an array."""

    def __init__(self, text: str, problem: Problem) -> None:
        self.text = text
        self.path = problem.path
        self.is_unknown = "unknown key" in problem.text
        lines = text.split("\n")
        self.start = sum(len(line) + 1 for line in lines[: problem.line - 1]) + max(problem.column - 1, 0)
        self.line = lines[problem.line - 1]
        self.line_start = self.start - max(problem.column - 1, 0)

    @property
    def last(self) -> str:
        """The last step of the path, without an index."""
        return re.sub(r"(\[\d+\])+$", "", self.path).rpartition(".")[2].strip('"')

    @property
    def is_header(self) -> bool:
        return self.text[self.start] == "[" and self.line.lstrip().startswith("[")

    def value(self) -> tuple[int, int]:
        """The span of the value: after the equals sign of a key, or the element itself."""
        key = re.compile(r"[^=\n\[\]{}\"']*=+\s*").match(self.text, self.start)
        start = key.end() if key else self.start
        return start, end_of_value(self.text, start)

    def with_value(self, value: str) -> str:
        start, end = self.value()
        return self.text[:start] + value + self.text[end:]

    def with_line(self, line: str) -> str:
        end = self.line_start + len(self.line)
        return self.text[: self.line_start] + line + self.text[end:]

    def without(self) -> str:
        """The text without the key or the element, or without the table of the header."""
        if self.is_header:
            following = re.compile(r"^\[", re.MULTILINE).search(self.text, self.start + 1)
            return self.text[: self.start] + (self.text[following.start() :] if following else "")
        end = self.value()[1]
        if comma := re.compile(r"\s*,\s*").match(self.text, end):
            return self.text[: self.start] + self.text[comma.end() :]
        before = re.sub(r",\s*$", "", self.text[: self.start])
        return before + self.text[end:]

    def inserted(self, table: str, entry: str) -> str:
        """The text with `entry` in the table: below its header, at the top, or in an inline table."""
        if not table:
            return f"{entry}\n{self.text}"
        plain, index = re.sub(r"\[\d+\]", "", table), re.search(r"\[(\d+)\]$", table)
        headers = [*re.finditer(rf"^\[+{re.escape(plain)}\]+.*$", self.text, re.MULTILINE)]
        if headers:
            header = headers[int(index[1]) if index else 0]
            return f"{self.text[: header.end()]}\n{entry}{self.text[header.end() :]}"
        opening = self.text.index("{", self.start) + 1
        return f"{self.text[:opening]} {entry}, {self.text[opening:]}"


def end_of_value(text: str, start: int) -> int:
    """The end of the TOML value at `start`; of broken text, a guess."""
    if text[start] in "[{":
        depth = 0
        for match in re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|[\[\]{}]").finditer(text, start):
            depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match[0], 0)
            if depth == 0:
                return match.end()
        return len(text)
    scalar = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|[“„][^”\n]*”|[^,\]}#\n]*").match(text, start)
    assert scalar is not None
    return start + len(scalar[0].rstrip())


def _rename_or_choose(place: Place, match: re.Match[str]) -> str:
    if not place.is_unknown and not place.is_header:
        return place.with_value(f'"{match[1]}"')
    old = place.last
    end = place.text.index("\n", place.start)
    part = re.sub(
        rf"(?<![\w-])\"?{re.escape(old)}\"?(?![\w-])", match[1], place.text[place.start : end], count=1
    )
    return place.text[: place.start] + part + place.text[end:]


def _move(place: Place, match: re.Match[str]) -> str:
    end = place.value()[1]
    entry = place.text[place.start : end]
    left = place.text[: place.start] + place.text[end:]
    if not match[1]:
        return f"{entry}\n{left}"
    header = re.compile(rf"^\[+{re.escape(match[1])}\]+.*$", re.MULTILINE).search(left)
    assert header is not None
    return f"{left[: header.end()]}\n{entry}{left[header.end() :]}"


def _example(place: Place, match: re.Match[str]) -> str:
    example = match[1].strip('"')
    if example.startswith("["):
        return place.with_value(example)
    number = re.fullmatch(r"[\d_]+", example)
    return place.with_value(example if number else f'"{example}"')


def _add_key(place: Place, match: re.Match[str]) -> str:
    if match[3]:
        return place.inserted(match[3], f"{match[1]} = {match[2]}")
    table = place.path.rpartition(".")[0]
    if place.path and match[1] != place.last:  # the table itself, or another key of it
        table = place.path if place.is_header else table
    return place.inserted(table, f"{match[1]} = {match[2]}")


EDITS: Final[list[tuple[str, Edit]]] = [
    (r"did you mean '([^']+)'\?", _rename_or_choose),
    (r"did you mean \[([^]]+)\]\?", lambda place, match: place.with_line(f"[{match[1]}]")),
    (r"write \[\[(.+)\]\], with two", lambda place, match: place.with_line(f"[[{match[1]}]]")),
    (r"write \[(.+)\], with one", lambda place, match: place.with_line(f"[{match[1]}]")),
    (r"write \[([\w.]+)\]$", lambda place, match: place.with_line(f"[{match[1]}]")),
    (r"write \[(.+)\] and its keys", lambda place, match: f"{place.without()}\n[{match[1]}]\n"),
    (r"write (\{ .+ \})", lambda place, match: place.with_value(match[1])),
    (r"put it into (\[\{)", lambda place, match: place.with_value(f"[{place.text[slice(*place.value())]}]")),
    (r"put it into (\{)", lambda place, match: place.with_value(place.text[slice(*place.value())][1:-1])),
    (r"write ([\w.-]+ = (.+))", lambda place, match: place.with_value(match[2]) if place.path else place.with_line(match[1])),
    (r"is not one of: ([^,]+)", lambda place, match: place.with_value(match[1].replace("'", '"'))),
    (r"write one of: ([^,]+)", lambda place, match: place.with_value(match[1])),
    (r"write //([^/]+)/", lambda place, match: place.with_value(f'"//{match[1]}/10/1/FFFF"')),
    (r"write (true) or false", lambda place, match: place.with_value(match[1])),
    (r"write (true) and false", lambda place, match: place.with_value(place.text[slice(*place.value())].lower())),
    (r"write = in place of (the) :", lambda place, match: place.with_line(place.line.replace(":", " =", 1))),
    (r"write (one) =", lambda place, match: place.text[: place.line_start] + place.text[place.line_start :].replace("==", "=", 1)),
    (r"write the number (without) leading zeros", lambda place, match: place.with_line(re.sub(r"= 0+", "= ", place.line))),
    (r"write (\\\\) for each", lambda place, match: place.with_line(place.line.replace("\\", "\\\\"))),
    (r'write ("[^"]*"|[^\s,]+)', lambda place, match: _written(place, match[1])),
    (r"choose .*, such as (\d+)$", lambda place, match: place.with_value(match[1])),
    (r"choose (0x\w+|[\d.]+) to", lambda place, match: place.with_value(match[1])),
    (r"choose (?:at most|at least) (\w+)", lambda place, match: place.with_value(match[1])),
    (r"choose more than (\d+)$", lambda place, match: place.with_value(str(int(match[1]) + 1))),
    (r"choose (another) port", lambda place, match: place.with_value(re.sub(r"\d{4,5}", "40123", place.text[slice(*place.value())]))),
    (r"leave (.+) out", lambda place, match: place.without() if place.path else place.with_line("")),
    (r"add \[([\w.]+)\]$", lambda place, match: f"{place.text}\n[{match[1]}]\n"),
    (r"add (\w+) = (.+?)(?: to \[([\w.]+)\])?$", _add_key),
    (r"leave out the '(.)'", lambda place, match: place.with_line(place.line.replace(match[1], "", 1))),
    (r"keep it in (one) place", lambda place, match: place.without()),
    (r"move \w+ up (?:to \[([^]]+)\]|above)", _move),
    (r"rename it, for example to (\[.+\])", lambda place, match: place.with_line(match[1])),
    (r"close the header with (\]+)", lambda place, match: place.with_line(place.line.rstrip() + "]")),
    (r"with the line ends of Unix \((LF)\)", lambda place, match: place.text.replace("\r\n", "\n").replace("\r", "\n")),
    (r"(close) the string on its line", lambda place, match: place.with_line(place.line + '"')),
    (r"put a (comma) between its elements", lambda place, match: place.with_line(re.sub(r'" +"', '", "', place.line))),
    (r"put a (comma) between its keys", lambda place, match: place.text[: place.start].rstrip() + ", " + place.text[place.start :].lstrip(", ")),
    (r"a comment begins with (#)", lambda place, match: place.with_line("# " + place.line)),
    (r"without a (comma) at its end", lambda place, match: place.with_line(re.sub(r",\s*}", " }", place.line))),
    (r"(?:such as|like) (\[[^\]]+\]|\"[^\"]+\"|[^\s,;]+)", _example),
    (r"expected at (?:most|least) (?:\w+, )?(\d+)", lambda place, match: place.with_value(match[1])),
]  # fmt: skip
"""A pattern of an advice, and the edit that it asks for; the first one that is found counts."""


def _written(place: Place, value: str) -> str:
    """The text with a value in place of the one at fault; a syntax error stands in the middle of a line."""
    if place.path:
        return place.with_value(value)
    column = place.start - place.line_start
    start = re.search(r"[=\[,{]?\s*[^=\[,{]*$", place.line[:column])
    assert start is not None
    begin = start.end() - len(start[0].lstrip("=[,{ "))
    rest = re.sub(r"^[^,\]}#]*?(?=\s*([,\]}#]|$))", "", place.line[begin:])
    return place.with_line(place.line[:begin] + value + rest)


def apply(text: str, problem: Problem) -> str | None:
    """The text after the advice of `problem`, or after the example in its words; None if it has neither."""
    for words in (problem.suggestion, problem.text):
        for pattern, edit in EDITS:
            if match := re.search(pattern, words):
                return edit(Place(text, problem), match)
    return None
