# SPDX-License-Identifier: Apache-2.0
"""Percentiles of times from counts of bins, which add up over batches, gateways and tasks.

A bin holds times that differ by less than 0.1 %, and up to 2047 us it holds one time. A percentile is the largest time
in the bin of the exact one (nearest rank): it is exact, or at most 0.1 % above. A link has at most 3 400 bins for each
power of ten.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ustreamer_pipeline.replay.rows import Ints

PER_MILLE: Final = (500, 900, 990, 999)
"""The percentiles of a report, in 1/1000."""
NAMES: Final = tuple(f"p{each / 10:g}".replace(".", "_") for each in PER_MILLE)
KEYS: Final = ("egress", "measure", "bin")
AGGREGATES: Final = {"rows": "sum", "top_us": "max"}
MEASURES: Final = {"latency": "", "wait": "wait_"}
"""Prefix of the columns of each measure, by name. `latency`: arrival to verdict; `wait`: the part of it in a queue."""

_MANTISSA_BITS: Final = 52
_BIN_BITS: Final = 10


def bin_of(times: Ints) -> Ints:
    """The bin of each time of 0 or more: larger times have the same bin, or a larger one."""
    # The upper bits of a float64 are its exponent and the first bits of its mantissa.
    bins: Ints = times.astype(np.float64).view(np.int64) >> (_MANTISSA_BITS - _BIN_BITS)
    return bins


def percentiles(bins: pa.Table) -> Iterator[dict[str, Any]]:
    """A row for each value of `egress`: messages, percentiles of both measures, and the largest latency."""
    columns = [bins[name].to_numpy() for name in (*KEYS, *AGGREGATES)]
    order = np.lexsort(columns[2::-1])
    egress, measure, _, rows, top_us = (column[order] for column in columns)
    for link in np.unique(egress).tolist():
        found: dict[str, Any] = {"egress": link}
        for number, prefix in enumerate(MEASURES.values()):
            here = (egress == link) & (measure == number)
            until, top = np.cumsum(rows[here]), top_us[here]
            ranks = [-(-int(until[-1]) * each // 1000) for each in PER_MILLE]
            tops = top[np.searchsorted(until, ranks)].tolist()
            found |= {f"{prefix}{name}_us": value for name, value in zip(NAMES, tops, strict=True)}
            if not prefix:
                found |= {"delivered": int(until[-1]), "max_us": int(top[-1])}
        yield found
