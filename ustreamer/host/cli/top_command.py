# SPDX-License-Identifier: Apache-2.0
"""`ustreamer top`: the live state of a streamer on the whole screen. Frames in, a screen per frame out.

Rates are the differences of two frames. The screen needs the extra `ustreamer[cli]` (rich).
"""

import argparse
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from ustreamer.core.base.intrusions import Intrusion
from ustreamer.host.admin.server import SOCKET, TopRequest, stream_lines
from ustreamer.host.admin.top_frame import TopEndpoint, TopFrame, TopTarget
from ustreamer.host.cli.columns import TopColumn, fitted_lines, fitted_words
from ustreamer.host.cli.format import format_time
from ustreamer.host.cli.keyboard import ended_by
from ustreamer.uprotocol.ustatus import UCode, UStatusError

if TYPE_CHECKING:
    from rich.console import Console, Group

_OK: Final = 0
_NS_PER_S: Final = 1_000_000_000
_SHOWN_PROBLEMS: Final = 6
_SHOWN_INTRUSIONS: Final = 4
_OTHER_LINES: Final = 4  # headings
_OLD_MS: Final = 1_000
_LEAST_NAME: Final = 7
_LEAST_ADDRESS: Final = 16
"""Characters of a name of an endpoint, and of an address, that stay in a narrow terminal."""


class TopRow(NamedTuple):
    """A target with rates per second. `asked_hz` is None without a limit."""

    target: TopTarget
    received_hz: float
    delivered_hz: float
    throttled_hz: float
    asked_hz: float | None


SORT_KEYS: Final[Mapping[str, Callable[[TopRow], object]]] = {
    "rate": lambda row: (-row.received_hz, row.target.topic),
    "throttled": lambda row: (-row.throttled_hz, row.target.topic),
    "p99": lambda row: (-(row.target.p99_ms or 0.0), row.target.topic),
    "topic": lambda row: (row.target.topic, row.target.endpoint),
}


def run_live(config_state_dir: Path, arguments: argparse.Namespace) -> int:
    """Show screens until q, Ctrl-C or SIGTERM, or until `arguments.count` of them."""
    try:
        from rich.console import Console
    except ImportError as error:
        text = "top: the live screen needs rich: install the wheel file of ustreamer[cli]: docs/install.md, or use --once"
        raise UStatusError(UCode.UNIMPLEMENTED, text) from error
    lines = stream_lines(config_state_dir / SOCKET, TopRequest(arguments.interval))
    with suppress(KeyboardInterrupt), ended_by("q"):
        show_frames(frames_of(lines), Console(), arguments.sort, arguments.count)
    return _OK


def is_terminal() -> bool:
    return sys.stdout.isatty()


def frames_of(lines: Iterable[bytes]) -> Generator[TopFrame, None, None]:
    for line in lines:
        yield msgspec.json.decode(line, type=TopFrame)
    raise UStatusError(UCode.UNAVAILABLE, "the streamer has stopped")


def show_frames(frames: Iterable[TopFrame], console: "Console", sort: str, count: int | None) -> None:
    """Show each frame on the whole screen; end after `count` of them."""
    from rich.live import Live

    previous: TopFrame | None = None
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for number, frame in enumerate(frames, 1):
            live.update(screen_of(frame, previous, sort, console.width, console.height), refresh=True)
            if number == count:
                return
            previous = frame


# --- figures ---------------------------------------------------------------------------------------------------------


def target_rows(frame: TopFrame, previous: TopFrame | None, sort: str) -> list[TopRow]:
    """The targets with their rates since the previous frame, in order."""
    before = {} if previous is None else {_key(each): each for each in previous.targets}
    seconds = _seconds(frame, previous)

    def row(target: TopTarget) -> TopRow:
        # A target that lost its last subscriber and got a new one counts from 0 again.
        old = before.get(_key(target), target)
        asked_hz = _NS_PER_S / target.period_ns if target.period_ns else None
        return TopRow(
            target,
            max(0.0, (target.received - old.received) / seconds),
            max(0.0, (target.delivered - old.delivered) / seconds),
            max(0.0, (target.throttled - old.throttled) / seconds),
            asked_hz,
        )

    return sorted(map(row, frame.targets), key=SORT_KEYS[sort])  # type: ignore[arg-type]


def slow_receivers(frame: TopFrame, previous: TopFrame | None) -> list[str]:
    """A sentence for each subscriber, or endpoint, whose messages wait."""
    before = {} if previous is None else {each.name: each for each in previous.endpoints}
    found = []
    for endpoint in frame.endpoints:
        old = before.get(endpoint.name)
        moves = old is None or endpoint.delivered > old.delivered
        for queue in endpoint.queues:
            if queue.failures:
                found.append(
                    f"unreachable  {queue.subscriber} at {endpoint.name}: {queue.queued} messages wait, "
                    f"{queue.failures} sends refused in a row"
                )
            elif queue.blocked:
                found.append(
                    f"unreachable  {queue.subscriber} at {endpoint.name}: {queue.queued} messages wait, "
                    f"{queue.blocked} of them for a closed route"
                )
            elif queue.queued:
                found.append(
                    f"slow         {queue.subscriber} at {endpoint.name}: {queue.queued} messages wait"
                )
        if endpoint.queued and not endpoint.queues and endpoint.oldest_age_ms >= _OLD_MS:
            how = "slow        " if moves else "stalled     "
            found.append(
                f"{how} receivers behind {endpoint.name}: {endpoint.queued} messages wait, the oldest for "
                f"{endpoint.oldest_age_ms / 1_000:.1f} s"
            )
    return found


def format_intrusion(each: Intrusion) -> str:
    """A peer that is refused often, as a sentence."""
    return (
        f"{each.peer} at {each.endpoint}: {each.refusals} refusals ({each.reason}) since "
        f"{format_time(each.since_ms)}, {each.per_s:.1f} per second"
    )


def _key(target: TopTarget) -> tuple[str, str, str, str | None]:
    return target.topic, target.ingress, target.endpoint, target.subscriber


def _seconds(frame: TopFrame, previous: TopFrame | None) -> float:
    return 1.0 if previous is None else max(0.001, (frame.time_ms - previous.time_ms) / 1_000)


# --- the screen ------------------------------------------------------------------------------------------------------


def screen_of(frame: TopFrame, previous: TopFrame | None, sort: str, width: int, height: int) -> "Group":
    """What the screen shows; as many targets as fit into `height` lines of `width` characters."""
    from rich.console import Group
    from rich.text import Text

    slow = slow_receivers(frame, previous)
    slow += [f"refused      {format_intrusion(each)}" for each in frame.intrusions[:_SHOWN_INTRUSIONS]]
    slow_lines = [(each, line) for each in slow for line in wrap(each, width, subsequent_indent=" " * 4)]
    problems = [f"{format_time(each.time_ms)}  {each.text}" for each in frame.problems[-_SHOWN_PROBLEMS:]]
    used = _OTHER_LINES + len(frame.endpoints) + len(slow_lines) + len(problems)
    rows = target_rows(frame, previous, sort)
    shown = max(3, height - used)
    head = (
        (format_time(frame.time_ms), 2),
        (f"running since {format_time(frame.since_ms)}", 0),
        (f"unaccounted {frame.unaccounted}", 5),
        (f"sorted by {sort}", 1),
        *([(f"{len(rows) - shown} more not shown", 3)] if len(rows) > shown else ()),
        ("q ends", 4),
    )
    parts = [Text(fitted_words(head, width), style="bold", no_wrap=True)]
    for columns in (_endpoint_columns(frame, previous), _target_columns(rows[:shown])):
        heading, *lines = fitted_lines(columns, width)
        parts += [Text(heading, style="bold", no_wrap=True), *(Text(each, no_wrap=True) for each in lines)]
    parts += [
        Text(line, style="yellow" if each.startswith("slow") else "red", no_wrap=True)
        for each, line in slow_lines
    ]
    parts.append(Text("last problems" if problems else "no problems", style="bold"))
    parts += [Text(each, no_wrap=True, overflow="ellipsis") for each in problems]
    return Group(*parts)


def _endpoint_columns(frame: TopFrame, previous: TopFrame | None) -> Sequence[TopColumn]:
    before = {} if previous is None else {each.name: each for each in previous.endpoints}
    seconds = _seconds(frame, previous)
    rows = [(each, before.get(each.name, each)) for each in frame.endpoints]
    return (
        TopColumn("endpoint", [each.name for each, _ in rows], 9, _LEAST_NAME),
        TopColumn("transport", [each.transport for each, _ in rows], 1, is_text=True),
        TopColumn("link", [_link(each) for each, _ in rows], 7, is_text=True),
        TopColumn("peers", [str(each.peers) for each, _ in rows], 0),
        TopColumn("in/s", [f"{(each.received - old.received) / seconds:.1f}" for each, old in rows], 6),
        TopColumn("out/s", [f"{(each.delivered - old.delivered) / seconds:.1f}" for each, old in rows], 5),
        TopColumn("lost/s", [f"{(each.lost - old.lost) / seconds:.1f}" for each, old in rows], 4),
        TopColumn("waiting", [str(each.queued) for each, _ in rows], 3),
        TopColumn("oldest s", [f"{each.oldest_age_ms / 1_000:.1f}" for each, _ in rows], 2),
    )


def _link(endpoint: TopEndpoint) -> str:
    if endpoint.up:
        return "up"
    since = "" if endpoint.link_ms is None else f" since {format_time(endpoint.link_ms)[11:19]}"
    return f"{'receiver stalled' if endpoint.link_problem else 'down'}{since}"


def _target_columns(rows: Sequence[TopRow]) -> Sequence[TopColumn]:
    targets = [row.target for row in rows]
    asked = ["all" if row.asked_hz is None else f"{row.asked_hz:g}" for row in rows]
    receivers = [each.subscriber or _shared(each.subscribers) for each in targets]
    return (
        TopColumn("topic", [each.topic for each in targets], 9, _LEAST_ADDRESS),
        TopColumn("from", [each.ingress for each in targets], 0, _LEAST_NAME),
        TopColumn("to", [each.endpoint for each in targets], 3, _LEAST_NAME),
        TopColumn("for", receivers, 5, _LEAST_ADDRESS),
        TopColumn("requested Hz", asked, 2),
        TopColumn("in/s", [f"{row.received_hz:.1f}" for row in rows], 8),
        TopColumn("out/s", [f"{row.delivered_hz:.1f}" for row in rows], 7),
        TopColumn("throttled/s", [f"{row.throttled_hz:.1f}" for row in rows], 4),
        TopColumn("p50 ms", [_ms(each.p50_ms) for each in targets], 1),
        TopColumn("p99 ms", [_ms(each.p99_ms) for each in targets], 6),
    )


def _shared(subscribers: Sequence[str]) -> str:
    more = f" +{len(subscribers) - 1}" if len(subscribers) > 1 else ""
    return f"{subscribers[0]}{more}" if subscribers else ""


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
