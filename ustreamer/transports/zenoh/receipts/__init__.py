# SPDX-License-Identifier: Apache-2.0
"""Receipts between streamers: who gives them, and which puts have none yet."""
