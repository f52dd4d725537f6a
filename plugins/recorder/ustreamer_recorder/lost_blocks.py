# SPDX-License-Identifier: Apache-2.0
"""Counts the rows, changes, letters and payloads in blocks that the disk refused."""

from ustreamer.core.delivery.ledger import Verdict
from ustreamer_recorder.layout import BATCH, BLOCK_MAGIC, DELIVERY, GAP, RECORD, SAMPLES, SUBSCRIPTION, Kind
from ustreamer_recorder.note_queue import Skipped


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
            gap.rows[row[2]] += 1
            gap.include_time(row[13])
        elif kind == Kind.BATCH:
            batch = BATCH.unpack(record)
            gap.rows[Verdict.DELIVERED] += batch[2]
            gap.include_time(batch[8])
            at += RECORD * batch[5]
        elif kind == Kind.SUBSCRIPTION:
            gap.changes += 1
            gap.include_time(SUBSCRIPTION.unpack(record)[3])
        elif kind == Kind.DEAD_LETTER:
            gap.letters += 1
        elif kind == Kind.SAMPLES:
            fields = SAMPLES.unpack(record)
            gap.samples += fields[3] + fields[8]
        elif kind == Kind.GAP:
            _, _, _, from_ns, until_ns, *rows, changes, letters = GAP.unpack(record)
            gap.merge(Skipped(rows, changes, letters, from_ns, until_ns))
            already_counted += sum(rows)
    return already_counted
