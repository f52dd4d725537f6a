# SPDX-License-Identifier: Apache-2.0
"""SVG plots for the page. Text stays text, and lines use the page's colour, so that a plot is readable on light and
dark.
"""

import datetime as dt
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final

from ustreamer_pipeline.replay.whatif_print import short_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

INK: Final = "#010203"
"""Placeholder for the text colour of the page until the SVG is written."""
COLOURS: Final = {
    "delivered": "#2a9d8f",
    "throttled": "#7a8fb8",
    "no_subscriber": "#a9a9a9",
    "denied": "#b07aa1",
    "expired": "#e0912f",
    "dead_lettered": "#d1495b",
}
"""Distinguishable with red-green blindness: colours differ in lightness and follow the order of the legend."""
NAMES: Final = {
    "delivered": "delivered",
    "throttled": "throttled, as asked for",
    "no_subscriber": "no subscriber",
    "denied": "denied",
    "expired": "expired",
    "dead_lettered": "dead-lettered",
}
MAX_BARS: Final = 15
"""Maximum number of bars; the tables have all values."""


@dataclass(frozen=True)
class Plot:
    """`title` is the caption, `alt` the text alternative with the same information."""

    name: str
    title: str
    alt: str
    svg: str


def _figure(height: float) -> "tuple[Figure, Axes]":
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update(
        {
            "svg.fonttype": "none",
            "font.size": 10,
            "font.family": "sans-serif",
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": INK,
            "grid.alpha": 0.12,
            "axes.axisbelow": True,
            "legend.frameon": False,
        }
    )
    figure = Figure(figsize=(8.6, height), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.subplots()
    axes.patch.set_alpha(0)
    return figure, axes


def _plot(name: str, title: str, alt: str, figure: "Figure") -> Plot:
    import matplotlib as mpl

    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):  # ids of two plots on one page must differ
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = svg.replace(INK, "currentColor")
    # matplotlib restarts the numbers of its groups in every figure.
    svg = re.sub(r'\bid="([^"]+)"', lambda found: f'id="{name}-{found[1]}"', svg)
    svg = re.sub(r"(url\(#|href=\"#)", lambda found: f"{found[1]}{name}-", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    head = f'role="img" aria-labelledby="{name}-title {name}-desc"'
    accessible_text = (
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(alt)}</desc>'
    )
    svg = re.sub(r"<svg([^>]*)>", rf"<svg\1 {head}>", svg, count=1)
    at = svg.index(">") + 1
    return Plot(name, title, alt, svg[:at] + accessible_text + svg[at:])


def _short_axis(axes: "Axes", which: str = "x") -> None:
    from matplotlib.ticker import FuncFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))


def _clip(text: str, most: int = 56) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _time_axis(axes: "Axes") -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=3, maxticks=8)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.margins(x=0)


def signal(number: int, rows: Sequence[Row], span_s: tuple[float, float]) -> Plot:
    """Average and range of one signal, from its rows by time step, on the time axis of the rates."""
    figure, axes = _figure(2.4)
    times: list[Any] = [dt.datetime.fromtimestamp(row["time_s"], dt.UTC) for row in rows]
    lowest, highest = [row["lowest"] for row in rows], [row["highest"] for row in rows]
    axes.fill_between(
        times, lowest, highest, color="#7a8fb8", alpha=0.35, label="lowest to highest", linewidth=0
    )
    axes.plot(times, [row["average"] for row in rows], color="#1f6f9e", label="average", marker=".")
    _time_axis(axes)
    axes.set_xlim(*(dt.datetime.fromtimestamp(each, dt.UTC) for each in span_s))  # type: ignore[arg-type]
    first = rows[0]
    name, unit = first["signal"], first["unit"] or ""
    axes.set_ylabel(f"{name}, {unit}" if unit else name)
    figure.legend(loc="outside upper left", ncols=2)
    title = f"{name} of {first['topic']}, over time"
    alt = f"{title}: from {min(lowest):.4g} to {max(highest):.4g} {unit}".rstrip() + "."
    return _plot(f"signal-{number}", title, alt, figure)


def over_time(rows: Sequence[Row], width_s: int) -> Plot:
    """Stacked rates by verdict, from rows of the fleet by time step."""
    import numpy as np

    steps = sorted({row["time_s"] for row in rows})
    place = {step: at for at, step in enumerate(steps)}
    rates = {name: np.zeros(len(steps)) for name in COLOURS}
    for row in rows:
        for name, rate in rates.items():
            rate[place[row["time_s"]]] += row[name] / width_s
    figure, axes = _figure(3.4)
    shown = [name for name in COLOURS if rates[name].any()]
    times: list[Any] = [dt.datetime.fromtimestamp(step, dt.UTC) for step in steps]
    edges = [*times, times[-1] + dt.timedelta(seconds=width_s)]
    bottom = np.zeros(len(steps) + 1)
    for name in shown:
        top = bottom + np.append(rates[name], rates[name][-1])
        axes.fill_between(
            edges, bottom, top, step="post", color=COLOURS[name], label=NAMES[name], linewidth=0
        )
        bottom = top
    _time_axis(axes)
    axes.set_ylabel("deliveries/s")
    axes.set_ylim(bottom=0)
    _short_axis(axes, "y")
    figure.legend(loc="outside upper left", ncols=3)
    total = sum(rates.values())
    alt = f"Deliveries per second in steps of {width_s} s, stacked by verdict; at most {short_number(float(np.max(total)))} per second."
    return _plot("over-time", "What became of deliveries, over time", alt, figure)


def latency(rows: Sequence[Row]) -> Plot:
    """Percentiles per link, on a logarithmic scale."""
    figure, axes = _figure(0.9 + 0.42 * len(rows))
    points = (
        ("p50_us", "half", "o"),
        ("p90_us", "9 of 10", "s"),
        ("p99_us", "99 of 100", "D"),
        ("p99_9_us", "999 of 1000", "^"),
    )
    colours = ("#2a9d8f", "#7a8fb8", "#e0912f", "#d1495b")
    names = [row["egress"] for row in rows]
    for at, row in enumerate(rows):
        values = [max(row[key], 1) for key, _, _ in points]
        axes.plot([values[0], values[-1]], [at, at], color=INK, alpha=0.3, zorder=1)
    for (key, label, mark), colour in zip(points, colours, strict=True):
        axes.scatter(
            [max(row[key], 1) for row in rows],
            range(len(rows)),
            color=colour,
            marker=mark,
            label=label,
            zorder=2,
        )
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), [_clip(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: micro(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("from arrival to the verdict, of those delivered within")
    figure.legend(loc="outside upper left", ncols=4)
    alt = "; ".join(
        f"{row['egress']}: half within {micro(row['p50_us'])}, 99 of 100 within {micro(row['p99_us'])}"
        for row in rows
    )
    return _plot("latency", "How long deliveries took, by link", f"{alt}.", figure)


def micro(us: float) -> str:
    """Microseconds in a suitable unit."""
    if us >= 1e6:
        return f"{us / 1e6:.3g} s"
    return f"{us / 1e3:.3g} ms" if us >= 1e3 else f"{us:.3g} µs"


def throttle(rows: Sequence[Row]) -> Plot:
    """Published, limit and delivered rate of each target."""
    shown = rows[:MAX_BARS]
    figure, axes = _figure(1.0 + 0.36 * len(shown))
    for at, row in enumerate(shown):
        axes.plot([row["delivered_hz"], row["published_hz"]], [at, at], color=INK, alpha=0.3, zorder=1)
    at_each = range(len(shown))
    axes.scatter(
        [row["published_hz"] for row in shown], at_each, color="#7a8fb8", label="published", zorder=2
    )
    axes.scatter(
        [row["limit_hz"] for row in shown], at_each, color=INK, marker="|", s=140, label="asked for", zorder=3
    )
    axes.scatter(
        [row["delivered_hz"] for row in shown], at_each, color="#2a9d8f", label="passed on", zorder=4
    )
    labels = [_clip(f"{row['source']} → {row['subscriber'] or row['egress']}") for row in shown]
    axes.set_yticks(at_each, labels)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("Hz")
    figure.legend(loc="outside upper left", ncols=3)
    first = shown[0]
    alt = (
        f"{len(shown)} targets with the most dropped. First: {labels[0]}, published {first['published_hz']:.3g} Hz, "
        f"asked for {first['limit_hz']:.3g} Hz, passed on {first['delivered_hz']:.3g} Hz."
    )
    return _plot("throttle", "What throttling did", alt, figure)


def bars(
    name: str, title: str, labels: Sequence[str], values: Sequence[float], unit: str, colour: str
) -> Plot:
    """Horizontal bars with their numbers."""
    labels, values = list(labels[:MAX_BARS]), list(values[:MAX_BARS])
    figure, axes = _figure(0.7 + 0.34 * len(labels))
    drawn = axes.barh(range(len(labels)), values, color=colour, height=0.66)
    axes.bar_label(drawn, labels=[f"{short_number(value)}" for value in values], padding=4, color=INK)
    axes.set_yticks(range(len(labels)), [_clip(label) for label in labels])
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.margins(x=0.1)
    axes.set_xlabel(unit)
    _short_axis(axes)
    alt = f"{title}, in {unit}: " + "; ".join(
        f"{label} {short_number(value)}" for label, value in zip(labels, values, strict=True)
    )
    return _plot(name, title, f"{alt}.", figure)


LIFETIME_BUCKETS: Final = (
    (1, "under 1 s"),
    (60, "under 1 min"),
    (3_600, "under 1 h"),
    (86_400, "under 1 day"),
    (float("inf"), "longer"),
)


def lifetimes(rows: Sequence[Row]) -> Plot:
    """Histogram of subscription durations."""
    counts = dict.fromkeys([*(label for _, label in LIFETIME_BUCKETS), "still there"], 0)
    for row in rows:
        seconds = row["seconds"]
        label = (
            "still there"
            if seconds is None
            else next(label for most, label in LIFETIME_BUCKETS if seconds < most)
        )
        counts[label] += 1
    return bars(
        "lifetimes",
        "How long subscriptions lasted",
        list(counts),
        list(counts.values()),
        "subscriptions",
        "#7a8fb8",
    )
