# SPDX-License-Identifier: Apache-2.0
"""A vehicle of five ECUs and a gateway: `python -m examples.vehicle`. The page is README.md."""
