# SPDX-License-Identifier: Apache-2.0
"""Makes an SVG of each picture in text: `python docs/pictures.py`. A picture is a .txt file of box-drawing characters.

The SVG stands next to its text. It has its own background and two sets of colours, so it is readable on a light and on
a dark page. A box that is closed is filled. `make docs` runs this; a test compares each SVG with its text.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from textwrap import fill
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PLACES: Final = ("docs/pictures/*.txt", "examples/*/picture.txt")
WIDTH, HEIGHT, MARGIN = 9, 18, 12  # of a character, in pixels
LEFT, RIGHT, UP, DOWN = range(4)
LINES: Final = {
    "─": (LEFT, RIGHT),
    "│": (UP, DOWN),
    "┌": (RIGHT, DOWN),
    "┐": (LEFT, DOWN),
    "└": (RIGHT, UP),
    "┘": (LEFT, UP),
    "├": (UP, DOWN, RIGHT),
    "┤": (UP, DOWN, LEFT),
    "┬": (LEFT, RIGHT, DOWN),
    "┴": (LEFT, RIGHT, UP),
    "┼": (LEFT, RIGHT, UP, DOWN),
    "►": (LEFT,),
    "◄": (RIGHT,),
    "▲": (DOWN,),
    "▼": (UP,),
}
HEADS: Final = {"►": "l-8-4v8z", "◄": "l8-4v8z", "▲": "l-4 8h8z", "▼": "l-4-8h8z"}
"""From the tip: the other two corners of an arrow head."""
TIPS: Final = {
    "►": (WIDTH, HEIGHT // 2),
    "◄": (0, HEIGHT // 2),
    "▲": (WIDTH / 2, 4),
    "▼": (WIDTH / 2, HEIGHT - 4),
}
STYLE: Final = """
    .paper { fill: #f6f8fa } .box { fill: #ddeaf7 } .line { fill: none; stroke: #57606a; stroke-width: 1.5 }
    .head { fill: #57606a } text { fill: #1f2328; font: 15px ui-monospace, Menlo, Consolas, monospace }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #161b22 } .box { fill: #1f3350 } .line { stroke: #8d96a0 } .head { fill: #8d96a0 }
      text { fill: #e6edf3 }
    }
  """


def svg_of(text: str) -> str:
    """The picture as SVG."""
    rows = text.rstrip("\n").split("\n")
    columns = max(map(len, rows))
    grid = [row.ljust(columns) for row in rows]
    width, height = columns * WIDTH + 2 * MARGIN, len(grid) * HEIGHT + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        "  <!-- SPDX-License-Identifier: Apache-2.0. Made by docs/pictures.py from the .txt file next to it. -->",
        f"  <style>{STYLE}</style>",
        f'  <rect class="paper" width="{width}" height="{height}" rx="8"/>',
        f'  <g transform="translate({MARGIN} {MARGIN})">',
        *(f"    {box}" for box in boxes(grid)),
        f'    <path class="line" d="{fill(" ".join([*across(grid), *down(grid)]), 100)}"/>',
        f'    <path class="head" d="{fill(" ".join(heads(grid)), 100)}"/>',
        *(f"    {label}" for label in labels(grid)),
        "  </g>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def boxes(grid: Sequence[str]) -> Iterator[str]:
    """A rectangle for each closed box."""
    for top, row in enumerate(grid):
        for left in (at for at, character in enumerate(row) if character == "┌"):
            right = left + len(re.match(r"┌[─┬┴┼]*", row[left:])[0])  # type: ignore[index]
            if right == len(row) or row[right] != "┐":
                continue
            bottom = next((y for y in range(top + 1, len(grid)) if grid[y][left] not in "│├┤┼"), top)
            if grid[bottom][left] == "└" and grid[bottom][right] == "┘":
                x, y = (left + 0.5) * WIDTH, (top + 0.5) * HEIGHT
                yield (
                    f'<rect class="box" x="{x:g}" y="{y:g}" width="{(right - left) * WIDTH}" '
                    f'height="{(bottom - top) * HEIGHT}" rx="3"/>'
                )


def across(grid: Sequence[str]) -> Iterator[str]:
    """Horizontal lines, as long as they are."""
    for y, row in enumerate(grid):
        for begin, end in spans(row, LEFT, RIGHT):
            yield f"M{begin * WIDTH / 2:g},{(y + 0.5) * HEIGHT:g}H{end * WIDTH / 2:g}"


def down(grid: Sequence[str]) -> Iterator[str]:
    """Vertical lines."""
    for x, column in enumerate(zip(*grid, strict=True)):
        for begin, end in spans(column, UP, DOWN):
            yield f"M{(x + 0.5) * WIDTH:g},{begin * HEIGHT / 2:g}V{end * HEIGHT / 2:g}"


def spans(characters: Sequence[str], before: int, after: int) -> Iterator[tuple[int, int]]:
    """Connected lines along a row or a column, in halves of a character."""
    halves = [side in LINES.get(each, ()) for each in characters for side in (before, after)]
    at = 0
    for drawn, group in groupby(halves):
        length = len(list(group))
        if drawn:
            yield at, at + length
        at += length


def heads(grid: Sequence[str]) -> Iterator[str]:
    for y, row in enumerate(grid):
        for x, character in enumerate(row):
            if character in HEADS:
                tip_x, tip_y = TIPS[character]
                yield f"M{x * WIDTH + tip_x:g},{y * HEIGHT + tip_y:g}{HEADS[character]}"


def labels(grid: Sequence[str]) -> Iterator[str]:
    """Words that one space separates are one text, as long as in the grid whatever the font is."""
    drawn = "".join(LINES)
    for y, row in enumerate(grid):
        for found in re.finditer(rf"[^\s{drawn}]+(?: [^\s{drawn}]+)*", row):
            x, length = found.start() * WIDTH, len(found[0]) * WIDTH
            text = escape(found[0], quote=False)
            yield f'<text x="{x}" y="{y * HEIGHT + 14}" textLength="{length}">{text}</text>'


def pictures() -> list[Path]:
    return sorted(path for place in PLACES for path in ROOT.glob(place))


def main() -> int:
    for source in pictures():
        source.with_suffix(".svg").write_text(svg_of(source.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
