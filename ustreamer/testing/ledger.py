# SPDX-License-Identifier: Apache-2.0
"""The equation of the ledger as an assertion."""

from collections.abc import Mapping

import msgspec

from ustreamer.core.delivery.ledger import LedgerSnapshot


def assert_accounted(ledger: LedgerSnapshot | Mapping[str, int], *, queued: int | None = None) -> None:
    """Every delivery that came in has exactly one verdict, or is queued; `queued` is how many may wait, None: any.

    A mapping has the names of `LedgerSnapshot`, as in the log record of a stop.
    """
    counts: dict[str, int] = (
        msgspec.to_builtins(ledger)
        if isinstance(ledger, LedgerSnapshot)
        else {name: ledger[name] for name in LedgerSnapshot.__struct_fields__}
    )
    received = counts.pop("received")
    text = " + ".join(f"{count} {name}" for name, count in counts.items())
    assert received == sum(counts.values()), f"{received} received are not {text}"
    assert queued is None or counts["queued"] == queued, f"{counts['queued']} queued, expected {queued}"
