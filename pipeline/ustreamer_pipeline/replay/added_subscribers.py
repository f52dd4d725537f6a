# SPDX-License-Identifier: Apache-2.0
"""Added subscribers of a scenario: every message of their topics, through their own gates."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from ustreamer_pipeline.columns import Dictionary, int_column
from ustreamer_pipeline.replay.gate import Mask
from ustreamer_pipeline.replay.rows import Ints, Rows
from ustreamer_pipeline.replay.target_replay import GateState, ReplayTarget
from ustreamer_pipeline.replay.whatif_scenarios import Scenario

MAX_RECENT_MESSAGES: Final = 4_096
"""Messages of a topic that are remembered, as the next batch may have further rows of them."""


class AddedArrivals(NamedTuple):
    """Messages for an added target, and the mask of those that its gate admits."""

    target: ReplayTarget
    row: Ints
    received: Ints
    size: Ints
    passed: Mask


class AddedSubscribers:
    """The added targets of one scenario. A message that the recording has for the same target is not counted twice."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._gates: dict[ReplayTarget, GateState] = {}
        self._recent: dict[tuple[int, int], Ints] = {}
        self._last: dict[tuple[int, int], int] = {}
        self._added_targets: dict[int, dict[tuple[str, str | None], int]] = {}

    def begin_run(self) -> None:
        self._gates, self._recent, self._last = {}, {}, {}

    def arrivals(
        self, batch: pa.RecordBatch, rows: Rows, dictionary: Dictionary, tolerance: float
    ) -> list[AddedArrivals]:
        """Messages of this batch for the added targets. Called before `rows` are reordered."""
        ids = int_column(batch, "id_lsb")
        published = (rows.type == dictionary.number("PUBLISH")) & (
            # Denied messages, and messages expired on arrival, had no target.
            (rows.delivery > 0) | (rows.verdict == dictionary.number("NO_SUBSCRIBER"))
        )
        return [
            each
            for source in np.unique(rows.source[published]).tolist()
            if self._targets_for(source, dictionary)
            for each in self._of_topic(
                source, np.flatnonzero(published & (rows.source == source)), ids, rows, dictionary, tolerance
            )
        ]

    def _targets_for(self, source: int, dictionary: Dictionary) -> dict[tuple[str, str | None], int]:
        if source not in self._added_targets:
            self._added_targets[source] = self._scenario.added_targets(dictionary.texts[source])
        return self._added_targets[source]

    def _of_topic(
        self, source: int, all_rows: Ints, ids: Ints, rows: Rows, dictionary: Dictionary, tolerance: float
    ) -> Iterator[AddedArrivals]:
        for ingress in np.unique(rows.ingress[all_rows]).tolist():
            key = ingress, source
            here = all_rows[rows.ingress[all_rows] == ingress]
            messages = self._distinct(key, here, ids)
            # In order of arrival; a message that a filter held is recorded at its release.
            messages = messages[np.argsort(rows.arrived[messages], kind="stable")]
            for (egress, subscriber), period_ns in self._targets_for(source, dictionary).items():
                if egress == dictionary.texts[ingress]:
                    continue  # a message never returns to its ingress
                there = (rows.egress[here] == dictionary.number(egress)) & (
                    rows.subscriber[here] == (-1 if subscriber is None else dictionary.number(subscriber))
                )
                row = messages[~np.isin(ids[messages], ids[here[there]])] if there.any() else messages
                target = ReplayTarget(dictionary.texts[ingress], egress, dictionary.texts[source], subscriber)
                received = np.maximum(rows.arrived[row], self._last.get(key, np.iinfo(np.int64).min))
                passed = self._decided(target, received, period_ns, tolerance)
                yield AddedArrivals(target, row, received, rows.size[row].astype(np.int64), passed)
            if len(messages):
                self._last[key] = int(rows.arrived[messages[-1]])

    def _distinct(self, key: tuple[int, int], here: Ints, ids: Ints) -> Ints:
        """The first row of each message that has no earlier row."""
        mine = ids[here]
        _, first = np.unique(mine, return_index=True)
        first.sort()
        before = self._recent.get(key)
        self._recent[key] = mine[-MAX_RECENT_MESSAGES:].copy()
        messages = here[first]
        return messages if before is None else messages[~np.isin(ids[messages], before)]

    def _decided(self, target: ReplayTarget, received: Ints, period_ns: int, tolerance: float) -> Mask:
        if self._scenario.tolerance is not None:
            tolerance = self._scenario.tolerance
        if not period_ns:
            return np.ones(len(received), dtype=np.bool_)
        gate = self._gates.setdefault(target, GateState())
        gate.set_limit(period_ns, tolerance, 0)
        return gate.decide(received, None)
