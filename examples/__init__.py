# SPDX-License-Identifier: Apache-2.0
"""Examples for users of the streamer. Each is a folder with a README.md, and imports no other example but rig.py."""
