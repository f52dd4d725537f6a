# SPDX-License-Identifier: Apache-2.0
"""Values without quotes that are not TOML: numbers in another form, and words for true and false.

In flow a key and a word. Out flows its TOML, or advice. Imported for a file with a syntax error only.
"""

import re
import tomllib
from typing import Final

_DASH: Final = re.compile(r"[\u2010-\u2015\u2212]")  # hyphens, dashes and the minus sign of typesetting
_OTHER_BASE: Final = re.compile(r"[+-]?0([xXoObB])_*([0-9A-Fa-f_]+)")
_DECIMAL: Final = re.compile(r"[+-]?[\d_]*\d[\d_]*(?:\.[\d_]*)?", re.ASCII)
_SWITCH: Final = re.compile(r"(yes|on|true)|no|off|false", re.IGNORECASE)
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


def as_toml(key: str, text: str) -> str:
    """The TOML of a value without quotes: a number, true or false for a switch, else a string."""
    if SWITCH_KEYS.fullmatch(key) and (match := _SWITCH.fullmatch(text)):
        return "true" if match[1] else "false"
    return number_as_toml(text) or f'"{text}"'


def value_advice(key: str, word: str) -> str:
    """The advice about a word in place of a value; "" if it is a string that lacks its quotes."""
    inner = word.strip(_QUOTES)
    if inner != word:
        is_number = NUMBER_KEYS.fullmatch(key) and _DECIMAL.fullmatch(inner)
        fits = is_toml(inner) and (is_number or SWITCH_KEYS.fullmatch(key))
        return f"write {inner}, without quotes" if fits else ""
    if number := number_as_toml(word):
        return f"write {number}"
    if not _SWITCH.fullmatch(word) or word.lower() in {"true", "false"}:
        return ""
    if NUMBER_KEYS.fullmatch(key):
        return "write 1, or another number"
    return (
        "write true or false" if SWITCH_KEYS.fullmatch(key) else f'write "{word}" in quotes, or true or false'
    )
