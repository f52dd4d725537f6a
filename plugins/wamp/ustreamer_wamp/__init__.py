# SPDX-License-Identifier: Apache-2.0
"""WAMP for uStreamer: dashboards subscribe to the vehicle."""
