# SPDX-License-Identifier: Apache-2.0
"""Text output of `whatif`: rounded numbers in columns."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

_STEPS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def short_number(value: float) -> str:
    """Three digits and a unit: 12.3 M."""
    for step, unit in _STEPS:
        if abs(value) >= step * 0.9995:
            scaled = value / step
            return f"{scaled:.{0 if scaled >= 99.95 else 1}f} {unit}"
    return f"{value:.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.1f}"


def percent_change(now: float, before: float) -> str:
    """Change in per cent; a dash without a reference."""
    if not before:
        return "-"
    return "=" if now == before else f"{(now / before - 1) * 100:+.1f} %"


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with text in the first two columns and numbers in the others."""
    table = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[at]) for row in table) for at in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    )


def links_table(rows: Sequence[Any]) -> str:
    """The table for the rows of `fleet_links`."""
    queues = any(row.delivered is not None for row in rows)
    header = [
        "scenario",
        "link",
        "messages",
        "change",
        "bytes",
        "change",
        "B/s of a gateway",
        "busiest second",
    ]
    if queues:
        header += ["delivered", "no room", "expired", "longest queue"]

    def cells(row: Any) -> list[str]:
        cells_of_row = [
            row.scenario,
            row.egress,
            short_number(row.messages),
            percent_change(row.messages, row.recorded),
            f"{short_number(row.bytes)}B",
            percent_change(row.bytes, row.recorded_bytes),
            short_number(row.bytes / row.seconds) if row.seconds else "-",
            f"{short_number(row.peak_bytes_s)}B",
        ]
        if queues and row.delivered is None:
            cells_of_row += ["-"] * 4
        elif queues:
            cells_of_row += [
                short_number(row.delivered),
                short_number(row.dead_lettered),
                short_number(row.expired),
                short_number(row.peak_messages),
            ]
        return cells_of_row

    return text_table(header, [cells(row) for row in rows])
