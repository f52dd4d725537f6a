# SPDX-License-Identifier: Apache-2.0
"""`ustreamer attack`: scripted attacks on a copy of a configuration, on loopback.

command         the command: which attacks, in which order, the exit code
config_copy     the copied configuration: loopback addresses, free ports, a state directory of its own
target          the networks of the copy, as an attacker sees them
streamer_copy   `ustreamer run` of the copy, its memory and its counters
probe           a stream of vehicle messages in its own process: latencies and losses (`probe_process`)
scene           what an attack has: the target, nodes of an attacker, a bystander
verdicts        held or broken: pure
report          the table and the JSON of the results
families/       the attacks, one file for each kind of access
clients/        the nodes of an attacker: Zenoh, SOME/IP, WAMP
"""
