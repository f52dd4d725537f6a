# SPDX-License-Identifier: Apache-2.0
"""The units of a type's members, for readers of decoded values: a path such as "wheels[].speed" to "m/s"."""

from collections.abc import Iterator, Mapping

from ustreamer_payloads.config import ArrayShape, Shape, StructShape, TlvShape, TypeRef, UnionShape


def units_of(types: Mapping[str, Shape], name: str) -> dict[str, str]:
    """The units in a type of `types`, by path. The types are those of a compiled configuration: without cycles."""
    return dict(_units(types, name, ""))


def _units(types: Mapping[str, Shape], ref: TypeRef, path: str) -> Iterator[tuple[str, str]]:
    shape = types.get(ref) if isinstance(ref, str) else ref
    match shape:
        case StructShape() | TlvShape():
            for member in shape.members:
                place = f"{path}.{member.name}" if path else member.name
                if member.unit:
                    yield f"{place}{'[]' * _array_depth(types, member.type)}", member.unit
                yield from _units(types, member.type, place)
        case UnionShape():
            for variant in shape.variants:
                yield from _units(types, variant.type, f"{path}.{variant.name}" if path else variant.name)
        case ArrayShape():
            yield from _units(types, shape.of, f"{path}[]")


def _array_depth(types: Mapping[str, Shape], ref: TypeRef) -> int:
    """How many arrays are inside each other at a member: its unit is that of the elements."""
    shape = types.get(ref) if isinstance(ref, str) else ref
    return 1 + _array_depth(types, shape.of) if isinstance(shape, ArrayShape) else 0
