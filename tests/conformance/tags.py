# SPDX-License-Identifier: Apache-2.0
"""Tags, which are a kind, an arrow and the id of a rule in square brackets, and what they stand on.

A tag stands in a docstring or a comment: of the function, class or constant that it is about, inside it, or directly above
it. One at the level of a module, before its first test, is about every test there is in it. Strings are not looked at.
"""

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

SOURCES: Final = ("ustreamer/**/*.py", "plugins/*/ustreamer_*/**/*.py")
TESTS: Final = ("tests/**/*.py", "plugins/*/tests/**/*.py")
_GENERATED: Final = "ustreamer/uprotocol/pb/"
_TAG: Final = re.compile(r"\[(\w+)->([^\]]*)\]")


class Tag(NamedTuple):
    """`symbol` is the dotted name of what it stands on, empty for the module."""

    kind: str
    rule: str
    file: str
    line: int
    symbol: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: [{self.kind}->{self.rule}]"


class Case(NamedTuple):
    """A test function, all of its parameters together."""

    file: str
    name: str
    """With the class, if it is in one: TestLink::test_it_closes."""

    @property
    def nodeid(self) -> str:
        return f"{self.file}::{self.name}"


class Module(NamedTuple):
    """What a file has to say. `wide` are the tags at its head, which are about all of its tests."""

    file: str
    tags: tuple[Tag, ...]
    tests: tuple[Case, ...]
    wide: frozenset[Tag]

    def tests_of(self, tag: Tag) -> list[Case]:
        """The tests that a tag of this module is about; none for one that stands elsewhere."""
        if tag in self.wide:
            return list(self.tests)
        name = tag.symbol.replace(".", "::")
        return [test for test in self.tests if test.name == name or test.name.startswith(f"{name}::")]


class _Place(NamedTuple):
    """Lines, decorators included, that belong to a symbol."""

    first: int
    last: int
    symbol: str


def collect(root: Path, patterns: Iterable[str]) -> list[Module]:
    """Every file of a tree that matches, in order of its name."""
    found = {path.relative_to(root).as_posix() for pattern in patterns for path in root.glob(pattern)}
    return [
        read(name, (root / name).read_text(encoding="utf-8"))
        for name in sorted(found)
        if not name.startswith(_GENERATED)
    ]


def read(file: str, source: str) -> Module:
    """The tags and the tests in the source of one file."""
    tree = ast.parse(source, filename=file)
    lines = source.splitlines()
    places = list(_places(tree.body))
    comments = dict(_comments(source))
    words = [*_docstrings(tree), *comments.items()]
    alone = {line for line in comments if lines[line - 1].lstrip().startswith("#")}
    tags = [
        Tag(kind, rule, file, line + above, _symbol_at(line + above, places, alone))
        for line, text in sorted(words)
        for above, part in enumerate(text.splitlines())
        for kind, rule in _TAG.findall(part)
    ]
    tests = tuple(Case(file, name) for name in _tests(file, tree.body))
    starts = [place.first for place in places if _is_test(place.symbol.replace(".", "::"), tests)]
    wide = frozenset(tag for tag in tags if not tag.symbol and tag.line < min(starts, default=0))
    return Module(file, tuple(tags), tests, wide)


# --- where words stand ------------------------------------------------------------------------------------------------


def _comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(first line, text) of each string that is a statement: of a function, class, constant."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _places(body: Sequence[ast.stmt], within: str = "") -> Iterator[_Place]:
    """The functions, classes and constants of a module, and those in its classes."""
    for statement, following in zip_longest(body, body[1:]):
        last = statement.end_lineno or statement.lineno
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                first = min([statement.lineno, *(each.lineno for each in statement.decorator_list)])
                yield _Place(first, last, within + statement.name)
                if isinstance(statement, ast.ClassDef):
                    yield from _places(statement.body, f"{within}{statement.name}.")
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if following is not None and _is_text(following):  # its docstring
                    last = following.end_lineno or last
                yield _Place(statement.lineno, last, within + name)


def _symbol_at(line: int, places: Sequence[_Place], alone: Collection[int]) -> str:
    """What a line is about; `alone` are the lines that have a comment and nothing else."""
    below = line
    while below in alone:
        below += 1
    for place in places:
        if line < place.first == below:
            return place.symbol
    around = [place for place in places if place.first <= line <= place.last]
    return min(around, key=lambda place: place.last - place.first).symbol if around else ""


# --- tests ------------------------------------------------------------------------------------------------------------


def _tests(file: str, body: Sequence[ast.stmt], within: str = "") -> Iterator[str]:
    if not Path(file).name.startswith("test_"):
        return
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.startswith("test_"):
                yield within + name
            case ast.ClassDef(name=name) if name.startswith("Test"):
                yield from _tests(file, statement.body, f"{within}{name}::")


def _is_test(name: str, tests: Sequence[Case]) -> bool:
    return any(test.name == name for test in tests)
