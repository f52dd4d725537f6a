# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: the streamer next to the shortest Python that does the same transport work.

Each module is one part: `python -m benchmarks` (forwarding), `python -m benchmarks.calls`, and so on. In: options
such as `--quick`. Out: a table on stdout, and figures as JSON. Every figure has a reference that is measured in
alternating rounds of the same run, because the speed of a machine varies.

`benchmarks.suite` runs all parts and writes results.json; docs/performance.md explains the figures. `harness/`
contains shared code, `traffic/` generators, sinks and bare forwarders. Read __main__.py first, then
harness/testbed.py.
"""
