# SPDX-License-Identifier: Apache-2.0
"""Text that is not TOML: the line of the mistake rather than of its discovery, and the suggestion."""

import tomllib
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from ustreamer.host.config.bare_values import NUMBER_KEYS, SWITCH_KEYS
from ustreamer.host.config.config import DeadLettersConfig, EgressConfig, ObserveConfig
from ustreamer.host.config.syntax_errors import TomlSyntaxError, explain
from ustreamer.host.runtime import plugins


def parse(text: str) -> dict[str, Any]:
    """Parse a text with tomllib. Raises TomlSyntaxError."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise explain(text, error) from error


ONE_LINE = "an inline table is on one line, without a comma at its end; or make it a [table]"
KEY = "a key is made of A-Z a-z 0-9 - _, or is in quotes"
COMMA = "put a comma between its elements"
QUOTED_NAME = "put a name of other characters than A-Z a-z 0-9 - _ in quotes"

REFUSED: list[tuple[str, int, str]] = [
    ("a = 1\nb = zenoh # x\n", 2, 'write "zenoh" in quotes'),
    ("a = “x”", 1, 'write "x", with straight quotes'),
    ("a = „x“", 1, 'write "x", with straight quotes'),
    ("a = False\n", 1, "write true and false in small letters"),
    ("scouting = yes", 1, "write true"),
    ("major = yes", 1, "write 1, or another number"),
    ("a = off", 1, 'write "off" in quotes, or true or false'),
    ("a = −5", 1, "write -5"),
    ("a = [1, –0.5]", 1, "write -0.5"),
    ("a = 24_150_", 1, "write 24150"),
    ("a = 0X1234 # x", 1, "write 0x1234"),
    ("t = { a = 0O17 }", 1, "write 0o17"),
    ("a = 0X12GH", 1, 'write "0X12GH" in quotes'),
    ("a = 1_b", 1, 'write "1_b" in quotes'),
    ("scouting = “true”", 1, "write true, without quotes"),
    ("a: hpc.vin1", 1, 'write a = "hpc.vin1"'),
    ("a: 24_150_", 1, "write a = 24150"),
    ("scouting: On", 1, "write scouting = true"),
    ("t = { a: 1 }", 1, "write = in place of the :"),
    ("a = null", 1, "leave the key out"),
    ("a = .5", 1, "write 0.5"),
    ("a =\nb = 1", 1, "write a value after the ="),
    ("a = # none", 1, "write a value after the ="),
    ("a == 1", 1, "write one ="),
    ("a = 010\n", 1, "write the number without leading zeros"),
    ("a = 1,\n", 1, "leave out the ','"),
    ("a = 1;\n", 1, "leave out the ';'"),
    ("a = 10.0.0.1:80", 1, 'write "10.0.0.1:80" in quotes'),
    ("a = 10ms # x", 1, "write 10, without a unit"),
    ("a_ms = 0.5 s", 1, "write 500, without a unit"),
    ("t = { a_bytes = 16MB, b = 1 }", 1, "write 16000000, without a unit"),
    ("a = 10ms9", 1, 'write "10ms9" in quotes'),
    ("a = 2021-99-01", 1, 'write "2021-99-01" in quotes'),
    ("a = 1 b = 2", 1, "begin a new line"),
    ("a: 1 # one\n", 1, "write a = 1"),
    ("a b = 1", 1, KEY),
    ("é = 1", 1, KEY),
    ("a\n", 1, "write a = and a value"),
    ("x.y]\na = 1", 1, "write [x.y]"),
    ("= 1", 1, "write a key in front of the ="),
    ("[a\nb = 1", 1, "close the header with ]"),
    ("a = 1\n[endpoints.x", 2, "close the header with ]"),
    ("[[a]\n", 1, "close the header with ]]"),
    ("[my ecu]\n", 1, QUOTED_NAME),
    ("[]\n", 1, KEY),
    ('a = "x\nb = "y"', 1, "close the string on its line"),
    ("a = 'x\nb = 'y'", 1, "close the string on its line"),
    ("a = 'x\nb = 1\n", 1, "close the string"),
    ('\na = "x', 2, "close the string"),
    ('a = 1\nb = """\nc\n\n', 2, "close the string"),
    ("a = 1\nb = '''\nc\n\n", 2, "close it with three quotes"),
    ('a = "C:\\data"', 1, "write \\\\ for each \\, or put the string in 'single quotes'"),
    ("t = { a = 1\nb = 2", 1, "close it with } on its line, or make it a [table]"),
    ("t = { a = 1 b = 2 }", 1, "put a comma between its keys"),
    ("t = {\na = 1 }", 1, ONE_LINE),
    ("t = { a = 1,\n b = 2 }", 1, ONE_LINE),
    ("t = { a = 1, }", 1, ONE_LINE),
    ('a = [\n"x"\n\nb = 1\n', 1, "close it with ]"),
    ('a = ["x",\nb = 1\n', 1, "close it with ]"),
    ('a = ["x",\n\n[b]\n', 1, "close it with ]"),
    ("\na = [1,\n2", 2, "close it with ]"),
    ('a = [\n"x",\n"y"\n"z",\n]', 4, COMMA),
    ("a = [1 2]", 1, COMMA),
    ("a = ['x', y]", 1, 'write "y" in quotes'),
    ("a = [\n[1],\n[True],\n]", 3, "write true and false in small letters"),
    ("// a\n", 1, "a comment begins with #"),
    ("a = 1\nb = [\n1]\na = [\n2]\n", 4, "leave this one out: the first is on line 1"),
    ("[a]\n[b]\n[a]\n", 3, "leave this one out: the first is on line 1"),
    ("a.b = 1\n[a]\n", 2, "leave this one out: the first is on line 1"),
    ("[a.b]\n[[a.b]]\n", 2, "leave this one out: the first is on line 1"),
    ("t = { a = 1, a = 2 }", 1, "leave this one out: the first is on line 1"),
    ("a = 1\nb = " + "1" * 5000, 2, "put it in quotes"),
    ("a = " + "[" * 50_000, 0, ""),
    ("a = 1\x00", 1, ""),
]


@pytest.mark.parametrize(("text", "line", "suggestion"), REFUSED, ids=[row[0][:40] for row in REFUSED])
def test_a_text_that_is_not_toml_is_refused_where_the_mistake_is(
    text: str, line: int, suggestion: str
) -> None:
    with pytest.raises(TomlSyntaxError) as caught:
        parse(text)
    assert (caught.value.position.line, caught.value.suggestion) == (line, suggestion)
    assert caught.value.text


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("a = 1\nbc = zenoh", 6),
        ("a = [1,\n2", 5),
        ("a = 1\n  a = 2", 3),
        ("é = 1", 1),
        ("a = " + "1" * 5000, 5),
        ("a = 'x\n", 5),
    ],
)
def test_the_column_is_that_of_the_mistake(text: str, column: int) -> None:
    with pytest.raises(TomlSyntaxError) as caught:
        parse(text)
    assert caught.value.position.column == column


def test_a_duplicate_definition_is_named() -> None:
    with pytest.raises(TomlSyntaxError) as caught:
        parse('[[t]]\n"a b" = 1\n"a b" = 2')
    assert (caught.value.path, caught.value.text) == (("t", 0, "a b"), "is defined twice")


def kinds_by_key(shape: object) -> dict[str, set[str]]:
    """The kinds of the values of each key in a section and below it."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    seen: set[type] = set()

    def visit(node: inspect.Type, key: str) -> None:
        match node:
            case inspect.UnionType():
                for each in node.types:
                    visit(each, key)
            case inspect.Metadata():
                visit(node.type, key)
            case inspect.ListType() | inspect.VarTupleType():
                found[key].add("array")
                visit(node.item_type, "")
            case inspect.DictType():
                found[key].add("table")
                visit(node.value_type, "")
            case inspect.StructType():
                found[key].add("table")
                fields = () if node.cls in seen else node.fields  # types of payloads contain themselves
                seen.add(node.cls)
                for field in fields:
                    visit(field.type, field.encode_name)
            case _:
                found[key].add(type(node).__name__)

    visit(inspect.type_info(shape), "")
    return found


def test_the_advice_knows_the_keys_of_numbers_and_switches() -> None:
    classes, _ = plugins.load_plugin_classes()
    transports = plugins.transport_kinds(plugins.class_plugin_manager(classes)).values()
    shapes = [*(each.config for each in transports), *(each.Config for each in classes.values())]
    kinds: defaultdict[str, set[str]] = defaultdict(set)
    for shape in [*shapes, EgressConfig, ObserveConfig, DeadLettersConfig]:
        for key, found in kinds_by_key(shape).items():
            kinds[key] |= found - {"NoneType", "CustomType"}
    numbers = {key for key, found in kinds.items() if key and found <= {"IntType", "FloatType"} and found}
    switches = {key for key, found in kinds.items() if key and "BoolType" in found}
    assert len(numbers) > 100
    recognized = {key for key in kinds if NUMBER_KEYS.fullmatch(key)}
    assert recognized <= numbers
    assert len(recognized) > 0.8 * len(numbers)
    assert switches == set(SWITCH_KEYS.pattern.split("|"))


FRAGMENTS = [
    *"ab1.,=[]{}\n\n\n #\"'\\\x00:",
    "a = 1\n",
    "b = ",
    "[t]\n",
    "[[t]]\n",
    '"""',
    "'''",
    "{ a = 1",
    "True",
]


@settings(max_examples=40)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join))
def test_every_text_is_parsed_as_tomllib_does_or_refused_on_a_line_of_it(text: str) -> None:
    try:
        accepted = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        with pytest.raises(TomlSyntaxError) as caught:
            parse(text)
        line, column = caught.value.position
        assert 1 <= line <= text.count("\n") + 1
        assert 1 <= column <= len((text + "\n").split("\n")[line - 1]) + 1
    else:
        assert parse(text) == accepted
