# SPDX-License-Identifier: Apache-2.0
"""Look-ups in a Struct by path."""

import msgspec
import pytest

from ustreamer.host.config.document import KeyPath
from ustreamer.host.config.section_schema import SectionSchema


class Leaf(msgspec.Struct):
    number: int = 0


class Root(msgspec.Struct):
    text: str = ""
    leaf: Leaf | None = None
    leaves: tuple[Leaf, ...] = ()
    named: dict[str, Leaf] = {}


class Circle(msgspec.Struct, tag_field="kind", tag="circle"):
    radius: int = 0


class Square(msgspec.Struct, tag_field="kind", tag="square"):
    side: int = 0
    of: "Circle | Square | str" = ""


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ((), ["text", "leaf", "leaves", "named"]),
        (("leaf",), ["number"]),
        (("leaves", 3), ["number"]),
        (("named", "any"), ["number"]),
        (("text",), []),
        (("nothing",), []),
    ],
)
def test_keys_are_those_of_the_struct_at_a_path(path: KeyPath, keys: list[str]) -> None:
    assert SectionSchema(Root).keys_at(path) == keys


def test_an_example_has_the_expected_form() -> None:
    schema = SectionSchema(Root)
    found = [schema.example((name,)) for name in ("text", "leaf", "leaves", "named")]
    assert found == ['"..."', "{ ... }", "[ ... ]", "{ ... }"]


def test_a_text_that_begins_with_a_field_is_about_that_field() -> None:
    schema = SectionSchema(Root)
    assert schema.split_field_error((), "leaves[3].number: too small") == (
        ("leaves", 3, "number"),
        "too small",
    )
    assert schema.split_field_error((), "unknown: too small") is None
    assert schema.split_field_error((), "too small") is None


@pytest.mark.parametrize(
    ("section", "path", "keys"),
    [
        ({"kind": "circle"}, (), ["kind", "radius"]),
        ({"kind": "square"}, (), ["kind", "side", "of"]),
        ({"kind": "square", "of": {"kind": "circle"}}, ("of",), ["kind", "radius"]),
        (
            {"kind": "square", "of": {"kind": "square", "of": {}}},
            ("of", "of"),
            ["kind", "radius", "side", "of"],
        ),
        ({"kind": "triangle"}, (), ["kind", "radius", "side", "of"]),
        ({}, (), ["kind", "radius", "side", "of"]),
        ("text", (), ["kind", "radius", "side", "of"]),
    ],
)
def test_the_tag_of_a_section_selects_the_struct(section: object, path: KeyPath, keys: list[str]) -> None:
    assert SectionSchema(Circle | Square | str, section).keys_at(path) == keys


def test_a_tag_is_one_of_those_there_are() -> None:
    nodes = SectionSchema(Circle | Square | str, {"kind": "triangle"}).types_at(("kind",))
    assert [node.values for node in nodes if isinstance(node, msgspec.inspect.LiteralType)] == [
        ("circle",),
        ("square",),
    ]
