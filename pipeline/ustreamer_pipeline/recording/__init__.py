# SPDX-License-Identifier: Apache-2.0
"""The recording format: bytes in, rows out. Pure; written from docs/recordings.md.

Read layout.py first; segments.py reads one file.
"""
