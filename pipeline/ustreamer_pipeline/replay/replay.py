# SPDX-License-Identifier: Apache-2.0
"""The replay of one gateway. In: its rows in order. Out: the messages of every target and link in every scenario.

Silver has the rows of a gateway together and in order, and every gate belongs to one gateway. There is nothing to
shuffle or sort: batches pass one after the other, and only gate states are kept. Memory is bounded by the batch, the
targets and the scenarios, not by the rows.
"""

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ustreamer_pipeline.columns import Dictionary, int_column
from ustreamer_pipeline.errors import DamagedError
from ustreamer_pipeline.replay.added_subscribers import AddedSubscribers
from ustreamer_pipeline.replay.gate import Mask
from ustreamer_pipeline.replay.gate_inputs import Losses, Tolerances
from ustreamer_pipeline.replay.links import LinkModel, LinkTotals, is_modelled
from ustreamer_pipeline.replay.rows import COLUMNS, QUEUE_COLUMNS, Ints, Rows
from ustreamer_pipeline.replay.target_replay import MessageSlice, ReplayTarget, TargetReplay, ThrottleSettings
from ustreamer_pipeline.replay.whatif_scenarios import Scenario

EXAMPLES: Final = 10
"""Number of differing rows to list."""
_NS_PER_S: Final = 1_000_000_000

Example = tuple[int, int, int, int]


def columns_for(scenarios: Sequence[Scenario]) -> list[str]:
    """Columns to read for these scenarios."""
    more = any(scenario.subscribe or is_modelled(scenario) for scenario in scenarios)
    return [*COLUMNS, *(QUEUE_COLUMNS if more else ())]


@dataclass
class TargetTotals:
    """Messages offered to one target, and admitted in each scenario (the recorded settings first)."""

    target: ReplayTarget
    messages: Ints
    bytes: Ints
    offered: int = 0
    offered_bytes: int = 0
    recorded: int = 0
    recorded_bytes: int = 0


@dataclass
class ReplayCheck:
    """Whether the recorded settings reproduce the recorded verdicts. `examples` are (run, delivery, received_ns, seq).

    `unknown` counts decisions after missing rows, by gates in an unknown state; they count as recorded.
    """

    decided: int = 0
    unknown: int = 0
    differing: int = 0
    examples: list[Example] = field(default_factory=list)

    def add_differing(self, count: int, examples: Sequence[Example]) -> None:
        self.differing += count
        self.examples += examples[: EXAMPLES - len(self.examples)]


@dataclass
class _UndeliveredTail:
    """Decisions of one delivery that differ, after its last DELIVERED message.

    A target keeps the order of its messages. So no message before a DELIVERED one is still queued. After the last one
    a queued message may have moved the gate, and a cut-off run has no row of it.
    """

    differing: int = 0
    examples: list[Example] = field(default_factory=list)
    messages: int = 0
    bytes: int = 0


class GatewayReplay:
    """Replays one gateway. Pass its batches in order, then read the results."""

    def __init__(
        self,
        scenarios: Sequence[Scenario],
        tolerances: Tolerances,
        default_tolerance: float,
        losses: Losses | None = None,
        cut_off: Collection[int] = (),
    ) -> None:
        """`cut_off` are the runs that ended with messages in a queue, or may have."""
        self.scenarios = tuple(scenarios)
        self.check = ReplayCheck()
        self.rows = 0
        self.duration_ns = 0
        self._tolerances = tolerances
        self._losses = {run: sorted(times) for run, times in (losses or {}).items()}
        self._default_tolerance = default_tolerance
        self._dictionary = Dictionary()
        self._run: int | None = None
        self._last_ns = 0
        self._rows_lost = False
        self._targets: dict[int, tuple[TargetReplay, TargetTotals]] = {}
        self._cut_off = frozenset(cut_off)
        self._tails: dict[int, _UndeliveredTail] = {}
        self._totals: dict[ReplayTarget, TargetTotals] = {}
        self._peaks = [_Peaks(), *(_Peaks(added=bool(each.subscribe)) for each in scenarios)]
        self._added = [AddedSubscribers(each) if each.subscribe else None for each in scenarios]
        self._models = [LinkModel(each) if is_modelled(each) else None for each in scenarios]

    # --- in -------------------------------------------------------------------------------------------------

    def feed(self, batch: pa.RecordBatch) -> None:
        """Replay the next rows. Raises DamagedError if they do not follow the previous ones."""
        self.rows += batch.num_rows
        for part in _split_by_value(batch, "run"):
            run = int(part.column("run")[0].as_py())
            received = int_column(part, "received_ns")
            if run != self._run:
                self._begin(run, int(received[0]))
            if int(received[0]) < self._last_ns or bool((np.diff(received) < 0).any()):
                raise DamagedError(
                    f"run {run}: received_ns goes back; a gateway's rows must be in order: ingest again"
                )
            self.duration_ns += int(received[-1]) - self._last_ns
            self._last_ns = int(received[-1])
            for whole in self._between_losses(part, run):
                for piece in _split_by_value(whole, "epoch"):
                    epoch = int(piece.column("epoch")[0].as_py())
                    self._feed(piece, self._tolerances.get((run, epoch), self._default_tolerance))

    def finish(self) -> None:
        """The run has no more rows."""
        self._end_tails(rows_missing=self._run in self._cut_off)

    def _between_losses(self, part: pa.RecordBatch, run: int) -> Iterator[pa.RecordBatch]:
        losses = self._losses.get(run, [])
        while losses and part.num_rows:
            behind = np.flatnonzero(int_column(part, "received_ns") >= losses[0])
            if not len(behind):
                break
            losses.pop(0)
            yield part.slice(0, int(behind[0]))
            self._rows_lost = True
            self._end_tails(rows_missing=True)
            for target, _ in self._targets.values():
                target.reset_after_loss()
            part = part.slice(int(behind[0]))
        yield part

    def _begin(self, run: int, now_ns: int) -> None:
        """Start another run of the gateway: new gates, another monotonic clock."""
        self.finish()
        self._run, self._last_ns, self._targets, self._rows_lost = run, now_ns, {}, False
        for each in (*self._added, *self._models, *self._peaks):
            if each is not None:
                each.begin_run()

    def _feed(self, batch: pa.RecordBatch, recorded: ThrottleSettings | float | None) -> None:
        settings = ThrottleSettings(recorded) if isinstance(recorded, float | int) else recorded
        tolerance = None if settings is None else settings.tolerance
        rows = Rows(batch, self._dictionary)
        arrivals = [
            each
            and each.arrivals(
                batch, rows, self._dictionary, self._default_tolerance if tolerance is None else tolerance
            )
            for each in self._added
        ]
        order, starts = rows.by_delivery()
        rows.reorder(order)
        masks = np.empty((len(self.scenarios) + 1, len(order)), dtype=np.bool_)
        totals: list[TargetTotals] = []
        for start, end in _groups(starts, len(order)):
            target_replay, total = self._target_replay(rows, start)
            totals.append(total)
            for a, b, tuned_ns in rows.split_by_limit(start, end):
                period = int(rows.period[a])
                part = MessageSlice(
                    rows.received[a:b],
                    rows.arrived[a:b],
                    rows.passed[a:b],
                    period,
                    tuned_ns,
                    tolerance,
                    rows.id_msb[a:b],
                    settings,
                )
                unknown, decided = target_replay.replay(part)
                self.check.unknown += unknown
                for mask, to in zip(decided, masks, strict=True):
                    to[a:b] = mask
        if totals:
            self._compare(rows, masks[0], starts)
            self._count(rows, masks, starts, totals)
        for index, new in enumerate(arrivals):
            for each in new or ():
                total = self._total(each.target)
                total.messages[index + 1] += int(each.passed.sum())
                total.bytes[index + 1] += int(each.size[each.passed].sum())
                self._peaks[index + 1].add_bytes(
                    self._dictionary.number(each.target.egress),
                    each.received,
                    np.where(each.passed, each.size, 0),
                )
        for index, model in enumerate(self._models):
            if model is not None:
                model.feed(batch, rows, self._dictionary, masks[index + 1], arrivals[index] or [])

    def _target_replay(self, rows: Rows, at: int) -> tuple[TargetReplay, TargetTotals]:
        number = int(rows.delivery[rows.order[at]])
        known = self._targets.get(number)
        if known is None:
            target = rows.target(at)
            target_replay = TargetReplay(target, self.scenarios, self._default_tolerance)
            first = rows.order[at]
            # A gate created for this very message has seen no other; any other gate may have seen some of the missing
            # messages.
            if self._rows_lost and rows.tuned[first] < rows.received[at]:
                target_replay.reset_after_loss()
            known = self._targets[number] = target_replay, self._total(target)
        return known

    def _total(self, target: ReplayTarget) -> TargetTotals:
        total = self._totals.get(target)
        if total is None:
            count = len(self.scenarios) + 1
            total = self._totals[target] = TargetTotals(
                target, np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
            )
        return total

    def _compare(self, rows: Rows, mask: Mask, starts: Ints) -> None:
        self.check.decided += len(mask)
        wrong = mask != rows.passed
        if not self._tails and not wrong.any():
            return
        delivered = rows.verdict[rows.order] == self._dictionary.number("DELIVERED")
        for start, end in _groups(starts, len(mask)):
            found = start + np.flatnonzero(wrong[start:end])
            delivery = int(rows.delivery[rows.order[start]])
            if not len(found) and delivery not in self._tails:
                continue
            received = np.flatnonzero(delivered[start:end])
            last = start + int(received[-1]) if len(received) else -1
            if len(received):
                self._end_tail(delivery, rows_missing=False)
            before, after = found[found <= last], found[found > last]
            self.check.add_differing(len(before), self._examples(rows, delivery, before))
            if len(after):
                tail = self._tails.setdefault(delivery, _UndeliveredTail())
                more = rows.passed[after].astype(np.int64) - mask[after]
                tail.differing += len(after)
                tail.examples += self._examples(rows, delivery, after)[: EXAMPLES - len(tail.examples)]
                tail.messages += int(more.sum())
                tail.bytes += int((more * rows.size[after]).sum())

    def _examples(self, rows: Rows, delivery: int, where: Ints) -> list[Example]:
        assert self._run is not None
        return [
            (self._run, delivery, int(rows.received[index]), int(rows.seq[rows.order[index]]))
            for index in where[:EXAMPLES]
        ]

    def _end_tails(self, *, rows_missing: bool) -> None:
        for delivery in list(self._tails):
            self._end_tail(delivery, rows_missing=rows_missing)

    def _end_tail(self, delivery: int, *, rows_missing: bool) -> None:
        """Where rows are missing, the recorded verdicts count; otherwise they differ from those of the gate."""
        tail = self._tails.pop(delivery, None)
        if tail is None:
            return
        if not rows_missing:
            self.check.add_differing(tail.differing, tail.examples)
            return
        self.check.unknown += tail.differing
        target, total = self._targets[delivery]
        for scenario in target.unchanged_scenarios:
            total.messages[scenario] += tail.messages
            total.bytes[scenario] += tail.bytes

    def _count(
        self, rows: Rows, masks: npt.NDArray[np.bool_], starts: Ints, totals: Sequence[TargetTotals]
    ) -> None:
        offered = np.diff(starts, append=len(rows.size))
        sums = np.add.reduceat(rows.size, starts)
        passed = np.add.reduceat(rows.passed, starts, dtype=np.int64)
        passed_bytes = np.add.reduceat(rows.size * rows.passed, starts)
        for index, total in enumerate(totals):
            total.offered += int(offered[index])
            total.offered_bytes += int(sums[index])
            total.recorded += int(passed[index])
            total.recorded_bytes += int(passed_bytes[index])
        second = rows.received // _NS_PER_S
        width = len(self._dictionary.texts)
        first = int(second.min())
        place = (second - first) * width + rows.egress
        before: Mask | None = None
        messages = carried = table = starts
        for scenario, mask in enumerate(masks):
            if before is None or not np.array_equal(mask, before):
                weights = rows.size * mask
                messages = np.add.reduceat(mask, starts, dtype=np.int64)
                carried = np.add.reduceat(weights, starts)
                table = np.bincount(place, weights, minlength=width).astype(np.int64)
                before = mask
            for index, total in enumerate(totals):
                total.messages[scenario] += messages[index]
                total.bytes[scenario] += carried[index]
            self._peaks[scenario].record(first, table, width)

    # --- out ------------------------------------------------------------------------------------------------

    @property
    def totals(self) -> list[TargetTotals]:
        return list(self._totals.values())

    def peak(self, scenario: int, egress: str) -> int:
        """Maximum bytes of the link in one second of the monotonic clock."""
        return self._peaks[scenario].peak_bytes(self._dictionary.number(egress))

    def links(self) -> list[tuple[int, LinkTotals]]:
        """Results of the queue model: the number of the scenario and one of its links."""
        return [
            (index, link)
            for index, model in enumerate(self._models, start=1)
            if model is not None
            for link in model.totals
        ]


class _Peaks:
    """Bytes in the busiest second, by egress. A second may continue in the next batch: the open second is kept."""

    def __init__(self, *, added: bool = False) -> None:
        """`added` announces a call of `add`: then every second of the batch may still grow."""
        self._all = added
        self._most: dict[int, int] = {}
        self._open: dict[tuple[int, int], int] = {}

    def begin_run(self) -> None:
        self._open = {}

    def record(self, first: int, table: Ints, width: int) -> None:
        """`table` has the bytes of (second - first, egress), row by row."""
        whole = np.zeros(-(-len(table) // width) * width, dtype=np.int64)
        whole[: len(table)] = table
        by_second = whole.reshape(-1, width)
        last = first + len(by_second) - 1
        self._open = {key: total for key, total in self._open.items() if key[1] >= first}
        for egress in np.flatnonzero(by_second.any(axis=0)).tolist():
            column = by_second[:, egress]
            self._most[egress] = max(self._most.get(egress, 0), int(column.max()))
            for second in range(first, last + 1) if self._all else {first, last}:
                self._add_second(egress, second, int(column[second - first]))

    def add_bytes(self, egress: int, received: Ints, weights: Ints) -> None:
        """Messages for a link in addition to the recorded messages of the same batch."""
        seconds, places = np.unique(received // _NS_PER_S, return_inverse=True)
        for second, total in zip(seconds.tolist(), np.bincount(places, weights).tolist(), strict=True):
            self._add_second(egress, second, int(total))

    def _add_second(self, egress: int, second: int, total: int) -> None:
        total += self._open.get((egress, second), 0)
        self._open[egress, second] = total
        self._most[egress] = max(self._most.get(egress, 0), total)

    def peak_bytes(self, egress: int) -> int:
        return self._most.get(egress, 0)


def _groups(starts: Ints, count: int) -> Iterator[tuple[int, int]]:
    """Start and end of each group; none without starts, as where no row has a target."""
    return itertools.pairwise([*starts.tolist(), count])


def _split_by_value(batch: pa.RecordBatch, name: str) -> list[pa.RecordBatch]:
    """Slices of a batch in which a column has one value."""
    values = int_column(batch, name)
    if not len(values):
        return []
    if int(values[0]) == int(values[-1]) and bool((values == values[0]).all()):
        return [batch]
    cuts = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    return [batch.slice(a, b - a) for a, b in itertools.pairwise(cuts)]
