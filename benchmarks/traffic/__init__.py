# SPDX-License-Identifier: Apache-2.0
"""Traffic of benchmarks: generators, sinks, and bare forwarders as references.

Generators, sinks and bare forwarders run as processes. In: commands on stdin. Out: messages on sockets or Zenoh
sessions, and counters in a mapped file. models.py describes the traffic, checks.py judges a run. wire.py encodes the
messages by hand, independently of the streamer.

Read generators.py and sinks.py first.
"""
