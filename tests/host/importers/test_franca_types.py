# SPDX-License-Identifier: Apache-2.0
"""Franca types as payload types: names, bases, and what has no description."""

import pytest

from ustreamer.host.importers.catalogue import LeftOut
from ustreamer.host.importers.fidl.interfaces import FrancaMember, FrancaType, TypeUse
from ustreamer.host.importers.fidl.types import FrancaPayloadTypes


def use(name: str, *, is_array: bool = False, scope: str = "car.Chassis") -> TypeUse:
    return TypeUse(name, is_array, scope, "types.fidl:1:1")


def struct(*members: tuple[str, str], base: str | None = None) -> FrancaType:
    return FrancaType(
        "struct",
        members=tuple(FrancaMember(name, use(of)) for name, of in members),
        base=None if base is None else use(base),
    )


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        (use("UInt8"), "u8"),
        (use("Int64"), "i64"),
        (use("String", is_array=True), {"kind": "array", "of": "string"}),
        (use("Alias"), "f64"),
    ],
)
def test_scalars_and_aliases_need_no_description(used: TypeUse, expected: object) -> None:
    types = FrancaPayloadTypes({"car.Chassis.Alias": FrancaType("typedef", of=use("Double"))}, LeftOut())
    assert types.of_attribute(used, "x") == expected
    assert types.described == {}


def test_a_structure_begins_with_the_members_of_its_base() -> None:
    known = {"car.Base": struct(("a", "UInt8")), "car.Chassis.Fix": struct(("b", "Float"), base="Base")}
    types = FrancaPayloadTypes(known, LeftOut())
    assert types.of_attribute(use("Fix"), "x") == "Fix"
    members = [{"name": "a", "type": "u8"}, {"name": "b", "type": "f32"}]
    assert types.described == {"Fix": {"kind": "struct", "members": members}}


def test_the_type_of_the_own_scope_comes_before_that_of_the_package() -> None:
    known = {"car.Chassis.Fix": struct(("near", "UInt8")), "car.Fix": struct(("far", "UInt8"))}
    types = FrancaPayloadTypes(known, LeftOut())
    assert types.of_attribute(use("Fix"), "x") == "Fix"
    assert types.of_attribute(use("car.Fix"), "x") == "car_Fix"
    assert [each["members"][0]["name"] for each in types.described.values()] == ["near", "far"]


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        ({}, "type Fix: no file has it"),
        ({"a.Fix": struct(), "b.Fix": struct()}, "type Fix: 2 files have one"),
        ({"car.Fix": struct()}, "a structure of 0 members"),
        (
            {"car.Fix": struct(("a", "UInt8"), ("a", "UInt8"))},
            "a structure of 2 members, 1 of them different",
        ),
        ({"car.Fix": FrancaType("map")}, "a map has no description"),
        ({"car.Fix": FrancaType("enumeration", values=(("HIGH", 256),))}, "or with one above 255"),
        ({"car.Fix": struct(("self", "Fix"))}, "more than 16 types inside each other"),
        ({"car.Fix": struct(("a", "UInt8"), base="Fix")}, "more than 16 bases"),
    ],
)
def test_a_type_without_a_description_is_noted_with_the_reason(
    known: dict[str, FrancaType], reason: str
) -> None:
    left_out = LeftOut()
    assert FrancaPayloadTypes(known, left_out).of_attribute(use("Fix"), "chassis.fidl:7:3") is None
    [line] = left_out.lines()
    assert line.startswith("chassis.fidl:7:3: its payload type is left out: ")
    assert reason in line


def test_one_argument_is_its_type_and_several_are_a_structure() -> None:
    types = FrancaPayloadTypes({}, LeftOut())
    one, two = (FrancaMember(name, use("UInt8")) for name in ("one", "two"))
    assert types.of_arguments("state", [one], "x") == "u8"
    assert types.of_arguments("state", [one, two], "x") == "state"
    assert types.described["state"]["members"] == [
        {"name": "one", "type": "u8"},
        {"name": "two", "type": "u8"},
    ]
