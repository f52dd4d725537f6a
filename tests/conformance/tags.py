# SPDX-License-Identifier: Apache-2.0
"""Tags: a kind, an arrow and the ids of rules, separated by ", ", in square brackets; and their places in the source.

A tag is in a docstring or a comment: of, inside, or directly above its function, class or constant. A tag at module
level, before the first test, applies to every test of the module. Other strings are ignored.
"""

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

SOURCE_GLOBS: Final = ("ustreamer/**/*.py", "plugins/*/ustreamer_*/**/*.py")
TEST_GLOBS: Final = ("tests/**/*.py", "plugins/*/tests/**/*.py")
KIT_GLOB: Final = "tck/uprotocol_tck/cases/*.py"
_GENERATED: Final = "ustreamer/uprotocol/pb/"
_TAG: Final = re.compile(r"\[(\w+)->([^\]]*)\]")


class Tag(NamedTuple):
    """`symbol` is the dotted name of the tagged object, empty for the module."""

    kind: str
    rule: str
    file: str
    line: int
    symbol: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: [{self.kind}->{self.rule}]"


class CaseRef(NamedTuple):
    """A test function with all its parameters."""

    file: str
    name: str
    """With the class, if it is in one: TestLink::test_it_closes."""

    @property
    def nodeid(self) -> str:
        return f"{self.file}::{self.name}"


class SourceModule(NamedTuple):
    """Tags and tests of a file. `module_tags` are at its head and apply to all of its tests."""

    file: str
    tags: tuple[Tag, ...]
    tests: tuple[CaseRef, ...]
    module_tags: frozenset[Tag]

    def tests_of(self, tag: Tag) -> list[CaseRef]:
        """Tests of a tag in this module."""
        if tag in self.module_tags:
            return list(self.tests)
        name = tag.symbol.replace(".", "::")
        return [test for test in self.tests if test.name == name or test.name.startswith(f"{name}::")]


class _SymbolSpan(NamedTuple):
    """Lines of a symbol, including its decorators."""

    first: int
    last: int
    symbol: str


def collect_modules(root: Path, patterns: Iterable[str]) -> list[SourceModule]:
    """All matching files of a tree that have a tag, sorted by name. To parse the others takes twice as long."""
    found = {path.relative_to(root).as_posix() for pattern in patterns for path in root.glob(pattern)}
    sources = (
        (name, (root / name).read_text(encoding="utf-8"))
        for name in sorted(found)
        if not name.startswith(_GENERATED)
    )
    return [read_module(name, source) for name, source in sources if _TAG.search(source)]


def collect_kit_cases(root: Path) -> dict[str, list[CaseRef]]:
    """The cases of the kit in a tree, by the rules that their decorators name, in order of file and place."""
    found: dict[str, list[CaseRef]] = {}
    for path in sorted(root.glob(KIT_GLOB)):
        file = path.relative_to(root).as_posix()
        for statement in ast.parse(path.read_text(encoding="utf-8"), filename=file).body:
            match statement:
                case ast.FunctionDef(
                    name=name, decorator_list=[ast.Call(func=ast.Name(id="case"), args=args)]
                ):
                    for argument in args:
                        found.setdefault(ast.literal_eval(argument), []).append(CaseRef(file, name))
    return found


def read_module(file: str, source: str) -> SourceModule:
    """Tags and tests of one file."""
    tree = ast.parse(source, filename=file)
    lines = source.splitlines()
    spans = list(_symbol_spans(tree.body))
    comments = dict(_comment_lines(source))
    texts = [*_docstrings(tree), *comments.items()]
    comment_only = {line for line in comments if lines[line - 1].lstrip().startswith("#")}
    tags = [
        Tag(kind, rule, file, line + line_offset, _symbol_at(line + line_offset, spans, comment_only))
        for line, text in sorted(texts)
        for line_offset, part in enumerate(text.splitlines())
        for kind, rules in _TAG.findall(part)
        for rule in rules.split(", ")
    ]
    tests = tuple(CaseRef(file, name) for name in _test_names(file, tree.body))
    starts = [span.first for span in spans if _is_test(span.symbol.replace(".", "::"), tests)]
    module_tags = frozenset(tag for tag in tags if not tag.symbol and tag.line < min(starts, default=0))
    return SourceModule(file, tuple(tags), tests, module_tags)


# --- places in the source -----------------------------------------------------------------------------------


def _comment_lines(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(first line, text) of each string statement: of a function, class or constant."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def _is_string_statement(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _symbol_spans(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[_SymbolSpan]:
    """Functions, classes and constants of a module, including those in classes."""
    for statement, following in zip_longest(body, body[1:]):
        last = statement.end_lineno or statement.lineno
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                first = min([statement.lineno, *(each.lineno for each in statement.decorator_list)])
                yield _SymbolSpan(first, last, prefix + statement.name)
                if isinstance(statement, ast.ClassDef):
                    yield from _symbol_spans(statement.body, f"{prefix}{statement.name}.")
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if following is not None and _is_string_statement(following):  # its docstring
                    last = following.end_lineno or last
                yield _SymbolSpan(statement.lineno, last, prefix + name)


def _symbol_at(line: int, spans: Sequence[_SymbolSpan], comment_only: Collection[int]) -> str:
    """Symbol of a line; `comment_only` are lines with nothing but a comment."""
    below = line
    while below in comment_only:
        below += 1
    for span in spans:
        if line < span.first == below:
            return span.symbol
    enclosing = [span for span in spans if span.first <= line <= span.last]
    return min(enclosing, key=lambda place: place.last - place.first).symbol if enclosing else ""


# --- tests ------------------------------------------------------------------------------------------------------------


def _test_names(file: str, body: Sequence[ast.stmt], prefix: str = "") -> Iterator[str]:
    if not Path(file).name.startswith("test_"):
        return
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.startswith("test_"):
                yield prefix + name
            case ast.ClassDef(name=name) if name.startswith("Test"):
                yield from _test_names(file, statement.body, f"{prefix}{name}::")


def _is_test(name: str, tests: Sequence[CaseRef]) -> bool:
    return any(test.name == name for test in tests)
