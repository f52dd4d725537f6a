# SPDX-License-Identifier: Apache-2.0
"""Which code meets a rule, which tests show it, and what is wrong with the tags."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from tests.conformance.rules import ELSEWHERE, Rule, Rules, load
from tests.conformance.tags import SOURCES, TESTS, Case, Module, Tag, collect


class Code(NamedTuple):
    """A function, a class or a constant; `symbol` is empty for a whole module."""

    file: str
    symbol: str


class Evidence(NamedTuple):
    """What there is of a rule, in order of file and place."""

    code: tuple[Code, ...]
    tests: tuple[Case, ...]

    def missing(self, rule: Rule) -> list[str]:
        """What the rule needs and does not have, in words."""
        missing = {"impl": not self.code, "test": not self.tests}
        words = {"impl": "no code is tagged", "test": "no test is tagged"}
        return [words[need] for need in rule.needs if missing[need]]


class Trace(NamedTuple):
    """The rules of a tree, what there is of each, by its id, and the tags that are wrong, in words."""

    rules: Rules
    evidence: Mapping[str, Evidence]
    wrong_tags: tuple[str, ...]

    @property
    def gaps(self) -> list[str]:
        """The rules that lack something, each with what it lacks."""
        return [
            f"{rule.id}: {what}" for rule in self.rules.all for what in self.evidence[rule.id].missing(rule)
        ]

    @property
    def tests(self) -> list[Case]:
        """Every test that a rule has, once."""
        return sorted({test for evidence in self.evidence.values() for test in evidence.tests})


def trace(root: Path) -> Trace:
    """Read a tree: its list of rules, its sources and its tests."""
    rules = load(root)
    sources, tests = collect(root, SOURCES), collect(root, TESTS)
    return Trace(
        rules,
        {rule.id: _evidence(rule, sources, tests) for rule in rules.all},
        tuple(_wrong_tags({rule.id for rule in rules.all}, sources, tests)),
    )


def _evidence(rule: Rule, sources: Iterable[Module], tests: Iterable[Module]) -> Evidence:
    code = (
        Code(tag.file, tag.symbol)
        for module in sources
        for tag in module.tags
        if (tag.kind, tag.rule) == ("impl", rule.id)
    )
    shown_by = (
        test
        for module in tests
        for tag in module.tags
        if tag.kind in {"utest", "itest"} and tag.rule == rule.id
        for test in module.tests_of(tag)
    )
    return Evidence(tuple(dict.fromkeys(code)), tuple(dict.fromkeys(shown_by)))


def _wrong_tags(ids: set[str], sources: Iterable[Module], tests: Iterable[Module]) -> Iterator[str]:
    for kinds, modules in (({"impl"}, sources), ({"utest", "itest"}, tests)):
        for module in modules:
            for tag in module.tags:
                if tag.kind not in kinds:
                    yield f"{tag}: expected {' or '.join(sorted(kinds))} here"
                elif tag.rule not in ids and not tag.rule.startswith(ELSEWHERE):
                    yield f"{tag}: no such rule{_hint(tag, ids)}"
                elif "impl" not in kinds and not module.tests_of(tag):
                    yield f"{tag}: stands on {tag.symbol or 'the module'}, expected a test"


def _hint(tag: Tag, ids: set[str]) -> str:
    close = get_close_matches(tag.rule, sorted(ids), n=1)
    return f", did you mean {close[0]}?" if close else ""
