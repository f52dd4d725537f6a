# SPDX-License-Identifier: Apache-2.0
"""Each picture of the pages is made from the text next to it, as docs/pictures.py does."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from docs.pictures import ROOT, pictures, svg_of

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("source", pictures(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_picture_is_made_from_its_text(source: Path) -> None:
    """`python docs/pictures.py` makes all of them."""
    assert source.with_suffix(".svg").read_text(encoding="utf-8") == svg_of(
        source.read_text(encoding="utf-8")
    )


def test_every_picture_is_on_a_page_and_has_a_text() -> None:
    pages = [ROOT / "README.md", ROOT / "docs/architecture.md", *ROOT.glob("examples/*/README.md")]
    shown = {
        (page.parent / target).resolve()
        for page in pages
        for target in re.findall(r"!\[.+\]\((.+?)\)", page.read_text(encoding="utf-8"))
    }
    assert shown == {source.with_suffix(".svg") for source in pictures()}


def parts_of(text: str) -> ET.Element:
    return ET.fromstring(svg_of(text))


def test_a_closed_box_is_filled_and_an_open_one_is_not() -> None:
    closed, opened = "┌──┐\n│ab│\n└──┘\n", "┌──┐\n│ab│\n└── \n"
    boxes = [
        [each.attrib for each in parts_of(text).iter(f"{SVG}rect") if each.get("class") == "box"]
        for text in (closed, opened)
    ]
    assert boxes == [
        [{"class": "box", "x": "4.5", "y": "9", "width": "27", "height": "36", "rx": "3"}],
        [],
    ]


def test_a_line_is_one_stroke_with_a_head_and_texts_keep_their_length() -> None:
    drawn = parts_of("a & b ───►  c")
    lines, heads = (each.get("d") for each in drawn.iter(f"{SVG}path"))
    assert lines == "M54,9H85.5"
    assert heads == "M90,9l-8-4v8z"
    texts = [(each.text, each.get("x"), each.get("textLength")) for each in drawn.iter(f"{SVG}text")]
    assert texts == [("a & b", "0", "45"), ("c", "108", "9")]


def test_a_picture_has_colours_of_its_own_for_light_and_dark() -> None:
    drawn = svg_of("x")
    assert 'class="paper"' in drawn
    assert "prefers-color-scheme: dark" in drawn
    assert re.findall(r"(?:href|src|@import|url\()", drawn) == []  # needs no other file
