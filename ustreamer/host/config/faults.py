# SPDX-License-Identifier: Apache-2.0
"""Finds every problem of a section that msgspec refuses, with advice. Imported for a file with problems only.

msgspec stops at the first error, and reports neither lines nor keys of maps. So each refused value is removed from a
copy and the conversion repeats until it succeeds.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import inspect

from ustreamer.host.config.document import (
    PATH_STEP,
    KeyPath,
    closest_name,
    did_you_mean,
    format_names,
    format_path,
    format_value,
    value_at,
)
from ustreamer.host.config.secrets import is_secret_key
from ustreamer.host.config.section_schema import SectionSchema
from ustreamer.host.config.validation import suggest_move_up

if TYPE_CHECKING:
    from ustreamer.host.config.document import TomlDocument
    from ustreamer.host.config.validation import Advice, Problems

LIMIT_FAULTS: Final = 100
"""The most problems searched in one section; each costs one msgspec conversion."""

_MESSAGE: Final = re.compile(r"(?P<text>.*?)(?: - at (?P<key>`key` in )?`(?P<path>\$[^`]*)`)?", re.DOTALL)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(.*)`")
_EXPECTED: Final = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_RANGE: Final = re.compile(r"Expected `(?:int|float)` (?:[<>]=?|that's a multiple of) .*")
_ENUM: Final = re.compile(r"Invalid (?:enum )?value .*", re.DOTALL)
_ARRAYS: Final = inspect.ListType, inspect.VarTupleType
_INTEGER: Final = re.compile(r"0x[0-9A-Fa-f]{1,8}|[1-9][0-9]{0,9}")
_MAX_INLINE: Final = 90
_MAX_DECIMAL: Final = 0xFF
"""A larger number is written as 0x..., where others in its line are."""
_NUMBER: Final = re.compile(r"[+-]?(?:0x[0-9A-Fa-f]{1,30}|\d{1,30}(?:\.\d{1,30})?)")

# TOML names of msgspec's types, as expected and as found.
_WANTED: Final = {
    "array": "an array",
    "bool": "true or false",
    "date": "a date",
    "datetime": "a date and time",
    "float": "a number",
    "int": "an integer",
    "object": "a table",
    "str": "a string",
    "time": "a time",
}
_FOUND: Final = {
    "date": "the date ",
    "datetime": "the date and time ",
    "float": "the number ",
    "int": "the integer ",
    "str": "the string ",
    "time": "the time ",
}


def note_faults(
    problems: "Problems",
    at: KeyPath,
    shape: Any,
    convert: Callable[[type, object], object],
    advice: "Advice",
) -> None:
    """Add all problems of the section at `at`, which is not a `shape`. As `Problems.convert_section`."""
    remaining = _RemainingSection(value_at(problems.document.data, at), shape, convert)
    for _ in range(LIMIT_FAULTS):
        error = remaining.next_error()
        if error is None:
            return
        fault = remaining.locate(error)
        if not remaining.is_caused_by_removal(fault):
            _add_fault(problems, at, fault, remaining, advice)
        if not remaining.remove_fault(fault):
            return


def _add_fault(
    problems: "Problems", at: KeyPath, fault: "_Fault", remaining: "_RemainingSection", advice: "Advice"
) -> None:
    path = (*at, *fault.path)
    if fault.unknown is not None:
        owner = fault.path[:-1]
        names = remaining.schema.keys_at(owner)
        written = value_at(problems.document.data, (*at, *owner), {})
        assert isinstance(written, dict)  # it has the unknown key
        absent = [name for name in names if name not in written]
        intended = closest_name(fault.unknown, absent)
        if intended is not None:
            remaining.removed_paths.add((*owner, intended))  # present but invalid
        suggestion = (
            _suggest_key(at, owner, fault.unknown, absent, remaining.schema)
            or advice(path)
            or f"leave {format_path(path[-1:])} out"
        )
        problems.add_problem(path, f"unknown key (have: {format_names(names)})", suggestion)
    elif fault.missing is not None:
        key = (*fault.path, fault.missing)
        words = remaining.schema.description(key) or f"add {fault.missing} = {remaining.schema.example(key)}"
        problems.add_problem((*path, fault.missing), "is missing", words)
    elif fault.of_key:
        problems.add_problem(path, f"as a key: {fault.text}")
    elif named := remaining.schema.split_field_error(fault.path, fault.text):
        problems.add_problem((*path, *named[0]), named[1])
    else:
        _add_refused_value(problems, path, fault, remaining)


def _add_refused_value(
    problems: "Problems", path: KeyPath, fault: "_Fault", remaining: "_RemainingSection"
) -> None:
    """Note a value of a wrong type, or out of its range, with the first advice that makes it valid."""
    value = value_at(problems.document.data, path)
    as_hex = problems.document.writes_hex(path)
    nodes = remaining.schema.types_at(fault.path)
    text, repairs = _explain_type_error(fault.text, path, value, nodes, as_hex=as_hex)
    repairs = [
        *_named_number(remaining.schema, fault.path, path, value),
        *(_table_repairs(problems.document, path, value, nodes) if "Expected" in fault.text else ()),
        *repairs,
    ]
    words = next((each.words for each in repairs if remaining.accepts(fault, each.value)), "")
    if example := remaining.schema.written_example(fault.path):
        if words.startswith("choose "):
            words = f"{words}, such as {example}"
        words = words or f"write {_key_of(path)} = {example}"
    is_wrong_type = _EXPECTED.fullmatch(fault.text) is not None or not isinstance(value, dict)
    if not words and is_wrong_type and remaining.schema.is_optional(fault.path):
        words = f"leave {format_path(path[-1:])} out"
    problems.add_problem(path, text, words)


def _named_number(schema: SectionSchema, at: KeyPath, path: KeyPath, value: object) -> "Iterator[_Repair]":
    """The number that a name stands for, such as 46 for EF."""
    number = schema.names_at(at).get(value.upper()) if isinstance(value, str) else None
    if number is not None:
        yield _Repair(f"{value} is {number}: write {_key_of(path)} = {number}", number)


class _Repair(NamedTuple):
    """Advice, and the value that it leads to; ANY_VALUE if it leads to no single one."""

    words: str
    value: object


_ANY_VALUE: Final = object()


class _Fault(NamedTuple):
    """A problem found by msgspec."""

    path: KeyPath  # in the original section
    remaining_path: KeyPath  # in the remaining copy
    text: str
    unknown: str | None = None  # the last step of `path` is an unknown key of the Struct
    missing: str | None = None  # a missing key of the Struct at `path`
    of_key: bool = False  # the last step of `path` is an invalid key of a map


class _RemainingSection:
    """The rest of a section after the removal of invalid values. The section itself never changes."""

    def __init__(self, section: Any, shape: Any, hook: Callable[[type, object], object]) -> None:
        self.removed_paths: set[KeyPath] = set()  # handled paths: removed, or absent from the start
        self._section = section
        self._tree = section
        self._shape = shape
        self._hook = hook
        self._original_indexes: dict[
            KeyPath, list[int]
        ] = {}  # by array: the original indexes of its elements

    @cached_property
    def schema(self) -> SectionSchema:
        """The types of the section. Made for the first problem, because it takes longer than the conversion."""
        return SectionSchema(self._shape, self._section)

    def next_error(self) -> str | None:
        """The message of msgspec; None after success."""
        try:
            msgspec.convert(self._tree, self._shape, dec_hook=self._hook)
        except msgspec.ValidationError as error:
            return str(error)
        return None

    def accepts(self, fault: _Fault, value: object) -> bool:
        """Whether `value` in the place of a refused one causes no problem there."""
        if value is _ANY_VALUE:
            return True
        place = fault.remaining_path
        trial = _RemainingSection(_replaced(self._tree, place, value), self._shape, self._hook)
        error = trial.next_error()
        if error is None:
            return True
        found = trial.locate(error)
        if found.missing is not None or found.unknown is not None:
            return found.path[: len(place)] != place
        named = self.schema.split_field_error(found.path, found.text)
        path = (*found.path, *(named[0] if named else ()))
        return path[: len(place)] != place and path != place[: len(path)]

    def locate(self, error: str) -> _Fault:
        match = _MESSAGE.fullmatch(error)
        assert match is not None  # the pattern matches any text
        of_key = match["key"] is not None
        path = self._path_of(re.findall(PATH_STEP, match["path"] or ""), of_key, error)
        text = match["text"]
        if unknown := _UNKNOWN.fullmatch(text):
            path = (*path, unknown[1])
            return _Fault(self._original_path(path), path, text, unknown=unknown[1])
        missing = _MISSING.fullmatch(text)
        return _Fault(
            self._original_path(path), path, text, missing=missing[1] if missing else None, of_key=of_key
        )

    def _path_of(self, steps: list[tuple[str, str]], of_key: bool, error: str) -> KeyPath:
        """The path in the remaining copy, from steps that are a key, an index, or any key of a map."""
        path: KeyPath = ()
        tree = self._tree
        for key, index in [*steps, *[("", "")] * of_key]:
            if key:
                path = (*path, key)
            elif index:
                path = (*path, int(index))
            else:
                entry, tree = self._find_invalid_entry(tree, path, error)
                path = (*path, entry)
        return path

    def _find_invalid_entry(self, tree: Any, path: KeyPath, error: str) -> tuple[str, Any]:
        """The key of the map at `path` that alone causes this error, and the tree with that key only."""
        table = value_at(tree, path)
        assert isinstance(table, dict)
        for key, value in table.items():
            alone = _replaced(tree, path, {key: value})
            trial = _RemainingSection(alone, self._shape, self._hook)
            if trial.next_error() == error:
                return key, alone
        raise AssertionError(f"no entry of {table!r} gives {error!r}")

    def _original_path(self, path: KeyPath) -> KeyPath:
        read: KeyPath = ()
        for step in path:
            indexes = self._original_indexes.get(read)
            read = (*read, indexes[step] if indexes is not None and isinstance(step, int) else step)
        return read

    def is_caused_by_removal(self, fault: _Fault) -> bool:
        """Whether only an earlier removal causes this problem."""
        if fault.unknown is not None:
            return False
        if fault.missing is not None:
            return (*fault.path, fault.missing) in self.removed_paths
        depth = len(fault.path)
        return any(len(path) > depth and path[:depth] == fault.path for path in self.removed_paths)

    def remove_fault(self, fault: _Fault) -> bool:
        """Remove the invalid value; False if that is the whole section."""
        if not fault.remaining_path:
            return False
        *parents, step = fault.remaining_path
        container = value_at(self._tree, tuple(parents))
        assert isinstance(container, dict | list)
        if isinstance(step, int):
            self._original_indexes.setdefault(fault.path[:-1], list(range(len(container)))).pop(step)
        container = container.copy()
        del container[step]  # type: ignore[arg-type]  # an index of a list or a key of a dict, as the path has it
        self._tree = _replaced(self._tree, tuple(parents), container)
        self.removed_paths.add(fault.path)
        return True


def _replaced(tree: Any, path: KeyPath, value: Any) -> Any:
    """A copy of `tree` with `value` at `path`; unaffected parts are shared."""
    if not path:
        return value
    copy = tree.copy()
    copy[path[0]] = _replaced(tree[path[0]], path[1:], value)
    return copy


# --- texts -----------------------------------------------------------------------------------------------------------


def _suggest_key(at: KeyPath, owner: KeyPath, word: str, absent: list[str], schema: SectionSchema) -> str:
    """The suggestion for an unknown key of the table at `owner`: another table, or a misspelling of an `absent` key."""
    names = schema.keys_at(owner)
    below = {f"{name}.{inner}": inner for name in names for inner in schema.keys_at((*owner, name))}
    for path, inner in below.items():
        if inner == word:
            return f"did you mean {path!r}?"
    for length in range(len(owner)):
        if word in schema.keys_at(owner[:length]):
            return suggest_move_up(word, (*at, *owner[:length]))
    return did_you_mean(word, [*absent, *below])


def _explain_type_error(
    text: str, path: KeyPath, value: object, nodes: list[inspect.Type], *, as_hex: bool
) -> tuple[str, list[_Repair]]:
    """msgspec's message in terms of TOML, and the possible repairs, the likely one first."""
    if expected := _EXPECTED.fullmatch(text):
        wanted = [name for name in expected[1].split(" | ") if name != "null"]
        expected_types = " or ".join(_WANTED.get(name, name) for name in wanted)
        found = f"{_FOUND.get(expected[2], '')}{format_value(value, as_hex=as_hex)}"
        bounds = _choose(_range_text(nodes, as_hex=as_hex)) or _suggest_choice(nodes)
        repairs = [*_repairs(set(wanted), path, value), _Repair(bounds, _ANY_VALUE)]
        return f"expected {expected_types}, got {found}", repairs
    if _RANGE.fullmatch(text):
        words = _choose(_range_text(nodes, as_hex=as_hex))
        return f"{format_value(value, as_hex=as_hex)} is out of range", [_Repair(words, _ANY_VALUE)]
    if _ENUM.fullmatch(text):
        choices = [choice for node in nodes for choice in _choices(node)]
        names = [choice for choice in choices if isinstance(choice, str)]
        words = (did_you_mean(value, names) if isinstance(value, str) else "") or "choose one of them"
        shown = [*map(format_value, choices), *filter(None, [_range_text(nodes, as_hex=as_hex)])]
        problem = f"{format_value(value)} is not one of: {', '.join(shown)}"
        takes_number = any(isinstance(node, inspect.IntType) for node in nodes) and isinstance(value, str)
        as_number = _repairs_of_text({"int"}, _key_of(path), str(value)) if takes_number else ()
        return problem, [*as_number, _Repair(words, _ANY_VALUE)]
    return re.sub(r"`(\w+)`", lambda m: _WANTED.get(m[1], m[1]), text), []


def _choices(node: inspect.Type) -> list[object]:
    match node:
        case inspect.LiteralType():
            return list(node.values)
        case inspect.EnumType():
            return [member.value for member in node.cls]
    return []


def _choose(bounds: str) -> str:
    return f"choose {bounds}" if bounds else ""


def _range_text(nodes: list[inspect.Type], *, as_hex: bool) -> str:
    """The bounds of a number: "1 to 10" or "at least 1"; "" for none."""
    for node in nodes:
        if isinstance(node, inspect.IntType | inspect.FloatType):
            if node.ge is not None and node.le is not None:
                return f"{format_value(node.ge, as_hex=as_hex)} to {format_value(node.le, as_hex=as_hex)}"
            bounds = {
                "at least": node.ge,
                "more than": node.gt,
                "at most": node.le,
                "less than": node.lt,
                "a multiple of": node.multiple_of,
            }
            words = [
                f"{word} {format_value(bound, as_hex=as_hex)}"
                for word, bound in bounds.items()
                if bound is not None
            ]
            return " and ".join(words)
    return ""


def _suggest_choice(nodes: list[inspect.Type]) -> str:
    choices = [choice for node in nodes for choice in _choices(node)]
    return f"write one of: {', '.join(map(_format_toml, choices))}" if choices else ""


def _repairs(wanted: set[str], path: KeyPath, value: object) -> Iterator[_Repair]:
    """The possible repairs of a value of a wrong type."""
    key = "" if path and isinstance(path[-1], int) else f"{_key_of(path)} = "
    if isinstance(value, str):
        yield from _repairs_of_text(wanted, _key_of(path), value)
    match value:
        case float() if "int" in wanted and value.is_integer():
            yield _Repair(f"write {int(value)}", int(value))
        case [only] if not wanted & {"array", "object"} and not isinstance(only, dict | list):
            yield _Repair(f"write {key}{_format_toml(only)}", only)
    if wanted == {"bool"}:
        yield _Repair("write true or false", _ANY_VALUE)
    if isinstance(value, dict | list):
        return
    if "array" in wanted:
        yield _Repair(f"write {key}[{_format_toml(value)}]", [value])
    if "str" in wanted:
        yield _Repair(f'write "{format_value(value)}", in quotes', format_value(value))
    if wanted == {"object"} and not any(isinstance(step, int) for step in path):
        yield _Repair(f"write [{format_path(path)}] and its keys below", _ANY_VALUE)


def _table_repairs(
    document: "TomlDocument", path: KeyPath, value: object, nodes: list[inspect.Type]
) -> Iterator[_Repair]:
    """The possible repairs of a table in place of an array of tables, of the reverse, or of the only key of a table."""
    is_array = any(isinstance(node, _ARRAYS) for node in nodes)
    is_table = any(isinstance(node, inspect.StructType | inspect.DictType) for node in nodes)
    header = format_path(tuple(step for step in path if isinstance(step, str)))
    match value:
        case dict() if is_array and document.writes_header(path):
            yield _Repair(f"write [[{header}]], with two brackets on each side", [value])
        case dict() if is_array:
            yield _inline_repair(document, path, [value])
            for name in _only_keys(each for node in nodes for each in _item_types(node)):
                if all(isinstance(each, dict) and _INTEGER.fullmatch(key) for key, each in value.items()):
                    tables = [{name: int(key, 0), **each} for key, each in value.items()]
                    yield _inline_repair(document, path, tables)
        case [dict() as first, *_] if is_table and document.writes_header((*path, 0)):
            yield _Repair(f"write [{header}], with one bracket on each side", first)
        case [dict() as only] if is_table:
            yield _inline_repair(document, path, only)
        case int() | str():
            for name in _only_keys(nodes):
                yield _inline_repair(document, path, {name: value})
            for name in _only_keys(each for node in nodes for each in _item_types(node)):
                yield _inline_repair(document, path, [{name: value}])


def _only_keys(nodes: Iterable[inspect.Type]) -> Iterator[str]:
    """The required key of each Struct that requires one only."""
    for node in nodes:
        if isinstance(node, inspect.StructType):
            required = [field.encode_name for field in node.fields if field.required]
            if len(required) == 1:
                yield required[0]


def _item_types(node: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(node, _ARRAYS):
        yield node.item_type.type if isinstance(node.item_type, inspect.Metadata) else node.item_type


def _inline_repair(document: "TomlDocument", path: KeyPath, value: object) -> _Repair:
    """Advice with the value as inline TOML, or with its form if it is long or may have a secret."""
    key = "" if path and isinstance(path[-1], int) else f"{_key_of(path)} = "
    text = _inline_toml(value, as_hex="0x" in document.line_at(path).lower())
    if len(text) > _MAX_INLINE or any(is_secret_key(word) for word in re.findall(r"[\w-]+", text)):
        text = "[{ ... }]" if isinstance(value, list) else "{ ... }"
        return _Repair(f"put it into {text}: {key}{text}", value)
    return _Repair(f"write {key}{text}", value)


def _inline_toml(value: object, *, as_hex: bool) -> str:
    match value:
        case dict():
            return (
                "{ "
                + ", ".join(f"{key} = {_inline_toml(each, as_hex=as_hex)}" for key, each in value.items())
                + " }"
            )
        case list():
            return "[" + ", ".join(_inline_toml(each, as_hex=as_hex) for each in value) + "]"
        case bool():
            return format_value(value)
        case int() if as_hex and value > _MAX_DECIMAL:
            return f"{value:#x}"
    return _format_toml(value)


def _repairs_of_text(wanted: set[str], key: str, value: str) -> Iterator[_Repair]:
    """The possible repairs of a string in place of a number or a bool."""
    if wanted & {"int", "float"}:
        from ustreamer.host.config.bare_values import number_meant
        from ustreamer.host.config.units import without_unit  # only for a file with problems

        if _NUMBER.fullmatch(value):
            number = float(value) if "." in value else int(value, 16 if "x" in value else 10)
            yield _Repair(f"write {value if 'x' in value else number}, without quotes", number)
        elif meant := number_meant(key, value):
            number = float(meant) if "." in meant else int(meant, 0)
            yield _Repair(f"write {meant}, without quotes", number)
        elif (amount := without_unit(key, value)) is not None:
            yield _Repair(f"write {amount}, without quotes and unit", amount)
    if "bool" in wanted:
        from ustreamer.host.config.bare_values import switch_meant

        switch = switch_meant(value)
        if switch is not None:
            yield _Repair(f"write {format_value(switch)}, without quotes", switch)


def _key_of(path: KeyPath) -> str:
    return next((step for step in reversed(path) if isinstance(step, str)), "")


def _format_toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else format_value(value)
