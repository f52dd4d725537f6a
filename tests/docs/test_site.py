# SPDX-License-Identifier: Apache-2.0
"""The documentation site: every page is in the navigation once, every link and anchor exists, the build is strict."""

import re
import subprocess
import sys
import zlib
from collections import Counter
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.test_reference import commands, public_symbols

ROOT = Path(__file__).parents[2]
NAVIGATION = ("docs/index.md", "docs/decisions/README.md")
SECTIONS = ["Tutorial", "How-to", "Reference", "Explanation", "Troubleshooting", "Glossary"]
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]+))?\)")
OTHER_HOST = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["'](?:https?:)?//[^"']*""")


def pages() -> list[str]:
    """The pages of the site: what docs/conf.py includes."""
    patterns = [
        "*.md",
        "docs/**/*.md",
        "examples/**/*.md",
        "pipeline/README.md",
        "plugins/*/README.md",
        "tck/README.md",
        "clients/*/README.md",
    ]
    found = {path for pattern in patterns for path in ROOT.glob(pattern)}
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


@cache
def text_of(page: str) -> str:
    """The page without its code, in which a bracket is no link and a number sign no heading."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)


@cache
def anchors_of(page: str) -> frozenset[str]:
    """As GitHub makes them: lower case, no punctuation, a hyphen for each space; -1, -2 for repeated headings."""
    seen: Counter[str] = Counter()
    found = []
    for heading in re.findall(r"^#{1,6} +(.+?) *$", text_of(page), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.append(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return frozenset(found)


def listed_in(page: str) -> list[str]:
    """The pages that the tables of contents of `page` name."""
    text = (ROOT / page).read_text(encoding="utf-8")
    entries = [
        line
        for block in re.findall(r"```{toctree}\n(.*?)```", text, re.DOTALL)
        for line in block.splitlines()
        if line and not line.startswith(":")
    ]
    folder = (ROOT / page).parent
    places = [(ROOT, entry[1:]) if entry.startswith("/") else (folder, entry) for entry in entries]
    return [
        path.relative_to(ROOT).as_posix()
        for base, entry in places
        for path in sorted(base.glob(f"{entry}.md"))
    ]


def broken_links(page: str, text: str) -> list[str]:
    """The relative links of a text that lead nowhere, or to a heading that the page does not have."""
    broken = []
    for target, anchor in LINK.findall(text):
        there = ((ROOT / page).parent / target).resolve() if target else ROOT / page
        name = there.relative_to(ROOT).as_posix() if there.is_relative_to(ROOT) else ""
        if not name or not there.exists() or (anchor and anchor not in anchors_of(name)):
            broken.append(f"{target}#{anchor}" if anchor else target)
    return broken


def test_each_page_is_in_the_navigation_once() -> None:
    listed = Counter(page for navigation in NAVIGATION for page in listed_in(navigation))
    assert set(pages()) - listed.keys() == {"docs/index.md"}
    assert [page for page, times in listed.items() if times > 1] == []


def test_the_navigation_has_its_sections_in_order() -> None:
    assert (
        re.findall(r"^:caption: (.+)$", (ROOT / NAVIGATION[0]).read_text(encoding="utf-8"), re.MULTILINE)
        == SECTIONS
    )


@pytest.mark.parametrize("page", pages())
def test_every_link_and_anchor_of_a_page_exists(page: str) -> None:
    assert broken_links(page, text_of(page)) == []


@pytest.mark.parametrize(
    "link",
    ["nothing.md", "configuration.md#nothing", "#nothing", "../../outside.md", "../ustreamer/nothing.py"],
)
def test_a_link_that_leads_nowhere_is_found(link: str) -> None:
    assert broken_links("docs/install.md", f"see [this]({link})") == [link]


@pytest.mark.soak
def test_make_docs_has_no_warning_and_the_site_needs_no_other_host(tmp_path: Path) -> None:
    if find_spec("sphinx") is None:
        pytest.skip("needs the extra `docs`")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", str(tmp_path / "cache")]
    built = subprocess.run(
        [*command, "-c", "docs", ".", str(site)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (built.returncode, built.stderr) == (0, "")
    html = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    assert len(html) > len(pages())
    assert {p.name: OTHER_HOST.findall(t) for p, t in html.items() if OTHER_HOST.search(t)} == {}
    assert not [p for p in site.rglob("*.css") if re.search(r"(url\(|@import)\W*(https?:)?//", p.read_text())]
    assert '"max_frequ":' in (site / "searchindex.js").read_text(encoding="utf-8")  # a stem
    assert public_symbols().keys() - names_in(site / "objects.inv") == set()
    page = re.sub(r"<[^>]+>", "", html[site / "docs/reference/commands.html"])
    assert [name for name, _ in commands() if name not in page] == []


def names_in(inventory: Path) -> set[str]:
    """The Python names that the site has; four lines of text are before the packed ones."""
    packed = inventory.read_bytes().split(b"\n", 4)[4]
    return {line.partition(" ")[0] for line in zlib.decompress(packed).decode().splitlines()}
