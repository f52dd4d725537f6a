# SPDX-License-Identifier: Apache-2.0
"""`ustreamer demo`: a small vehicle on real sockets and real Zenoh sessions, with a streamer in the middle.

In: a duration and the options of the command line. Out: a live table, a final report (text or JSON), and
optionally recordings and a web page of live values.

A simulated ECU (chassis.py) sends SOME/IP events over UDP and serves a climate method. Applications (apps.py)
subscribe through uSubscription at their own rates and call the climate method over Zenoh. The run fails if a message
is unaccounted for; with `--strict` also if a rate is wrong or a call has no response.

Read vehicle.py first: it connects networks, streamer and applications. command.py is the command line; rates.py
measures rates; requirements.py names the packages that are missing.
"""
