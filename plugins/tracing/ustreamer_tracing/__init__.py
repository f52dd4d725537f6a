# SPDX-License-Identifier: Apache-2.0
"""Spans of the messages that a streamer forwards, exported by OTLP."""
