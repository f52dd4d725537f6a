# SPDX-License-Identifier: Apache-2.0
"""The values of the service: a subscription, its lifecycle, observers, declared topics.

Read subscription.py first.
"""
