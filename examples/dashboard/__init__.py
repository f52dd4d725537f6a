# SPDX-License-Identifier: Apache-2.0
"""A page in a browser that shows values of the vehicle: `python -m examples.dashboard`. The page is README.md."""
