# SPDX-License-Identifier: Apache-2.0
"""Bronze: each recording checked, copied byte for byte and listed in the manifest.

In: recording files, complete or not, in any order. Out: compressed copies below `bronze/`, and a version of the
manifest, which lists the files seen, the segments stored, the files of the tables and the gateway days whose tables are
outdated. A file that cannot be read at all is copied to `refused/` with its reason.

Executors run landing.py, one file at a time; the driver keeps manifest.py. Read landing.py first.
"""
