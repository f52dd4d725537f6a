# SPDX-License-Identifier: Apache-2.0
"""From recordings to tables, as a batch or a stream; small files are compacted.

Read ingest.py first.
"""
