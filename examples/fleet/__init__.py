# SPDX-License-Identifier: Apache-2.0
"""A vehicle and a cloud: `python -m examples.fleet`. The page is README.md."""
