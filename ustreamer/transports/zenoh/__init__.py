# SPDX-License-Identifier: Apache-2.0
"""uProtocol over Zenoh: every message type is a plain put (`up-transport-zenoh` of uProtocol's up-l1)."""
