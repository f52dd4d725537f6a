# SPDX-License-Identifier: Apache-2.0
"""The report: tables made by Spark, then one HTML page.

Read report.py first; page.py writes the page.
"""
