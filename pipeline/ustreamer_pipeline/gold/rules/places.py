# SPDX-License-Identifier: Apache-2.0
"""The rule `place`: each authority is behind one endpoint."""

from typing import ClassVar, NamedTuple

import numpy as np

from ustreamer_pipeline.gold.predicted_targets import SELF, authority_of
from ustreamer_pipeline.gold.rules.run import RunRows, RunRule, RunTables
from ustreamer_pipeline.groups import Groups


class _Seen(NamedTuple):
    """The first message of an authority at an endpoint, and the number of all."""

    seq: int
    time_us: int
    rows: int


class OnePlace(RunRule):
    """A message is accepted only from the endpoint behind which its source is, and one with a sink goes to the endpoint
    of the sink.

    Which endpoint that is, the configuration decides: it is the one of most rows with this configuration. The services
    that the gateway hosts share their authority with entities elsewhere.
    """

    PROMISES: ClassVar = {"place": "each authority is behind one endpoint"}
    COLUMNS = (
        *("seq", "received_us", "epoch", "verdict", "delivery"),
        *("source", "sink", "ingress", "egress"),
    )

    def __init__(self, run: RunTables) -> None:
        super().__init__(run)
        self._endpoints_of: dict[tuple[int, str], dict[str, _Seen]] = {}

    def feed(self, rows: RunRows) -> None:
        accepted = ~rows.is_verdict("DENIED")
        sent = (rows["delivery"] > 0) & (rows["sink"] >= 0) & (rows["egress"] >= 0)
        for where, entity, endpoint in ((accepted, "source", "ingress"), (sent, "sink", "egress")):
            at = np.flatnonzero(where)
            groups = Groups()
            number = groups.numbers([rows[name][at] for name in ("epoch", entity, endpoint)])
            first = np.empty(len(groups), dtype=np.int64)
            first[number[::-1]] = at[::-1]
            counts = np.bincount(number, minlength=len(groups)).tolist()
            for key, row, count in zip(groups.combinations, first.tolist(), counts, strict=True):
                texts = [self.run.dictionary.text(code) or "" for code in key[1:]]
                seen = _Seen(int(rows["seq"][row]), int(rows["received_us"][row]), count)
                self._add_endpoint(key[0], authority_of(texts[0]), texts[1], seen)

    def _add_endpoint(self, epoch: int, authority: str, endpoint: str, seen: _Seen) -> None:
        if (authority, endpoint) == (self.run.gateway, SELF):
            return
        places = self._endpoints_of.setdefault((epoch, authority), {})
        known = places.get(endpoint)
        places[endpoint] = seen if known is None else known._replace(rows=known.rows + seen.rows)

    def end(self) -> None:
        for (_, authority), places in self._endpoints_of.items():
            most = max(places, key=lambda endpoint: places[endpoint].rows)
            for endpoint, seen in places.items():
                if endpoint != most:
                    place, found = (seen.seq, seen.time_us), f"{endpoint}, {seen.rows} messages"
                    expected = f"{most}, as {places[most].rows} messages"
                    self._add("place", *place, f"endpoint of {authority}", expected, found)
