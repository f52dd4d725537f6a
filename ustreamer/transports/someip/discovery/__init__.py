# SPDX-License-Identifier: Apache-2.0
"""What service discovery means for an endpoint: located services, ECUs that subscribe, peers.

Read sd_driver.py first: it runs `sd`, and hands its actions to the other modules.
"""
