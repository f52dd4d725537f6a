# SPDX-License-Identifier: Apache-2.0
"""The cause of a loss: its reason without the numbers and ids, which differ in each message. Pure."""

import re
from functools import lru_cache
from typing import Final

_HEX: Final = "[0-9A-Fa-f]"

_ADDRESS: Final = re.compile(rf"(//[^/\s]+|up:)/{_HEX}+/{_HEX}+/{_HEX}+")
"""A UUri: its parts may consist of letters, as in //chassis/CAFE/1/8001."""

_ID: Final = re.compile(
    rf"""
      {_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}  # a UUID
    | 0[xX]{_HEX}+
    | \b(?=[A-Fa-f]*[0-9]){_HEX}{{4,}}\b             # hexadecimal, with a digit: words have none
    | (?:\b|(?<=[a-z]))[0-9]+                       # decimal, also in 10ms and vin17, but not in E2E and P04
    """,
    re.VERBOSE,
)


@lru_cache(maxsize=10_000)
def cause_of(reason: str) -> str:
    """The reason with N in place of each number and id."""
    return _ID.sub("N", _ADDRESS.sub(r"\1/N/N/N", reason))
