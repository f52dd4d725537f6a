# SPDX-License-Identifier: Apache-2.0
"""Shared parts of benchmarks: child processes, testbeds, measurements and reports.

In: a testbed (testbed.py) with rigs of generator, forwarder and sink. Out: rounds (measure.py), and medians and
ratios of them (report.py). shared_counters.py connects the processes of a rig; process_tree.py measures CPU and
memory of all of them. Read testbed.py first.
"""
