# SPDX-License-Identifier: Apache-2.0
"""The wire format of SOME/IP, without I/O: bytes in, values out, and back.

Read codec.py first; mapping.py turns SOME/IP ids into UUris.
"""
