# SPDX-License-Identifier: Apache-2.0
"""Numbers that are written with a unit, such as 30s: the number that the key needs instead.

In: a key and a text. Out: the number in the unit that the name of the key ends in (`_ms`, `_bytes`), or None.
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

_AMOUNT: Final = re.compile(r"([+-]?\d[\d_]{0,30}(?:\.\d{1,30})?)\s*([A-Za-zµ]{1,9})")

_SECONDS: Final[Mapping[str, Fraction]] = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "sec": Fraction(1),
    "min": Fraction(60),
    "m": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86_400),
    "days": Fraction(86_400),
}
_BYTES: Final[Mapping[str, Fraction]] = {
    "b": Fraction(1),
    "bytes": Fraction(1),
    "k": Fraction(1000),
    "kb": Fraction(1000),
    "kib": Fraction(1 << 10),
    "m": Fraction(10**6),
    "mb": Fraction(10**6),
    "mib": Fraction(1 << 20),
    "g": Fraction(10**9),
    "gb": Fraction(10**9),
    "gib": Fraction(1 << 30),
}
_COUNTS: Final[Mapping[str, Fraction]] = {"k": Fraction(1000), "m": Fraction(10**6)}
_COUNTED: Final = frozenset(
    {"messages", "sessions", "subscriptions", "topics", "registrations", "requests", "connections"}
)
_HERTZ: Final[Mapping[str, Fraction]] = {"hz": Fraction(1), "khz": Fraction(1000)}


def without_unit(key: str, text: str) -> int | float | None:
    """The number for `key` that `text` means; None if `text` is no number with a unit that fits."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        return None
    factors, own = _units_of(key)
    amount = Fraction(match[1].replace("_", ""))
    if factors:
        # A count has no unit: 10 messages are 10.
        factor = factors.get(match[2].lower(), Fraction(1) if factors is _COUNTS else None)
        if factor is None:
            return None
        amount = amount * factor / own
    return int(amount) if amount.denominator == 1 else float(amount)


def _units_of(key: str) -> tuple[Mapping[str, Fraction], Fraction]:
    """The units of the quantity of a key, and the unit of the key itself; no units if its name shows none."""
    last = key.rpartition("_")[2]
    if last in {"us", "ms", "s", "days"}:
        return _SECONDS, _SECONDS[last]
    if last in {"bytes", "buffer"}:
        return _BYTES, Fraction(1)
    if last in {"hz", "frequency"}:
        return _HERTZ, Fraction(1)
    if last in _COUNTED:
        return _COUNTS, Fraction(1)
    return {}, Fraction(1)
