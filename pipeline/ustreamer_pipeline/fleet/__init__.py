# SPDX-License-Identifier: Apache-2.0
"""Recordings of a synthetic fleet, generated from a seed.

In: the size and behaviour of the fleet (`Fleet`). Out: recording files, one folder per vehicle, byte for byte the
same for the same seed. Tests, benchmarks and the command `generate` use them.

plan.py draws topics, targets and outages of a vehicle; traffic.py draws arrival times; fleet.py makes the records,
with the decisions of the real gate. Read fleet.py first.
"""
