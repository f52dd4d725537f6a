# SPDX-License-Identifier: Apache-2.0
"""Kept payloads and signals as files of other tools: MCAP, CSV, Arrow, pcapng. Without Spark.

messages.py reads the messages of a lake; trace.py follows one message; each other module writes one format. Read
messages.py first.
"""
