# SPDX-License-Identifier: Apache-2.0
"""The locator against texts with known lines, and against tomllib on random texts."""

import json
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ustreamer.host.config.document import KeyPath
from ustreamer.host.config.source_positions import SourcePositions, find_duplicate, first_unclosed


def paths_in(value: object, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Every path of a parsed document, without the root."""
    match value:
        case dict():
            inner: list[tuple[str | int, object]] = list(value.items())
        case list():
            inner = list(enumerate(value))
        case _:
            return
    for step, item in inner:
        yield (*path, step)
        yield from paths_in(item, (*path, step))


def lines_of(text: str) -> dict[KeyPath, int]:
    return {path: line for path, (line, _) in SourcePositions.from_text(text).positions.items()}


# ------------------------------------------------------------------------------------------------ each construct

CONSTRUCTS: list[tuple[str, str, dict[KeyPath, int]]] = [
    ("a key", "\na = 1\nb = 2", {("a",): 2, ("b",): 3}),
    ("a table", "a = 1\n\n[t]\nb = 2", {("t",): 3, ("t", "b"): 4}),
    ("a table in a table", "[t]\n[t.u]\na = 1", {("t",): 1, ("t", "u"): 2, ("t", "u", "a"): 3}),
    (
        "a table that only a header below it names",
        "\n[t.u]\na = 1",
        {("t",): 2, ("t", "u"): 2, ("t", "u", "a"): 3},
    ),
    ("a header that follows its subsection", "[t.u]\n[v]\n[t]", {("t",): 3, ("t", "u"): 1, ("v",): 2}),
    (
        "a table continued elsewhere",
        "[t.a]\n[u]\n[t.b]\nx = 1",
        {("t",): 1, ("t", "b"): 3, ("t", "b", "x"): 4},
    ),
    ("spaces in a header", "  [ t . u ] # [x]\n a = 1", {("t",): 1, ("t", "u"): 1, ("t", "u", "a"): 2}),
    ("a dotted key", "[t]\na.b.c = 1\na.d = 2", {("t", "a"): 2, ("t", "a", "b", "c"): 2, ("t", "a", "d"): 3}),
    ("a dotted key of digits", "3.14 = 1\n1 . 2 = 2", {("3",): 1, ("3", "14"): 1, ("1", "2"): 2}),
    ("quoted keys", '"a.b" = 1\n\'c d\'."" = 2', {("a.b",): 1, ("c d",): 2, ("c d", ""): 2}),
    ("a key with escapes", '"\\u00e9\\t\\"=" = 1\n"é" = 2', {('é\t"=',): 1, ("é",): 2}),
    (
        "a quoted key that looks like another",
        '"#" = 1\n"[a]" = 2\n["]"]',
        {("#",): 1, ("[a]",): 2, ("]",): 3},
    ),
    (
        "an array of tables",
        "[[t]]\na = 1\n[[t]]\n[[t]]\na = 2",
        {("t",): 1, ("t", 0): 1, ("t", 0, "a"): 2, ("t", 1): 3, ("t", 2): 4, ("t", 2, "a"): 5},
    ),
    (
        "tables in an array of tables",
        "[[t]]\n[t.u]\na = 1\n[[t]]\n[t.u]\na = 1\n[[t.v]]\n[[t.v]]\nb.c = 1",
        {("t", 0, "u", "a"): 3, ("t", 1, "u"): 5, ("t", 1, "u", "a"): 6, ("t", 1, "v", 1, "b", "c"): 9},
    ),
    ("an array", "a = [1, 2]\nb = []", {("a",): 1, ("a", 0): 1, ("a", 1): 1, ("b",): 2}),
    (
        "an array over several lines",
        "a = [ # ]\n  1, # 2,\n\n  [\n2], 3,\n]\nb = 4",
        {("a",): 1, ("a", 0): 2, ("a", 1): 4, ("a", 1, 0): 5, ("a", 2): 5, ("b",): 7},
    ),
    (
        "an inline table",
        'a = { b = 1, c = { d.e = "}" } } # {\nf = {}',
        {("a", "b"): 1, ("a", "c"): 1, ("a", "c", "d", "e"): 1, ("f",): 2},
    ),
    (
        "inline tables in an array",
        "e = [\n { id = 1, x = [\n1 ] },\n\n { id = 2 } ]\n",
        {
            ("e", 0): 2,
            ("e", 0, "id"): 2,
            ("e", 0, "x"): 2,
            ("e", 0, "x", 0): 3,
            ("e", 1): 5,
            ("e", 1, "id"): 5,
        },
    ),
    ("a multi-line string", 'a = """\nb = 1\n"""\nc = 2', {("a",): 1, ("c",): 4}),
    ("a literal multi-line string", "a = '''\n\\'''\nb = '''''''\nc = 1", {("a",): 1, ("b",): 3, ("c",): 4}),
    ("quotes at the end of a multi-line string", 'a = """\n"""""\nb = 1', {("a",): 1, ("b",): 3}),
    ("an escaped quote in a multi-line string", 'a = """\\"""\n\\"""\n"""\nb = 1', {("a",): 1, ("b",): 4}),
    ("an empty string", "a = \"\"\nb = ''\nc = 1", {("a",): 1, ("b",): 2, ("c",): 3}),
    ("a string full of syntax", 'a = \'[#"\'\nb = "[\\"#\'"\nc = 1', {("a",): 1, ("b",): 2, ("c",): 3}),
    (
        "dates and numbers",
        "a = 1979-05-27 07:32:00.5Z\nb = -1.5e+3\nc = 0x1_F",
        {("a",): 1, ("b",): 2, ("c",): 3},
    ),
    (
        "CRLF",
        'a = 1\r\n[t]\r\nb = """\r\n\r\n"""\r\nc = 2',
        {("a",): 1, ("t",): 2, ("t", "b"): 3, ("t", "c"): 6},
    ),
    ("no newline at the end", "a = 1\nb = [\n2]", {("a",): 1, ("b", 0): 3}),
]


@pytest.mark.parametrize(
    ("text", "lines"), [row[1:] for row in CONSTRUCTS], ids=[row[0] for row in CONSTRUCTS]
)
def test_the_locator_finds_the_line_of(text: str, lines: dict[KeyPath, int]) -> None:
    places = SourcePositions.from_text(text)
    assert {path: places.line_of(path) for path in lines} == lines
    assert set(places.positions) == set(paths_in(tomllib.loads(text)))


COLUMNS: list[tuple[str, str, dict[KeyPath, int]]] = [
    ("a key", "a = 1\n  b = 2", {("a",): 1, ("b",): 3}),
    ("a header", " [t]\n[[u]]\n", {("t",): 2, ("u",): 1, ("u", 0): 1}),
    ("a dotted key", "\n a . b = 1", {("a",): 2, ("a", "b"): 2}),
    ("elements", "a = [1, 'x',\n   [2] ]", {("a", 0): 6, ("a", 1): 9, ("a", 2): 4, ("a", 2, 0): 5}),
    ("an inline table", "a = { b = 1, c = 2 }", {("a", "b"): 7, ("a", "c"): 14}),
    ("characters and not bytes", "'é' = [ 'ü', 1]\n", {("é",): 1, ("é", 1): 14}),
    ("the line after a multi-line string", 'a = """\n\n""" \n b = 1', {("b",): 2}),
    ("CRLF and tabs", "a = 1\r\n\tb = 2\r\n", {("b",): 2}),
    ("what is absent, as its nearest ancestor", "  [t]\n", {("t", "x"): 3, ("y",): 1}),
]


@pytest.mark.parametrize(("text", "columns"), [row[1:] for row in COLUMNS], ids=[row[0] for row in COLUMNS])
def test_the_locator_finds_the_column_of(text: str, columns: dict[KeyPath, int]) -> None:
    places = SourcePositions.from_text(text)
    assert {path: places.position_of(path).column for path in columns} == columns


def test_a_path_that_is_not_there_is_where_its_nearest_ancestor_is() -> None:
    places = SourcePositions.from_text("\n[t]\na = [1,\n2]\n[[u]]")
    assert places.line_of(("t", "b")) == 2
    assert places.line_of(("t", "a", 1, "x", "y")) == 4
    assert places.line_of(("t", "a", 7)) == 3
    assert places.line_of(("u", 3)) == 5
    assert places.line_of(("w",)) == 1
    assert places.line_of(()) == 1


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\n[t]\n", None),
        ("a = 1\nb = [1,\n2\n", 2),
        ("a = [\n[1], [2,\n", 1),
        ("a = [1] # [\nb = '['\nc = {\n", 3),
        ('a = [1]\nb = """\n["""\nc = """\nd = [', 4),
        ("a = '''\n[", 1),
        ("a = ]]\nb = [", 2),
        ("a = 'x\nb = [", 1),
        ('a = 1\nb = "x', 2),
    ],
)
def test_an_unclosed_bracket_or_string_is_found(text: str, line: int | None) -> None:
    found = first_unclosed(text)
    assert (found and found.line) == line


# -------------------------------------------------------------------------------- documents written with known lines

NAMES = st.one_of(
    st.from_regex(r"[A-Za-z0-9_-]{1,3}", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
)
SCALARS = st.sampled_from(
    [
        "1",
        "-0.5e-3",
        "0x1234",
        "true",
        "inf",
        "1979-05-27T07:32:00Z",
        "1979-05-27 07:32:00",
        "07:32:00",
        '""',
        "''",
        '"a # b"',
        "'[\"='",
        '"\\"]"',
        '"""one"""',
        '"""\n[t]\n"a" = 1\n"""',
        '"""\\\n   x\\""" ""\n"""',
        '""""two"" quotes"""""',
        "'''\n'a' = \"\"\"\n\n'''",
        "''''one'''''",
    ]
)
BREAKS = st.sampled_from(["", " ", "\n", ' # a comment, with ] and "\n', "\n\n  "])
GAPS = st.sampled_from(["", "\n", "# x = 1\n", "  \t\n#[t]\n\n"])


class Document:
    """A TOML text that grows, and the line that each of its paths is on."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.text = ""
        self.lines: dict[KeyPath, int] = {}

    def draw(self, strategy: st.SearchStrategy[Any]) -> Any:
        return self.data.draw(strategy)

    @property
    def line(self) -> int:
        return self.text.count("\n") + 1

    def names(self, most: int) -> list[str]:
        names: list[str] = self.draw(st.lists(NAMES, max_size=most, unique=True))
        return names

    def spelled(self, name: str) -> str:
        spellings = [json.dumps(name, ensure_ascii=False).replace("\x7f", "\\u007f")]
        if name and all(c.isascii() and (c.isalnum() or c in "-_") for c in name):
            spellings.append(name)
        if "'" not in name and name.isprintable():
            spellings.append(f"'{name}'")
        spelling: str = self.draw(st.sampled_from(spellings))
        return spelling

    def key(self, path: KeyPath, name: str, depth: int) -> KeyPath:
        """Write a key, dotted or not, and its equals sign; returns the path of the value."""
        here = (*path, name)
        self.lines[here] = self.line
        self.text += self.spelled(name)
        while depth and self.draw(st.integers(0, 3)) == 0:
            name = self.draw(NAMES)
            here = (*here, name)
            self.lines[here] = self.line
            self.text += self.draw(st.sampled_from([".", " . "])) + self.spelled(name)
            depth -= 1
        self.text += self.draw(st.sampled_from(["=", " = "]))
        return here

    def value(self, path: KeyPath, depth: int) -> None:
        match self.draw(st.sampled_from(["scalar", "scalar", "array", "table"] if depth else ["scalar"])):
            case "scalar":
                self.text += self.draw(SCALARS)
            case "array":
                self.array(path, depth - 1)
            case "table":
                self.inline_table(path, depth - 1)

    def array(self, path: KeyPath, depth: int) -> None:
        self.text += "["
        size = self.draw(st.integers(0, 3))
        for index in range(size):
            self.text += self.draw(BREAKS)
            self.lines[(*path, index)] = self.line
            self.value((*path, index), depth)
            self.text += self.draw(BREAKS)
            if index < size - 1 or self.draw(st.booleans()):
                self.text += ","
        self.text += self.draw(BREAKS) + "]"

    def inline_table(self, path: KeyPath, depth: int) -> None:
        self.text += "{ "
        for index, name in enumerate(self.names(3)):
            self.text += ", " if index else ""
            self.value(self.key(path, name, depth), depth)
        self.text += " }"

    def header(self, path: KeyPath, brackets: str) -> None:
        names = [self.spelled(step) for step in path if isinstance(step, str)]
        self.text += (
            brackets[: len(brackets) // 2] + " . ".join(names) + brackets[len(brackets) // 2 :] + "\n"
        )

    def table(self, path: KeyPath, depth: int) -> None:
        """Write the keys of a table after its header, then its sub-tables, each in a random form."""
        names = self.names(4)
        split = self.draw(st.integers(0, len(names)))
        for name in names[:split]:
            self.text += self.draw(GAPS)
            self.value(self.key(path, name, 2), 3)
            self.text += self.draw(st.sampled_from(["\n", " # end\n"]))
        for name in names[split:] if depth else []:
            here = (*path, name)
            match self.draw(st.sampled_from(["table", "implicit", "array"])):
                case "table":
                    self.text += self.draw(GAPS)
                    self.lines[here] = self.line
                    self.header(here, "[]")
                    self.table(here, depth - 1)
                case "implicit":
                    below = (*here, self.draw(NAMES))
                    self.text += self.draw(GAPS)
                    self.lines[here] = self.lines[below] = self.line
                    self.header(below, "[]")
                    self.table(below, depth - 1)
                case "array":
                    for index in range(self.draw(st.integers(1, 3))):
                        self.text += self.draw(GAPS)
                        self.lines.setdefault(here, self.line)
                        self.lines[(*here, index)] = self.line
                        self.header(here, "[[]]")
                        self.table((*here, index), depth - 1)


@settings(max_examples=25)
@given(st.data())
def test_every_path_of_a_written_document_is_found_on_its_line(data: st.DataObject) -> None:
    document = Document(data)
    document.table((), 3)
    assert set(document.lines) == set(paths_in(tomllib.loads(document.text))), document.text
    assert lines_of(document.text) == document.lines, document.text


@settings(max_examples=15)
@given(st.data())
def test_windows_line_ends_change_no_line(data: st.DataObject) -> None:
    document = Document(data)
    document.table((), 2)
    assert lines_of(document.text.replace("\n", "\r\n")) == document.lines


# --- random texts ----------------------------------------------------------------------------------------------------

FRAGMENTS = [
    *"abc1.,=[]{}\n\n\n #\"'\\",
    "a = 1\n",
    "a = ",
    "b.c = ",
    "[t]\n",
    "[t.u]\n",
    "[[v]]\n",
    "[[v.w]]\n",
    "[a.v]\n",
    '"""',
    "'''",
    '"x y"',
    "{ a = 1 }",
    "[\n1,\n",
    "2020-01-01 00:00:00",
]


@settings(max_examples=50)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join))
@example("a = '''x''''''")
@example("[]\n[[]]\n[[]")
@example("a = {\nb = [")
def test_no_text_makes_the_locator_fail(text: str) -> None:
    SourcePositions.from_text(text)
    first_unclosed(text)
    find_duplicate(text)


@settings(max_examples=50)
@given(st.text())
def test_no_text_at_all_makes_the_locator_fail(text: str) -> None:
    SourcePositions.from_text(text)
    first_unclosed(text)
    find_duplicate(text)


def accepted(parts: list[str]) -> str:
    """The longest prefix-wise combination of the parts that tomllib accepts."""
    text = ""
    for part in parts:
        try:
            tomllib.loads(text + part)
        except tomllib.TOMLDecodeError:
            continue
        text += part
    return text


PARTS = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=6).map("".join)


@settings(max_examples=50)
@given(st.lists(PARTS, max_size=10).map(accepted))
def test_text_accepted_by_tomllib_is_located_completely(text: str) -> None:
    assert set(lines_of(text)) == set(paths_in(tomllib.loads(text)))
    assert first_unclosed(text) is None
    assert find_duplicate(text) is None


def test_nesting_as_deep_as_tomllib_allows_is_located() -> None:
    depth = 150
    text = "a = " + "[\n" * depth + "]" * depth
    tomllib.loads(text)
    assert SourcePositions.from_text(text).line_of(("a", *[0] * (depth - 1))) == depth


# --- duplicate definitions -------------------------------------------------------------------------------------------

REPEATS: list[tuple[str, tuple[KeyPath, int, int] | None]] = [
    ("a = 1\nb = 2\na = [\n3]\n", (("a",), 1, 3)),
    ("[t]\n[u]\n[t]\n", (("t",), 1, 3)),
    ("[t]\n[u]\n[t", (("t",), 1, 3)),
    ("[t]\na.b = 1\na.b = 1", (("t", "a", "b"), 2, 3)),
    ("a.b = 1\na = 1", (("a",), 1, 2)),
    ("t = 1\n[t]\n", (("t",), 1, 2)),
    ("[t.u]\n[t]\n[v]\n[t]\n", (("t",), 2, 4)),
    ("[[t]]\na = 1\n[[t]]\na = 1\na = 2", (("t", 1, "a"), 4, 5)),
    ("[a.b]\n\n[[a.b]]\n", (("a", "b"), 1, 3)),
    ("[a.b]\n\n[[a]]\n", (("a",), 1, 3)),
    ("[[a]]\n[a]\n", (("a",), 1, 2)),
    ("a = [1]\n[[a]]\n", (("a",), 1, 2)),
    ("[t]\na.b = 1\n[t.a]\n", (("t", "a"), 2, 3)),
    ("t = { a = 1, b = 2, a = 3 }", (("t", "a"), 1, 1)),
    ("[t.u]\n[t]\n[t.v]\n[[w]]\n[[w]]\n", None),
]


@pytest.mark.parametrize(("text", "repeat"), REPEATS)
def test_a_duplicate_definition_is_found_with_both_lines(
    text: str, repeat: tuple[KeyPath, int, int] | None
) -> None:
    found = find_duplicate(text)
    assert (found and (found.path, found.first.line, found.second.line)) == repeat
