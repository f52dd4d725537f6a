# SPDX-License-Identifier: Apache-2.0
"""Counts the rows, changes, letters and payloads in blocks that the disk refused."""

from typing import Final

from ustreamer.core.delivery.ledger import Verdict
from ustreamer_recorder.layout import BATCH, BLOCK_MAGIC, DELIVERY, GAP, RECORD, SAMPLES, SUBSCRIPTION, Kind
from ustreamer_recorder.note_queue import Skipped

# Places in the fields of records, in the order of `layout`.
_DELIVERY_VERDICT: Final = 2
_DELIVERY_SETTLED_NS: Final = 13
_BATCH_ROWS: Final = 2
_BATCH_RECORDS: Final = 5
_BATCH_SETTLED_NS: Final = 8
_SUBSCRIPTION_TIME_NS: Final = 3
_SAMPLES_COUNT: Final = 3
_SAMPLES_DROPPED: Final = 8


def count_lost(records: bytes, gap: Skipped) -> int:
    """Add the rows, changes, letters and payloads of these records to `gap`; block headers are skipped.

    Gaps in the records count again; return how many rows they had.
    """
    already_counted = at = 0
    while at < len(records):
        record = records[at : at + RECORD]
        at += RECORD
        kind = record[0]
        if record.startswith(BLOCK_MAGIC):
            continue
        if kind == Kind.DELIVERY:
            row = DELIVERY.unpack(record)
            gap.rows[row[_DELIVERY_VERDICT]] += 1
            gap.include_time(row[_DELIVERY_SETTLED_NS])
        elif kind == Kind.BATCH:
            batch = BATCH.unpack(record)
            gap.rows[Verdict.DELIVERED] += batch[_BATCH_ROWS]
            gap.include_time(batch[_BATCH_SETTLED_NS])
            at += RECORD * batch[_BATCH_RECORDS]
        elif kind == Kind.SUBSCRIPTION:
            gap.changes += 1
            gap.include_time(SUBSCRIPTION.unpack(record)[_SUBSCRIPTION_TIME_NS])
        elif kind == Kind.DEAD_LETTER:
            gap.letters += 1
        elif kind == Kind.SAMPLES:
            fields = SAMPLES.unpack(record)
            gap.samples += fields[_SAMPLES_COUNT] + fields[_SAMPLES_DROPPED]
        elif kind == Kind.GAP:
            _, _, _, from_ns, until_ns, *rows, changes, letters = GAP.unpack(record)
            gap.merge(Skipped(rows, changes, letters, from_ns, until_ns))
            already_counted += sum(rows)
    return already_counted
