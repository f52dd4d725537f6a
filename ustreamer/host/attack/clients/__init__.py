# SPDX-License-Identifier: Apache-2.0
"""The nodes of an attacker. They send bytes that no library of the streamer would send."""
