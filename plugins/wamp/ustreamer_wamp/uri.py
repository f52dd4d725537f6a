# SPDX-License-Identifier: Apache-2.0
"""WAMP URIs: validity for publication and for subscription under each match policy (loose rules)."""

import re
from typing import Final, Literal, TypeAlias

Match: TypeAlias = Literal["exact", "prefix", "wildcard"]

MATCHES: Final[tuple[Match, ...]] = ("exact", "prefix", "wildcard")
MAX_LENGTH: Final = 1024  # characters; the longest name of a uProtocol topic has 405

# `fullmatch` below, and never `$`, which also matches before a line feed at the end.
_FORMS: Final[dict[Match, re.Pattern[str]]] = {
    "exact": re.compile(r"[^\s.#]+(?:\.[^\s.#]+)*"),
    "prefix": re.compile(r"(?:[^\s.#]+\.)*[^\s.#]*"),  # the last component may be empty
    "wildcard": re.compile(r"[^\s.#]*(?:\.[^\s.#]*)*"),  # any may be
}


def problem(uri: str, match: Match = "exact") -> str:
    """The error of `uri` under this policy; "" if it is valid."""
    if len(uri) > MAX_LENGTH:
        return f"a URI of {len(uri)} characters, expected at most {MAX_LENGTH}"
    if _FORMS[match].fullmatch(uri) is None:
        empty = {
            "exact": "",
            "prefix": ", of which the last may be empty",
            "wildcard": ", which may be empty",
        }
        return f"URI {uri!r}: expected components without white space and '#', separated by '.'{empty[match]}"
    return ""


def is_reserved(uri: str) -> bool:
    """Whether the first component is `wamp`, which belongs to the protocol."""
    return uri == "wamp" or uri.startswith("wamp.")
