# SPDX-License-Identifier: Apache-2.0
"""Silver: bronze files in, one typed row for each delivery out.

Read silver.py.
"""
