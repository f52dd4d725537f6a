# SPDX-License-Identifier: Apache-2.0
"""Configurations of other programs, made into ours.

Read vsomeip.py and up_streamer.py are the two importers.
"""
