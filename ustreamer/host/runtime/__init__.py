# SPDX-License-Identifier: Apache-2.0
"""The process: builds the streamer from its configuration, runs, reloads and drains it.

Read streamer.py first; process.py handles signals.
"""
