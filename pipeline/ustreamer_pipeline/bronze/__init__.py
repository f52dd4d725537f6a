# SPDX-License-Identifier: Apache-2.0
"""Bronze: each recording checked, copied and listed in the manifest.

Read landing.py first.
"""
