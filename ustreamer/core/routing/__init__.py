# SPDX-License-Identifier: Apache-2.0
"""Routing: the attributes of a message go in, its targets or the reason for none go out.

    router.py                 `Router.decide`; read it first
    forwarding.py             the interface to redundant streamers, and the policy without them
    identity.py               verified senders of messages
    access.py                 the access rules of an endpoint
    subscriptions.py          the interface to subscription directories; static and merged directories
    paused_subscriptions.py   a directory that marks the subscriptions whose dispatch is stopped
    sublist.py                address patterns and the values under them
    route_cache.py            the cached route, and its key

For transports and plugins:

    listener_table.py            listeners by address filters, for transports without a table of their own
    subscription_reconciler.py   subscriptions at a remote uSubscription, called until they are as wanted
    usubscription_codec.py       payloads of core.usubscription, versions 3 and 4

Nothing here runs per message, except the look-up key of a cached route and `ListenerTable.deliver`.
"""
