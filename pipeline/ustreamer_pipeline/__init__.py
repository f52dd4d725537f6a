# SPDX-License-Identifier: Apache-2.0
"""Recordings of many gateways: taken in, reported, audited, and replayed under other settings. On Spark."""
