# SPDX-License-Identifier: Apache-2.0
"""Traffic of benchmarks: generators, sinks, and bare forwarders as references.

Each module but wire.py and sockets.py runs as a process. In: commands on stdin. Out: messages on sockets or Zenoh
sessions, and counters in a mapped file. wire.py encodes the messages by hand, independently of the streamer.

Read generators.py and sinks.py first.
"""
