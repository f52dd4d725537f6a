# SPDX-License-Identifier: Apache-2.0
"""What every other package of the core uses, most of it about time: due keys, due calls, pauses, recent failures.

clock.py            the two clocks, and a manual one for tests; read it first
deadline_queue.py   one deadline per key, for all heaps of deadlines
backoff.py          the pause before a retry
timers.py           calls to make at a given time
links.py            the reachability of authorities
decoder.py          the type of a payload decoder
fair_eviction.py    which entry of a full table goes: one of the owner with the most
intrusions.py       peers that are refused again and again
log_limit.py        the field that names what a log line is limited by
recent_failures.py  the latest failures by address, for `ustreamer why`
"""
