# SPDX-License-Identifier: Apache-2.0
"""Explains a syntax error of tomllib: the line of the mistake, and a suggestion.

tomllib reports where it noticed the error. It notices an unclosed bracket on a later line. At the end of the text it
reports no line.
"""

import re
import tomllib
from typing import Final

from ustreamer.host.config.bare_values import GROUPED_DIGITS, PERCENT, as_toml, is_toml, value_advice
from ustreamer.host.config.document import KeyPath
from ustreamer.host.config.source_positions import Position, find_duplicate, first_unclosed

_PLACE: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_LONG_NUMBER: Final = re.compile(r"\d[\d_]{4000,}")  # int() refuses more than 4300 digits, and gives no line
_TWICE: Final = re.compile(r"Cannot (?:overwrite|declare|redefine|mutate)|Duplicate")
_OPEN: Final = re.compile(r"Unclosed array|Unterminated string|Expected (?:['\"]{4,}|\"'\")")
_HEADER_OR_KEY: Final = re.compile(r"\s*(?:\[{1,2}[\w. \"'-]+\]{1,2}\s*(?:#.*)?$|[\w.\"'-]+\s*=)")

_WITH_UNIT: Final = re.compile(r"([\w-]+)\s*=\s*(\d[\d_]*(?:\.\d+)?)(\s*[A-Za-zµ]+)\s*(?=[,}\]#]|$)")

_KEY_COLON: Final = re.compile(r"\s*([\w.\"'-]+)\s*:\s*([^#]*[^#\s])")
_BARE_VALUE: Final = re.compile(r"[^\s,\[\]{}#\"'=]+")
_KEY_OR_VALUE: Final = re.compile(
    r"([\w-]+)\s*=|(?:(?<=[=\[,])|(?<=\s))"
    rf"({GROUPED_DIGITS}|{PERCENT}|[^\s,\[\]{{}}#\"'=]+)(?=\s*(?:[,}}\]#]|$))"
)

_QUOTE: Final = 'write "{0}" in quotes'
_LINE_ENDS: Final = "save the file with the line ends of Unix (LF) in place of CR"
_COMMA: Final = "put a comma between its elements"
_KEY: Final = "a key is made of A-Z a-z 0-9 - _, or is in quotes"
# tomllib's message; a pattern for the line, as a whole or (after @) from the error position; the suggestion.
_ADVICE: Final = [
    ("Invalid value", r"@(?i:true|false)\b", "write true and false in small letters"),
    ("Invalid value", r"@(?:None|null|nil)\b", "leave the key out"),
    ("Invalid value", r"@(\.\d+)", "write 0{0}"),
    ("Invalid value", r"@\s*(?:#|$)", "write a value after the ="),
    ("Invalid value", r"@=", "write one ="),
    ("Invalid value", r"@[“”„‟«‘’‚]([^“”„‟»‘’\"']*)", 'write "{0}", with straight quotes'),
    ("Invalid value", r"@([^\s,\[\]{}#\"'=]+)", _QUOTE),
    ("Expected newline", r".*=\s*[+-]?0\d+\s*(?:#|$)", "write the number without leading zeros"),
    ("Expected newline", r"\s*([\w-]+)\s*=\s*([+-]?[1-9]\d{0,2}),(\d{3})\s*(?:#|$)", "write {0} = {1}{2}"),
    ("Expected newline", r"\s*([\w-]+)\s*=\s*([+-]?\d+),(\d+)\s*(?:#|$)", "write {0} = {1}.{2}"),
    ("Expected newline", r"@([,;])", "leave out the {0!r}"),
    ("Expected newline", r"[^=]*=\s*([^\s\"'\[{,;#]+)\s*(?:#|$)", _QUOTE),
    ("Expected newline", r"@[^\x00-\x1f]", "begin a new line"),
    ("Expected '='", r"@\s*:", "write = in place of the :"),
    ("Expected '='", r"\s*([\w.\"'-]+)\]", "write [{0}]"),
    ("Expected '='", r"\s*[\w-]+\s+[\w-].*=", _KEY),
    ("Expected '='", r"\s*([\w.\"'-]+)", "write {0} = and a value"),
    ("Expected ']]'", r"", "close the header with ]]"),
    ("Expected ']'", r"@\s*[^\s\]#]", "put a name of other characters than A-Z a-z 0-9 - _ in quotes"),
    ("Expected ']'", r"", "close the header with ]"),
    (r"(?:Illegal|Found invalid) character '\\n'", r"", "close the string on its line"),
    ("Unescaped", r"", "write \\\\ for each \\, or put the string in 'single quotes'"),
    ("Unclosed inline table", r"@\s*(?:#|$)", "close it with }} on its line, or make it a [table]"),
    ("Unclosed inline table", r"", "put a comma between its keys"),
    ("Unclosed array", r"@(?!\S+\s*=)[\"'\d{+-]", _COMMA),
    ("Unclosed array", r"", "close it with ]"),
    ('Unterminated string|Expected "\'"', r"", "close the string"),
    ("Expected ['\"]{4,}", r"", "close it with three quotes"),
    (
        "Invalid initial",
        r"@\s*(?:#|\}|$)",
        "an inline table is on one line, without a comma at its end; or make it a [table]",
    ),
    ("Invalid (?:initial|statement)", r"@(?://|/\*|;|--)", "a comment begins with #"),
    ("Invalid statement", r"@=", "write a key in front of the ="),
    ("Invalid (?:initial|statement)", r"", _KEY),
]


NOWHERE: Final = Position(0, 0)


class TomlSyntaxError(ValueError):
    """A text that is not TOML. `position` is NOWHERE if no line is at fault. `path` is () if unknown."""

    def __init__(self, position: Position, path: KeyPath, text: str, suggestion: str) -> None:
        super().__init__(position, path, text, suggestion)
        self.position = position
        self.path = path
        self.text = text
        self.suggestion = suggestion


def explain(text: str, error: ValueError | RecursionError) -> TomlSyntaxError:
    """The syntax error of a text from the error of `tomllib.loads`."""
    if isinstance(error, tomllib.TOMLDecodeError):
        return _syntax_error(text, str(error))
    if isinstance(error, RecursionError):
        return TomlSyntaxError(NOWHERE, (), "arrays or tables are nested too deeply", "")
    long = _LONG_NUMBER.search(text)
    position = _position_at(text, long.start()) if long else NOWHERE
    return TomlSyntaxError(position, (), "a number has too many digits", "put it in quotes")


def _syntax_error(text: str, error: str) -> TomlSyntaxError:
    reason = _PLACE.sub("", error)
    offset = _offset(text, error)
    text_before = text[:offset]
    position = _position_at(text, offset)
    if _TWICE.match(reason) and (duplicate := find_duplicate(text_before)):
        return TomlSyntaxError(
            duplicate.second,
            duplicate.path,
            "is defined twice",
            f"leave this one out: the first is on line {duplicate.first.line}",
        )
    if re.search(r"\r(?!\n)", text):
        return TomlSyntaxError(
            position, (), "a line ends with CR, which is no end of a line in TOML", _LINE_ENDS
        )
    source = text[text.rfind("\n", 0, offset) + 1 :].partition("\n")[0]
    advice = _value_advice(source, position.column - 1) or _unit_advice(source, position.column - 1)
    is_of_value = bool(advice)
    advice = advice or _advice(reason, source, text[offset:].partition("\n")[0])
    opened = first_unclosed(text_before)
    if opened is not None:
        if reason == "Invalid value" and opened.line < position.line and _HEADER_OR_KEY.match(source):
            return TomlSyntaxError(opened, (), "Unclosed array", _advice("Unclosed array", "", ""))
        if _OPEN.match(reason) and advice != _COMMA and not is_of_value:
            position = opened
    return TomlSyntaxError(position, (), reason, advice)


def _position_at(text: str, offset: int) -> Position:
    return Position(text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset))


def _offset(text: str, error: str) -> int:
    """The position where tomllib stopped."""
    place = _PLACE.search(error)
    if place is None or place[1] is None:
        return len(text)
    start = 0
    for _ in range(int(place[1]) - 1):
        start = text.index("\n", start) + 1
    return start + int(place[2]) - 1


def _value_advice(line: str, stopped: int) -> str:
    """The advice for the value at which tomllib stopped: a number in a form of its own, or a word; "" otherwise."""
    if colon := _KEY_COLON.match(line):
        key, value = colon.groups()
        is_bare = not is_toml(value) and _BARE_VALUE.fullmatch(value)
        return f"write {key} = {as_toml(key, value) if is_bare else value}"
    key = ""
    for match in _KEY_OR_VALUE.finditer(line):
        key = match[1] or key
        if match[2] and match.start(2) <= stopped < match.end(2):
            return value_advice(key, match[2])
    return ""


def _unit_advice(line: str, stopped: int) -> str:
    """The advice for a number with a unit, after whose digits tomllib stopped; "" for anything else."""
    from ustreamer.host.config.units import without_unit  # only for a file with problems

    for match in _WITH_UNIT.finditer(line):
        amount = without_unit(match[1], match[2] + match[3])
        if match.end(2) <= stopped < match.end(3) and amount is not None:
            return f"write {amount}, without a unit"
    return ""


def _advice(reason: str, line: str, rest: str) -> str:
    for reason_pattern, pattern, advice in _ADVICE:
        if re.match(reason_pattern, reason):
            match = re.match(pattern.removeprefix("@"), rest if pattern.startswith("@") else line)
            if match and all(group.isprintable() for group in match.groups()):
                return advice.format(*match.groups())
    return ""
