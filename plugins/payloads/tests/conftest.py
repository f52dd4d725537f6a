# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from ustreamer_payloads.description import Description
from ustreamer_payloads.plugin import PayloadsConfig

Described = Callable[..., Description]


@pytest.fixture
def described() -> Described:
    """The type named T, or `kind` with these keys, as it would be compiled from a configuration."""

    def made(kind: str | None = None, /, max_bytes: int = 131_072, **keys: Any) -> Description:
        types = keys if kind is None else {"T": {"kind": kind, **keys}}
        topic = {"topic": "//chassis/1234/1/8001", "type": "T"}
        data = {"types": types, "topics": [topic], "max_bytes": max_bytes}
        return msgspec.convert(data, PayloadsConfig).descriptions()["T"]

    return made
