# SPDX-License-Identifier: Apache-2.0
"""Diagnosis: why messages of a topic, to a method or for a subscriber do not flow (`ustreamer why`).

In: an `Evidence`: all that a streamer knows about one address, as values. Out: findings, the cause first: each
has a sentence, the time since when it holds, and what to do. Everything here is pure.

    evidence.py    the values that a diagnosis reads; `ustreamer.host.runtime.evidence` collects them
    findings.py    the finding, and the words that the tables share
    topics.py      a table of checks for a topic, in the order in which a message meets them
    methods.py     the same for a method
    subscribers.py the same for a subscriber, which joins those of its topics

Read evidence.py first, then topics.py.
"""
