# SPDX-License-Identifier: Apache-2.0
"""Throttling: forward a topic to each subscriber no faster than the subscriber asked for."""
