# SPDX-License-Identifier: Apache-2.0
"""The path of a message through the core, from the listener of an endpoint to its egress queues.

Read ingress.py first: `dispatch`, from top to bottom.
"""
