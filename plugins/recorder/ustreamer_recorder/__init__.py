# SPDX-License-Identifier: Apache-2.0
"""Recording: what the dispatcher decided about every message, for every target, and when."""
