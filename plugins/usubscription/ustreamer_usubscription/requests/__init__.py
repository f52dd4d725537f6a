# SPDX-License-Identifier: Apache-2.0
"""The operations of core.usubscription in both versions of its interface.

In: a decoded Request and its caller. Out: changes of a transaction and the Response, or a UStatusError. Decisions
only: the service commits and sends.

Read operations.py first (rules of both versions), then v3.py and v4.py (messages and tables of methods).
"""
