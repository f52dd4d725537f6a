# SPDX-License-Identifier: Apache-2.0
"""Franca types as types of the payloads plugin.

The defaults of CommonAPI's SOME/IP binding are assumed: big-endian, 32-bit length fields of arrays, strings and unions,
none of structures, and 8 bits for enumerations. A type that cannot be described is noted with the reason.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ustreamer.host.importers.catalogue import LeftOut, type_name
from ustreamer.host.importers.fidl.interfaces import FrancaMember, FrancaType, TypeUse

_MAX_DEPTH: Final = 16
_MAX_MEMBERS: Final = 256
_SCALARS: Final = {
    "Boolean": "bool",
    "ByteBuffer": "bytes",
    "Double": "f64",
    "Float": "f32",
    "String": "string",
    **{f"{sign}Int{bits}": f"{'u' if sign else 'i'}{bits}" for sign in ("U", "") for bits in (8, 16, 32, 64)},
}


class _NoDescriptionError(ValueError):
    """A type without a description."""


class FrancaPayloadTypes:
    """The described types by name."""

    def __init__(self, types: Mapping[str, FrancaType], left_out: LeftOut) -> None:
        self.described: dict[str, Any] = {}
        self._types, self._left_out = types, left_out
        self._names: dict[str, str] = {}

    def of_attribute(self, use: TypeUse, place: str) -> Any:
        """The type of an attribute; None, with a note, if it cannot be described."""
        try:
            return self._use(use, 0)
        except _NoDescriptionError as error:
            self._left_out.note(place, f"its payload type is left out: {error}")
            return None

    def of_arguments(self, name: str, members: Sequence[FrancaMember], place: str) -> Any:
        """The type of a broadcast: that of its argument, or a structure of several."""
        if len(members) == 1:
            return self.of_attribute(members[0].type, place)
        try:
            if not members:
                raise _NoDescriptionError("it has no arguments")
            self.described[name] = self._struct(members, 0)
            return name
        except _NoDescriptionError as error:
            self._left_out.note(place, f"its payload type is left out: {error}")
            return None

    def _use(self, use: TypeUse, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise _NoDescriptionError(f"{use.place}: more than {_MAX_DEPTH} types inside each other")
        of = _SCALARS.get(use.name) or self._defined(use, depth + 1)
        return {"kind": "array", "of": of} if use.is_array else of

    def _find(self, use: TypeUse) -> str:
        """The qualified name of a used type: in its scope, its package, another one, or anywhere if unique."""
        package = use.scope.rpartition(".")[0]
        for name in (f"{use.scope}.{use.name}", f"{package}.{use.name}", use.name):
            if name in self._types:
                return name
        found = [each for each in self._types if each.endswith(f".{use.name}")]
        if len(found) != 1:
            which = "no file has it" if not found else f"{len(found)} files have one"
            raise _NoDescriptionError(f"{use.place}: type {use.name}: {which}")
        return found[0]

    def _defined(self, use: TypeUse, depth: int) -> Any:
        qualified = self._find(use)
        if qualified in self._names:
            return self._names[qualified]
        type = self._types[qualified]
        if type.kind == "typedef":
            assert type.of is not None
            return self._use(type.of, depth)
        shape = self._shape(type, use, depth)
        name = type_name(qualified.rpartition(".")[2])
        if name in self.described:
            name = type_name(qualified)
        self.described[name] = shape
        self._names[qualified] = name
        return name

    def _shape(self, type: FrancaType, use: TypeUse, depth: int) -> Any:
        match type.kind:
            case "struct":
                return self._struct(self._inherited(type, depth), depth)
            case "array":
                assert type.of is not None
                return {"kind": "array", "of": self._use(type.of, depth)}
            case "enumeration":
                return self._enumeration(type, use, depth)
            case "union":
                variants = [
                    {"id": number, "name": type_name(each.name), "type": self._use(each.type, depth)}
                    for number, each in enumerate(type.members, 1)
                ]
                if not variants or len(variants) > _MAX_MEMBERS:
                    raise _NoDescriptionError(f"{use.place}: a union of {len(variants)} variants")
                return {"kind": "union", "variants": variants}
            case _:
                raise _NoDescriptionError(f"{use.place}: a {type.kind} has no description")

    def _inherited(self, type: FrancaType, depth: int) -> list[FrancaMember]:
        """The members of a structure, after those of its base."""
        if type.base is None:
            return list(type.members)
        if depth > _MAX_DEPTH:
            raise _NoDescriptionError(f"{type.base.place}: more than {_MAX_DEPTH} bases")
        base = self._types[self._find(type.base)]
        return [*self._inherited(base, depth + 1), *type.members]

    def _struct(self, members: Sequence[FrancaMember], depth: int) -> Any:
        names = [type_name(each.name) for each in members]
        if not members or len(members) > _MAX_MEMBERS or len(set(names)) < len(names):
            raise _NoDescriptionError(
                f"a structure of {len(members)} members, {len(set(names))} of them different"
            )
        return {
            "kind": "struct",
            "members": [
                {"name": name, "type": self._use(each.type, depth)}
                for name, each in zip(names, members, strict=True)
            ],
        }

    def _enumeration(self, type: FrancaType, use: TypeUse, depth: int) -> Any:
        values = dict(type.values)
        base = type.base
        while base is not None:
            if depth > _MAX_DEPTH:
                raise _NoDescriptionError(f"{use.place}: more than {_MAX_DEPTH} bases")
            known = self._types[self._find(base)]
            values = dict(known.values) | values
            base, depth = known.base, depth + 1
        if not values or not all(0 <= each <= 0xFF for each in values.values()):
            raise _NoDescriptionError(f"{use.place}: an enumeration without values, or with one above 255")
        return {
            "kind": "enum",
            "of": "u8",
            "values": {type_name(name): value for name, value in values.items()},
        }
