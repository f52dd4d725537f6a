# SPDX-License-Identifier: Apache-2.0
"""Payloads by description: what the bytes of a topic mean, for those who show them."""
