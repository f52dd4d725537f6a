# SPDX-License-Identifier: Apache-2.0
"""The page for applications in other languages has the programs that the tests in tests/e2e/clients run."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PROGRAMS: Final = "examples/clients"
PAGE: Final = (ROOT / "docs/clients.md").read_text(encoding="utf-8")
SHOWN: Final = re.findall(
    rf"\]\(\.\./{PROGRAMS}/([\w./]+)\)(?:(?!```).)*?\n```\w+\n(.*?)```", PAGE, re.DOTALL
)


def test_the_page_shows_each_program_as_it_is() -> None:
    programs = sorted(
        path.relative_to(ROOT / PROGRAMS).as_posix()
        for path in (ROOT / PROGRAMS).rglob("*")
        if path.suffix in {".toml", ".py", ".rs", ".cpp", ".java"} and path.name != "Cargo.toml"
    )
    assert sorted(name for name, _ in SHOWN) == programs
    for name, code in SHOWN:
        licence, _, text = (ROOT / PROGRAMS / name).read_text(encoding="utf-8").partition("\n")
        assert "SPDX-License-Identifier" in licence
        assert code == text, name
