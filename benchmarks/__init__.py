# SPDX-License-Identifier: Apache-2.0
"""The streamer against the shortest Python that does the same transport work: `python -m benchmarks`."""
