# SPDX-License-Identifier: Apache-2.0
"""The code that meets a rule, its tests, and the invalid tags."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from tests.conformance.rules import (
    RULES_FILE,
    SOMEIP_RULES_FILE,
    SpecRule,
    SpecRules,
    load_rules,
)
from tests.conformance.tags import (
    SOURCE_GLOBS,
    TEST_GLOBS,
    CaseRef,
    SourceModule,
    Tag,
    collect_kit_cases,
    collect_modules,
)


class CodeRef(NamedTuple):
    """A function, a class or a constant; `symbol` is empty for a whole module."""

    file: str
    symbol: str


class Evidence(NamedTuple):
    """The tags of a rule, in order of file and place, and the cases of the kit that judge it."""

    code: tuple[CodeRef, ...]
    tests: tuple[CaseRef, ...]
    cases: tuple[CaseRef, ...] = ()

    def missing(self, rule: SpecRule, *, either: bool = False) -> list[str]:
        """The missing parts of the rule, as text. With `either`, a case or a test is enough."""
        if rule.excluded:
            return ["does not apply, but is tagged"] if self.code or self.tests or self.cases else []
        if rule.unmet:
            return []
        if either:
            return [] if self.tests or self.cases or rule.shown_by else ["no case and no test"]
        missing = {"impl": not self.code, "test": not self.tests}
        messages = {"impl": "no code is tagged", "test": "no test is tagged"}
        return [messages[need] for need in rule.needs if missing[need]]


class Trace(NamedTuple):
    """One list of rules of a tree, the tags of each rule by its id, and the invalid tags, as text."""

    rules: SpecRules
    evidence: Mapping[str, Evidence]
    invalid_tags: tuple[str, ...]

    @property
    def gaps(self) -> list[str]:
        """The incomplete rules, each with its missing parts."""
        return [f"{rule.id}: {what}" for rule in self.rules.all for what in self.missing(rule)]

    def missing(self, rule: SpecRule) -> list[str]:
        """The missing parts of a rule, as text."""
        return self.evidence[rule.id].missing(rule, either=self.rules.needs_either(rule))

    @property
    def cases(self) -> list[CaseRef]:
        """Every case of the kit that judges a rule, once."""
        return sorted({case for evidence in self.evidence.values() for case in evidence.cases})

    @property
    def tests(self) -> list[CaseRef]:
        """Every test that a rule has, once."""
        return sorted({test for evidence in self.evidence.values() for test in evidence.tests})


def build_trace(root: Path) -> Trace:
    """The trace of the rules of uProtocol."""
    return build_traces(root)[RULES_FILE]


def build_traces(root: Path) -> dict[Path, Trace]:
    """Read a tree: its lists of rules, its sources and its tests. The invalid tags are in the first trace."""
    lists = {
        file: load_rules(root, file) for file in (RULES_FILE, SOMEIP_RULES_FILE) if (root / file).exists()
    }
    sources, tests = collect_modules(root, SOURCE_GLOBS), collect_modules(root, TEST_GLOBS)
    code: dict[str, dict[CodeRef, None]] = {}
    cases: dict[str, dict[CaseRef, None]] = {}
    for module in sources:
        for tag in module.tags:
            if tag.kind == "impl":
                code.setdefault(tag.rule, {})[CodeRef(tag.file, tag.symbol)] = None
    for module in tests:
        for tag in module.tags:
            if tag.kind in {"utest", "itest"}:
                cases.setdefault(tag.rule, {}).update(dict.fromkeys(module.tests_of(tag)))
    judged = collect_kit_cases(root)
    ids = {rule.id for rules in lists.values() for rule in rules.all}
    unknown = [f"{judged[id][0].nodeid}: {id}: no such rule" for id in judged if id not in ids]
    shown = [text for rules in lists.values() for rule in rules.all for text in _unknown_tests(root, rule)]
    invalid = (*_invalid_tags(ids, sources, tests), *unknown, *shown)
    return {
        file: Trace(
            rules,
            {
                each.id: Evidence(
                    tuple(code.get(each.id, ())),
                    tuple(cases.get(each.id, ())),
                    tuple(judged.get(each.id, ())),
                )
                for each in rules.all
            },
            invalid if file == RULES_FILE else (),
        )
        for file, rules in lists.items()
    }


def _invalid_tags(
    ids: set[str], sources: Iterable[SourceModule], tests: Iterable[SourceModule]
) -> Iterator[str]:
    for kinds, modules in (({"impl"}, sources), ({"utest", "itest"}, tests)):
        for module in modules:
            for tag in module.tags:
                if tag.kind not in kinds:
                    yield f"{tag}: expected {' or '.join(sorted(kinds))} here"
                elif tag.rule not in ids:
                    yield f"{tag}: no such rule{_hint(tag, ids)}"
                elif "impl" not in kinds and not module.tests_of(tag):
                    yield f"{tag}: is on {tag.symbol or 'the module'}, expected a test"


def _unknown_tests(root: Path, rule: SpecRule) -> Iterator[str]:
    """The tests of `shown_by` that are not there."""
    for shown in rule.shown_by:
        file, _, name = shown.partition("::")
        path = root / file
        if not path.is_file() or f"def {name}(" not in path.read_text(encoding="utf-8"):
            yield f"{rule.id}: shown by {shown}, which does not exist"


def _hint(tag: Tag, ids: set[str]) -> str:
    close = get_close_matches(tag.rule, sorted(ids), n=1)
    return f", did you mean {close[0]}?" if close else ""
