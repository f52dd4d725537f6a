# SPDX-License-Identifier: Apache-2.0
"""The in-process transport: a multicast domain without a wire, for tests, simulations and plugin authors.

In: messages that an attachment sends. Out: calls of the matching listeners of all other attachments, on the thread of
the sender, before `send` returns. No socket, no thread, no encoding.

config.py     the `[endpoints.<name>]` keys
transport.py  `LocalNetwork` and its attachments, `LocalTransport`; read it first
"""
