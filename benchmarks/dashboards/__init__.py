# SPDX-License-Identifier: Apache-2.0
"""What dashboards cost: `__main__.py` next to none and in two ways, `crossbar.py` next to Crossbar."""

from typing import Final

from benchmarks.traffic import wire

TOPIC: Final = f"up.{wire.ECU}.{wire.SERVICE:x}.0.{wire.MAJOR:x}.{wire.EVENT:x}"
"""The topic of the sending ECU, as dashboards subscribe it."""
