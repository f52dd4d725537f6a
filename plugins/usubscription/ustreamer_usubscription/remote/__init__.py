# SPDX-License-Identifier: Apache-2.0
"""Topics of other devices: subscribed there once, for all local subscribers.

Read remote_topics.py first; remote_calls.py sends and retries.
"""
