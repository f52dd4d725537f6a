# SPDX-License-Identifier: Apache-2.0
"""From recordings to tables, as a batch or a stream, and compaction of small files.

In: folders of recordings. Out: bronze and silver of a lake. A run that was killed is completed by the next one, with
the same tables as without the kill.

ingest.py calls bronze for new files and silver for the days that these touch. compact.py rewrites finished dates into
few large files. Read ingest.py first.
"""
