# SPDX-License-Identifier: Apache-2.0
"""uStreamer: the Eclipse uProtocol dispatcher of a vehicle gateway ECU."""

__version__ = "0.1.0"
