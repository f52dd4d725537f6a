# SPDX-License-Identifier: Apache-2.0
"""One `[endpoints.<name>]` with `transport = "someip"`: sockets on one side, UMessages on the other.

Read transport.py first; inbound.py and outbound.py are the two directions.
"""
