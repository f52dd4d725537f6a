# SPDX-License-Identifier: Apache-2.0
"""The rule `place`: each authority is behind one endpoint."""

from typing import ClassVar

import numpy as np

from ustreamer_pipeline.gold.predicted_targets import SELF, authority_of
from ustreamer_pipeline.gold.rules.run import RunRows, RunRule, RunTables, take_rows
from ustreamer_pipeline.gold.rules.target_rows import Example, examples


class Place(RunRule):
    """A message is accepted only from the endpoint behind which its source is, and one with a sink goes to the endpoint
    of the sink.

    Which endpoint that is, the configuration decides: it is the one of most rows with this configuration. The services
    that the gateway hosts share their authority with entities elsewhere.
    """

    PROMISES: ClassVar = {"place": "each authority is behind one endpoint"}
    COLUMNS = (
        *("seq", "received_us", "arrived_ns", "epoch", "verdict", "delivery"),
        *("source", "sink", "ingress", "egress"),
    )

    def __init__(self, run: RunTables) -> None:
        super().__init__(run)
        self._endpoints_of: dict[tuple[int, str], dict[str, Example]] = {}

    def feed(self, rows: RunRows) -> None:
        accepted = ~rows.is_verdict("DENIED")
        sent = (rows["delivery"] > 0) & (rows["sink"] >= 0) & (rows["egress"] >= 0)
        for where, entity, endpoint in ((accepted, "source", "ingress"), (sent, "sink", "egress")):
            here = take_rows({name: rows[name] for name in self.COLUMNS}, np.flatnonzero(where))
            for key, _, example in examples([here[name] for name in ("epoch", entity, endpoint)], here):
                texts = [self.run.dictionary.text(code) or "" for code in key[1:]]
                self._add_endpoint(key[0], authority_of(texts[0]), texts[1], example)

    def _add_endpoint(self, epoch: int, authority: str, endpoint: str, example: Example) -> None:
        if (authority, endpoint) == (self.run.gateway, SELF):
            return
        places = self._endpoints_of.setdefault((epoch, authority), {})
        places[endpoint] = places[endpoint].merge(example) if endpoint in places else example

    def end(self) -> None:
        for (_, authority), places in self._endpoints_of.items():
            most = max(places, key=lambda endpoint: places[endpoint].rows)
            for endpoint, example in places.items():
                if endpoint != most:
                    place, found = (example.seq, example.time_us), f"{endpoint}, {example.rows} messages"
                    expected = f"{most}, as {places[most].rows} messages"
                    self._add("place", *place, f"endpoint of {authority}", expected, found)
