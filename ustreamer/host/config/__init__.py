# SPDX-License-Identifier: Apache-2.0
"""The configuration file: TOML in, checked values out, each error with its place.

Read config.py first; validation.py collects the problems.
"""
