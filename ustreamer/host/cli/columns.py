# SPDX-License-Identifier: Apache-2.0
"""Columns of text that fit a width. A figure is whole or absent; a name may be cut.

In: columns and a width. Out: lines of at most this width.
"""

from collections.abc import Iterator, Sequence
from itertools import starmap
from typing import Final, NamedTuple

_CUT: Final = "…"


class TopColumn(NamedTuple):
    """A heading and its cells. `value` orders columns: the one with the least is left out first.

    A column with `least_width` has names, which may be cut to that width. Any other one has figures.
    """

    heading: str
    cells: Sequence[str]
    value: int
    least_width: int | None = None
    is_text: bool = False

    @property
    def width(self) -> int:
        return max(map(len, (self.heading, *self.cells)))

    @property
    def narrowest(self) -> int:
        return self.width if self.least_width is None else min(self.width, self.least_width)

    def lines(self, width: int) -> Iterator[str]:
        """The heading and the cells, `width` characters each."""
        for each in (self.heading, *self.cells):
            text = (
                each if len(each) <= width else _CUT + each[len(each) - width + 1 :]
            )  # an address differs at its end
            yield text.ljust(width) if self.is_text or self.least_width is not None else text.rjust(width)


def fitted_lines(columns: Sequence[TopColumn], width: int) -> list[str]:
    """The heading and the rows, in at most `width` characters unless one column alone needs more."""
    kept = list(columns)
    while len(kept) > 1 and _total([each.narrowest for each in kept]) > width:
        kept.remove(min(kept, key=lambda each: each.value))
    widths = [each.width for each in kept]
    while _total(widths) > width:
        names = [index for index, each in enumerate(kept) if widths[index] > each.narrowest]
        if not names:
            break
        widest = max(names, key=widths.__getitem__)
        widths[widest] -= 1
    cells = starmap(TopColumn.lines, zip(kept, widths, strict=True))
    return [" ".join(row).rstrip() for row in zip(*cells, strict=True)]


def fitted_words(parts: Sequence[tuple[str, int]], width: int) -> str:
    """The texts of `parts` in a line: those with the least value are left out until it fits, except the last one."""
    kept = list(parts)
    while len(kept) > 1 and len("  ".join(text for text, _ in kept)) > width:
        kept.remove(min(kept, key=lambda each: each[1]))
    return "  ".join(text for text, _ in kept)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(widths) - 1
