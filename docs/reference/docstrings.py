# SPDX-License-Identifier: Apache-2.0
"""Docstrings as reStructuredText, which autodoc expects. docs/conf.py calls this for each one."""

from collections.abc import Iterable


def as_rst(lines: Iterable[str]) -> list[str]:
    """Marks each indented block after an empty line as text that stays as it is: code, diagrams, columns."""
    found: list[str] = []
    in_block = False
    for line in lines:
        is_indented = line.startswith("    ")
        if is_indented and not in_block and (not found or not found[-1]):
            found += ["::", ""]
            in_block = True
        elif line and not is_indented:
            in_block = False
        found.append(line)
    return found
