# SPDX-License-Identifier: Apache-2.0
"""The rule `answers`: requests and their Responses."""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from ustreamer_pipeline.gold.rules.run import RunRows, RunRule, RunTables
from ustreamer_pipeline.groups import starts_of_equal
from ustreamer_pipeline.replay.rows import Ints

MessageId = tuple[int, int]


class Answers(RunRule):
    """A request that was not delivered gets exactly one Response, and no request gets two.

    The service decides about the response to a delivered request. In a run with gaps a response may be missing from
    the recording, so only duplicates count there.

    The first read collects the ids of answered and of undelivered requests: 16 bytes each. A second read counts the
    Responses to those that look wrong, and names their requests.
    """

    PROMISES: ClassVar = {"answers": "one Response to each request that failed, never two"}
    COLUMNS = (
        *("seq", "received_us", "id_msb", "id_lsb", "type", "verdict", "sink", "request_msb", "request_lsb"),
    )

    def __init__(self, run: RunTables) -> None:
        super().__init__(run)
        self._has_holes = _may_have_holes(run)
        self._answered: list[Ints] = []
        self._undelivered: list[Ints] = []
        self._suspicious: Ints = np.empty(0, dtype=np.int64)
        """Upper halves of the ids in `_given`."""
        self._given: dict[MessageId, set[MessageId]] = {}
        self._requests: list[tuple[MessageId, int, int, str | None, str | None]] = []

    def feed(self, rows: RunRows) -> None:
        answered = _responses(rows)
        if len(answered):
            self._answered.append(_ids(rows, "request", answered))
        undelivered = np.flatnonzero(rows.is_type("REQUEST") & ~rows.is_verdict("DELIVERED"))
        if len(undelivered):
            self._undelivered.append(_ids(rows, "id", undelivered))

    def end(self) -> None:
        if not self._answered and not self._undelivered:
            return
        answered, counts = _distinct(_all(self._answered))
        suspicious = [answered[:, counts > 1]]
        if not self._has_holes:
            undelivered, _ = _distinct(_all(self._undelivered))
            suspicious.append(_without(undelivered, answered))
        found = np.concatenate(suspicious, axis=1)
        self._given = {(msb, lsb): set() for msb, lsb in found.T.tolist()}
        self._suspicious = np.unique(found[0])
        self._answered, self._undelivered = [], []
        self.reads_again = bool(self._given)

    def feed_again(self, rows: RunRows) -> None:
        for at, request in self._suspicious_rows(rows, "request", _responses(rows)):
            self._given[request].add((int(rows["id_msb"][at]), int(rows["id_lsb"][at])))
        for at, request in self._suspicious_rows(rows, "id", np.flatnonzero(rows.is_type("REQUEST"))):
            place = int(rows["seq"][at]), int(rows["received_us"][at])
            self._requests.append((request, *place, rows.text("sink", at), rows.text("verdict", at)))

    def _suspicious_rows(self, rows: RunRows, name: str, at: Ints) -> Iterator[tuple[int, MessageId]]:
        """Those of the rows `at` these positions whose id `name` is in `_given`: position and id."""
        at = at[np.isin(rows[f"{name}_msb"][at], self._suspicious)]
        for place, (msb, lsb) in zip(at.tolist(), _ids(rows, name, at).T.tolist(), strict=True):
            if (msb, lsb) in self._given:
                yield place, (msb, lsb)

    def end_again(self) -> None:
        for request, seq, time_us, sink, verdict in self._requests:
            given, is_delivered = len(self._given[request]), verdict == "DELIVERED"
            if given > 1 or (given == 0 and not is_delivered and not self._has_holes):
                subject = "request to" if sink is None else f"request to {sink}"
                expected = "at most one Response" if is_delivered else "one Response"
                found = f"{given}, to a request that was {verdict}"
                self._add("answers", seq, time_us, subject, expected, found)


def _responses(rows: RunRows) -> Ints:
    """Places of the Responses that name their request and were not denied."""
    given = rows.is_type("RESPONSE") & ~rows.is_verdict("DENIED")
    return np.flatnonzero(given & (rows["request_msb"] != -1))


def _ids(rows: RunRows, name: str, at: Ints) -> Ints:
    """Ids at these places, in two rows: upper halves, lower halves."""
    return np.stack([rows[f"{name}_msb"][at], rows[f"{name}_lsb"][at]])


def _all(parts: list[Ints]) -> Ints:
    """The ids of all parts, in two rows; there may be no part."""
    return np.concatenate([np.empty((2, 0), dtype=np.int64), *parts], axis=1)


def _distinct(ids: Ints) -> tuple[Ints, Ints]:
    """Each id once, in order, and how often it is there."""
    ids = ids[:, np.lexsort(ids)]
    starts = starts_of_equal(*ids)
    return ids[:, starts], np.diff(starts, append=ids.shape[1])


def _without(ids: Ints, others: Ints) -> Ints:
    """Those of the ids, each there once, that are not among the others."""
    both = np.concatenate([others, ids], axis=1)
    order = np.lexsort(both)
    starts = starts_of_equal(*both[:, order])
    first = order[starts]  # of an id that is in both, the one of the others: the sort is stable
    return both[:, first[first >= others.shape[1]]]


def _may_have_holes(run: RunTables) -> bool:
    """Whether rows are missing or may be missing, as in a run without a regular stop."""
    numbers = {row["number"] for row in run.segments}
    is_odd = bool(run.segments) and (numbers != set(range(len(numbers))) or not run.is_stopped)
    return bool(run.gaps) or is_odd or run.is_cut
