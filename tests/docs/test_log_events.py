# SPDX-License-Identifier: Apache-2.0
"""docs/log-events.md has each event that the code can log, with its levels, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEVELS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}
EVENT = re.compile(r"[a-z_]+\.[a-z_]+")
ROW = re.compile(r"^\| `([a-z_.]+)` \| ([a-z, ]+) \| (.+) \|$", re.MULTILINE)


def sources() -> Iterator[Path]:
    yield from (ROOT / "ustreamer").rglob("*.py")
    for package in (ROOT / "plugins").glob("*/ustreamer_*"):
        yield from package.rglob("*.py")


def logged_in(text: str) -> Iterator[tuple[str, str]]:
    """The events that a module logs, each with its level. The first argument may choose between events."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(attr=level), args=[first, *_]) if level in LEVELS:
                for part in ast.walk(first):
                    match part:
                        case ast.Constant(value=str(event)) if EVENT.fullmatch(event):
                            yield event, LEVELS[level]


def logged() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in sources():
        for event, level in logged_in(path.read_text(encoding="utf-8")):
            found.setdefault(event, set()).add(level)
    return found


def documented() -> list[tuple[str, set[str]]]:
    page = (ROOT / "docs/log-events.md").read_text(encoding="utf-8")
    return [(event, set(levels.split(", "))) for event, levels, _ in ROW.findall(page)]


def test_the_page_has_each_event_once_with_its_levels() -> None:
    rows = documented()
    assert dict(rows) == logged()
    assert len(rows) == len(dict(rows))


def test_an_event_is_found_in_each_form() -> None:
    text = 'log.info("a.up" if up else "a.down")\nlogging.getLogger("x").exception("a.failed", extra={})\nlog.warning(text)'
    assert set(logged_in(text)) == {("a.up", "info"), ("a.down", "info"), ("a.failed", "error")}
