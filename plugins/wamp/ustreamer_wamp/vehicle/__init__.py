# SPDX-License-Identifier: Apache-2.0
"""The vehicle side: WAMP topics and procedures as uProtocol subscriptions and calls.

Read bridge.py first.
"""
