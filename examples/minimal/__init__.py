# SPDX-License-Identifier: Apache-2.0
"""An ECU, a gateway and an application: `python -m examples.minimal`. The page is README.md."""
