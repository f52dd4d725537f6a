# SPDX-License-Identifier: Apache-2.0
"""Values without quotes that are not TOML: numbers in another form, and words for true and false.

In: a key and a word. Out: its TOML, or advice. Imported for a file with a syntax error only.
"""

import re
import tomllib
from typing import Final

_DASH: Final = re.compile(r"[\u2010-\u2015\u2212]")  # hyphens, dashes and the minus sign of typesetting
_OTHER_BASE: Final = re.compile(r"[+-]?0([xXoObB])_*([0-9A-Fa-f_]+)")
_DECIMAL: Final = re.compile(r"[+-]?[\d_]*\d[\d_]*(?:\.[\d_]*)?", re.ASCII)
_SWITCH: Final = re.compile(r"(yes|on|true|enabled?)|no|off|false|disabled?|none|null|nil", re.IGNORECASE)
_NOTHING: Final = re.compile(r"none|null|nil", re.IGNORECASE)
GROUPED_DIGITS: Final = r"[+-]?\d{1,3}(?:[ '’\u00a0\u202f]\d{3})+"
PERCENT: Final = r"\d{1,9}(?:\.\d{1,9})?\s*%"
_HEX_DIGITS: Final = re.compile(r"(?:0x|\$|&h|x|h)?([0-9a-f]{1,8})[hu]?", re.IGNORECASE)
_MISSPELT_NUMBER: Final = re.compile(r"0[xX]\w+")
_QUOTES: Final = "“”„‟«»‘’‚"

NUMBER_KEYS: Final = re.compile(
    r"(?:\w+_)?(?:ms|us|s|hz|bytes|messages|days|mb|min|max|burst|buffer|rows|spans|sessions|subscriptions)|\w+_topics"
    r"|port|port_tcp|service|instance|major|minor|level|queue|top|history|tolerance|count|size|width|bit|offset"
    r"|connections|connections_per_host|data_id|iterations|threshold|vlan_priority|client_version"
)
"""Keys whose values are numbers in every section."""
SWITCH_KEYS: Final = re.compile(
    r"accept_relayed|allow|allow_remote|anonymous|bom|clean_start|cookies|covers_header|durable|"
    r"dynamic_services|external|field|initial_data|latency|legacy_subscriber_field|meta_api|"
    r"no_return|nul|offered|page|payloads|peers|process|receipts|receive_times|scouting|sd|"
    r"sd_endpoint_options|strip|tp|usubscription"
)
"""Keys whose value is true or false, or may be."""
_ID_KEYS: Final = re.compile(r"service|instance|id|eventgroup|data_id")
"""Keys whose values people write in hexadecimal."""


def is_toml(value: str) -> bool:
    """Whether a text is one TOML value."""
    try:
        return list(tomllib.loads(f"a = {value}")) == ["a"]
    except (ValueError, RecursionError):
        return False


def number_as_toml(text: str) -> str:
    """The TOML of a number with a capital 0X, misplaced underscores, an open fraction or a long dash; "" for others."""
    plain = _DASH.sub("-", text[:1]) + text[1:]
    if match := _OTHER_BASE.fullmatch(plain):
        plain = f"0{match[1].lower()}{match[2].replace('_', '')}"
    elif _DECIMAL.fullmatch(plain):
        plain = plain.replace("_", "")
        plain += "0" if plain.endswith(".") else ""
    else:
        return ""
    return plain if is_toml(plain) and plain != text else ""


def number_meant(key: str, text: str) -> str:
    """The TOML of a number that is written as in other places, such as 21 502, 10% or 1234h; "" for any other text."""
    if _ID_KEYS.fullmatch(key) and not text.isdigit() and (match := _HEX_DIGITS.fullmatch(text)):
        return f"0x{match[1]}"
    if re.fullmatch(GROUPED_DIGITS, text):
        return re.sub(r"[^\d+-]", "", text)
    if re.fullmatch(PERCENT, text):
        return f"{float(text.rstrip('% ')) / 100:g}"
    return number_as_toml(text)


def switch_meant(text: str) -> bool | None:
    """The value of a word for true or false, such as on or disabled; None for any other text."""
    match = _SWITCH.fullmatch(text)
    return None if match is None else bool(match[1])


def as_toml(key: str, text: str) -> str:
    """The TOML of a value without quotes: a number, true or false for a switch, else a string."""
    if SWITCH_KEYS.fullmatch(key) and (switch := switch_meant(text)) is not None:
        return "true" if switch else "false"
    return number_meant(key, text) or f'"{text}"'


def value_advice(key: str, word: str) -> str:
    """The advice about a word in place of a value; "" if it is a string that lacks its quotes."""
    inner = word.strip(_QUOTES)
    if inner != word:
        is_number = NUMBER_KEYS.fullmatch(key) and _DECIMAL.fullmatch(inner)
        fits = is_toml(inner) and (is_number or SWITCH_KEYS.fullmatch(key))
        return f"write {inner}, without quotes" if fits else ""
    if number := number_meant(key, word):
        return f"write {number}"
    switch = switch_meant(word)
    if switch is None and NUMBER_KEYS.fullmatch(key) and _MISSPELT_NUMBER.fullmatch(word):
        return "write 1, or another number"
    if switch is None or word.lower() in {"true", "false"}:
        return ""
    if SWITCH_KEYS.fullmatch(key):
        return "write true" if switch else "write false"
    if _NOTHING.fullmatch(word):
        return "leave the key out"
    if NUMBER_KEYS.fullmatch(key):
        return "write 1, or another number"
    return f'write "{word}" in quotes, or true or false'
