# SPDX-License-Identifier: Apache-2.0
"""uSubscription: the service core.usubscription, versions 3 and 4, as a plugin.

In: Requests of uEntities (Subscribe, Unsubscribe, Fetch, Register, Reset, CreateTopic), Responses and Updates of the
uSubscriptions of other devices. Out: Responses, Updates to subscribers and observers, calls to other devices, and the
directory of subscriptions that the router reads. Every acknowledged change is on disk.

    requests/   the operations of both interface versions
    model/      values: subscription, lifecycle, observers, declared topics
    store/      the transaction, its commit to disk, salvage and migration
    remote/     topics of other devices: calls to their uSubscriptions

Read service.py first: one batch of Requests from the inbox to the Responses.
"""
