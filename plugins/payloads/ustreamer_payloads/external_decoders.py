# SPDX-License-Identifier: Apache-2.0
"""Existing payload classes as decoders. Their interface: `deserialize(bytes)`, then attributes.

Classes for someip-py and someipy have this interface. Only the classes that the configuration names are imported.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Final

from ustreamer_payloads.errors import PayloadError

MAX_VALUES: Final = 100_000
MAX_DEPTH: Final = 32
_WRAPPED_ATTRIBUTES: Final = ("value", "data")  # represents an object without other attributes


def payload_class(path: str) -> type[Any]:
    """Import the class that "module:Name" names. Raises ValueError, also for any error of the import."""
    module, _, name = path.partition(":")
    if not (module and name):
        raise ValueError(f'{path!r}: expected "module:Name"')
    try:
        found = importlib.import_module(module)
    except Exception as error:
        raise ValueError(f"cannot import {module!r}: {type(error).__name__}: {error}") from error
    cls = getattr(found, name, None)
    if cls is None:
        raise ValueError(f"{module!r} has no {name!r}")
    if not isinstance(cls, type):
        raise ValueError(f"{path!r} is not a class")  # noqa: TRY004  # the fault is in the configuration
    if not callable(getattr(cls, "deserialize", None)):
        raise ValueError(f"{path!r} has no method deserialize(bytes)")  # noqa: TRY004  # as above
    try:
        cls()
    except Exception as error:
        raise ValueError(
            f"{path!r} cannot be made without arguments: {type(error).__name__}: {error}"
        ) from error
    return cls


def class_decoder(cls: type[Any]) -> Callable[[bytes], object]:
    """A decoder that creates one object of the class per payload. It raises the errors of the class."""

    def decode(payload: bytes) -> object:
        made = cls()
        read = made.deserialize(payload)
        return to_plain(made if read is None else read)

    return decode


def to_plain(value: object) -> object:
    """Numbers, texts, lists and dicts of an object's public attributes.

    Raises PayloadError above 100 000 values or 32 levels.
    """
    return _AttributeReader().read(value, 0)


class _AttributeReader:
    def __init__(self) -> None:
        self._left = MAX_VALUES

    def read(self, value: object, depth: int) -> object:
        self._left -= 1
        if self._left < 0 or depth > MAX_DEPTH:
            raise PayloadError(f"more than {MAX_VALUES} values, or {MAX_DEPTH} inside each other")
        if isinstance(value, Enum):
            return value.name
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return value
        if isinstance(value, bytearray):
            return bytes(value)
        if isinstance(value, Mapping):
            return self._table(value.items(), depth)
        if isinstance(value, list | tuple):
            return [self.read(each, depth + 1) for each in value]
        attributes = {name: each for name, each in vars(value).items() if not name.startswith("_")}
        for holder in _WRAPPED_ATTRIBUTES:  # reading a property can raise
            if attributes.keys() <= {holder} and (depth or not attributes) and hasattr(value, holder):
                return self.read(getattr(value, holder), depth + 1)
        return self._table(attributes.items(), depth)

    def _table(self, items: Iterable[tuple[object, object]], depth: int) -> dict[str, object]:
        return {str(name): self.read(each, depth + 1) for name, each in items}
