# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema accepts each shipped configuration, and refuses what an editor should mark."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.host.config.test_mistakes import VALID, installed
from ustreamer.host.cli.main import main
from ustreamer.host.config.json_schema import json_schema

CONFIGS = sorted((Path(__file__).parents[3] / "configs").glob("*.toml"))
TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "integer": int,
    "number": int | float,
}


class Validator:
    """The parts of JSON Schema (draft 2020-12) that the schema uses. Another keyword is an error of the test."""

    ANNOTATIONS = frozenset(
        {"$schema", "$defs", "title", "description", "default", "discriminator", "examples"}
    )

    def __init__(self, schema: Any) -> None:
        self._schema = schema

    def errors(self, value: Any, schema: Any = None, at: str = "$") -> Iterator[str]:
        schema = self._schema if schema is None else schema
        for keyword, wanted in schema.items():
            if keyword not in self.ANNOTATIONS:
                check = getattr(self, f"_{keyword.strip('$')}")
                yield from check(value, wanted, schema, at)

    def _is_valid(self, value: Any, schema: Any) -> bool:
        return not any(self.errors(value, schema))

    def _ref(self, value: Any, wanted: str, schema: Any, at: str) -> Iterator[str]:
        yield from self.errors(value, self._schema["$defs"][wanted.removeprefix("#/$defs/")], at)

    def _type(self, value: Any, wanted: Any, schema: Any, at: str) -> Iterator[str]:
        kinds = [wanted] if isinstance(wanted, str) else wanted
        matches = any(isinstance(value, TYPES[kind]) for kind in kinds)
        if not matches or (isinstance(value, bool) and "boolean" not in kinds):
            yield f"{at}: expected {wanted}"

    def _properties(self, value: Any, wanted: Any, schema: Any, at: str) -> Iterator[str]:
        for key in wanted.keys() & value if isinstance(value, dict) else ():
            yield from self.errors(value[key], wanted[key], f"{at}.{key}")

    def _required(self, value: Any, wanted: Any, schema: Any, at: str) -> Iterator[str]:
        yield from (f"{at}.{key}: missing" for key in wanted if isinstance(value, dict) and key not in value)

    def _additionalProperties(self, value: Any, wanted: Any, schema: Any, at: str) -> Iterator[str]:  # noqa: N802
        for key in value.keys() - schema.get("properties", {}).keys() if isinstance(value, dict) else ():
            if wanted is False:
                yield f"{at}.{key}: unknown"
            elif wanted is not True:
                yield from self.errors(value[key], wanted, f"{at}.{key}")

    def _items(self, value: Any, wanted: Any, schema: Any, at: str) -> Iterator[str]:
        for index, each in enumerate(value if isinstance(value, list) else ()):
            yield from self.errors(each, wanted, f"{at}[{index}]")

    def _anyOf(self, value: Any, wanted: Any, schema: Any, at: str) -> Iterator[str]:  # noqa: N802
        if not any(self._is_valid(value, each) for each in wanted):
            yield f"{at}: no alternative fits"

    def _oneOf(self, value: Any, wanted: Any, schema: Any, at: str) -> Iterator[str]:  # noqa: N802
        if sum(self._is_valid(value, each) for each in wanted) != 1:
            yield f"{at}: not one alternative fits"

    def _const(self, value: Any, wanted: Any, schema: Any, at: str) -> Iterator[str]:
        yield from () if value == wanted else (f"{at}: expected {wanted!r}",)

    def _enum(self, value: Any, wanted: Any, schema: Any, at: str) -> Iterator[str]:
        yield from () if value in wanted else (f"{at}: not in {wanted}",)

    def _minimum(self, value: Any, wanted: Any, schema: Any, at: str) -> Iterator[str]:
        yield from (f"{at}: below {wanted}",) if isinstance(value, int | float) and value < wanted else ()

    def _maximum(self, value: Any, wanted: Any, schema: Any, at: str) -> Iterator[str]:
        yield from (f"{at}: above {wanted}",) if isinstance(value, int | float) and value > wanted else ()

    def _pattern(self, value: Any, wanted: Any, schema: Any, at: str) -> Iterator[str]:
        yield from (f"{at}: no match",) if isinstance(value, str) and not re.search(wanted, value) else ()

    def _propertyNames(self, value: Any, wanted: Any, schema: Any, at: str) -> Iterator[str]:  # noqa: N802
        for key in value if isinstance(value, dict) else ():
            yield from self.errors(key, wanted, f"{at}.{key}")

    def _size(self, value: Any, wanted: Any, schema: Any, at: str) -> Iterator[str]:
        yield from (
            (f"{at}: too short",) if isinstance(value, str | list | dict) and len(value) < wanted else ()
        )

    _minLength = _minItems = _minProperties = _size  # noqa: N815

    def _most(self, value: Any, wanted: Any, schema: Any, at: str) -> Iterator[str]:
        yield from (
            (f"{at}: too long",) if isinstance(value, str | list | dict) and len(value) > wanted else ()
        )

    _maxLength = _maxItems = _maxProperties = _most  # noqa: N815


def refused(text: str) -> list[str]:
    return [*Validator(json_schema(*installed())).errors(tomllib.loads(text))]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_shipped_configuration_is_valid(path: Path) -> None:
    assert refused(path.read_text(encoding="utf-8")) == []


def test_a_file_with_most_sections_is_valid() -> None:
    assert refused(VALID) == []


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('state_dir = "state"', 'colour = "red"', "$.colour: unknown"),
        ('authority = "hpc.vin1"\n', "", "$.authority: missing"),
        (
            "queue_messages = 10000",
            "queue_messages = 0",
            "$.egress.default.queue_messages: ",
        ),
        ('listen = "127.0.0.1:9464"', "listen = 9464", "$.observe.listen: expected string"),
        (
            'topic_lifecycle = "off"',
            'topic_lifecycle = "of"',
            "$.plugins.usubscription.topic_lifecycle: not in",
        ),
        ("[plugins.throttle]", "[plugins.trottle]", "$.plugins.trottle: unknown"),
        ("port = 30500", "port = 70000", "$.endpoints.chassis: not one alternative fits"),
        ("service = 0x1234", 'service = "0x1234"', "$.endpoints.chassis: not one alternative fits"),
        ('transport = "someip"', 'transport = "zenoh"', "$.endpoints.chassis: not one alternative fits"),
        ('mode = "peer"', 'mood = "peer"', "$.endpoints.backbone: not one alternative fits"),
    ],
)
def test_a_mistake_is_marked(old: str, new: str, error: str) -> None:
    assert old in VALID
    assert any(each.startswith(error) for each in refused(VALID.replace(old, new, 1))), refused(VALID)


def test_the_command_prints_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema == json.loads(json.dumps(json_schema(*installed())))
    assert {"zenoh", "someip", "local", "mqtt"} == {
        each["properties"]["transport"]["const"]
        for each in schema["properties"]["endpoints"]["additionalProperties"]["oneOf"]
    }
