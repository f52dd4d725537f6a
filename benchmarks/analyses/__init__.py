# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.analyses`: audit, report and signals by Spark, DuckDB and Polars on the same files.

answers.py names the compared columns; by_spark.py calls the pipeline; by_duckdb.py and by_polars.py have the same
queries for these engines; lakes.py generates the files; rounds.py runs the engines in alternation; __main__.py prints the table.
"""
