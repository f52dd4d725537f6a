# SPDX-License-Identifier: Apache-2.0
"""Sockets: datagrams and TCP streams are received and sent here, and nowhere else.

Read receive_loop.py first; udp.py and tcp_connections.py send.
"""
