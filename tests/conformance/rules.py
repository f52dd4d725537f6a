# SPDX-License-Identifier: Apache-2.0
"""The rules of the specifications, as rules.toml (uProtocol, WAMP) and someip.toml list them."""

import tomllib
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

RULES_FILE: Final = Path("tests/conformance/rules.toml")
"""Path of the list of rules of uProtocol and WAMP in a tree."""
SOMEIP_RULES_FILE: Final = Path("tests/conformance/someip.toml")
"""Path of the list of items of the SOME/IP specification in a tree."""

Need: TypeAlias = Literal["impl", "test"]


class SpecRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`also` is a later specification with the same id. `note` is the reason for a rule without code or test.

    `excluded`: why the rule does not apply, a sentence or a key of `SpecRules.reasons`. `unmet`: what is missing.
    `inside`: why no case of the kit judges it. `shown_by`: tests without a tag, as `file::name`.
    """

    id: str
    says: str
    also: str | None = None
    needs: tuple[Need, ...] = ("impl", "test")
    note: str = ""
    excluded: str = ""
    unmet: str = ""
    inside: str = ""
    shown_by: tuple[str, ...] = ()


class Specification(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """With `either`, each rule needs a case of the kit or a test, and no tagged code."""

    name: str
    title: str
    source: str = ""
    either: bool = False


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

    def needs_either(self, rule: SpecRule) -> bool:
        """True if a case or a test of the rule is enough."""
        return any(each.either and rule in self.rules[each.name] for each in self.specifications)

    @property
    def all(self) -> list[SpecRule]:
        return [rule for each in self.specifications for rule in self.rules[each.name]]


def load_rules(root: Path, file: Path = RULES_FILE) -> SpecRules:
    """A list of a tree. Raises msgspec.ValidationError with the key of an invalid entry."""
    return msgspec.convert(tomllib.loads((root / file).read_text(encoding="utf-8")), SpecRules)
