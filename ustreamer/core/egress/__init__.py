# SPDX-License-Identifier: Apache-2.0
"""The queue of one endpoint: messages in, in order of priority out, each kept until it has a verdict.

Read egress_queue.py first; limits.py has the bounds.
"""
