# SPDX-License-Identifier: Apache-2.0
"""The HTML page of a report: one file without scripts or external resources. First the result, then reasons, then
tables.
"""

from collections.abc import Callable, Sequence
from html import escape
from itertools import groupby
from operator import itemgetter
from string import Template
from typing import Any, Final

from ustreamer_pipeline.replay.whatif_print import short_number
from ustreamer_pipeline.report import plots
from ustreamer_pipeline.report.plots import COLOURS, NAMES, Plot, micro
from ustreamer_pipeline.report.report import FleetReport, moment

SHOWN: Final = 20
"""Maximum rows of a table on the page; the CSV files have all rows."""

Row = dict[str, Any]
Cell = Callable[[Any], str]

_CODES: Final = {
    1: "CANCELLED", 2: "UNKNOWN", 3: "INVALID_ARGUMENT", 4: "DEADLINE_EXCEEDED", 5: "NOT_FOUND", 6: "ALREADY_EXISTS",
    7: "PERMISSION_DENIED", 8: "RESOURCE_EXHAUSTED", 9: "FAILED_PRECONDITION", 10: "ABORTED", 11: "OUT_OF_RANGE",
    12: "UNIMPLEMENTED", 13: "INTERNAL", 14: "UNAVAILABLE", 15: "DATA_LOSS", 16: "UNAUTHENTICATED",
}  # fmt: skip


def count(value: int | None) -> str:
    """Number with thin spaces between thousands."""
    return "–" if value is None else f"{value:,}".replace(",", "\u202f")


def share(value: float | None) -> str:
    """Share in per cent, never rounded to 0 or 100."""
    if value is None:
        return "–"
    if value in (0, 1):
        return f"{value:.0%}".replace("%", "\u202f%")
    for digits in range(1, 7):
        text = f"{value * 100:.{digits}f}"
        if 0 < float(text) < 100:
            return f"{text}\u202f%"
    return "> 99.999999\u202f%" if value > 0.5 else "< 0.000001\u202f%"


def size(value: float | None) -> str:
    return "–" if value is None else f"{short_number(value)}B"


def text(value: Any) -> str:
    return "–" if value is None else str(value)


def hertz(value: float) -> str:
    return f"{value:.3g}"


def table(made: FleetReport, name: str, caption: str, columns: Sequence[tuple[str, str, Cell]]) -> str:
    """The first rows of a table. `columns` are key, heading and format. Numbers are right-aligned."""
    rows = made.tables[name]
    numeric = {key for key, _, cell in columns if cell not in (text, _code)}
    head = "".join(
        f'<th scope="col"{" class=n" if key in numeric else ""}>{escape(name)}</th>'
        for key, name, _ in columns
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{_class(numeric, key, cell)}>{escape(cell(row[key]))}</td>" for key, _, cell in columns
        )
        + "</tr>"
        for row in rows[:SHOWN]
    )
    more = (
        f"<p class=more>{count(len(rows) - SHOWN)} more rows are in the CSV file{_only_in_lake(made, name)}.</p>"
        if len(rows) > SHOWN
        else ""
    )
    return (
        f"<div class=scroll><table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>{more}"
    )


def _class(numeric: set[str], key: str, cell: Cell) -> str:
    """Numbers do not wrap; times do, between date and time."""
    if key not in numeric:
        return ""
    return ' class="n t"' if cell is moment else " class=n"


def _only_in_lake(made: FleetReport, name: str) -> str:
    return f", and another {count(made.cut[name])} only in the lake" if name in made.cut else ""


def _code(value: int | None) -> str:
    return "–" if value is None else _CODES.get(value, str(value))


# --- contents of sections -----------------------------------------------------------------------------------


def page(made: FleetReport, lake: str) -> str:
    """The whole page."""
    sections = [
        section
        for section in (
            _time(made),
            _lost(made),
            _latency(made),
            _throttle(made),
            _queues(made),
            _talkers(made),
            _lives(made),
            _gateways(made),
        )
        if section
    ]
    first, last, gateways = made.fleet["from_us"], made.fleet["until_us"], made.fleet["gateways"]
    return _PAGE.substitute(
        headline=escape(headline(made)),
        sub=escape(
            f"{count(made.totals['rows'])} deliveries of {count(gateways)} gateway{'s' if gateways != 1 else ''}, "
            f"{moment(first)} to {moment(last)} UTC · {lake}"
        ),
        tiles=_tiles(made),
        covers=escape(_covers(made)),
        bar=_bar(made),
        nav="".join(f'<a href="#{name}">{escape(title)}</a>' for name, title, _ in sections),
        sections="".join(
            f'<section id="{name}" aria-labelledby="{name}-h"><h2 id="{name}-h">{escape(title)}</h2>{body}</section>'
            for name, title, body in sections
        ),
    )


def _covers(made: FleetReport) -> str:
    """How much of the fleet the figures above the sections cover."""
    missing, rows = made.fleet["missing"], made.totals["rows"]
    known = f"{share(rows / (rows + missing))} of the rows that are known" if missing else "every known row"
    return f"These figures cover all {count(made.fleet['gateways'])} gateways and {known}."


def headline(made: FleetReport) -> str:
    """The result in one sentence."""
    totals = made.totals
    lost = totals["expired"] + totals["dead_lettered"]
    if made.delivery_ratio is None:
        return "Nothing was to be delivered"
    if not lost:
        return f"Everything that was to be delivered was: {count(totals['delivered'])} deliveries"
    return f"{share(made.delivery_ratio)} delivered, {count(lost)} lost"


def _tiles(made: FleetReport) -> str:
    totals = made.totals
    lost = totals["expired"] + totals["dead_lettered"]
    causes = made.tables["losses"]
    why = f"mostly {_cause(causes[0])}" if causes else "no message expired or failed"
    saved = made.fleet["saved_bytes"]
    fleet = [row for row in made.tables["latency"] if row["gateway"] is None]
    slowest = max(fleet, key=lambda row: row["p99_us"], default=None)
    absent = made.fleet["missing"]
    tiles = [
        ("Delivered", share(made.delivery_ratio), f"{count(totals['delivered'])} of those that were to be"),
        ("Lost", count(lost), why),
        ("Throttled", count(totals["throttled"]), f"{size(saved)} kept off the links, as asked for"),
        (
            "99 of 100 within",
            micro(slowest["p99_us"]) if slowest else "–",
            f"on the slowest link, {slowest['egress']}" if slowest else "nothing was delivered",
        ),
        (
            "Not recorded",
            count(absent),
            "rows are known to be missing" if absent else "no row is known to be missing",
        ),
    ]
    return "".join(
        f"<div class='tile{' bad' if name in ('Lost', 'Not recorded') and value != '0' else ''}'><h3>{escape(name)}</h3>"
        f"<p class=big>{escape(value)}</p><p>{escape(note)}</p></div>"
        for name, value, note in tiles
    )


def _cause(row: Row) -> str:
    return f"{row['verdict'].lower().replace('_', '-')} at {row['endpoint']}: {row['cause']}"


def _bar(made: FleetReport) -> str:
    """All deliveries as one bar. Narrow parts stay visible, and the legend has the numbers."""
    totals = made.totals
    present = [name for name in COLOURS if totals[name]]
    parts = "".join(
        f'<span style="flex:{totals[name]} 0 3px;background:{COLOURS[name]}" title="{NAMES[name]}"></span>'
        for name in present
    )
    legend = "".join(
        f'<li><i style="background:{COLOURS[name]}"></i>{NAMES[name]} <b>{count(totals[name])}</b> '
        f"({share(totals[name] / totals['rows'])})</li>"
        for name in present
    )
    label = "; ".join(f"{NAMES[name]} {count(totals[name])}" for name in present)
    return f'<div class=bar role="img" aria-label="All deliveries: {escape(label)}">{parts}</div><ul class=legend>{legend}</ul>'


Section = tuple[str, str, str]


def _figure(plot: Plot, covers: str) -> str:
    """A plot, and how much of the fleet it covers."""
    caption = f"<figcaption><span>{escape(plot.title)}. </span>{escape(covers)}.</figcaption>"
    return f'<figure class=plot id="plot-{plot.name}">{plot.svg}{caption}</figure>'


def part(shown: int, whole: int, what: str) -> str:
    """How much of a table a figure shows: all 7 causes, or 15 of 40 causes."""
    return f"all {count(whole)} {what}" if shown >= whole else f"{count(shown)} of {count(whole)} {what}"


def _first(made: FleetReport, name: str, what: str, limit: int = plots.MAX_BARS) -> str:
    """The coverage of a plot of the first rows of a table."""
    rows = made.tables[name]
    shown = rows[:limit]
    text = part(len(shown), len(rows) + made.cut.get(name, 0), what)
    if "gateway" in rows[0]:
        gateways = len({row["gateway"] for row in shown})
        text += f", on {part(gateways, made.fleet['gateways'], 'gateways')}"
    else:
        text += f" of all {count(made.fleet['gateways'])} gateways"
    return f"Covers {text}"


def _whole(made: FleetReport, what: str, number: int) -> str:
    return f"Covers all {count(number)} {what} of all {count(made.fleet['gateways'])} gateways"


def _numbers(inside: str) -> str:
    return f"<details><summary>Numbers</summary>{inside}</details>"


def _time(made: FleetReport) -> Section:
    rates = made.tables["fleet_over_time"]
    drawn = sum(row["rows"] for row in rates)
    covers = f"Covers {part(drawn, made.totals['rows'], 'deliveries')} of all {count(made.fleet['gateways'])} gateways"
    figures = [_figure(plots.over_time(rates, made.width_s), covers)]
    span_s = rates[0]["time_s"], rates[-1]["time_s"] + made.width_s
    by_signal = groupby(made.tables.get("signals", []), itemgetter("topic", "signal"))
    for number, (_, group) in enumerate(by_signal):
        rows = list(group)
        values, most = sum(row["values"] for row in rows), max(row["gateways"] for row in rows)
        covers = f"Covers {count(values)} values; at most {part(most, made.fleet['gateways'], 'gateways')} in a step"
        figures.append(_figure(plots.signal(number, rows, span_s), covers))
    return "time", "Over time", "".join(figures)


def _lost(made: FleetReport) -> Section | None:
    rows = made.tables["losses"]
    if not rows:
        return None
    plot = plots.bars(
        "losses",
        "What was lost, by cause",
        [_cause(row) for row in rows],
        [row["rows"] for row in rows],
        "deliveries",
        COLOURS["dead_lettered"],
    )
    columns: list[tuple[str, str, Cell]] = [
        ("verdict", "Verdict", text), ("code", "Code", _code), ("cause", "Reason (numbers as N)", text), ("endpoint", "Endpoint", text),
        ("rows", "Deliveries", count), ("gateways", "Gateways", count), ("from_us", "First, UTC", moment), ("until_us", "Last, UTC", moment),
    ]  # fmt: skip
    return (
        "losses",
        "What was lost, and why",
        _figure(plot, _first(made, "losses", "causes"))
        + table(made, "losses", "Causes, the most frequent first", columns),
    )


def _latency(made: FleetReport) -> Section | None:
    rows = made.tables["latency"]
    fleet = [row for row in rows if row["gateway"] is None]
    if not fleet:
        return None
    columns: list[tuple[str, str, Cell]] = [
        ("egress", "Link", text), ("gateway", "Gateway", lambda value: value or "all"), ("delivered", "Delivered", count),
        ("p50_us", "Half", micro), ("p90_us", "90 %", micro), ("p99_us", "99 %", micro), ("p99_9_us", "99.9 %", micro),
        ("max_us", "Longest", micro), ("wait_p50_us", "Waited: half", micro), ("wait_p99_us", "Waited: 99 %", micro),
    ]  # fmt: skip
    return (
        "latency",
        "Latency",
        _figure(
            plots.latency(fleet),
            _whole(made, "delivered messages", sum(row["delivered"] for row in fleet)),
        )
        + _numbers(
            table(made, "latency", "From arrival to the verdict, and the part of it in a queue", columns)
        ),
    )


def _throttle(made: FleetReport) -> Section | None:
    rows = made.tables["throttle"]
    if not rows:
        return None
    columns: list[tuple[str, str, Cell]] = [
        ("source", "Topic", text), ("egress", "Link", text), ("subscriber", "Subscriber", text), ("gateway", "Gateway", text),
        ("published_hz", "Published, Hz", hertz), ("limit_hz", "Asked for, Hz", hertz), ("delivered_hz", "Passed on, Hz", hertz),
        ("saved_bytes", "Saved", size),
    ]  # fmt: skip
    return (
        "throttle",
        "Throttling",
        _figure(plots.throttle(rows), _first(made, "throttle", "targets with a limit"))
        + _numbers(table(made, "throttle", "Targets with a limit, the most throttled first", columns)),
    )


def _queues(made: FleetReport) -> Section | None:
    rows = made.tables["queues"]
    if not rows:
        return None
    plot = plots.bars(
        "queues",
        "Longest queues",
        [f"{row['gateway']} → {row['egress']}" for row in rows],
        [row["peak_messages"] for row in rows],
        "messages at one time",
        "#e0912f",
    )
    columns: list[tuple[str, str, Cell]] = [
        ("gateway", "Gateway", text), ("egress", "Link", text), ("peak_messages", "Messages", count), ("peak_bytes", "Payload", size), ("peak_us", "When, UTC", moment),
    ]  # fmt: skip
    return (
        "queues",
        "Queues",
        _figure(plot, _first(made, "queues", "links"))
        + _numbers(table(made, "queues", "The most that waited or was being sent at one time", columns)),
    )


def _talkers(made: FleetReport) -> Section:
    rows = made.tables["talkers"]
    plot = plots.bars(
        "talkers",
        "Top talkers",
        [row["source"] for row in rows],
        [row["bytes"] for row in rows],
        "bytes of payload",
        "#7a8fb8",
    )
    columns: list[tuple[str, str, Cell]] = [
        ("source", "Source", text), ("type", "Type", text), ("messages", "Messages", count), ("bytes", "Payload", size), ("gateways", "Gateways", count),
    ]  # fmt: skip
    return (
        "talkers",
        "Top talkers",
        _figure(plot, _first(made, "talkers", "sources"))
        + _numbers(
            table(
                made, "talkers", "Top senders; each message counts once, for any number of targets", columns
            )
        ),
    )


def _lives(made: FleetReport) -> Section | None:
    rows = made.tables["subscriptions"]
    if not rows:
        return None
    columns: list[tuple[str, str, Cell]] = [
        ("gateway", "Gateway", text), ("topic", "Topic", text), ("subscriber", "Subscriber", text), ("from_us", "From, UTC", moment),
        ("seconds", "Seconds", lambda value: "still there" if value is None else f"{value:.1f}"), ("changes", "Changes", count),
    ]  # fmt: skip
    return (
        "subscriptions",
        "Subscriptions",
        _figure(plots.lifetimes(rows), _first(made, "subscriptions", "subscriptions", len(rows)))
        + _numbers(table(made, "subscriptions", "Each subscription of each run", columns)),
    )


def _gateways(made: FleetReport) -> Section:
    columns: list[tuple[str, str, Cell]] = [
        ("gateway", "Gateway", text), ("delivery_ratio", "Delivered", share), ("rows", "Deliveries", count), ("delivered", "delivered", count),
        ("throttled", "throttled", count), ("no_subscriber", "unwanted", count), ("denied", "denied", count), ("expired", "expired", count),
        ("dead_lettered", "dead-lettered", count), ("bytes", "Payload", size), ("runs", "Runs", count), ("from_us", "From, UTC", moment), ("until_us", "Until, UTC", moment),
    ]  # fmt: skip
    return "gateways", "Gateways", table(made, "gateways", "The worst first", columns)


_PAGE: Final = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>uStreamer: $headline</title>
<style>
:root { --ink: #1c2430; --soft: #5b6675; --paper: #f6f7f9; --card: #fff; --line: #dde1e7; --bad: #b3263c; --link: #1f5fa8 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --soft: #9aa5b4; --paper: #12161c; --card: #1b212a; --line: #303946; --bad: #ff8093; --link: #8fbcf2 }
}
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif }
main, header { max-width: 80rem; margin: 0 auto; padding: 0 1.25rem }
header { padding-top: 2.5rem }
h1 { font-size: clamp(1.7rem, 4.5vw, 2.6rem); line-height: 1.15; margin: 0 0 .4rem; letter-spacing: -.02em }
h2 { font-size: 1.3rem; margin: 0 0 .8rem }
h3 { font-size: .85rem; font-weight: 600; color: var(--soft); margin: 0 }
.sub { color: var(--soft); margin: 0 0 1.5rem; overflow-wrap: anywhere }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); gap: .8rem; margin-bottom: 1.4rem }
.tile, section { background: var(--card); border: 1px solid var(--line); border-radius: .7rem; padding: 1rem 1.1rem }
.tile p { margin: 0; font-size: .87rem; color: var(--soft); overflow-wrap: anywhere }
.tile .big { font-size: 1.7rem; font-weight: 650; color: var(--ink); line-height: 1.3; white-space: nowrap }
.tile.bad .big { color: var(--bad) }
.bar { display: flex; height: 1.5rem; border-radius: .4rem; overflow: hidden; gap: 1px }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .3rem 1.3rem; padding: 0; margin: .6rem 0 1.2rem; font-size: .9rem }
.legend i { display: inline-block; width: .8em; height: .8em; border-radius: .2em; margin-right: .4em }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; padding: .3rem 0 1.3rem; font-size: .92rem }
a { color: var(--link) }
section { margin-bottom: 1.2rem }
figure { margin: 0 0 .6rem }
figcaption { color: var(--soft); font-size: .82rem }
figcaption span { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%) }
svg { width: 100%; max-width: 62rem; height: auto; color: var(--ink); display: block }
svg text { font-family: inherit }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: .88rem; font-variant-numeric: tabular-nums }
caption { text-align: left; color: var(--soft); padding: .3rem 0 }
th, td { text-align: left; padding: .32rem .7rem .32rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
th { font-weight: 600; color: var(--soft) }
td { overflow-wrap: anywhere }
.n { text-align: right; white-space: nowrap; overflow-wrap: normal }
th.n, .n.t { white-space: normal }
.more { color: var(--soft); font-size: .88rem }
summary { cursor: pointer; color: var(--link) }
footer { max-width: 80rem; margin: 0 auto; padding: .5rem 1.25rem 3rem; color: var(--soft); font-size: .88rem }
@media print {
  :root { color-scheme: light; --ink: #000; --soft: #444; --paper: #fff; --card: #fff; --line: #bbb; --bad: #b3263c }
  * { print-color-adjust: exact }
  nav, summary { display: none }
  .scroll { overflow: visible }
  figure, .tile, tr { break-inside: avoid }
  details::details-content { content-visibility: visible; block-size: auto; display: block }
}
</style>
</head>
<body>
<header>
<h1>$headline</h1>
<p class="sub">$sub</p>
<div class="tiles">$tiles</div>
<p class="sub">$covers</p>
$bar
<nav aria-label="Sections">$nav</nav>
</header>
<main>$sections</main>
<footer>A delivery is one message for one target. Delivered means that the transport accepted it. Lost means expired
or dead-lettered. Throttled, denied and unsubscribed messages are not counted.</footer>
</body>
</html>
""")
