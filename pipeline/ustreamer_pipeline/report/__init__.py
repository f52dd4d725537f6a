# SPDX-License-Identifier: Apache-2.0
"""The report: fleet statistics as tables and one HTML page.

In: the tables of silver. Out: report.html without scripts, one CSV file per table, and report.json.

A task makes all tables of a gateway in one pass over its files in order (gateway_pass.py): gateway_tables.py and
gateway_messages.py from deliveries, small_tables.py from the small tables. tables.py has the Spark queries, which add
up over gateways; series.py has signals over time. plots.py draws SVG; page.py writes the page; report.py combines them.
Read report.py first.
"""
