# SPDX-License-Identifier: Apache-2.0
"""Values that every other package of the core uses: time goes in, due keys, due calls and link states go out.

clock.py            the two clocks, and a manual one for tests; read it first
deadline_queue.py   one deadline per key, for all heaps of deadlines
backoff.py          the pause before a retry
timers.py           calls to make at a given time
links.py            the reachability of authorities
decoder.py          the type of a payload decoder
"""
