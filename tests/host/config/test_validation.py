# SPDX-License-Identifier: Apache-2.0
"""A section becomes a Struct, or all its problems are noted."""

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, Struct

from ustreamer.host.config.document import ConfigError, TomlDocument
from ustreamer.host.config.faults import LIMIT_FAULTS
from ustreamer.host.config.validation import Problems


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Inner(Struct, frozen=True, forbid_unknown_fields=True):
    number: Annotated[int, Meta(ge=1, le=9)] = 1
    name: str = ""


class Needy(Struct, frozen=True, forbid_unknown_fields=True):
    number: int
    name: str = ""

    def __post_init__(self) -> None:
        if self.name == "bad":
            raise ValueError("name: 'bad': expected 'good'")
        if self.name == "worse":
            raise ValueError("number and name do not fit together")
        if self.name == "worst":
            raise ValueError("unknown: there is no such field")


class Agreed(Struct, frozen=True, forbid_unknown_fields=True):
    key: Annotated[int, Meta(ge=0, description="the one that both sides agreed on")]


class Outer(Struct, frozen=True, forbid_unknown_fields=True):
    text: str = ""
    flag: bool = False
    ratio: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    even: Annotated[int, Meta(multiple_of=2)] = 0
    least: Annotated[int, Meta(ge=0x10)] = 0x10
    colour: Colour = Colour.RED
    choice: Literal["a", 1] = "a"
    path: Path | None = None
    inner: Inner | bool = False
    needy: Needy | None = None
    inners: tuple[Inner, ...] = ()
    needies: list[Needy] = []
    agreed: Agreed | None = None
    pair: tuple[int, str] = (1, "")
    named: dict[str, Inner] = {}
    lists: dict[str, list[dict[str, int]]] = {}
    short_keys: dict[Annotated[str, Meta(max_length=2)], int] = {}
    many: Annotated[list[int], Meta(min_length=2)] = msgspec.field(default_factory=lambda: [1, 2])
    described: Annotated[int, Meta(ge=1, description="how many")] | None = None
    pattern: Annotated[str, Meta(pattern="^x")] = "x"

    def __post_init__(self) -> None:
        if self.text == "bad inners":
            raise ValueError("inners[1].name: is not liked")


def found(text: str, shape: type[Any] = Outer) -> list[str]:
    """The problems of a text, without the file's name and the columns."""
    document = TomlDocument(Path("/etc/f"), text)
    findings = Problems(document)
    section = findings.convert_section((), shape)
    assert (section is None) is bool(findings.problems)
    assert document.data == TomlDocument(document.file, text).data
    without_columns = [msgspec.structs.replace(each, column=0) for each in findings.problems]
    return [str(problem).removeprefix("/etc/") for problem in without_columns]


WORDS = [
    ("text = 1", 'f:1: text: expected a string, got the integer 1; write "1", in quotes'),
    ("text = true", 'f:1: text: expected a string, got true; write "true", in quotes'),
    ("text = 1979-05-27", 'f:1: text: expected a string, got the date 1979-05-27; write "1979-05-27", in quotes'),
    ("text = {}", "f:1: text: expected a string, got a table; leave text out"),
    ("text = [[]]", "f:1: text: expected a string, got an array; leave text out"),
    ("flag = 1", "f:1: flag: expected true or false, got the integer 1; write true or false"),
    ("flag = 'TRUE'", "f:1: flag: expected true or false, got the string 'TRUE'; write true, without quotes"),
    ("even = 2.0", "f:1: even: expected an integer, got the number 2.0; write 2"),
    ("even = 2.5", "f:1: even: expected an integer, got the number 2.5; choose a multiple of 2"),
    ("even = 3", "f:1: even: 3 is out of range; choose a multiple of 2"),
    ("ratio = 1", "f:1: ratio: 1 is out of range; choose more than 0 and less than 1"),
    ("least = 0xF", "f:1: least: 0xf is out of range; choose at least 0x10"),
    ("least = 15", "f:1: least: 15 is out of range; choose at least 16"),
    ("described = 0", "f:1: described: 0 is out of range; choose at least 1"),
    ("colour = 'grene'", "f:1: colour: 'grene' is not one of: 'red', 'green'; did you mean 'green'?"),
    ("colour = 1", 'f:1: colour: expected a string, got the integer 1; write one of: "red", "green"'),
    ("choice = 2", "f:1: choice: 2 is not one of: 1, 'a'; choose one of them"),
    ("path = 1", 'f:1: path: expected a string, got the integer 1; write "1", in quotes'),
    ("path = ''", "f:1: path: '' is not a path; leave path out"),
    ('path = "\\u0000"', "f:1: path: '\\x00' is not a path; leave path out"),
    ("inner = 1", "f:1: inner: expected true or false or a table, got the integer 1; leave inner out"),
    ("inner.nubmer = 1", "f:1: inner.nubmer: unknown key (have: name, number); did you mean 'number'?"),
    ("agreed = {}", "f:1: agreed.key: is missing; add key: the one that both sides agreed on"),
    ("needy = {}", "f:1: needy.number: is missing; add number = ..."),
    ("pair = [1, 2]", 'f:1: pair[1]: expected a string, got the integer 2; write "2", in quotes'),
    ("pair = [1]", "f:1: pair: Expected an array of length 2, got 1; leave pair out"),
    ("named.'a b'.number = 10", 'f:1: named."a b".number: 10 is out of range; choose 1 to 9'),
    ("named.a = 1", "f:1: named.a: expected a table, got the integer 1; write [named.a] and its keys below"),
    ("short_keys = { ab = 1, abc = 2 }", "f:1: short_keys.abc: as a key: Expected `str` of length <= 2"),
    ("many = [\n1]", "f:1: many: Expected an array of length >= 2; leave many out"),
    ("pattern = 'y'", "f:1: pattern: Expected a string matching regex '^x'; leave pattern out"),
    ("[[inner]]", ("f:1: inner: expected true or false or a table, got an array; "
                  "write [inner], with one bracket on each side")),
    ("[inners]", "f:1: inners: expected an array, got a table; write [[inners]], with two brackets on each side"),
    ("many = 1", "f:1: many: expected an array, got the integer 1; leave many out"),
    ("\n[needy]\nnumber = 1\nname = 'bad'", "f:4: needy.name: 'bad': expected 'good'"),
    ("[needy]\nnumber = 1\nname = 'worse'", "f:1: needy: number and name do not fit together"),
    ("[needy]\nnumber = 1\nname = 'worst'", "f:1: needy: unknown: there is no such field"),
    ("text = 'bad inners'\n[[inners]]\n[[inners]]\n\nname = ''", "f:5: inners[1].name: is not liked"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "sentence"), WORDS, ids=[row[0] for row in WORDS])
def test_a_mistake_is_reported_in_terms_of_toml(text: str, sentence: str) -> None:
    assert found(text) == [sentence]


def places(text: str, shape: type[Any] = Outer) -> list[str]:
    """Line and path of each problem."""
    return [": ".join(problem.split(": ")[:2]) for problem in found(text, shape)]


SEVERAL = [
    ("several keys", "txt = 1\nflag = 1\nnothing = 1", ["f:1: txt", "f:2: flag", "f:3: nothing"]),
    (
        "elements of an array, by the indexes they are read with",
        "inners = [\n{ number = 0 },\n{},\n{ nam = '' },\n1,\n{ name = 1, number = 10 } ]",
        [
            "f:2: inners[0].number",
            "f:4: inners[2].nam",
            "f:5: inners[3]",
            "f:6: inners[4].number",
            "f:6: inners[4].name",
        ],
    ),
    (
        "what is missing in one element, and what is wrong in the next",
        "[[needies]]\n[[needies]]\nname = ''\n[[needies]]\nnumber = ''",
        ["f:1: needies[0].number", "f:2: needies[1].number", "f:5: needies[2].number"],
    ),
    (
        "entries of maps in maps",
        "[lists]\na = [{ x = 1 }]\nb = [{ x = 1 }, { y = 1, z = 'z' }]\nc = 1\nd = [{ 'a.b' = 1.5 }, 1]",
        ["f:3: lists.b[1].z", "f:4: lists.c", 'f:5: lists.d[0]."a.b"', "f:5: lists.d[1]"],
    ),
    (
        "a needed key that is wrong, but not that it is missing",
        "[needy]\nnumber = 'x'",
        ["f:2: needy.number"],
    ),
    ("a needed key that is misspelt, but not that it is missing", "[needy]\nnumbr = 1", ["f:2: needy.numbr"]),
    (
        "a misspelt key next to the right one",
        "[needy]\nnumbr = 1\nnumber = 'x'",
        ["f:2: needy.numbr", "f:3: needy.number"],
    ),
    (
        "another misspelt key, and that one is missing",
        "[needy]\nnme = ''\n[named.a]\nnumber = 0",
        ["f:4: named.a.number", "f:2: needy.nme", "f:1: needy.number"],
    ),
    ("an element, but not that the array is too short then", "many = [1, 'x']", ["f:1: many[1]"]),
    ("a field, but not what depends on it", "text = 'bad inners'\nflag = 1\n", ["f:2: flag"]),
]


@pytest.mark.parametrize(("text", "expected"), [row[1:] for row in SEVERAL], ids=[row[0] for row in SEVERAL])
def test_all_problems_are_reported_at_once(text: str, expected: list[str]) -> None:
    assert sorted(places(text)) == sorted(expected)


def test_a_section_is_converted_in_place() -> None:
    findings = Problems(TomlDocument(Path("/etc/f"), "[a.b]\npath = 'x/../y'\n[a.c]\npth = ''"))
    assert findings.convert_section(("a", "b"), Outer) == Outer(path=Path("/etc/x/../y"))
    findings.raise_if_any()
    assert findings.convert_section(("a", "c"), Outer, lambda path: f"asked about {path}") is None
    assert findings.convert_section(("a", "d"), Inner) is None
    with pytest.raises(ConfigError) as caught:
        findings.raise_if_any()
    assert [(problem.line, problem.path) for problem in caught.value.problems] == [(1, "a.d"), (4, "a.c.pth")]


def test_advice_is_requested_if_no_known_key_is_near() -> None:
    findings = Problems(TomlDocument(Path("f"), "[a]\nxyz = 1\npth = 1\nnumber = 1"))
    findings.convert_section(("a",), Outer, lambda path: f"asked about {path[-1]}")
    assert [problem.suggestion for problem in findings.problems] == [
        "asked about xyz",
        "did you mean 'path'?",
        "did you mean 'inner.number'?",
    ]


def test_a_key_below_the_wrong_header_is_assigned_to_the_enclosing_section() -> None:
    (problem,) = found("[[inners]]\nnumber = 1\nratio = 0.5")
    assert problem.endswith("; move ratio up above the first [section]: a key belongs to the header above it")
    findings = Problems(TomlDocument(Path("f"), "[[a.inners]]\nratio = 0.5"))
    findings.convert_section(("a",), Outer)
    assert findings.problems[0].suggestion == "move ratio up to [a]: a key belongs to the header above it"


def test_at_most_a_hundred_problems_of_a_section_are_searched() -> None:
    assert len(found("\n".join(f"key{n} = 1" for n in range(300)))) == 100


def test_a_type_unknown_to_toml_is_reported_as_a_plugin_defect() -> None:
    class Custom(Struct):
        thing: Problems

    assert found("thing = 1", Custom) == ["f:1: thing: a configuration has no values of type Problems"]


def test_the_problems_of_one_section_are_bounded() -> None:
    problems = Problems(TomlDocument(Path("u.toml"), f"numbers = {['x'] * (LIMIT_FAULTS + 1)}"))
    assert problems.convert_section(("numbers",), tuple[int, ...]) is None
    assert len(problems.problems) == LIMIT_FAULTS
