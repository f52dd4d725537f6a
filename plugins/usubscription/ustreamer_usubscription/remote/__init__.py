# SPDX-License-Identifier: Apache-2.0
"""Topics of other devices: this device subscribes to them once, for all its clients.

In: committed changes of the subscriptions of remote topics, Responses and Updates of other uSubscriptions, link
changes. Out: Subscribe and Unsubscribe Requests, and lifecycle events for the transaction.

Read remote_topics.py first (meaning of messages), then remote_calls.py (policy of the retries, which
`ustreamer.core.routing.subscription_reconciler` carries out). peer_versions.py and version_probes.py have the version
in which a device is called. earlier_upstreams.py ends what an earlier configuration subscribed elsewhere.
"""
