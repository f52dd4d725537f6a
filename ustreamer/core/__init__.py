# SPDX-License-Identifier: Apache-2.0
"""Routing: who gets a message, at which rate, in which order, and what became of it.

Synchronous, without I/O and without a clock of its own. It decides; `ustreamer.host` acts. Read in this order:
sublist, subscriptions, ledger, chain, egress, dead_letter, routes, dispatcher.
"""
