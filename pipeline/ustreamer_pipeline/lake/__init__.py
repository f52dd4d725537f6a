# SPDX-License-Identifier: Apache-2.0
"""Where a lake is, and which of its files belong to it: on a local file system, or in a bucket of S3.

storage.py reads, writes and creates the files of a lake by name. snapshot.py has the files of the tables at one
version of the manifest: every reader uses one snapshot. tables.py writes the files of a unit, and reads them without
Spark's file systems. Read snapshot.py first.
"""
