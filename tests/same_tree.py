# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.same_tree OLD NEW`: are two commits the same program, names and imports aside?

Each Python file of OLD is compared with the file of NEW that git takes for its successor. The two syntax trees must
be equal when imports, docstrings and the spelling of names are left out. A string that differs is printed, for a
reader to judge. Exit code 1 if a tree differs, or if a file has no successor.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator

_NAMES = ("id", "attr", "arg", "name", "asname", "module", "rest", "kwd_attrs", "names")
_IMPORTS = (ast.Import, ast.ImportFrom)


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


def pairs(old: str, new: str) -> Iterator[tuple[str, str]]:
    """Old and new path of each Python file; the new one is empty if git finds no successor."""
    renames = {}
    for line in git("diff", "-M20%", "-l0", "--name-status", old, new).splitlines():
        status, *paths = line.split("\t")
        renames[paths[0]] = paths[1] if status.startswith("R") else "" if status == "D" else paths[0]
    for path in git("ls-tree", "-r", "--name-only", old).splitlines():
        if path.endswith(".py"):
            yield path, renames.get(path, path)


class _Skeleton(ast.NodeTransformer):
    """Takes imports, docstrings and names out of a tree, and keeps its strings."""

    def __init__(self) -> None:
        self.strings: list[str] = []

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for field in _NAMES:
            if hasattr(node, field):
                setattr(node, field, None)
        return super().generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None: ...  # the name that ast calls

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None: ...

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if text else self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str):
            self.strings.append(node.value)
            node.value = ""
        return node


def skeleton(source: str) -> tuple[str, list[str]]:
    """The tree without imports, docstrings and names, as text; and the strings in it, in order."""
    taken_out = _Skeleton()
    tree = taken_out.visit(ast.parse(source))
    return ast.dump(tree), taken_out.strings


def main(old: str, new: str) -> int:
    differing, compared, changed_strings = 0, 0, 0
    for before, after in pairs(old, new):
        if not after:
            print(f"{before}: no successor in {new}")
            differing += 1
            continue
        (tree, strings), (new_tree, new_strings) = (
            skeleton(git("show", f"{revision}:{path}")) for revision, path in ((old, before), (new, after))
        )
        compared += 1
        if tree != new_tree:
            print(f"{before} -> {after}: the trees differ")
            differing += 1
            continue
        for one, other in zip(strings, new_strings, strict=True):
            if one != other:
                changed_strings += 1
                print(f"{after}: {one!r} -> {other!r}")
    print(f"{compared} files compared, {differing} differ; {changed_strings} strings changed")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
