# SPDX-License-Identifier: Apache-2.0
"""The types and keys permitted in a section, from msgspec Structs, by path. Error texts use them."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import inspect

from ustreamer.host.config.document import KeyPath, parse_steps, value_at

_FIELD: Final = re.compile(r"([A-Za-z_]\w*(?:\.\w+|\[\d+\])*): (.+)", re.DOTALL)

_FORMS: Final[dict[type, str]] = {
    inspect.BoolType: "true",
    inspect.StrType: '"..."',
    inspect.ListType: "[ ... ]",
    inspect.VarTupleType: "[ ... ]",
    inspect.StructType: "{ ... }",
    inspect.DictType: "{ ... }",
}


class SectionSchema:
    """The types permitted at each path of a section, for error texts.

    Of several Structs with tags, the section's own tag selects one.
    """

    def __init__(self, shape: Any, section: object = None) -> None:
        self._root = inspect.type_info(shape)
        self._section = section

    def types_at(self, path: KeyPath) -> list[inspect.Type]:
        """The permitted types of the value at `path`."""
        nodes = _select_tagged(list(_alternatives(self._root)), self._section)
        for depth, step in enumerate(path, 1):
            inner = [
                each for node in nodes for inner in _child_types(node, step) for each in _alternatives(inner)
            ]
            nodes = _select_tagged(inner, value_at(self._section, path[:depth]))
        return nodes

    def keys_at(self, path: KeyPath) -> list[str]:
        """The keys of the Struct at `path`; none if it is no Struct."""
        structs = [node for node in self.types_at(path) if isinstance(node, inspect.StructType)]
        tags = [struct.tag_field for struct in structs if struct.tag_field is not None]
        return [
            *dict.fromkeys([*tags, *(field.encode_name for struct in structs for field in struct.fields)])
        ]

    def split_field_error(self, path: KeyPath, text: str) -> tuple[KeyPath, str] | None:
        """The field and the rest of a text like "sd.port: ..."; None if it names no field of the Struct at `path`."""
        match = _FIELD.fullmatch(text)
        if match is None:
            return None
        steps = parse_steps(match[1])
        return (steps, match[2]) if steps[0] in self.keys_at(path) else None

    def example(self, path: KeyPath) -> str:
        """A value for `path` as TOML: a valid one if the type has an example, choices or a minimum; else its form."""
        if written := self.written_example(path):
            return written
        nodes = self.types_at(path)
        for node in nodes:
            match node:
                case inspect.LiteralType():
                    return json.dumps(node.values[0])
                case inspect.IntType() if node.ge is not None:
                    return str(node.ge)
        return next((_FORMS[type(node)] for node in nodes if type(node) in _FORMS), "...")

    def written_example(self, path: KeyPath) -> str:
        """The example in the type of the value at `path` (`msgspec.Meta.examples`), as TOML; "" without one."""
        field = self._field_at(path)
        return "" if field is None else next((json.dumps(each) for each in _examples(field.type)), "")

    def description(self, path: KeyPath) -> str:
        """The advice to add the key at `path`, where no example can be right (`msgspec.Meta.description`); "" without."""
        field = self._field_at(path)
        about = field.type.extra_json_schema if field and isinstance(field.type, inspect.Metadata) else None
        text = (about or {}).get("description", "")
        return f"add {path[-1]}: {text}" if text else ""

    def names_at(self, path: KeyPath) -> Mapping[str, int]:
        """Names that stand for a number elsewhere, though not in the file (`msgspec.Meta.extra["names"]`)."""
        field = self._field_at(path)
        return {} if field is None else next(_number_names(field.type), {})

    def is_optional(self, path: KeyPath) -> bool:
        """Whether `path` is a key of a Struct that may be absent."""
        field = self._field_at(path)
        return field is not None and not field.required

    def _field_at(self, path: KeyPath) -> inspect.Field | None:
        """The field of a Struct at `path`; None if it is no field."""
        structs = (node for node in self.types_at(path[:-1]) if isinstance(node, inspect.StructType))
        fields = (field for struct in structs for field in struct.fields)
        return next((field for field in fields if path and field.encode_name == path[-1]), None)


def _examples(node: inspect.Type) -> Iterator[object]:
    match node:
        case inspect.UnionType():
            for each in node.types:
                yield from _examples(each)
        case inspect.Metadata():
            yield from (node.extra_json_schema or {}).get("examples", ())


def _number_names(node: inspect.Type) -> Iterator[Mapping[str, int]]:
    match node:
        case inspect.UnionType():
            for each in node.types:
                yield from _number_names(each)
        case inspect.Metadata() if node.extra and "names" in node.extra:
            yield node.extra["names"]


def _alternatives(node: inspect.Type) -> Iterator[inspect.Type]:
    match node:
        case inspect.UnionType():
            for each in node.types:
                yield from _alternatives(each)
        case inspect.Metadata():
            yield from _alternatives(node.type)
        case _:
            yield node


def _select_tagged(nodes: list[inspect.Type], value: object) -> list[inspect.Type]:
    """Of Structs with tags, only the one with the value's tag, if any has it."""
    if not isinstance(value, dict):
        return nodes
    tagged = [node for node in nodes if isinstance(node, inspect.StructType) and node.tag_field is not None]
    selected = [node for node in tagged if value.get(node.tag_field) == node.tag]
    return [node for node in nodes if node not in tagged or node in selected] if selected else nodes


def _child_types(node: inspect.Type, step: str | int) -> Iterator[inspect.Type]:
    """The types one step below a type."""
    match node:
        case inspect.StructType():
            yield from (field.type for field in node.fields if field.encode_name == step)
            if step == node.tag_field:
                yield inspect.LiteralType((node.tag,))
        case inspect.DictType():
            yield node.value_type
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
            yield node.item_type
        case inspect.TupleType() if isinstance(step, int) and step < len(node.item_types):
            yield node.item_types[step]
