# SPDX-License-Identifier: Apache-2.0
"""Analysis of recordings of many gateways, on Spark.

In: recordings that the recorder plugin wrote. Out: tables in a lake, and reports, audits and replays made from them.

The stages in the order of the data:

    recording/  the file format: bytes to records, pure numpy
    bronze/     each recording checked, copied and listed in a manifest
    silver/     records to one typed row per delivery
    ingest/     runs bronze and silver as a batch or a stream; compacts small files
    gold/       the audit: rows that violate a promise of the streamer
    replay/     the what-if analysis: recorded rows under other settings
    report/     tables and one HTML page

`lake/` reads and writes the files of a lake, and lists those that belong to one version of it. `fleet/` generates
recordings of a synthetic fleet. `commands/` has one module per command. Read schemas.py first.
"""
