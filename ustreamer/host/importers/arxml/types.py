# SPDX-License-Identifier: Apache-2.0
"""AUTOSAR data types as types of the payloads plugin: structures, arrays, vectors, strings, enumerations, scalars.

The defaults of the SOME/IP transformer are assumed: big-endian, no length field of structures and fixed arrays, 32 bits
for dynamic arrays and strings. A type that cannot be described is noted with the reason, and its events have none.
"""

from typing import TYPE_CHECKING, Any, Final

from ustreamer.host.importers.arxml.elements import (
    InvalidArxml,
    child,
    children,
    name_of,
    number,
    place_of,
    target,
    text,
)
from ustreamer.host.importers.catalogue import LeftOut, type_name

if TYPE_CHECKING:
    from autosar_data import Element

_MAX_DEPTH: Final = 16
_PROPS: Final = "SW-DATA-DEF-PROPS/SW-DATA-DEF-PROPS-VARIANTS/SW-DATA-DEF-PROPS-CONDITIONAL"
_SCALARS: Final = {
    "bool": "bool",
    "boolean": "bool",
    "char": "u8",
    "double": "f64",
    "float": "f32",
    "float32": "f32",
    "float64": "f64",
    **{
        f"{kind}{bits}{end}": f"{kind[0]}{bits}"
        for kind in ("uint", "int")
        for bits in (8, 16, 32, 64)
        for end in ("", "_t")
    },
    **{f"sint{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
}
_BASE_KINDS: Final = {"2C": "i", "NONE": "u", "BOOLEAN": "bool", "IEEE754": "f"}
_STRUCTURES: Final = {"STRUCTURE", "STRUCT"}


class AutosarPayloadTypes:
    """The described types by name, and each AUTOSAR type only once."""

    def __init__(self, left_out: LeftOut) -> None:
        self.described: dict[str, Any] = {}
        self._left_out = left_out
        self._names: dict[str, str | None] = {}

    def of(self, type: "Element | None", user: "Element") -> str | None:
        """The name of a payload type; None, with a note, if it cannot be described."""
        if type is None:
            self._left_out.note(place_of(user), "its type is in no file: no payload type")
            return None
        try:
            return self._name(type, 0)
        except InvalidArxml as error:
            self._left_out.note(place_of(user), f"its payload type is left out: {error}")
            return None

    def _name(self, type: "Element", depth: int) -> str:
        """The name of a type, which is described if it is no scalar. Raises InvalidArxml."""
        place = place_of(type)
        known = self._names.get(place)
        if known is not None:
            return known
        if depth > _MAX_DEPTH:
            raise InvalidArxml(f"{place}: more than {_MAX_DEPTH} types inside each other")
        shape = self._shape(type, depth + 1)
        if isinstance(shape, str):
            self._names[place] = shape
            return shape
        name = type_name(name_of(type))
        if name in self.described:
            name = type_name(place.strip("/"))
        self.described[name] = shape
        self._names[place] = name
        return name

    def _shape(self, type: "Element", depth: int) -> Any:
        category = (text(type, "CATEGORY") or "").upper()
        if category in {"VALUE", "BOOLEAN"}:
            return self._scalar(type)
        if category in _STRUCTURES:
            return self._structure(type, depth)
        if category in {"ARRAY", "VECTOR"}:
            return self._array(type, category, depth)
        if category == "STRING":
            return "string"
        if category == "TYPE_REFERENCE":
            referred = target(type, "TYPE-REFERENCE-REF") or target(
                child(type, _PROPS), "IMPLEMENTATION-DATA-TYPE-REF"
            )
            if referred is None:
                raise InvalidArxml(f"{place_of(type)}: it refers to a type that is in no file")
            return self._enumeration(type, self._name(referred, depth))
        raise InvalidArxml(f"{place_of(type)}: category {category or 'missing'} has no description")

    def _scalar(self, type: "Element") -> Any:
        base = target(child(type, _PROPS), "BASE-TYPE-REF")
        scalar = _SCALARS.get(name_of(type).lower())
        if base is not None:
            encoding = text(base, "BASE-TYPE-ENCODING") or "NONE"
            kind, bits = _BASE_KINDS.get(encoding.upper()), number(base, "BASE-TYPE-SIZE")
            if kind == "bool":
                scalar = "bool"
            elif kind is not None and bits in (8, 16, 32, 64):
                scalar = f"{kind}{bits}"
            else:
                raise InvalidArxml(f"{place_of(base)}: {encoding} of {bits} bits has no description")
        if scalar is None:
            raise InvalidArxml(f"{place_of(type)}: neither a base type nor a usual name such as uint8_t")
        return self._enumeration(type, scalar)

    def _enumeration(self, type: "Element", scalar: str) -> Any:
        """The enumeration of a text table of an integer; else the scalar itself."""
        method = target(child(type, _PROPS), "COMPU-METHOD-REF")
        if method is None or text(method, "CATEGORY") != "TEXTTABLE" or scalar[0] not in "ui":
            return scalar
        values: dict[str, int] = {}
        for scale in children(method, "COMPU-INTERNAL-TO-PHYS/COMPU-SCALES"):
            label, value = (
                text(scale, "COMPU-CONST/VT") or text(scale, "SYMBOL"),
                number(scale, "LOWER-LIMIT"),
            )
            if label is not None and value is not None:
                values[type_name(label)] = value
        return {"kind": "enum", "of": scalar, "values": values} if values else scalar

    def _structure(self, type: "Element", depth: int) -> Any:
        members = []
        for element in children(type, "SUB-ELEMENTS"):
            if text(element, "IS-OPTIONAL") in {"true", "1", "True"}:
                raise InvalidArxml(
                    f"{place_of(element)}: optional members need data ids (TLV), which are elsewhere"
                )
            member: dict[str, Any] = {
                "name": type_name(name_of(element)),
                "type": self._member(element, depth),
            }
            unit = self._unit(element)
            if unit:
                member["unit"] = unit
            members.append(member)
        if not members:
            raise InvalidArxml(f"{place_of(type)}: a structure without members")
        return {"kind": "struct", "members": members}

    def _member(self, element: "Element", depth: int) -> Any:
        referred = target(element, "TYPE-REFERENCE/TYPE-REFERENCE-REF") or target(
            child(element, _PROPS), "IMPLEMENTATION-DATA-TYPE-REF"
        )
        if referred is not None:
            return self._name(referred, depth)
        if text(element, "CATEGORY") is None:
            raise InvalidArxml(f"{place_of(element)}: its type is in no file")
        if depth > _MAX_DEPTH:
            raise InvalidArxml(f"{place_of(element)}: more than {_MAX_DEPTH} types inside each other")
        return self._shape(element, depth + 1)

    def _array(self, type: "Element", category: str, depth: int) -> Any:
        elements = list(children(type, "SUB-ELEMENTS"))
        argument = next(iter(children(type, "TEMPLATE-ARGUMENTS")), None)
        if elements:  # Classic
            of, count = self._member(elements[0], depth), number(elements[0], "ARRAY-SIZE")
            is_dynamic = (text(elements[0], "ARRAY-SIZE-SEMANTICS") or "").upper() == "VARIABLE-SIZE"
        else:
            referred = target(argument, "TEMPLATE-TYPE-REF")
            if referred is None:
                raise InvalidArxml(f"{place_of(type)}: the type of its elements is in no file")
            of, count = self._name(referred, depth), number(type, "ARRAY-SIZE")
            is_dynamic = category == "VECTOR"
        if is_dynamic:
            return {"kind": "array", "of": of} | ({"max": count} if count else {})
        if count is None:
            raise InvalidArxml(f"{place_of(type)}: ARRAY-SIZE: missing")
        return {"kind": "array", "of": of, "count": count}

    def _unit(self, element: "Element") -> str:
        referred = target(element, "TYPE-REFERENCE/TYPE-REFERENCE-REF")
        for each in (element, referred):
            props = None if each is None else child(each, _PROPS)
            unit = target(props, "UNIT-REF") or target(target(props, "COMPU-METHOD-REF"), "UNIT-REF")
            if unit is not None:
                return (text(unit, "DISPLAY-NAME") or name_of(unit))[:32]
        return ""
