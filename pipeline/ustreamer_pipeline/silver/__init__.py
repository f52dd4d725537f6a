# SPDX-License-Identifier: Apache-2.0
"""Silver: bronze files in, one typed row for each delivery out.

In: the bronze segments of one gateway day. Out: rows of `deliveries` in the order (run, received_ns, seq), rows of
the small tables, and rows of the quarantine with a reason each.

A task reads whole gateway days, so Spark sorts and shuffles nothing. Read silver.py.
"""
