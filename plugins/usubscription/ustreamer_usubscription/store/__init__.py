# SPDX-License-Identifier: Apache-2.0
"""The state of the uSubscription on disk: transactions in; subscriptions, topics and events out after a restart.

A request becomes a transaction in memory (transaction.py). The committer writes its changes as records, and the last
events with them (committer.py, history.py). On opening, a child process reads the whole file; checked subscriptions
stay packed until routing needs them (store_contents.py, compact_index.py).

The mechanisms (lock, verify process, quarantine, a full disk) are in `ustreamer.core.storage`. Read store.py first,
then records.py for the bytes.
"""
