# SPDX-License-Identifier: Apache-2.0
"""Two gateways between the same networks: `python -m examples.redundant`. The page is README.md."""
