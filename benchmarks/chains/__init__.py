# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.chains`: the delivered share of a limited topic behind one, two and three streamers in a row.

    publisher, ECU -> streamer 1 -> streamer 2 -> streamer 3 -> application
                               application     application

Four processes and real links: Zenoh over TCP, and SOME/IP over UDP for the last row. Each topic ends behind one
streamer. That streamer has the limit of the row; each streamer before it has 1.5 times the limit of the next one.

The publisher creates messages at the times of a grid with jitter; the ids have these times. *Bunched*: it sends nothing
in the last 60 ms of every 0.3 s and then sends what it created meanwhile. A SOME/IP event has no creation time, so the
last row is steady only.

`share` is delivered / min(published, limit * time). `burst` is the most by which any window of T seconds holds more
messages than limit * T. By arrival at the application it is a figure only: a machine that delays an arrival adds
limit * delay. What holds on any machine is demanded: a window from the sending of its first message to the arrival of
its last one has at most limit * T + 2.5 messages, because both passed the gate in between. Exit code 1 if not so, if a
share is below 0.99, or if messages arrive out of order.

    python -m benchmarks.chains publish ZENOH_PORT SOMEIP_PORT ECU_PORT    the publisher; one line of JSON per command
"""
