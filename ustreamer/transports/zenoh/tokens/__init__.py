# SPDX-License-Identifier: Apache-2.0
"""Liveliness tokens of streamers: which peers are there, and which topics they forward."""
