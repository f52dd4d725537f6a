# SPDX-License-Identifier: Apache-2.0
"""The values of the service: a subscription, its lifecycle, observers, declared topics, states of remote topics.

In: committed changes of a transaction. Out: lookups for requests and for routing. Everything is in memory and belongs
to the thread of the service.

Read subscription.py first, then lifecycle.py for the state machine.
"""
