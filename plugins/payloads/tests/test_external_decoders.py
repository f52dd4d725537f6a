# SPDX-License-Identifier: Apache-2.0
"""External payload classes: only their interface counts. The classes here behave as those of well-known libraries.

Those here behave as well-known libraries' do.
"""

import struct
import sys
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
from ustreamer_payloads.errors import PayloadError
from ustreamer_payloads.external_decoders import MAX_DEPTH, MAX_VALUES, class_decoder, payload_class, to_plain


class Number:
    """A scalar that keeps its value in an attribute, and returns itself."""

    format = ">H"

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def deserialize(self, payload: bytes) -> "Number":
        (self.value,) = struct.unpack(self.format, payload[:2])
        return self


class FixedText:
    """A string behind a property, with private attributes only."""

    def __init__(self, size: int) -> None:
        self._size, self._data = size, ""

    @property
    def size(self) -> int:
        return self._size

    @property
    def data(self) -> str:
        return self._data

    def deserialize(self, payload: bytes) -> "FixedText":
        self._data = payload[: self._size].decode()
        return self


class List:
    """An array with its elements in a plain attribute."""

    def __init__(self, count: int) -> None:
        self.data = [Number() for _ in range(count)]

    def deserialize(self, payload: bytes) -> "List":
        for index, each in enumerate(self.data):
            each.deserialize(payload[2 * index :])
        return self


class Gear(IntEnum):
    PARK = 0
    DRIVE = 1


class Inner:
    def __init__(self) -> None:
        self.value = Number(7)
        self.unit = FixedText(2)


class Wheels:
    """A whole payload: `deserialize` returns itself, `serialize` is the way back."""

    def __init__(self) -> None:
        self.speeds = List(2)
        self.name = FixedText(2)
        self.inner = Inner()
        self.gear = Gear.DRIVE
        self.raw = bytearray(b"\1")
        self.pair = (1, 2.5)
        self.table = {"a": Number(3)}
        self.nothing = None
        self._hidden = "secret"

    def deserialize(self, payload: bytes) -> "Wheels":
        self.speeds.deserialize(payload)
        self.name.deserialize(payload[4:])
        return self

    def serialize(self) -> bytes:
        return b"".join(each.value.to_bytes(2, "big") for each in self.speeds.data) + self.name.data.encode()


class Quiet:
    """One that returns nothing, as some do."""

    def __init__(self) -> None:
        self.value = 0

    def deserialize(self, payload: bytes) -> None:
        self.value = payload[0]


class Needy:
    def __init__(self, size: int) -> None:
        self.size = size

    def deserialize(self, payload: bytes) -> None: ...


class NoMethod:
    pass


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of payload classes somewhere on the path."""
    text = "class Door:\n    def deserialize(self, payload):\n        self.open = payload[0]\n        return self\n"
    (tmp_path / "door_payloads.py").write_text(text, encoding="utf-8")
    (tmp_path / "broken_payloads.py").write_text("raise RuntimeError('no licence found')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield "door_payloads"
    sys.modules.pop("door_payloads", None)


def test_attributes_become_a_dict_and_wrappers_their_value() -> None:
    payload = bytes.fromhex("0001 0002") + b"FL"
    assert class_decoder(Wheels)(payload) == {
        "speeds": [1, 2],
        "name": "FL",
        "inner": {"value": 7, "unit": ""},
        "gear": "DRIVE",
        "raw": b"\1",
        "pair": [1, 2.5],
        "table": {"a": 3},
        "nothing": None,
    }
    assert Wheels().deserialize(payload).serialize() == payload


def test_a_class_that_returns_nothing_and_has_one_member_is_still_a_struct() -> None:
    assert class_decoder(Quiet)(b"\5") == {"value": 5}


def test_each_payload_has_an_object_of_its_own() -> None:
    decode = class_decoder(Wheels)
    first = decode(bytes.fromhex("0001 0002") + b"FL")
    decode(bytes.fromhex("0003 0004") + b"FR")
    assert first == decode(bytes.fromhex("0001 0002") + b"FL")


def test_an_exception_of_the_class_is_raised() -> None:
    with pytest.raises(struct.error):
        class_decoder(Wheels)(b"")


def test_a_class_is_found_by_its_name(module: str) -> None:
    cls = payload_class(f"{module}:Door")
    assert class_decoder(cls)(b"\1") == {"open": 1}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("door_payloads", """'door_payloads': expected "module:Name\""""),
        (":Door", """':Door': expected "module:Name\""""),
        ("no_such_payloads:Door", "cannot import 'no_such_payloads': ModuleNotFoundError: No module named 'no_such_payloads'"),
        ("broken_payloads:Door", "cannot import 'broken_payloads': RuntimeError: no licence found"),
        ("door_payloads:Window", "'door_payloads' has no 'Window'"),
        ("struct:error", "'struct:error' has no method deserialize(bytes)"),
        ("struct:pack", "'struct:pack' is not a class"),
    ],
)  # fmt: skip
def test_a_class_that_cannot_be_used_is_named(module: str, path: str, text: str) -> None:
    with pytest.raises(ValueError) as refused:
        payload_class(path)
    assert str(refused.value) == text


@pytest.mark.parametrize(
    ("cls", "text"), [(Needy, "cannot be made without arguments: TypeError"), (NoMethod, "has no method")]
)
def test_a_class_that_cannot_be_instantiated_is_reported_by_its_name(
    cls: type[Any], text: str, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    payload_class(f"{module}:Door")
    monkeypatch.setattr(sys.modules[module], "Other", cls, raising=False)
    with pytest.raises(ValueError, match=text):
        payload_class(f"{module}:Other")


def test_recursive_or_endless_objects_are_rejected() -> None:
    circle: dict[str, Any] = {}
    circle["self"] = circle
    with pytest.raises(
        PayloadError, match=f"more than {MAX_VALUES} values, or {MAX_DEPTH} inside each other"
    ):
        to_plain(circle)
    assert to_plain([0] * (MAX_VALUES - 1)) == [0] * (MAX_VALUES - 1)
    with pytest.raises(PayloadError, match=f"more than {MAX_VALUES} values"):
        to_plain([0] * MAX_VALUES)
