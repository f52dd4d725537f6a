# SPDX-License-Identifier: Apache-2.0
"""The recording format, written from docs/recordings.md and not from the recorder. Pure: no Spark, no file access.

In: the bytes of one recording. Out: records, rows and events; or, for the synthetic fleet, the bytes of a recording.

layout.py has the record types; segments.py reads one file; batch_records.py expands BATCH records; rows.py orders the
deliveries of one day; events.py reads all other records; segment_writer.py encodes. Read layout.py first.
"""
