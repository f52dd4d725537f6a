# SPDX-License-Identifier: Apache-2.0
"""SOME/IP service discovery: a codec and state tables without a socket, a thread or a clock."""
