# SPDX-License-Identifier: Apache-2.0
"""The code that meets a rule, its tests, and the invalid tags."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from tests.conformance.rules import UNLISTED_PREFIXES, SpecRule, SpecRules, load_rules
from tests.conformance.tags import SOURCE_GLOBS, TEST_GLOBS, CaseRef, SourceModule, Tag, collect_modules


class CodeRef(NamedTuple):
    """A function, a class or a constant; `symbol` is empty for a whole module."""

    file: str
    symbol: str


class Evidence(NamedTuple):
    """The tags of a rule, in order of file and place."""

    code: tuple[CodeRef, ...]
    tests: tuple[CaseRef, ...]

    def missing(self, rule: SpecRule) -> list[str]:
        """The missing parts of the rule, as text."""
        missing = {"impl": not self.code, "test": not self.tests}
        messages = {"impl": "no code is tagged", "test": "no test is tagged"}
        return [messages[need] for need in rule.needs if missing[need]]


class Trace(NamedTuple):
    """The rules of a tree, the tags of each rule by its id, and the invalid tags, as text."""

    rules: SpecRules
    evidence: Mapping[str, Evidence]
    invalid_tags: tuple[str, ...]

    @property
    def gaps(self) -> list[str]:
        """The incomplete rules, each with its missing parts."""
        return [
            f"{rule.id}: {what}" for rule in self.rules.all for what in self.evidence[rule.id].missing(rule)
        ]

    @property
    def tests(self) -> list[CaseRef]:
        """Every test that a rule has, once."""
        return sorted({test for evidence in self.evidence.values() for test in evidence.tests})


def build_trace(root: Path) -> Trace:
    """Read a tree: its list of rules, its sources and its tests."""
    rules = load_rules(root)
    sources, tests = collect_modules(root, SOURCE_GLOBS), collect_modules(root, TEST_GLOBS)
    return Trace(
        rules,
        {rule.id: _evidence(rule, sources, tests) for rule in rules.all},
        tuple(_invalid_tags({rule.id for rule in rules.all}, sources, tests)),
    )


def _evidence(rule: SpecRule, sources: Iterable[SourceModule], tests: Iterable[SourceModule]) -> Evidence:
    code = (
        CodeRef(tag.file, tag.symbol)
        for module in sources
        for tag in module.tags
        if (tag.kind, tag.rule) == ("impl", rule.id)
    )
    tests_of_rule = (
        test
        for module in tests
        for tag in module.tags
        if tag.kind in {"utest", "itest"} and tag.rule == rule.id
        for test in module.tests_of(tag)
    )
    return Evidence(tuple(dict.fromkeys(code)), tuple(dict.fromkeys(tests_of_rule)))


def _invalid_tags(
    ids: set[str], sources: Iterable[SourceModule], tests: Iterable[SourceModule]
) -> Iterator[str]:
    for kinds, modules in (({"impl"}, sources), ({"utest", "itest"}, tests)):
        for module in modules:
            for tag in module.tags:
                if tag.kind not in kinds:
                    yield f"{tag}: expected {' or '.join(sorted(kinds))} here"
                elif tag.rule not in ids and not tag.rule.startswith(UNLISTED_PREFIXES):
                    yield f"{tag}: no such rule{_hint(tag, ids)}"
                elif "impl" not in kinds and not module.tests_of(tag):
                    yield f"{tag}: is on {tag.symbol or 'the module'}, expected a test"


def _hint(tag: Tag, ids: set[str]) -> str:
    close = get_close_matches(tag.rule, sorted(ids), n=1)
    return f", did you mean {close[0]}?" if close else ""
