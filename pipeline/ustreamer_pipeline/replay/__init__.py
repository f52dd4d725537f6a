# SPDX-License-Identifier: Apache-2.0
"""What other settings would have done: recorded rows replayed under scenarios.

Read whatif.py first; replay.py replays one gateway.
"""
