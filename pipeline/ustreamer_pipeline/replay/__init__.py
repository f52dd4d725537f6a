# SPDX-License-Identifier: Apache-2.0
"""The what-if analysis: recorded rows replayed under other settings.

In: silver files, one gateway after the other and in order, and scenarios. Out: messages and bytes per scenario, link
and subscriber, and a check that the recorded settings reproduce every recorded verdict.

whatif.py runs the replay on Spark; replay.py replays one gateway; gate.py is the vectorized throttle and links.py the
model of an egress queue; whatif_scenarios.py reads scenarios. Read whatif.py first.
"""
