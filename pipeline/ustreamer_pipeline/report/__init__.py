# SPDX-License-Identifier: Apache-2.0
"""The report: fleet statistics as tables and one HTML page.

In: the tables of silver. Out: report.html without scripts, one CSV file per table, and report.json.

tables.py has the Spark queries; plots.py draws SVG; page.py writes the page; report.py combines them. Read report.py
first.
"""
