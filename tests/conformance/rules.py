# SPDX-License-Identifier: Apache-2.0
"""The rules of the specifications, as rules.toml (uSubscription) and someip.toml list them."""

import tomllib
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

RULES_FILE: Final = Path("tests/conformance/rules.toml")
"""Path of the list of rules of uSubscription in a tree."""
SOMEIP_RULES_FILE: Final = Path("tests/conformance/someip.toml")
"""Path of the list of items of the SOME/IP specification in a tree."""

UNLISTED_PREFIXES: Final = (
    "dsn~service-error-model-",
    "dsn~up-transport-mqtt5-",
    "dsn~up-transport-zenoh-",
    "dsn~uri-",
    "dsn~uuid-",
    "DSP-",
    "SIP-",
    "ZEN-",
)
"""Prefixes of tagged specification ids that no list contains."""

Need: TypeAlias = Literal["impl", "test"]


class SpecRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`also` is a later specification with the same id. `note` is the reason for a rule without code or test.

    `excluded`: why the rule does not apply, a sentence or a key of `SpecRules.reasons`. `unmet`: what is missing.
    """

    id: str
    says: str
    also: str | None = None
    needs: tuple[Need, ...] = ("impl", "test")
    note: str = ""
    excluded: str = ""
    unmet: str = ""


class Specification(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    title: str
    source: str = ""


class SpecRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The specifications in order, and the rules of each by its name."""

    specifications: tuple[Specification, ...]
    rules: dict[str, tuple[SpecRule, ...]]
    reasons: dict[str, str] = {}

    def __post_init__(self) -> None:
        """Raises ValueError for a contradictory list."""
        names = {each.name for each in self.specifications}
        if names != self.rules.keys():
            raise ValueError(f"specifications {sorted(names)}, but rules of {sorted(self.rules)}")
        seen: set[str] = set()
        for rule in self.all:
            if rule.id in seen:
                raise ValueError(f"rule {rule.id}: listed twice")
            if rule.also not in {None, *names}:
                raise ValueError(f"rule {rule.id}: also {rule.also!r}, expected one of {sorted(names)}")
            if bool(rule.note) is (len(rule.needs) == 2):
                raise ValueError(f"rule {rule.id}: needs {list(rule.needs)}, and a note exactly if not both")
            if rule.excluded not in {"", *self.reasons} and not rule.excluded.endswith("."):
                raise ValueError(
                    f"rule {rule.id}: excluded {rule.excluded!r}, expected a sentence or a key of reasons"
                )
            seen.add(rule.id)

    @property
    def all(self) -> list[SpecRule]:
        return [rule for each in self.specifications for rule in self.rules[each.name]]


def load_rules(root: Path, file: Path = RULES_FILE) -> SpecRules:
    """A list of a tree. Raises msgspec.ValidationError with the key of an invalid entry."""
    return msgspec.convert(tomllib.loads((root / file).read_text(encoding="utf-8")), SpecRules)
