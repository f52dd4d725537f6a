# SPDX-License-Identifier: Apache-2.0
"""The process: it builds the streamer from its configuration, starts, reloads, drains and stops it.

In: a configuration file, signals (SIGTERM, SIGINT, SIGHUP) and admin requests. Out: a running `Streamer`, log
events, and the number of unsent messages at the end.

`Streamer` is the composition root: only streamer.py connects endpoints, queues, services, plugins and the dispatcher.
threads.py has the timer thread, and clock.py reads the real clock.

Read streamer.py first, then process.py (start and signals), control.py (admin requests), reload.py (permitted changes)
and draining.py (last sends). plugins.py finds plugins, advertiser.py announces topics to peers, redrive.py repeats dead
letters.
"""
